//! A child's first moments: from a copy of the template to a VM of its own.
//!
//! What it has from the template and keeps: memory, the frozen state, `/dev/kvm`, the disks' lower layers. Everything
//! else it makes itself, in its own directory. It starts no thread before the vCPUs' and executes no program.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::control::{ChildDescriptor, ChildSpec, ControlError, ControlSocket, FromVmm, Lifetime, RefusalCode, listen};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use virtio::block::{CowDisk, Quota};

use crate::assembly::{BuildError, host_error};
use crate::bounded_log;
use crate::controls::Controls;
use crate::devices::{Disk, Parts};
use crate::events::Events;
use crate::load::Base;
use crate::reactor::{Reactor, Source};
use crate::serve::{Owner, Running, ServeError};
use crate::stages::Stages;
use crate::template::Template;
use crate::vm::Vm;

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
    tap: Option<OwnedFd>,
    cgroup: Option<OwnedFd>,
}

impl Given {
    /// Takes what is one child's from those of all.
    pub(crate) fn take(kinds: &[ChildDescriptor], fds: &mut impl Iterator<Item = OwnedFd>) -> Self {
        let mut given = Self::default();
        for (kind, fd) in kinds.iter().zip(fds) {
            match kind {
                ChildDescriptor::Tap => given.tap = Some(fd),
                ChildDescriptor::Cgroup => given.cgroup = Some(fd),
            }
        }
        given
    }
}

/// Becomes a VM, tells whoever asked for it, and lives until the VM ends.
pub(crate) fn live(template: &mut Template, newborn: Newborn, asker: ControlSocket) -> Result<(), ServeError> {
    let mut stages = Stages::start();
    let Newborn { spec, given: Given { tap, cgroup } } = newborn;
    let joined = join(cgroup).map_err(host_error("the child its control group, and so its limits"));
    let settled = joined.and_then(|()| settle(template, &spec, tap, &mut stages));
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
pub(crate) fn join(cgroup: Option<OwnedFd>) -> io::Result<()> {
    let Some(cgroup) = cgroup else { return Ok(()) };
    // To the system, 0 is whoever writes it.
    rustix::io::retry_on_intr(|| rustix::io::write(&cgroup, b"0"))?;
    Ok(())
}

/// Makes everything of the child's own.
fn settle(
    template: &mut Template,
    spec: &ChildSpec,
    tap: Option<OwnedFd>,
    stages: &mut Stages,
) -> Result<Running, BuildError> {
    let home = occupy(&spec.dir).map_err(host_error("the child's directory"))?;
    let listener = listen(&spec.dir.join("control.sock")).map_err(host_error("a control socket"))?;
    let console = spec.dir.join("console.log");
    let console = File::create(&console).map_err(|source| BuildError::Console { path: console, source })?;
    let reactor = Reactor::new().map_err(host_error("an epoll"))?;
    let events = Arc::new(Events::new().map_err(host_error("an event descriptor"))?);
    reactor.watch(events.wake(), Source::Events).map_err(host_error("an epoll entry"))?;
    let mut controls = Controls::new(Arc::clone(&reactor));
    controls.listen(listener).map_err(host_error("an epoll entry"))?;
    stages.done("directory");
    let quota = spec.disk_limit.map(|bytes| Arc::new(Quota::new(bytes)));
    let devices = parts(template, spec, tap, quota.as_ref())?.build()?;
    stages.done("devices");
    let vm = Vm::restore(template, devices, console, &reactor, &events, stages)?;
    Ok(Running { vm, reactor, events, controls, owner: Owner::Nobody, home: Some(home), quota })
}

/// Says to whoever looks at the directory that somebody lives there, and logs into it.
fn occupy(dir: &Path) -> io::Result<File> {
    let home = File::open(dir)?;
    rustix::fs::flock(&home, FlockOperation::NonBlockingLockShared)?;
    let log = File::create(dir.join("vmm.log"))?;
    rustix::stdio::dup2_stderr(&log)?;
    bounded_log::begin_anew();
    Ok(home)
}

fn parts(
    template: &mut Template,
    spec: &ChildSpec,
    tap: Option<OwnedFd>,
    quota: Option<&Arc<Quota>>,
) -> Result<Parts, BuildError> {
    let shape = &template.frozen.shape;
    let mut disks = Vec::with_capacity(template.disks.len());
    for base in std::mem::take(&mut template.disks) {
        disks.push(match base {
            Base::ReadOnly(disk) => Disk::ReadOnly(disk),
            Base::Private(layers) => {
                let disk = CowDisk::over(layers, &template.tops);
                let disk = disk.map_err(host_error("a place for the guest's writes"))?;
                quota.into_iter().for_each(|quota| disk.limit(Arc::clone(quota)));
                Disk::Private(disk)
            }
        });
    }
    let vsock = spec.dir.join("vsock.sock");
    Ok(Parts { disks, net: shape.net, taps: tap.into_iter().collect(), cid: shape.cid, vsock })
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
            let Given { tap: Some(reader), cgroup: Some(writer) } = Given::take(&kinds, &mut fds) else {
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
