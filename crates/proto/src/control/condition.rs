//! What a VMM says of itself in a file that it was given for that: it can make none.
//!
//! ```text
//! 0   p or -             paused
//! 1   f or -             the guest was refused a write for want of room
//! 2   vcpu 59            a thread of which kind made which system call that it may not make; the VMM is over
//! ```
//!
//! Whoever reads it believes nothing more than that this VMM says so.

use std::io;
use std::os::fd::AsFd;

/// More than all of it.
const MAX_BYTES: usize = 64;
/// Where a VMM says that it made a system call it may not make.
pub const KILLED_AT: u64 = 2;
/// How long that is at most.
pub const MAX_KILLED: usize = MAX_BYTES - 2;

/// Something that is so or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The VM stands still until it is told to go on.
    Paused,
    /// The guest was refused a write for want of room.
    DiskFull,
}

impl Mark {
    const fn place(self) -> (u64, u8) {
        match self {
            Self::Paused => (0, b'p'),
            Self::DiskFull => (1, b'f'),
        }
    }

    /// Says so, or that it is not so.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(self, state: impl AsFd, so: bool) -> io::Result<()> {
        let (at, byte) = self.place();
        let byte = [if so { byte } else { b'-' }];
        rustix::io::retry_on_intr(|| rustix::io::pwrite(&state, &byte, at))?;
        Ok(())
    }
}

/// A system call that a VMM made and may not make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What kind of thread it was.
    pub thread: String,
    /// The call's number.
    pub call: u32,
}

/// What a VMM says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// It stands still.
    pub paused: bool,
    /// Its guest was refused a write for want of room.
    pub disk_full: bool,
    /// What ended it.
    pub violation: Option<Violation>,
}

impl Condition {
    /// What the file says; what cannot be understood says nothing.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(state: impl AsFd) -> io::Result<Self> {
        let mut bytes = [0; MAX_BYTES];
        let count = rustix::io::retry_on_intr(|| rustix::io::pread(&state, &mut bytes[..], 0))?;
        Ok(Self::of(&bytes[..count]))
    }

    fn of(bytes: &[u8]) -> Self {
        let has = |mark: Mark| bytes.get(usize::from(mark == Mark::DiskFull)) == Some(&mark.place().1);
        let killed = bytes.get(2..).and_then(|rest| std::str::from_utf8(rest).ok());
        let violation = killed.and_then(|text| text.trim_end().split_once(' ')).and_then(|(thread, call)| {
            let named = !thread.is_empty() && thread.bytes().all(|byte| byte.is_ascii_lowercase());
            Some(Violation { thread: named.then(|| thread.to_owned())?, call: call.parse().ok()? })
        });
        Self { paused: has(Mark::Paused), disk_full: has(Mark::DiskFull), violation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_read() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Condition::read(&file).unwrap(), Condition::default());
        Mark::DiskFull.set(&file, true).unwrap();
        Mark::Paused.set(&file, true).unwrap();
        let both = Condition { paused: true, disk_full: true, violation: None };
        assert_eq!(Condition::read(&file).unwrap(), both);
        Mark::Paused.set(&file, false).unwrap();
        assert_eq!(Condition::read(&file).unwrap(), Condition { paused: false, ..both });
        rustix::io::pwrite(&file, b"vcpu 59\n", KILLED_AT).unwrap();
        let violation = Some(Violation { thread: "vcpu".into(), call: 59 });
        assert_eq!(Condition::read(&file).unwrap(), Condition { paused: false, disk_full: true, violation });
    }

    #[test]
    fn nonsense_says_nothing() {
        for odd in [&b"\0\0vcpu"[..], b"--vcpu x", b"-- 59", b"--\xff 1", b"--v\x1b[2J 1", b"--vcpu -1", b"--vcpu 1 1"]
        {
            assert_eq!(Condition::of(odd), Condition::default(), "{odd:?}");
        }
        assert!(Condition::of(&[b'p'; 64]).paused);
    }
}
