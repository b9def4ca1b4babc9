//! What a VMM that was taken over tries, for the tests of the jail: raw system calls, in a process made for it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use proto::control::VmUid;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};
use serde::{Deserialize, Serialize};

use super::fork::{self, Forked};
use super::{kick, trap};
use crate::jail::{self, Kind, confine};

/// Whether a process is over, which it stays until it is waited for.
const IS_OVER: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// What is tried.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Act {
    OpenFile,
    /// By the way of a directory of the host's that is open.
    OpenAbove,
    MakeFile,
    ConnectToDaemon,
    /// With a socket that is there.
    ConnectToSibling,
    PtraceSibling,
    ReadSibling,
    KillSibling,
    KillSiblingsThread,
    /// With the signal that the C library aborts with.
    AbortSibling,
    /// With the signal that calls vCPUs out of their guests.
    KickSibling,
    /// By a timer, as vCPUs are called.
    TimeSibling,
    /// The same, to a thread of one's own.
    TimeItself,
    ReniceSibling,
    /// Everybody who is of the same user.
    ReniceUser,
    Execute,
    MapCode,
    ProtectCode,
    Mount,
    MakeNamespace,
    CloneNamespace,
    EnterNamespace,
    Clone3,
    BecomeRoot,
    BecomeSibling,
    TakeCapabilities,
    Fork,
    Send,
    /// Something that a VMM asks of KVM.
    Kvm,
    /// Something that none does: a device in the kernel.
    KvmDevice,
    TypeIntoTerminal,
    /// By accident: memory that is not there.
    Crash,
    /// As a panic does.
    Abort,
    /// A system call without arguments that make sense.
    Call(libc::c_long),
}

/// What stands in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Layers {
    None,
    WithoutFilter,
    All,
    AllAsVcpu,
    AllAsWriter,
    AllAsTemplate,
}

/// Who the sibling is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sibling {
    /// A VM of another user.
    Stranger,
    /// A VM of the same user.
    Relative,
    /// No VM at all, and root.
    Root,
}

/// Tries it in a copy of this process, beside a sibling, and prints how that ended: 0 is success.
pub(crate) fn run(act: Act, layers: Layers, beside: Sibling, world: &Path, [uid, stranger]: [VmUid; 2]) {
    trap::install().unwrap();
    kick::install().unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let sibling = copy(|| {
        let layers = if matches!(layers, Layers::None | Layers::WithoutFilter) { layers } else { Layers::All };
        match beside {
            Sibling::Stranger => enter(layers, Some(stranger)).unwrap(),
            Sibling::Relative => enter(layers, Some(uid)).unwrap(),
            Sibling::Root => {}
        }
        rustix::io::write(&writer, b"x").unwrap();
        pause()
    });
    File::from(reader).read_exact(&mut [0]).unwrap();
    let state = File::create(world.join("state")).unwrap();
    let tools = Tools {
        world: world.to_owned(),
        directory: File::open(world).unwrap(),
        socket: File::from(rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap()),
        namespace: File::open("/proc/self/ns/net").unwrap(),
        sibling,
    };
    let hostile = copy(|| {
        trap::report_to(Some(state.as_fd()));
        enter(layers, Some(uid)).unwrap();
        match attempt(act, &tools) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(255),
        }
    });
    let (_, status) = rustix::process::waitpid(Some(hostile), WaitOptions::empty()).unwrap().unwrap();
    let ended = rustix::process::waitid(WaitId::Pid(sibling), IS_OVER).unwrap();
    assert!(ended.is_none() || layers == Layers::None, "the sibling was ended: {ended:?}");
    // Also one that is over already, if that was tried, is there until it is waited for.
    rustix::process::kill_process(sibling, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(sibling), WaitOptions::empty()).unwrap();
    let by_signal = status.terminating_signal().map(|signal| 128 + signal);
    println!("\nthe try ended with {}", status.exit_status().or(by_signal).unwrap_or(255));
    io::stdout().flush().unwrap();
}

/// What `/proc` has of a process that has entered the jail and does nothing: its status, and its limits.
pub(crate) fn seen_in_jail(uid: VmUid) -> [String; 2] {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let jailed = copy(|| {
        enter(Layers::All, Some(uid)).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        pause()
    });
    drop(writer);
    File::from(reader).read_exact(&mut [0]).unwrap();
    let read = |file| std::fs::read_to_string(format!("/proc/{}/{file}", jailed.as_raw_nonzero())).unwrap();
    let seen = ["status", "limits"].map(read);
    rustix::process::kill_process(jailed, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(jailed), WaitOptions::empty()).unwrap();
    seen
}

/// A copy of this process that does something and ends with this code.
fn copy(does: impl FnOnce() -> i32) -> Pid {
    match fork::fork().unwrap() {
        Forked::Parent(pid) => pid,
        Forked::Child => {
            let code = does();
            // SAFETY: ends the process, and touches nothing of it.
            unsafe { libc::_exit(code) }
        }
    }
}

fn enter(layers: Layers, uid: Option<VmUid>) -> Result<(), jail::JailError> {
    match layers {
        Layers::None => Ok(()),
        Layers::WithoutFilter => jail::enter_but_for_the_filter(uid),
        Layers::All => jail::enter_as_vm(uid),
        Layers::AllAsVcpu => jail::enter_as_vm(uid).and_then(|()| Ok(confine(Kind::Vcpu)?)),
        Layers::AllAsTemplate => jail::enter_as_template(),
        Layers::AllAsWriter => jail::enter_as_vm(uid).and_then(|()| Ok(confine(Kind::Writer)?)),
    }
}

/// Waits until it is killed.
fn pause() -> i32 {
    loop {
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut [], None)).unwrap();
    }
}

/// What lies around.
struct Tools {
    world: std::path::PathBuf,
    directory: File,
    socket: File,
    namespace: File,
    sibling: Pid,
}

/// Makes a call as raw as it gets.
fn call(number: libc::c_long, arguments: [usize; 6]) -> io::Result<i64> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the callers below pass what the call needs for as long as it takes, or nonsense that the kernel refuses.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

fn flags(bits: i32) -> usize {
    bits.unsigned_abs() as usize
}

fn attempt(act: Act, tools: &Tools) -> io::Result<()> {
    let sibling = flags(tools.sibling.as_raw_nonzero().get());
    let nothing = [0; 6];
    match act {
        Act::OpenFile => File::open(tools.world.join("secret")).map(drop),
        Act::OpenAbove => {
            let above = format!("../{}/secret", tools.world.file_name().unwrap().display());
            rustix::fs::openat(&tools.directory, above, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?;
            Ok(())
        }
        Act::MakeFile => File::create("/file").map(drop),
        Act::ConnectToDaemon => std::os::unix::net::UnixStream::connect(tools.world.join("daemon.sock")).map(drop),
        Act::ConnectToSibling => {
            let address = rustix::net::SocketAddrUnix::new(tools.world.join("control.sock"))?;
            Ok(rustix::net::connect(&tools.socket, &address)?)
        }
        Act::PtraceSibling => call(libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, sibling, 0, 0, 0, 0]).map(drop),
        Act::ReadSibling => {
            let (mut to, from) = ([0_u8; 1], [7_u8; 1]);
            let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 1 };
            let remote = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: 1 };
            let (local, remote) = ((&raw const local).addr(), (&raw const remote).addr());
            call(libc::SYS_process_vm_readv, [sibling, local, 1, remote, 1, 0]).map(drop)
        }
        Act::KillSibling => call(libc::SYS_kill, [sibling, flags(libc::SIGKILL), 0, 0, 0, 0]).map(drop),
        Act::KillSiblingsThread => call(libc::SYS_tgkill, [sibling, sibling, flags(libc::SIGKILL), 0, 0, 0]).map(drop),
        Act::AbortSibling => call(libc::SYS_tgkill, [sibling, sibling, flags(libc::SIGABRT), 0, 0, 0]).map(drop),
        Act::TimeSibling => kick::Kick::give(tools.sibling)?.map(drop).ok_or(io::ErrorKind::NotFound.into()),
        Act::TimeItself => kick::Kick::give(rustix::thread::gettid()).map(drop),
        Act::ReniceSibling => {
            call(libc::SYS_setpriority, [libc::PRIO_PROCESS as usize, sibling, 19, 0, 0, 0]).map(drop)
        }
        Act::ReniceUser => call(libc::SYS_setpriority, [libc::PRIO_USER as usize, 0, 19, 0, 0, 0]).map(drop),
        Act::KickSibling => call(libc::SYS_tgkill, [sibling, sibling, flags(libc::SIGRTMIN()), 0, 0, 0]).map(drop),
        Act::Execute => {
            let arguments = [c"/bin/true".as_ptr(), std::ptr::null()];
            call(libc::SYS_execve, [arguments[0].addr(), arguments.as_ptr().addr(), 0, 0, 0, 0]).map(drop)
        }
        Act::MapCode => {
            let (protection, kind) =
                (flags(libc::PROT_READ | libc::PROT_EXEC), flags(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS));
            call(libc::SYS_mmap, [0, 4096, protection, kind, usize::MAX, 0]).map(drop)
        }
        Act::ProtectCode => {
            call(libc::SYS_mprotect, [0, 4096, flags(libc::PROT_READ | libc::PROT_EXEC), 0, 0, 0]).map(drop)
        }
        Act::Mount => Ok(rustix::mount::mount("none", "/", "tmpfs", rustix::mount::MountFlags::empty(), None)?),
        Act::MakeNamespace => call(libc::SYS_unshare, [flags(libc::CLONE_NEWNS), 0, 0, 0, 0, 0]).map(drop),
        Act::CloneNamespace => cloned([flags(libc::CLONE_NEWNS | libc::SIGCHLD), 0, 0, 0, 0, 0]),
        Act::EnterNamespace => call(libc::SYS_setns, [flags(tools.namespace.as_raw_fd()), 0, 0, 0, 0, 0]).map(drop),
        Act::Clone3 => call(libc::SYS_clone3, nothing).map(drop),
        Act::BecomeRoot => call(libc::SYS_setresuid, nothing).map(drop),
        Act::BecomeSibling => call(libc::SYS_setresuid, [sibling; 6]).map(drop),
        Act::TakeCapabilities => call(libc::SYS_capset, nothing).map(drop),
        Act::Fork => cloned([flags(libc::SIGCHLD), 0, 0, 0, 0, 0]),
        Act::Send => match call(libc::SYS_sendmsg, [usize::MAX, 0, 0, 0, 0, 0]) {
            // It was made, of a descriptor that there is not.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
            other => other.map(drop),
        },
        Act::Kvm => call(libc::SYS_ioctl, [usize::MAX, 0xae01, 0, 0, 0, 0]).map(drop),
        Act::KvmDevice => call(libc::SYS_ioctl, [usize::MAX, 0xc00c_aee0, 0, 0, 0, 0]).map(drop),
        Act::TypeIntoTerminal => call(libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0]).map(drop),
        Act::Crash => {
            // SAFETY: nothing is there, and that is what it is for: the process ends here.
            unsafe { std::ptr::without_provenance_mut::<u8>(8).write_volatile(0) };
            Ok(())
        }
        Act::Abort => std::process::abort(),
        Act::Call(number) => call(number, nothing).map(drop),
    }
}

/// In the copy that comes of it nothing happens.
fn cloned(arguments: [usize; 6]) -> io::Result<()> {
    if call(libc::SYS_clone, arguments)? == 0 {
        // SAFETY: ends the process, and touches nothing of it.
        unsafe { libc::_exit(0) }
    }
    Ok(())
}
