//! The file systems a Linux machine has besides its root.

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::mount::MountFlags;

use super::InitError;
use super::cmdline::Role;
use crate::console::say;

/// What, where, of which type, how.
struct Mount {
    target: &'static str,
    kind: &'static str,
    flags: MountFlags,
    data: &'static CStr,
}

const fn mount(target: &'static str, kind: &'static str, flags: MountFlags, data: &'static CStr) -> Mount {
    Mount { target, kind, flags, data }
}

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
const PRIVATE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Needed before anything else, and moved along to the root.
pub(crate) const KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Mounts what the kernel itself shows.
pub(crate) fn kernel_filesystems() -> Result<(), InitError> {
    let kinds = [("devtmpfs", MountFlags::NOSUID), ("proc", QUIET), ("sysfs", QUIET)];
    for (target, (kind, flags)) in KERNEL.into_iter().zip(kinds) {
        let data = if kind == "devtmpfs" { c"mode=0755" } else { c"" };
        perform(&mount(target, kind, flags, data)).map_err(|source| refused(kind, Path::new(target), source))?;
    }
    Ok(())
}

/// Makes the console our standard streams: the kernel opened it before its driver was there, or not at all.
pub(crate) fn open_console() -> io::Result<()> {
    let opened = rustix::fs::open("/dev/console", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
        .or_else(|_| rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()));
    let console = opened?;
    rustix::stdio::dup2_stdin(&console)?;
    rustix::stdio::dup2_stdout(&console)?;
    Ok(rustix::stdio::dup2_stderr(&console)?)
}

/// Mounts what programs expect. A kernel may lack any of it, and most programs do without.
pub(crate) fn rest(role: Role) {
    let mounts = [
        mount("/dev/pts", "devpts", MountFlags::NOSUID.union(MountFlags::NOEXEC), c"gid=5,mode=620,ptmxmode=666"),
        mount("/dev/shm", "tmpfs", PRIVATE, c"mode=1777"),
        mount("/dev/mqueue", "mqueue", QUIET, c""),
        mount("/run", "tmpfs", PRIVATE, c"mode=755"),
        mount("/sys/fs/cgroup", "cgroup2", QUIET, c""),
    ];
    for wanted in &mounts {
        report(wanted.target, perform(wanted));
    }
    report("/tmp", temporary());
    for (name, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        let link = Path::new("/dev").join(name);
        report(name, symlink(Path::new("/proc/self").join(target), link));
    }
    if role == Role::Machine {
        report("the cgroup controllers", delegate_controllers(Path::new("/sys/fs/cgroup")));
        for device in ["/dev/kvm", "/dev/net/tun"].map(Path::new) {
            report(&device.display().to_string(), device.metadata().map(drop));
        }
    }
}

/// Mounts an ext4 disk.
pub(crate) fn ext4(device: &Path, target: &Path) -> Result<(), InitError> {
    let done = fs::create_dir_all(target)
        .and_then(|()| Ok(rustix::mount::mount(device, target, "ext4", MountFlags::empty(), c"")?));
    done.map_err(|source| refused(&device.display().to_string(), target, source))
}

fn refused(what: &str, target: &Path, source: io::Error) -> InitError {
    InitError::Mount { what: what.into(), target: target.into(), source }
}

fn perform(mount: &Mount) -> io::Result<()> {
    fs::create_dir_all(mount.target)?;
    Ok(rustix::mount::mount(mount.kind, mount.target, mount.kind, mount.flags, mount.data)?)
}

fn report(what: &str, done: io::Result<()>) {
    match done {
        // What is there already is as good.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => say(format_args!("{what}: {error}")),
        _ => {}
    }
}

/// The image's own `/tmp`, or one in memory where that cannot be written.
fn temporary() -> io::Result<()> {
    let target = Path::new("/tmp");
    if !target.is_dir() && fs::create_dir(target).is_ok() {
        return fs::set_permissions(target, Permissions::from_mode(0o1777));
    }
    if rustix::fs::statvfs(target)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return perform(&mount("/tmp", "tmpfs", PRIVATE, c"mode=1777"));
    }
    Ok(())
}

/// Lets the first level of groups use every controller; one by one, because one refusal refuses all of a write.
fn delegate_controllers(root: &Path) -> io::Result<()> {
    let available = fs::read_to_string(root.join("cgroup.controllers"))?;
    for controller in available.split_ascii_whitespace() {
        if let Err(error) = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}")) {
            say(format_args!("the cgroup controller {controller}: {error}"));
        }
    }
    Ok(())
}
