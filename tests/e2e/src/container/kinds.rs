//! A tree with a file of every kind, name, owner, time and attribute that a file system can have.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr, makedev, mknodat, utimensat,
};

/// May bind to low ports, as `setcap cap_net_bind_service=ep` has it: revision 2, effective.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The owner reads and writes, user 1234 reads, as does the mask; the group and others do nothing.
const ACL: &[(u16, u16, u32)] = &[(1, 6, NOBODY), (2, 4, 1234), (4, 0, NOBODY), (16, 4, NOBODY), (32, 0, NOBODY)];
const NOBODY: u32 = u32::MAX;
/// Seconds of all that is made, and of what was made long before and long after.
const TIMES: [i64; 4] = [1_500_000_000, -1, 0, 5_000_000_000];

/// What there is that is neither file, directory nor symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// All kinds, some with two names.
    All,
    /// Those that GNU tar puts into an archive: no sockets, and one name each.
    Archived,
}

/// Makes it.
pub(crate) fn make(root: &Path, nodes: Nodes) -> Result<()> {
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("dir/below"))?;
    fs::create_dir(at("empty"))?;
    fs::write(at("file"), "text")?;
    fs::write(at("nothing"), "")?;
    fs::write(at("dir/below/long"), (0u32..50_000).flat_map(u32::to_le_bytes).collect::<Vec<_>>())?;
    let sparse = File::create(at("sparse"))?;
    sparse.set_len(3 << 20)?;
    sparse.write_all_at(b"begin", 0)?;
    sparse.write_all_at(b"middle", (2 << 20) + 7)?;
    File::create(at("hole"))?.set_len(1 << 20)?;
    symlink("file", at("short"))?;
    symlink("x/".repeat(1000), at("longer than an inode has room for"))?;
    symlink("/", at("dir/root"))?;
    let node = |name: &str, kind, device| mknodat(CWD, at(name), kind, Mode::from(0o644), device);
    node("fifo", FileType::Fifo, 0)?;
    node("character", FileType::CharacterDevice, makedev(1, 3))?;
    node("block", FileType::BlockDevice, makedev(259, 1_000_000))?;
    if nodes == Nodes::All {
        node("socket", FileType::Socket, 0)?;
        fs::hard_link(at("fifo"), at("dir/fifo too"))?;
        fs::hard_link(at("block"), at("block too"))?;
    }
    for (name, other) in [("file", "again"), ("short", "short too")] {
        fs::hard_link(at(name), at(other))?;
    }
    fs::write(root.join(OsStr::from_bytes(b"not \xff\xfe UTF-8")), "bytes")?;
    fs::write(at(&"n".repeat(255)), "long name")?;
    fs::write(at("new\nline \\ \"quoted\" \u{e9}"), "")?;
    fs::write(at(".wh.not a whiteout"), "")?;
    attributes(root)?;
    owners_and_modes(root)?;
    times(root)
}

fn attributes(root: &Path) -> Result<()> {
    let set = |name: &str, key: &str, value: &[u8]| lsetxattr(root.join(name), key, value, XattrFlags::empty());
    set("file", "user.comment", b"\0binary\xff\n=")?;
    set("file", "user.empty", b"")?;
    set("nothing", "security.capability", &CAPABILITY)?;
    set("sparse", "user.long", &[7; 2000])?;
    set("dir", "user.of a directory", b"x")?;
    let acl = |entries: &[(u16, u16, u32)]| {
        let words = entries
            .iter()
            .flat_map(|(tag, may, id)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat());
        2u32.to_le_bytes().into_iter().chain(words).collect::<Vec<u8>>()
    };
    set("file", "system.posix_acl_access", &acl(ACL))?;
    set("dir", "system.posix_acl_default", &acl(ACL))?;
    Ok(())
}

fn owners_and_modes(root: &Path) -> Result<()> {
    // Ownership first: it takes set-user-id and capabilities away.
    for (name, uid, gid) in [
        ("file", 70_000, 3),
        ("dir", 4_000_000_000, 4_000_000_001),
        ("short", 5, 6),
        ("fifo", 7, 8),
        ("character", 9, 10),
    ] {
        lchown(root.join(name), Some(uid), Some(gid))?;
    }
    for (name, mode) in [("empty", 0o1777), ("dir/below/long", 0o6751), ("fifo", 0o600), ("hole", 0o000)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// What is below first, as what is done there changes a directory's time.
fn times(dir: &Path) -> Result<()> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir)? {
        paths.push(entry?.path());
    }
    paths.sort();
    for (path, secs) in paths.iter().zip(TIMES.into_iter().cycle()) {
        if path.symlink_metadata()?.is_dir() {
            times(path)?;
        }
        set_time(path, secs)?;
    }
    set_time(dir, TIMES[0])
}

fn set_time(path: &Path, secs: i64) -> Result<()> {
    let time = Timespec { tv_sec: secs, tv_nsec: 123_456_789 };
    utimensat(CWD, path, &Timestamps { last_access: time, last_modification: time }, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}
