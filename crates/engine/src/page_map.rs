//! The page map of another process, for it to read.

use std::fs::File;
use std::io;

use rustix::thread::CapabilitySet;

/// Opens the page map of a process. Whoever has the descriptor can read it, but not where in the host's memory the pages
/// lie: the system shows that to those who opened it with the right to administer the host, which is put aside for the
/// moment.
pub(crate) fn open(pid: i32) -> io::Result<File> {
    let mine = rustix::thread::capabilities(None)?;
    let mut fewer = mine;
    fewer.effective.remove(CapabilitySet::SYS_ADMIN);
    // Of this thread only.
    rustix::thread::set_capabilities(None, fewer)?;
    let opened = File::open(format!("/proc/{pid}/pagemap"));
    rustix::thread::set_capabilities(None, mine)?;
    opened
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn pages_are_told_and_not_where_they_lie() {
        const PRESENT: u64 = 1 << 63;
        const FRAME: u64 = (1 << 55) - 1;
        let here = Box::new([7_u8; 4096]);
        let map = open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, (here.as_ptr().addr() / 4096 * 8) as u64).unwrap();
        let entry = u64::from_ne_bytes(entry);
        assert_eq!((entry & PRESENT != 0, entry & FRAME), (true, 0));
        assert_eq!(here[0], 7);
    }
}
