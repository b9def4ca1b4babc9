//! A child's first moments: from a copy of the template to a VM of its own.
//!
//! What it has from the template and keeps: memory, the frozen state, `/dev/kvm`, the disks' lower layers. Everything
//! else was handed to it with the request. It starts no thread before the vCPUs', opens no file and executes no program.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::control::{
    ChildDescriptor, ChildSpec, ControlError, ControlSocket, FromVmm, Lifetime, RefusalCode, begin_listening,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use virtio::block::{CowDisk, Quota};

use crate::assembly::{BuildError, host_error};
use crate::controls::Controls;
use crate::devices::{Disk, Parts};
use crate::events::Events;
use crate::load::Base;
use crate::reactor::{Reactor, Source};
use crate::serve::{Owner, Running, ServeError};
use crate::stages::Stages;
use crate::sys::trap;
use crate::template::Template;
use crate::vm::Vm;
use crate::{bounded_log, jail};

/// For how long one that does not read what it asked for is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it is waited for at a time.
const ROOM_WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A child that has just been forked.
#[derive(Debug)]
pub(crate) struct Newborn {
    pub(crate) spec: ChildSpec,
    pub(crate) given: Given,
}

/// The descriptors that came for a child.
#[derive(Debug, Default)]
pub(crate) struct Given {
    state: Option<OwnedFd>,
    log: Option<OwnedFd>,
    console: Option<OwnedFd>,
    control: Option<OwnedFd>,
    vsock: Option<OwnedFd>,
    tops: Vec<OwnedFd>,
    tap: Option<OwnedFd>,
    cgroup: Option<OwnedFd>,
    claim: Option<OwnedFd>,
}

impl Given {
    /// Takes what is one child's from those of all.
    pub(crate) fn take(kinds: &[ChildDescriptor], fds: &mut impl Iterator<Item = OwnedFd>) -> Self {
        let mut given = Self::default();
        for (kind, fd) in kinds.iter().zip(fds) {
            let place = match kind {
                ChildDescriptor::State => &mut given.state,
                ChildDescriptor::Log => &mut given.log,
                ChildDescriptor::Console => &mut given.console,
                ChildDescriptor::Control => &mut given.control,
                ChildDescriptor::Vsock => &mut given.vsock,
                ChildDescriptor::Tap => &mut given.tap,
                ChildDescriptor::Cgroup => &mut given.cgroup,
                ChildDescriptor::Claim => &mut given.claim,
                ChildDescriptor::Top => {
                    given.tops.push(fd);
                    continue;
                }
            };
            *place = Some(fd);
        }
        given
    }
}

/// What a template's children would lack if these came for each of them, or have too much of; a sentence.
pub(crate) fn lacks(kinds: &[ChildDescriptor], template: &Template) -> Option<String> {
    let of_kind = |kind| kinds.iter().filter(|each| **each == kind).count();
    let needed = [
        (ChildDescriptor::State, 1),
        (ChildDescriptor::Log, 1),
        (ChildDescriptor::Console, 1),
        (ChildDescriptor::Control, 1),
        (ChildDescriptor::Vsock, 1),
        (ChildDescriptor::Top, usize::from(template.tops())),
        (ChildDescriptor::Tap, usize::from(template.frozen.shape.net.is_some())),
    ];
    let wrong = needed.into_iter().find(|(kind, count)| of_kind(*kind) != *count);
    if let Some((kind, count)) = wrong {
        return Some(format!("a child needs {count} of {kind:?}; {kinds:?} came"));
    }
    let optional = [ChildDescriptor::Cgroup, ChildDescriptor::Claim];
    let doubled = optional.into_iter().find(|kind| of_kind(*kind) > 1)?;
    Some(format!("a child has no more than one of {doubled:?}; {kinds:?} came"))
}

/// Becomes a VM, tells whoever asked for it, and lives until the VM ends.
pub(crate) fn live(template: &mut Template, newborn: Newborn, asker: ControlSocket) -> Result<(), ServeError> {
    let mut stages = Stages::start();
    let Newborn { spec, mut given } = newborn;
    let begun = begin(&mut given).map_err(host_error("the child its log, its control group, and so its limits"));
    let confined = begun.and_then(|()| Ok(jail::settle_as_child(spec.uid, spec.own_cores)?));
    stages.done("jail");
    let settled = confined.and_then(|()| settle(template, &spec, given, &mut stages));
    let mut running = match settled {
        Ok(settled) => settled,
        Err(error) => {
            let (code, message): (RefusalCode, _) = (error.code(), error.to_string());
            log::warn!("not started: {message}");
            tell(&asker, &FromVmm::NotStarted { id: spec.id, code, message })?;
            return Ok(());
        }
    };
    let setup_us = stages.total_us();
    log::debug!("{stages}");
    let started = tell(&asker, &FromVmm::Started { id: spec.id, setup_us });
    match (spec.lifetime, started) {
        (Lifetime::Connection, started) => {
            started?;
            running.reactor.watch_end(&asker, Source::Asker)?;
            running.owner = Owner::Asker(asker);
        }
        // It lives on whether or not anybody is there to hear of it.
        (Lifetime::Detached, Err(error)) => log::info!("who asked for this VM is gone: {error}"),
        (Lifetime::Detached, Ok(())) => drop(asker),
    }
    running.until_the_end()
}

/// Tells whoever asked. Siblings tell theirs by the same connection: when it is full, there will be room once some of it
/// is read.
pub(crate) fn tell(asker: &ControlSocket, event: &FromVmm) -> Result<(), ControlError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match asker.send(event, &[]) {
            Err(ControlError::Io { source })
                if source.kind() == io::ErrorKind::WouldBlock && Instant::now() < until =>
            {
                let mut room = [PollFd::new(asker, PollFlags::OUT)];
                rustix::io::retry_on_intr(|| poll(&mut room, Some(&ROOM_WAIT))).map_err(io::Error::from)?;
            }
            sent => return sent,
        }
    }
}

/// Moves this process into its control group, if it has one.
fn join(cgroup: Option<OwnedFd>) -> io::Result<()> {
    let Some(cgroup) = cgroup else { return Ok(()) };
    // To the system, 0 is whoever writes it.
    rustix::io::retry_on_intr(|| rustix::io::write(&cgroup, b"0"))?;
    Ok(())
}

/// Logs to where it shall, and is counted where it shall be, before anything else.
fn begin(given: &mut Given) -> io::Result<()> {
    if let Some(log) = given.log.take() {
        rustix::stdio::dup2_stderr(&log)?;
        bounded_log::begin_anew();
    }
    trap::report_to(given.state.as_ref().map(AsFd::as_fd));
    join(given.cgroup.take())
}

/// Makes everything of the child's own.
fn settle(template: &mut Template, spec: &ChildSpec, given: Given, stages: &mut Stages) -> Result<Running, BuildError> {
    // Nobody is born without, as `lacks` has seen.
    let (Some(state), Some(console), Some(control), Some(vsock)) =
        (given.state, given.console, given.control, given.vsock)
    else {
        return Err(host_error("what a child is given")(io::ErrorKind::NotFound.into()));
    };
    let state = File::from(state);
    begin_listening(&control).map_err(host_error("a control socket"))?;
    begin_listening(&vsock).map_err(host_error("a vsock socket"))?;
    still_wanted(&state).map_err(host_error("the child its life"))?;
    let reactor = Reactor::new().map_err(host_error("an epoll"))?;
    let events = Arc::new(Events::new().map_err(host_error("an event descriptor"))?);
    reactor.watch(events.wake(), Source::Events).map_err(host_error("an epoll entry"))?;
    let mut controls = Controls::new(Arc::clone(&reactor));
    controls.listen(control).map_err(host_error("an epoll entry"))?;
    stages.done("sockets");
    let quota = spec.disk_limit.map(|bytes| Arc::new(Quota::new(bytes)));
    let disks = disks(template, given.tops, quota.as_ref())?;
    let shape = &template.frozen.shape;
    let (taps, balloon) = (given.tap.into_iter().collect(), template.frozen.has_balloon());
    let parts = Parts { disks, net: shape.net, taps, cid: shape.cid, vsock, balloon };
    let devices = parts.build()?;
    stages.done("devices");
    let vm = Vm::restore(template, devices, console.into(), &reactor, &events, stages)?;
    // Who has none of its own is of the template's user.
    let claim = given.claim.map(Arc::new).or_else(|| template.claim.clone());
    Ok(Running {
        vm,
        reactor,
        events,
        controls,
        owner: Owner::Nobody,
        state: Some(state),
        claim,
        quota,
        kept: Vec::new(),
    })
}

/// Whoever gives a child up before having heard of it first takes the name of its state away and then calls it. A child
/// looks for that name once it can be called: so one of the two finds the other.
fn still_wanted(state: &File) -> io::Result<()> {
    match rustix::fs::fstat(state)?.st_nlink {
        0 => Err(io::Error::new(io::ErrorKind::NotFound, "nobody wants it any more")),
        _ => Ok(()),
    }
}

fn disks(template: &mut Template, tops: Vec<OwnedFd>, quota: Option<&Arc<Quota>>) -> Result<Vec<Disk>, BuildError> {
    let mut disks = Vec::with_capacity(template.disks.len());
    let mut tops = tops.into_iter().map(File::from);
    for base in std::mem::take(&mut template.disks) {
        disks.push(match base {
            Base::ReadOnly(disk) => Disk::ReadOnly(disk),
            Base::Private(layers) => {
                let top = tops.next().ok_or_else(|| io::ErrorKind::NotFound.into());
                let disk = top.and_then(|top| CowDisk::over(layers, top));
                let disk = disk.map_err(host_error("a place for the guest's writes"))?;
                quota.into_iter().for_each(|quota| disk.limit(Arc::clone(quota)));
                Disk::Private(disk)
            }
        });
    }
    Ok(disks)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn each_child_is_given_its_own_descriptors() {
        let pipes: Vec<_> = (0..2).map(|_| rustix::pipe::pipe().unwrap()).collect();
        let mut fds = pipes.into_iter().flat_map(|(reader, writer)| [reader, writer]);
        let kinds = [ChildDescriptor::Tap, ChildDescriptor::Cgroup];
        for _ in 0..2 {
            let Given { tap: Some(reader), cgroup: Some(writer), .. } = Given::take(&kinds, &mut fds) else {
                panic!("both came")
            };
            join(Some(writer)).unwrap();
            let mut said = String::new();
            io::Read::read_to_string(&mut File::from(reader), &mut said).unwrap();
            assert_eq!(said, "0", "the two are of one pipe, and the second is closed after it was used");
        }
        assert!(fds.next().is_none());
        let refused = join(Some(File::open("/dev/null").unwrap().into())).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::BADF.raw_os_error()));
    }

    #[test]
    fn a_full_connection_is_waited_for() {
        let (asker, engine) = ControlSocket::pair().unwrap();
        rustix::io::ioctl_fionbio(&asker, true).unwrap();
        let event = FromVmm::Started { id: "x".into(), setup_us: 1 };
        let mut told = 0;
        while asker.send(&event, &[]).is_ok() {
            told += 1;
        }
        let reader =
            thread::spawn(move || (0..=told).all(|_| engine.recv::<FromVmm>().is_ok_and(|heard| heard.is_some())));
        tell(&asker, &event).unwrap();
        assert!(reader.join().unwrap());
    }
}
