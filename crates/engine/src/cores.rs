//! Cores of the CPU that have more than one hardware thread: what runs on one of them can measure what runs on the other.

use std::io;

use rustix::io::Errno;
use rustix::thread::CoreSchedulingScope;

/// With whom a sandbox shares a core at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cores {
    /// With whatever the host runs.
    #[default]
    Shared,
    /// With nobody.
    Own,
}

/// Why cores cannot be kept apart.
#[derive(Debug, thiserror::Error)]
pub enum CoresError {
    /// The kernel does not know how.
    #[error(
        "this kernel has no core scheduling (Linux 5.14, CONFIG_SCHED_CORE), so sandboxes cannot be kept off each other's \
         cores; boot with nosmt, or do without --core-scheduling"
    )]
    Unsupported,
    /// The system says no.
    #[error("whether this kernel has core scheduling cannot be found out")]
    Io {
        /// What the system says.
        source: io::Error,
    },
}

impl Cores {
    /// Makes sure that it can be had here. A host without hardware threads has nothing to share.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(self) -> Result<(), CoresError> {
        if self == Self::Shared {
            return Ok(());
        }
        let found = rustix::thread::core_scheduling_cookie(rustix::process::getpid(), CoreSchedulingScope::Thread);
        judge(found.map(|_| ()))
    }
}

fn judge(found: Result<(), Errno>) -> Result<(), CoresError> {
    match found {
        Ok(()) | Err(Errno::NODEV) => Ok(()),
        Err(Errno::INVAL | Errno::NOSYS) => Err(CoresError::Unsupported),
        Err(errno) => Err(CoresError::Io { source: errno.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_cannot_is_told_from_a_host_that_need_not() {
        Cores::Shared.check().unwrap();
        assert!(judge(Ok(())).is_ok() && judge(Err(Errno::NODEV)).is_ok());
        assert!(matches!(judge(Err(Errno::INVAL)), Err(CoresError::Unsupported)));
        assert!(matches!(judge(Err(Errno::PERM)), Err(CoresError::Io { .. })));
        assert!(!matches!(Cores::Own.check(), Err(CoresError::Io { .. })), "this kernel can or cannot");
    }
}
