//! From a plan to a process.
//!
//! The child of a threaded process owns only the thread that called `fork`; another thread may have held the
//! allocator's lock at that moment. So everything it needs is prepared before, and between `fork` and `execve` it makes
//! system calls and nothing else. What goes wrong there comes back through a pipe that `execve` closes.

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::Access;
use rustix::io::{Errno, FdFlags};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{Gid, Uid};

use super::CStrings;

/// The highest signal number.
const LAST_SIGNAL: c_int = 64;

/// Who a process runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
    pub(crate) groups: Vec<Gid>,
}

/// A process to be, with every allocation already made.
pub(crate) struct Plan<'a> {
    /// Paths to try in order.
    pub(crate) programs: &'a [CString],
    pub(crate) argv: &'a CStrings,
    pub(crate) environment: &'a CStrings,
    /// Where it must start.
    pub(crate) directory: &'a CStr,
    /// Where it starts if it cannot start there.
    pub(crate) fallback: Option<&'a CStr>,
    /// Ours when absent.
    pub(crate) identity: Option<&'a Identity>,
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// Its stdin becomes its controlling terminal.
    pub(crate) terminal: bool,
    /// What it inherits besides, under the numbers they have here.
    pub(crate) keep: &'a [BorrowedFd<'a>],
    /// Its limit of open files; ours is higher.
    pub(crate) open_files: Rlimit,
    /// Where a failure is reported; closed on exec.
    pub(crate) report: BorrowedFd<'a>,
}

/// What the child was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Session, terminal, standard streams, limits.
    Setup,
    /// Becoming the user.
    Identity,
    /// Entering the working directory.
    Directory,
    /// Executing the program.
    Exec,
    /// Executing a program that is there; what should interpret it is not.
    Interpreter,
}

/// Why a process did not come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
}

impl Failure {
    pub(crate) const WIRE_LEN: usize = 5;

    fn to_wire(self) -> [u8; Self::WIRE_LEN] {
        let stage = match self.stage {
            Stage::Setup => 0,
            Stage::Identity => 1,
            Stage::Directory => 2,
            Stage::Exec => 3,
            Stage::Interpreter => 4,
        };
        let [a, b, c, d] = self.errno.raw_os_error().to_le_bytes();
        [stage, a, b, c, d]
    }

    pub(crate) fn from_wire([stage, a, b, c, d]: [u8; Self::WIRE_LEN]) -> Self {
        let stage = match stage {
            1 => Stage::Identity,
            2 => Stage::Directory,
            3 => Stage::Exec,
            4 => Stage::Interpreter,
            _ => Stage::Setup,
        };
        Self { stage, errno: Errno::from_raw_os_error(i32::from_le_bytes([a, b, c, d])) }
    }
}

/// Forks; the child leads its own session and process group and executes the plan.
pub(crate) fn fork_exec(plan: &Plan<'_>) -> io::Result<i32> {
    // SAFETY: the child makes only system calls on memory prepared before, and leaves through execve or _exit.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let failure = become_process(plan);
            let reported = rustix::io::write(plan.report, &failure.to_wire()).is_ok();
            // SAFETY: ends this process without running anything of the parent's.
            unsafe { libc::_exit(if reported { 127 } else { 126 }) }
        }
        pid => Ok(pid),
    }
}

/// Returns only when it failed.
fn become_process(plan: &Plan<'_>) -> Failure {
    let at = |stage| move |errno| Failure { stage, errno };
    let prepared = set_up(plan)
        .map_err(at(Stage::Setup))
        .and_then(|()| plan.identity.map_or(Ok(()), assume).map_err(at(Stage::Identity)))
        .and_then(|()| enter(plan).map_err(at(Stage::Directory)));
    match prepared {
        Ok(()) => execute(plan),
        Err(failure) => failure,
    }
}

fn set_up(plan: &Plan<'_>) -> Result<(), Errno> {
    rustix::process::setsid()?;
    let [stdin, stdout, stderr] = plan.stdio;
    if plan.terminal {
        rustix::process::ioctl_tiocsctty(stdin)?;
    }
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
    rustix::process::setrlimit(Resource::Nofile, plan.open_files)?;
    default_signals();
    close_rest_on_exec();
    plan.keep.iter().try_for_each(|fd| rustix::io::fcntl_setfd(fd, FdFlags::empty()))
}

/// Everything of ours is closed on exec anyway; this is for what the agent itself was started with.
fn close_rest_on_exec() {
    let flags = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    // SAFETY: only marks descriptors, and closes none. A kernel too old for it leaves them as they are.
    unsafe { libc::close_range(3, libc::c_uint::MAX, flags) };
}

/// Ignored signals and the mask survive execve; a new process starts with neither.
fn default_signals() {
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: SIG_DFL installs no code. Refused for SIGKILL, SIGSTOP and the C library's own, which are default.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: writes a whole sigset_t to where there is room for one.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: `none` was initialised above; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) };
}

fn assume(identity: &Identity) -> Result<(), Errno> {
    // By plain system calls: they change this thread, which is all there is of this process.
    rustix::thread::set_thread_groups(&identity.groups)?;
    rustix::thread::set_thread_res_gid(identity.gid, identity.gid, identity.gid)?;
    rustix::thread::set_thread_res_uid(identity.uid, identity.uid, identity.uid)
}

fn enter(plan: &Plan<'_>) -> Result<(), Errno> {
    rustix::process::chdir(plan.directory).or_else(|errno| match plan.fallback {
        Some(fallback) => rustix::process::chdir(fallback),
        None => Err(errno),
    })
}

/// Tries the programs in order, as a shell does: one that may not be executed is remembered, one that is not there is
/// passed over, and anything else is final.
fn execute(plan: &Plan<'_>) -> Failure {
    let mut worst = Failure { stage: Stage::Exec, errno: Errno::NOENT };
    for program in plan.programs {
        // SAFETY: path, argv and environment are C strings and null-terminated arrays that outlive the call.
        unsafe { libc::execve(program.as_ptr(), plan.argv.as_ptr(), plan.environment.as_ptr()) };
        let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        match errno {
            Errno::NOENT if rustix::fs::access(program.as_c_str(), Access::EXISTS).is_ok() => {
                return Failure { stage: Stage::Interpreter, errno };
            }
            Errno::NOENT | Errno::NOTDIR => {}
            Errno::ACCESS => worst.errno = errno,
            errno => return Failure { stage: Stage::Exec, errno },
        }
    }
    worst
}
