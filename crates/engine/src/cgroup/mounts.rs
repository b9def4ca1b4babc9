//! Where the cgroup v2 hierarchy is: anywhere, and beside the old ones on hosts that have both.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const KIND: &[u8] = b"cgroup2";

/// Every place where it is mounted, each part of it once: it is one hierarchy, wherever it is looked at.
pub(super) fn hierarchies() -> io::Result<Vec<PathBuf>> {
    Ok(distinct(in_mountinfo(&fs::read("/proc/self/mountinfo")?)))
}

/// Those that are not the same directory as one before. What cannot be looked at is for others to complain about.
fn distinct(mut places: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    places.retain(|place| fs::metadata(place).map_or(true, |found| seen.insert((found.dev(), found.ino()))));
    places
}

/// A line is `id parent device root PLACE options optional... - KIND source options`.
fn in_mountinfo(text: &[u8]) -> Vec<PathBuf> {
    let place = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let place = fields.nth(4)?.to_vec();
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        (kind == KIND).then(|| PathBuf::from(OsString::from_vec(plain(&place))))
    };
    text.split(|byte| *byte == b'\n').filter_map(place).collect()
}

/// A path as it is: the system writes blanks and the like as `\040`.
fn plain(escaped: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    bytes
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_of_a_host_that_has_only_it() {
        let text = b"22 1 0:5 / /proc rw,relatime shared:5 - proc proc rw\n\
                     29 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:7 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(in_mountinfo(text), [PathBuf::from("/sys/fs/cgroup")]);
    }

    #[test]
    fn the_one_beside_the_old_ones() {
        let text = b"30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
                     31 30 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
                     32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     33 30 0:29 / /a\\040b\\134 rw - cgroup2 none rw\n";
        assert_eq!(in_mountinfo(text), [PathBuf::from("/sys/fs/cgroup/unified"), PathBuf::from("/a b\\")]);
    }

    #[test]
    fn a_place_that_is_mounted_twice_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two, again) = (dir.path().join("one"), dir.path().join("two"), dir.path().join("again"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        std::os::unix::fs::symlink(&one, &again).unwrap();
        let gone = dir.path().join("gone");
        assert_eq!(distinct(vec![one.clone(), two.clone(), again, gone.clone()]), [one, two, gone]);
    }

    #[test]
    fn what_is_no_such_line_is_passed_over() {
        for text in [&b""[..], b"\n\n", b"cgroup2", b"1 2 3 4 /x rw cgroup2", b"1 2 3 4 /x rw -", b"\xff \xff"] {
            assert!(in_mountinfo(text).is_empty(), "{text:?}");
        }
        assert_eq!(plain(b"\\04"), b"\\04");
        assert_eq!(plain(b"\\999"), b"\\999");
    }
}
