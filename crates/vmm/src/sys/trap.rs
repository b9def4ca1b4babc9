//! The end of a process that made a system call it may not make.
//!
//! The kernel does not make the call; it raises a signal on the thread that wanted it. The handler says which call it was
//! and of which kind the thread is, in the log and in the VM's state, and ends the process. It is the only thing that
//! happens: it does not return, and no table lets a thread put another handler in its place.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use proto::control::{KILLED_AT, MAX_KILLED};
use vmm_sys_util::signal::register_signal_handler;

/// What a shell would say of a process that a signal ended.
const EXIT_CODE: i32 = 128 + libc::SIGSYS;
/// More than a line of the log.
const MAX_LINE: usize = 128;
/// There is no such file.
const NONE: i32 = -1;
/// `SYS_SECCOMP`: a filter raised it, and not another process.
const BY_FILTER: i32 = 1;

thread_local! {
    /// Of which kind this thread is. Has no destructor and no lazy beginning, so a handler may read it any time.
    static KIND: Cell<&'static str> = const { Cell::new("main") };
}

/// Where the VM's state is written.
static STATE: AtomicI32 = AtomicI32::new(NONE);

/// The beginning of what comes with the signal (`siginfo_t`, its fields for `SIGSYS`).
#[repr(C)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    address: *const libc::c_void,
    call: i32,
    architecture: u32,
}

/// A line on the stack: a handler must not allocate.
struct Line<const MAX: usize> {
    bytes: [u8; MAX],
    len: usize,
}

impl<const MAX: usize> Line<MAX> {
    const fn new() -> Self {
        Self { bytes: [0; MAX], len: 0 }
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const MAX: usize> std::fmt::Write for Line<MAX> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

extern "C" fn on_violation(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler a whole `siginfo_t`, of which this is the beginning.
    let Info { code, call, .. } = unsafe { info.cast::<Info>().read() };
    // A line that is too long is cut, which none is.
    let (mut report, mut line) = (Line::<MAX_KILLED>::new(), Line::<MAX_LINE>::new());
    let written = writeln!(report, "{} {call}", KIND.get());
    let logged = writeln!(line, "[forkd: ended, for a system call that is not in its table: {} {call}]", KIND.get());
    if code == BY_FILTER && written.is_ok() && logged.is_ok() {
        let (state, text) = (STATE.load(Ordering::Relaxed), report.text());
        // SAFETY: the bytes are there for as long as the call takes. Without a file it fails, and nothing can be done.
        unsafe { libc::pwrite(state, text.as_ptr().cast(), text.len(), KILLED_AT.cast_signed()) };
        let text = line.text();
        // SAFETY: the bytes are there for as long as the call takes.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: ends the process, and touches nothing of it.
    unsafe { libc::_exit(EXIT_CODE) }
}

/// Has every thread of this process, and of its copies, end it by a forbidden call. Before the first filter.
pub(crate) fn install() -> io::Result<()> {
    register_signal_handler(libc::SIGSYS, on_violation).map_err(io::Error::from)
}

/// Names the kind of this thread.
pub(crate) fn name_thread(kind: &'static str) {
    KIND.set(kind);
}

/// Where the VM's state is written, for as long as this process lives; nowhere is a place too.
pub(crate) fn report_to(state: Option<BorrowedFd<'_>>) {
    STATE.store(state.map_or(NONE, |state| state.as_raw_fd()), Ordering::Relaxed);
}
