//! The three streams of a process: pipes or a terminal, and which end is whose.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proto::guest::{Stdio, TtySize};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::sys::Identity;

/// What is not a pipe is drained to at most this much: more than any terminal holds.
const TERMINAL_DRAIN: usize = 1 << 20;

/// Both ends.
pub(crate) struct Streams {
    pub(crate) ours: Ours,
    pub(crate) theirs: Theirs,
}

/// The agent's ends; none of them blocks.
pub(crate) struct Ours {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) terminal: Option<OwnedFd>,
}

/// The process's ends; closed on our side once it runs.
pub(crate) struct Theirs {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
}

impl Theirs {
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        let stderr = self.stderr.as_ref().unwrap_or(&self.stdout);
        [self.stdin.as_fd(), self.stdout.as_fd(), stderr.as_fd()]
    }
}

/// Makes the streams. They belong to the process's user, who may then also open them by name (`/dev/stdout`).
pub(crate) fn open(kind: Stdio, owner: Option<&Identity>) -> io::Result<Streams> {
    match kind {
        Stdio::Output => {
            let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            pipes(None, null, owner)
        }
        Stdio::Pipes => {
            let (theirs, ours) = pipe(owner)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            pipes(Some(ours), theirs, owner)
        }
        Stdio::Tty(size) => terminal(size, owner),
    }
}

/// Tells a terminal its size; the process gets a SIGWINCH.
pub(crate) fn resize(terminal: impl AsFd, size: TtySize) -> io::Result<()> {
    let winsize = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, winsize).map_err(Into::into)
}

/// The most that can be waiting in a stream whose writer has ended.
pub(crate) fn capacity(stream: impl AsFd) -> usize {
    rustix::pipe::fcntl_getpipe_size(stream).unwrap_or(TERMINAL_DRAIN)
}

fn pipes(stdin: Option<OwnedFd>, their_stdin: OwnedFd, owner: Option<&Identity>) -> io::Result<Streams> {
    let (stdout, their_stdout) = pipe(owner)?;
    let (stderr, their_stderr) = pipe(owner)?;
    rustix::io::ioctl_fionbio(&stdout, true)?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    Ok(Streams {
        ours: Ours { stdin, stdout: Some(stdout), stderr: Some(stderr), terminal: None },
        theirs: Theirs { stdin: their_stdin, stdout: their_stdout, stderr: Some(their_stderr) },
    })
}

fn pipe(owner: Option<&Identity>) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    give(&reader, owner)?;
    Ok((reader, writer))
}

fn terminal(size: TtySize, owner: Option<&Identity>) -> io::Result<Streams> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    resize(&master, size)?;
    give(&slave, owner)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    Ok(Streams {
        ours: Ours {
            stdin: Some(master.try_clone()?),
            stdout: Some(master.try_clone()?),
            stderr: None,
            terminal: Some(master),
        },
        theirs: Theirs { stdin: slave.try_clone()?, stdout: slave, stderr: None },
    })
}

fn give(stream: &OwnedFd, owner: Option<&Identity>) -> io::Result<()> {
    let Some(owner) = owner else { return Ok(()) };
    rustix::fs::fchown(stream, Some(owner.uid), None).map_err(Into::into)
}
