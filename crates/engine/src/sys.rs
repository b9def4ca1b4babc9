//! What has no safe name in the libraries: a child in a session of its own and with limits, locks on bytes of a file,
//! and who else has one open.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit};

/// The child begins a new session, out of reach of the terminal's signals and its end.
pub(crate) fn in_own_session(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and only makes the system call `setsid`, which neither allocates
    // nor takes a lock.
    unsafe { command.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(Into::into)) };
}

/// The child, and what is forked from it, ends when it wants to write to any file beyond this length.
pub(crate) fn limit_files(command: &mut Command, bytes: u64) {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    // SAFETY: the closure runs between fork and exec and only makes the system call `prlimit64`, which neither allocates
    // nor takes a lock.
    unsafe {
        command.pre_exec(move || rustix::process::setrlimit(Resource::Fsize, limit).map_err(Into::into));
    }
}

/// How bytes of a file are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// With others who do the same. Whoever has the file open for reading can.
    Shared = 0, // F_RDLCK
    /// By nobody else. Only whoever has it open for writing can.
    Alone = 1, // F_WRLCK
}

/// Locks bytes, which need not exist, for as long as this opening of the file has a descriptor anywhere; false when
/// another one has locked some of them in a way that does not go with it.
pub(crate) fn lock_bytes(file: &File, at: Range<u64>, how: Lock) -> io::Result<bool> {
    let lock = record_lock(&at, how)?;
    // SAFETY: the structure is there for as long as the call takes, and is only read.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        },
        _ => Ok(true),
    }
}

/// Whether no other opening of the file has locked any of these bytes.
pub(crate) fn are_free(file: &File, at: Range<u64>) -> io::Result<bool> {
    let mut lock = record_lock(&at, Lock::Alone)?;
    // SAFETY: the structure is there for as long as the call takes, and the kernel writes to nothing else.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(i32::from(lock.l_type) == libc::F_UNLCK),
    }
}

fn record_lock(at: &Range<u64>, how: Lock) -> io::Result<libc::flock> {
    let number = |number: u64| i64::try_from(number).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (l_start, l_len) = (number(at.start)?, number(at.end.saturating_sub(at.start))?);
    Ok(libc::flock { l_type: how as i16, l_whence: 0, l_start, l_len, l_pid: 0 })
}

/// Whether anybody, also by a mapping that was left, can write to a file, of which this is an opening for reading only. Of
/// a file system that cannot tell, nobody is believed to.
pub(crate) fn has_writers(file: &File) -> io::Result<bool> {
    // A lease to be the only ones who read is given where nobody writes. It is given back at once: who has no descriptor
    // by now gets none later.
    match lease(file, libc::F_RDLCK) {
        Ok(()) => lease(file, libc::F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            log::warn!("this file system cannot tell who writes to a file");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn lease(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: the call takes two numbers and touches no memory of ours.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
