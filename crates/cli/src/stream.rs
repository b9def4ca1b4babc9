//! A process in a guest, joined to our own standard streams until it ends.

use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::thread;

use anyhow::Context;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::isatty;
use session::{ErrorCode, Event, Exec, SessionError, StdinWriter, Stdio};
use types::progress::Stage;

use crate::output::{Raw, reader_left};
use crate::terminal::{self, RawMode};

/// The largest piece of stdin sent at once; also what a pipe holds.
const CHUNK: usize = 64 << 10;
const SIGPIPE: u8 = 13;

/// How a process ended, as far as a shell is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this exit code.
    Code(u8),
    /// Killed because its time was up.
    TimedOut,
    /// Nobody reads our output any more.
    ReaderLeft,
}

impl Ended {
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Self::Code(code) => code.into(),
            Self::TimedOut => 124.into(),
            Self::ReaderLeft => (128 + SIGPIPE).into(),
        }
    }
}

/// How our own streams shall be joined: a terminal only when asked for, stdin only when it is not a terminal.
pub(crate) fn stdio(terminal: bool) -> anyhow::Result<Stdio> {
    match (terminal, isatty(stdin())) {
        (true, _) if terminal::is_interactive() => Ok(Stdio::Tty(terminal::size())),
        (true, _) => anyhow::bail!("--tty needs a terminal on standard input and on standard output"),
        (false, true) => Ok(Stdio::Output),
        (false, false) => Ok(Stdio::Pipes),
    }
}

/// Feeds the process and shows what it says, until it ends. `waiting` is over with the first sign of life.
pub(crate) fn join(mut exec: Exec, stdio: Stdio, waiting: Option<Box<dyn Stage>>) -> anyhow::Result<Ended> {
    let raw = match stdio {
        Stdio::Tty(_) => Some(RawMode::enter().context("cannot switch the terminal to raw mode")?),
        Stdio::Output | Stdio::Pipes => None,
    };
    if stdio != Stdio::Output {
        let writer = exec.stdin();
        // Not joined: it may sit in a read that never ends. It goes with us.
        thread::Builder::new()
            .name("stdin".into())
            .spawn(move || feed(io::stdin(), writer))
            .context("cannot start a thread")?;
    }
    let ended = show(&mut exec, waiting);
    drop(raw);
    ended
}

fn show(exec: &mut Exec, mut waiting: Option<Box<dyn Stage>>) -> anyhow::Result<Ended> {
    loop {
        let event = exec.next_event();
        drop(waiting.take());
        let written = match event? {
            Event::Stdout(bytes) => write(stdout(), &bytes, "standard output"),
            Event::Stderr(bytes) => write(stderr(), &bytes, "standard error"),
            Event::Exited { timed_out: true, .. } => return Ok(Ended::TimedOut),
            Event::Exited { status, .. } => return Ok(Ended::Code(shell_byte(status.shell_code()))),
        };
        match written? {
            Written::All => {}
            Written::ReaderLeft => return Ok(Ended::ReaderLeft),
        }
    }
}

/// What the system would make of such an exit code.
pub(crate) fn shell_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Written {
    All,
    ReaderLeft,
}

pub(crate) fn write(to: BorrowedFd<'static>, bytes: &[u8], name: &str) -> anyhow::Result<Written> {
    match Raw(to).write_all(bytes) {
        Ok(()) => Ok(Written::All),
        Err(error) if reader_left(&error) => Ok(Written::ReaderLeft),
        Err(error) => Err(error).with_context(|| format!("cannot write to {name}")),
    }
}

/// Hands all of a reader over as the standard input of a process, and ends it there.
pub(crate) fn feed(mut from: impl Read, mut writer: StdinWriter) {
    let mut chunk = vec![0; CHUNK];
    let fed = loop {
        match from.read(&mut chunk) {
            Ok(0) => break writer.close(),
            Ok(count) => {
                if let Err(error) = writer.write_all(&chunk[..count]) {
                    break Err(error);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                log::warn!("the input cannot be read: {error}");
                break writer.close();
            }
        }
    };
    // A process that ends without reading its input is no error.
    if let Err(error) = fed {
        log::debug!("the rest of the input was not taken: {error}");
    }
}

/// The exit code of who was ended by a signal.
pub(crate) fn killed_by(signal: i32) -> ExitCode {
    u8::try_from(128 + signal).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// A program that cannot be started is the command's failure, with the exit code a shell gives it.
pub(crate) fn not_started(error: SessionError) -> anyhow::Result<Ended> {
    let code = match &error {
        SessionError::Refused { code: ErrorCode::NotFound, .. } => 127,
        SessionError::Refused { code: ErrorCode::NotExecutable, .. } => 126,
        _ => return Err(error.into()),
    };
    eprintln!("forkd: {error}");
    Ok(Ended::Code(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(shell_byte(137), 137);
        assert_eq!(shell_byte(256 + 7), 7);
        let missing = SessionError::Refused { code: ErrorCode::NotFound, message: "no such program: x".into() };
        assert_eq!(not_started(missing).unwrap(), Ended::Code(127));
        not_started(SessionError::Ended).unwrap_err();
    }
}
