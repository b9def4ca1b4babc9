//! A command in a sandbox, between a thread that waits for it and a request that may go away.
//!
//! The thread blocks on the guest; what it hears goes through a short channel, so that a client that reads slowly slows the
//! command down and nothing else. When the request is dropped before the command's end, the command is killed.

use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::Child;
use session::{Event, Exec, ExecControl, ExecRequest, ExitStatus, SessionError};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How much may wait for the client, in pieces of at most 64 KiB.
const BACKLOG: usize = 16;
/// How much longer than its limit a command may take to be over.
const GRACE: Duration = Duration::from_secs(30);
const SIGKILL: i32 = 9;

/// What is heard of a command.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It runs, under this number.
    Started(i32),
    /// It wrote to standard output.
    Stdout(Vec<u8>),
    /// It wrote to standard error.
    Stderr(Vec<u8>),
    /// It ended.
    Exited {
        /// How.
        status: ExitStatus,
        /// Its time was up.
        timed_out: bool,
    },
    /// It was not started, or is not heard of any more.
    Lost(SessionError),
}

/// A command; killed when dropped before its end.
#[derive(Debug)]
pub(crate) struct Running {
    heard: mpsc::Receiver<Heard>,
    line: Arc<Mutex<Line>>,
    /// The agent ends it in time; one that does not has a guest that does nothing any more.
    patience: Duration,
    until: Instant,
}

/// How the command can be reached.
#[derive(Debug)]
enum Line {
    /// Not yet.
    Starting,
    /// So.
    Open(ExecControl),
    /// Nobody wants it any more.
    Left,
}

impl Running {
    /// Starts a command that ends in time, off the reactor.
    pub(crate) fn start(child: Child, request: ExecRequest, stdin: Vec<u8>, limit: Duration) -> Self {
        let (say, heard) = mpsc::channel(BACKLOG);
        let line = Arc::new(Mutex::new(Line::Starting));
        let theirs = Arc::clone(&line);
        tokio::task::spawn_blocking(move || {
            let told = run(&child, &request, &stdin, &theirs, &say);
            if let Err(error) = told
                && say.blocking_send(Heard::Lost(error)).is_err()
            {
                log::debug!("a command of {} was left", child.id());
            }
        });
        let patience = limit + GRACE;
        Self { heard, line, patience, until: Instant::now() + patience }
    }

    /// What is heard next; `None` when it is over.
    pub(crate) async fn next(&mut self) -> Option<Heard> {
        let heard = tokio::time::timeout_at(self.until, self.heard.recv()).await;
        heard.unwrap_or_else(|_| {
            self.heard.close();
            Some(Heard::Lost(SessionError::Timeout { waited: self.patience }))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.line.lock().unwrap_or_else(PoisonError::into_inner), Line::Left);
        // Somebody may be writing to the guest, which blocks.
        if let (Line::Open(control), Ok(runtime)) = (before, Handle::try_current()) {
            runtime.spawn_blocking(move || kill(&control));
        }
    }
}

/// A few bytes into a socket whose other end reads; one that has ended needs it no more.
fn kill(control: &ExecControl) {
    match control.signal(SIGKILL) {
        Ok(()) | Err(SessionError::Ended) => {}
        Err(error) => log::debug!("a command that was left cannot be killed: {error}"),
    }
}

fn run(
    child: &Child,
    request: &ExecRequest,
    stdin: &[u8],
    line: &Mutex<Line>,
    say: &mpsc::Sender<Heard>,
) -> Result<(), SessionError> {
    let exec = child.exec(request)?;
    {
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*line, Line::Left) {
            return Ok(());
        }
        *line = Line::Open(exec.control());
    }
    let mut writer = exec.stdin();
    std::thread::scope(|scope| {
        if !stdin.is_empty() {
            let feeder = move || {
                // A process need not read its input to the end; how it ended is heard anyway.
                if writer.write_all(stdin).is_ok() {
                    drop(writer.close());
                }
            };
            let feeder = std::thread::Builder::new().name("stdin".into()).spawn_scoped(scope, feeder);
            feeder.map_err(|source| SessionError::Lost { source })?;
        }
        // Whoever leaves early takes the connection along, for which the feeder may be waiting.
        hear(exec, say)
    })
}

/// Passes on what is heard, to the end; or hangs up when nobody listens, which ends the command.
fn hear(mut exec: Exec, say: &mpsc::Sender<Heard>) -> Result<(), SessionError> {
    let mut next = Heard::Started(exec.pid);
    loop {
        let is_last = matches!(next, Heard::Exited { .. });
        if say.blocking_send(next).is_err() {
            kill(&exec.control());
            return Ok(());
        }
        if is_last {
            return Ok(());
        }
        next = match exec.next_event()? {
            Event::Stdout(bytes) => Heard::Stdout(bytes),
            Event::Stderr(bytes) => Heard::Stderr(bytes),
            Event::Exited { status, timed_out } => Heard::Exited { status, timed_out },
        };
    }
}

/// An exit code in the manner of Python: the negative number of the signal that ended it.
pub(crate) const fn exit_code(status: ExitStatus) -> i32 {
    match status {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => -signal,
    }
}

/// What a shell would return for a command that could not be started, and say about it.
pub(crate) fn not_started(error: &SessionError) -> Option<(i32, String)> {
    match error {
        SessionError::Refused { code: session::ErrorCode::NotFound, message } => Some((127, message.clone())),
        SessionError::Refused { code: session::ErrorCode::NotExecutable, message } => Some((126, message.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_python_and_of_shells() {
        assert_eq!(exit_code(ExitStatus::Code(3)), 3);
        assert_eq!(exit_code(ExitStatus::Signal(9)), -9);
        let refused = |code| SessionError::Refused { code, message: "no".into() };
        assert_eq!(not_started(&refused(session::ErrorCode::NotFound)), Some((127, "no".into())));
        assert_eq!(not_started(&refused(session::ErrorCode::BadCwd)), None);
    }
}
