//! Users for VMs: each VM that root makes runs as one of its own, for as long as any process of it lives.
//!
//! A user is a number of a range, and that it is taken is a lock on one byte of a file: the VM's process holds the
//! descriptor that has the lock, and so does every copy of it. The kernel lets go of the lock when the last of them is
//! over, however it ended. There is nothing to give back, to sweep, or to forget.
//!
//! That descriptor can only be read, or a VMM that was taken over could fill the file, which stays. So its lock is a shared
//! one, and that nobody else takes the same is the claimer's business: while it looks, it has a lock of its own, on other
//! bytes, for the users that it looks at. Nobody ever waits for one.
//!
//! ```text
//! UID            shared: a VM runs as this user
//! LOOKING + UID  alone: somebody is about to take it, if it is free
//! ```
//!
//! The file is the host's, not that of one forkd: users are the host's, too.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use proto::control::VmUid;

use crate::random::random;
use crate::sys::{self, Lock};

const FILE: &str = "/run/forkd.uids";
/// Where the locks of who looks are: beyond all users.
const LOOKING: u64 = 1 << 32;
/// Which users, as `first-last`, if not the usual.
const VARIABLE: &str = "FORKD_UIDS";
/// Beyond what distributions, containers and systemd give out, and below what some programs take for negative.
const USUAL: Range = Range { first: 2_000_000_000, count: 100_000 };

/// Why a VM has no user.
#[derive(Debug, thiserror::Error)]
pub enum UidError {
    /// All are taken.
    #[error("all {count} users that VMs may run as are taken; set {VARIABLE}=FIRST-LAST to a larger range")]
    Exhausted {
        /// How many there are.
        count: u32,
    },
    /// The range is none.
    #[error("{VARIABLE} is `{text}`; it must be FIRST-LAST, two numbers from 1 to 4294967294")]
    Range {
        /// What it says.
        text: String,
    },
    /// The file cannot be used.
    #[error("cannot use {}, which says who is taken", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
}

impl Range {
    fn from_env() -> Result<Self, UidError> {
        std::env::var(VARIABLE).map_or(Ok(USUAL), |text| Self::parse(&text).ok_or(UidError::Range { text }))
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        VmUid::new(first).and(VmUid::new(last))?;
        Some(Self { first, count: last.checked_sub(first)?.checked_add(1)? })
    }
}

/// A user that is nobody else's while this, or a copy of its descriptor, is open.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) uid: VmUid,
    pub(crate) fd: OwnedFd,
}

/// Users for so many VMs; none when this is not root, who alone can make anybody another user.
pub(crate) fn claim(count: usize) -> Result<Vec<Claim>, UidError> {
    if !rustix::process::geteuid().is_root() || count == 0 {
        return Ok(Vec::new());
    }
    claim_in(Path::new(FILE), Range::from_env()?, count)
}

/// Takes the next numbers that nobody has. Where to begin is random, and from there it goes on: so a number comes back as
/// late as possible.
fn claim_in(path: &Path, range: Range, count: usize) -> Result<Vec<Claim>, UidError> {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let failed = |source| UidError::Io { path: path.into(), source };
    // Without randomness it begins at the beginning.
    let next = NEXT.get_or_init(|| AtomicU32::new(random().map_or(0, u32::from_ne_bytes)));
    let looker = open(path).map_err(failed)?;
    let (mut claims, mut looked_at) = (Vec::with_capacity(count), 0);
    while claims.len() < count {
        if looked_at >= range.count {
            return Err(UidError::Exhausted { count: range.count });
        }
        let wanted = u32::try_from(count - claims.len()).unwrap_or(u32::MAX).min(range.count - looked_at);
        // A run ends where the range does, and the next one begins where this one ends.
        let run_at = |first: u32| wanted.min(range.count - first % range.count);
        let further = |first: u32| Some(first.wrapping_add(run_at(first)));
        let (Ok(first) | Err(first)) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, further);
        let run = run_at(first);
        looked_at += run;
        let first = first % range.count;
        let Some(first) = range.first.checked_add(first) else { continue };
        claims.extend(take(path, &looker, u64::from(first)..u64::from(first) + u64::from(run)).map_err(failed)?);
    }
    Ok(claims)
}

/// Takes those of these users that are free. When somebody else is looking at some of them, none is taken.
fn take(path: &Path, looker: &File, uids: ops::Range<u64>) -> io::Result<Vec<Claim>> {
    if !sys::lock_bytes(looker, LOOKING + uids.start..LOOKING + uids.end, Lock::Alone)? {
        return Ok(Vec::new());
    }
    let all_free = sys::are_free(looker, uids.clone())?;
    let mut claims = Vec::new();
    for uid in uids {
        let Some(named) = u32::try_from(uid).ok().and_then(VmUid::new) else { continue };
        if all_free || sys::are_free(looker, uid..uid + 1)? {
            // Each claim has a descriptor that shares nothing with others.
            let file = File::open(path)?;
            if sys::lock_bytes(&file, uid..uid + 1, Lock::Shared)? {
                claims.push(Claim { uid: named, fd: file.into() });
            }
        }
    }
    Ok(claims)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::fd::AsFd;

    use super::*;

    const FEW: Range = Range { first: 1000, count: 5 };

    #[test]
    fn each_has_one_of_its_own_until_the_last_copy_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uids");
        let mut all = claim_in(&path, FEW, 3).unwrap();
        all.extend((0..2).map(|_| claim_in(&path, FEW, 1).unwrap().remove(0)));
        assert_eq!(all.iter().map(|claim| claim.uid.get()).collect::<BTreeSet<_>>(), (1000..1005).collect());
        assert!(matches!(claim_in(&path, FEW, 1), Err(UidError::Exhausted { count: 5 })));
        let Claim { uid, fd } = all.swap_remove(2);
        let copy = fd.as_fd().try_clone_to_owned().unwrap();
        drop(fd);
        claim_in(&path, FEW, 1).expect_err("a process of it lives");
        drop(copy);
        let again = claim_in(&path, FEW, 1).unwrap().remove(0);
        assert_eq!(again.uid, uid);
        let refused = rustix::io::write(&again.fd, b"x").unwrap_err();
        assert_eq!(refused, rustix::io::Errno::BADF, "who has it cannot fill the file");
    }

    #[test]
    fn no_two_get_the_same_at_the_same_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("uids");
        let many = Range { first: 5000, count: 4000 };
        let claims = crate::pool::each((0..40).collect(), |_: u32| {
            // Who is in another's way looks elsewhere, and may so see all of it without having found enough.
            loop {
                match claim_in(&path, many, 50) {
                    Err(UidError::Exhausted { .. }) => {}
                    claims => return claims.unwrap(),
                }
            }
        });
        let uids: BTreeSet<_> = claims.iter().flatten().map(|claim| claim.uid.get()).collect();
        assert_eq!(uids.len(), 2000);
    }

    #[test]
    fn a_range_is_two_numbers_that_can_be_users() {
        assert_eq!(Range::parse("1000-1004"), Some(FEW));
        assert_eq!(Range::parse(" 7 - 7 "), Some(Range { first: 7, count: 1 }));
        for odd in ["", "7", "-7", "0-9", "9-7", "1-4294967295", "a-b", "1-2-3"] {
            assert_eq!(Range::parse(odd), None, "{odd}");
        }
    }
}
