//! A branch: a running VM and a template of what it is at one instant.
//!
//! ```text
//! source   park vCPUs ─ take state ─ fork(2) ─ new tops ─ resume vCPUs ──────────▶ runs on
//!                                       └─▶ let go of all that is the source's ─ template, listens
//! ```
//!
//! The loop that obeys is the one that serves the devices, so while it is in here no request of the guest is under way.
//! With the vCPUs parked nothing moves: memory, disks, devices and vCPUs are of one instant in both processes.
//!
//! The rule for whoever changes this: between parking and forking no thread may hold a lock or be inside the allocator.
//! vCPU threads wait in [`crate::parking`] and there are no others. After forking, the template keeps memory, the disks'
//! files and `/dev/kvm`; it forgets every other object without dropping it and then closes all other descriptors. It is as
//! confined as its source, and of the same user (see [`crate::jail`]).

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use proto::control::FromVmm;
use rustix::io::Errno;
use virtio::block::{CowDisk, Fresh, Prepared};

use crate::bounded_log;
use crate::freeze::CaptureError;
use crate::frozen::Frozen;
use crate::load::Base;
use crate::serve::{Running, ServeError};
use crate::stages::Stages;
use crate::sys::fork::{self, Forked};
use crate::sys::trap;
use crate::template::{self, Held, Template};
use crate::vm::Vm;
use crate::x86::ready_vcpu::ReadyVcpu;
use crate::x86::vcpu_state::VcpuStateError;

/// So many descriptors are left to connections: each branch after a write takes one for good, the file of a sealed top.
const SPARE_DESCRIPTORS: i32 = 256;

/// Why there is no branch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BranchError {
    /// It has as many tops as a process can have files.
    #[error("it was branched as often as it can be; fork its latest branch, and go on there")]
    Worn,
    /// The files that came with the request.
    #[error("{found} files came with the request to branch, {expected} are needed")]
    Files {
        /// How many came.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// The VM's state cannot be taken.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A new place for the guest's writes.
    #[error("there is no place for what the guest writes next: {source}")]
    Top {
        /// What the system says.
        source: io::Error,
    },
    /// The host has no process left.
    #[error("the host refused a process: {source}")]
    Fork {
        /// What the system says.
        source: io::Error,
    },
    /// Somebody else has the disks.
    #[error("the VM's disks were taken away from it")]
    Taken,
    /// The branch itself could not become a template.
    #[error("the branch cannot be used: {source}")]
    Template {
        /// What is wrong.
        source: VcpuStateError,
    },
}

/// Which of the two this process is.
pub(crate) enum Branched {
    /// The VM, which runs again. What to tell.
    Source(FromVmm),
    /// The template.
    Template(Box<Seed>),
}

/// What a template grows from.
#[derive(Debug)]
pub(crate) struct Seed {
    frozen: Arc<Frozen>,
    listener: OwnedFd,
    log: OwnedFd,
}

impl Vm {
    /// Forks the process at one instant of the VM.
    pub(crate) fn branch(&self, files: Vec<OwnedFd>) -> Result<Branched, BranchError> {
        let (found, expected) = (files.len(), 2 + 3 * self.private_disks().count());
        let mut files = files.into_iter();
        let (Some(listener), Some(log), true) = (files.next(), files.next(), found == expected) else {
            return Err(BranchError::Files { found, expected });
        };
        if !has_spare_descriptors(&listener).map_err(|source| BranchError::Top { source })? {
            return Err(BranchError::Worn);
        }
        let disks = self.prepare(files).map_err(|source| BranchError::Top { source })?;
        let mut stages = Stages::start();
        let frozen = self.capture()?;
        stages.done("stop");
        match fork::fork() {
            Ok(Forked::Child) => Ok(Branched::Template(Box::new(Seed { frozen, listener, log }))),
            Ok(Forked::Parent(pid)) => {
                stages.done("fork");
                // What was written so far is the template's too, and never written again.
                let sealed: Vec<_> = disks.into_iter().filter_map(Prepared::seal).collect();
                self.go_on();
                drop(sealed);
                let pause_us = stages.total_us();
                stages.done("disks");
                log::debug!("{stages}");
                Ok(Branched::Source(FromVmm::Branched { pid: pid.as_raw_nonzero().get(), pause_us }))
            }
            Err(source) => {
                self.go_on();
                Err(BranchError::Fork { source })
            }
        }
    }

    /// What its guest writes to, for who opens it once more.
    pub(crate) fn tops(&self) -> io::Result<Vec<File>> {
        self.private_disks().map(CowDisk::top).collect()
    }

    /// While the guest still runs; with three files for each writable disk. Whatever could fail does so here: once there
    /// is a template, nothing may keep the disks from being sealed.
    fn prepare(&self, files: impl Iterator<Item = OwnedFd>) -> io::Result<Vec<Prepared>> {
        let mut files = files.map(File::from);
        let prepare = |disk: &CowDisk| {
            let (Some(written), Some(read), Some(present)) = (files.next(), files.next(), files.next()) else {
                return Err(io::ErrorKind::NotFound.into());
            };
            disk.prepare(Fresh { written, read }, present)
        };
        self.private_disks().map(prepare).collect()
    }
}

/// Whether there are more to be had than are left to others. A new one gets the lowest number that is free, so this one has
/// a number like how many there are; which is the highest the kernel tells only who asks for one beyond it.
fn has_spare_descriptors(latest: &OwnedFd) -> io::Result<bool> {
    match rustix::io::fcntl_dupfd_cloexec(latest, latest.as_raw_fd().saturating_add(SPARE_DESCRIPTORS)) {
        Ok(_) => Ok(true),
        Err(Errno::INVAL | Errno::MFILE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Becomes a template, and serves until it is told to stop. In the forked process only.
pub(crate) fn become_template(source: Running, seed: Seed) -> Result<(), ServeError> {
    let Seed { frozen, listener, log } = seed;
    // Its state is the source's to tell.
    trap::report_to(None);
    let (kvm, ram, claim) = (Arc::clone(&source.vm.kvm), source.vm.ram.clone(), source.claim.clone());
    let msr_indices = Arc::clone(&source.vm.msr_indices);
    let disks: Option<Vec<Base>> = source.vm.disks.iter().map(Base::of_branched).collect();
    // Its threads do not exist here, and its descriptors are about to be others': nothing of it may ever be dropped.
    let _source = ManuallyDrop::new(source);
    let disks = disks.ok_or(BranchError::Taken)?;
    rustix::stdio::dup2_stderr(&log).map_err(io::Error::from)?;
    bounded_log::begin_anew();
    let mut keep = vec![kvm.as_raw_fd(), listener.as_raw_fd()];
    keep.extend(ram.image.as_ref().map(AsRawFd::as_raw_fd));
    keep.extend(disks.iter().flat_map(Base::descriptors));
    keep.extend(claim.as_ref().map(AsRawFd::as_raw_fd));
    drop(log);
    fork::close_all_but(&keep)?;
    // No rehearsal: whoever wants a grandchild would wait longest for the end of the VM that it takes.
    let vcpus = frozen.vcpus.iter().map(ReadyVcpu::of_here).collect::<Result<_, _>>();
    let vcpus = vcpus.map_err(|source| BranchError::Template { source })?;
    template::keep(Held::Vm(Template { kvm, frozen, vcpus, ram, disks, msr_indices, claim }), listener)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    /// Run by the test below in a process of its own. By itself it does nothing.
    #[test]
    fn process_with_few_descriptors() {
        if std::env::var_os("VMM_HAS_FEW").is_none() {
            return;
        }
        let latest = OwnedFd::from(File::open("/dev/null").unwrap());
        let enough = u64::try_from(latest.as_raw_fd() + SPARE_DESCRIPTORS).unwrap() + 1;
        for (most, expected) in [(enough, true), (enough - 1, false)] {
            setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..getrlimit(Resource::Nofile) }).unwrap();
            assert_eq!(has_spare_descriptors(&latest).unwrap(), expected, "of {most}");
        }
    }

    #[test]
    fn the_last_descriptors_are_left_to_others() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "branch::tests::process_with_few_descriptors", "--test-threads", "1"])
            .env("VMM_HAS_FEW", "1")
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }
}
