//! `ptrace(2)`: the few requests a counter of system calls needs. A tracer is a thread, not a process: whoever attaches
//! must also do the rest.

use std::io;
use std::ptr;

/// What a traced thread stopped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It is about to make a system call.
    Entry {
        /// Which.
        number: u64,
        /// Its second argument.
        second: u64,
    },
    /// It has made one.
    Exit,
    /// It has executed a program.
    Executed,
    /// It has just come under the tracer, was interrupted, or has a new child.
    Event,
    /// A signal is about to reach it.
    Signal(i32),
    /// It is gone.
    Gone,
}

/// What `waitpid` calls an event without a signal of its own.
const EVENT_STOP: i32 = 128;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC;

fn request(request: u32, tid: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: `data` is a number, or the address of a place of `address` bytes, as `syscall` says.
    match unsafe { libc::ptrace(request, tid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// Attaches to a process and to all that it will fork, and stops it.
pub(super) fn attach(pid: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, pid, 0, OPTIONS.unsigned_abs() as usize)?;
    request(libc::PTRACE_INTERRUPT, pid, 0, 0)?;
    Ok(())
}

/// Lets it run to its next system call, with a signal if there is one.
pub(super) fn resume(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal.unsigned_abs() as usize).map(drop)
}

/// Lets it run without counting.
pub(super) fn release(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, 0).map(drop)
}

/// Waits for the next stop of a thread that this thread traces; `None` when there is none left.
pub(super) fn next_stop() -> io::Result<Option<(i32, Stop)>> {
    let mut status = 0;
    // SAFETY: `status` is a place for the answer. Children of other threads are left to them.
    let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    if tid < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(None) } else { Err(error) };
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Some((tid, Stop::Gone)));
    }
    let stop = match (libc::WSTOPSIG(status), status >> 16) {
        (SYSCALL_STOP, _) => syscall(tid)?,
        (_, libc::PTRACE_EVENT_EXEC) => Stop::Executed,
        (_, EVENT_STOP | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE) => Stop::Event,
        (signal, _) => Stop::Signal(signal),
    };
    Ok(Some((tid, stop)))
}

fn syscall(tid: i32) -> io::Result<Stop> {
    // SAFETY: a structure of plain numbers, of which all zeroes is a value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let place = ptr::from_mut(&mut info).expose_provenance();
    request(libc::PTRACE_GET_SYSCALL_INFO, tid, size_of_val(&info), place)?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(Stop::Exit);
    }
    // SAFETY: `op` says that the kernel has filled in this one.
    let entry = unsafe { info.u.entry };
    Ok(Stop::Entry { number: entry.nr, second: entry.args[1] })
}
