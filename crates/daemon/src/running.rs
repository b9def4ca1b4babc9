//! A command or a process in a sandbox, as a request hears of it.

use std::io::Write as _;
use std::time::Duration;

use api::Code;
use axum::http::StatusCode;
use session::{AttachedEvent, Connection, Event, Exec, ExecRequest, ExitStatus, SessionError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::guests::{CallError, Say, Talk};
use crate::state::App;

/// How much longer than its limit a command may take to be over.
const GRACE: Duration = Duration::from_secs(30);

/// What is heard of a command.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It runs.
    Started {
        /// Its number in the guest.
        process: String,
        /// What it is called while it is followed.
        session: Option<String>,
    },
    /// It wrote to standard output.
    Stdout(Vec<u8>),
    /// It wrote to standard error.
    Stderr(Vec<u8>),
    /// So much that it wrote is not kept any more.
    Skipped(u64),
    /// It ended.
    Exited {
        /// How.
        status: ExitStatus,
        /// Its time was up.
        timed_out: bool,
    },
}

/// A command that is killed when this is dropped before its end, or a process that is not.
#[derive(Debug)]
pub(crate) struct Running {
    app: App,
    id: String,
    talk: Talk<Heard>,
    until: Until,
    failed: bool,
}

/// For how long it is listened to.
#[derive(Debug)]
enum Until {
    /// The agent ends a command in time; one that does not has a guest that does nothing any more.
    Deadline { at: Instant, patience: Duration },
    /// A process may go on for ever, and the daemon does not.
    Stopping(watch::Receiver<bool>),
    /// As long as it and its client go on.
    End,
}

/// What a command reads.
#[derive(Debug)]
pub(crate) enum Input {
    /// All of it.
    Whole(Vec<u8>),
    /// It comes as long as the command is followed.
    Open,
}

impl Running {
    /// Starts a command, which ends in time if there is a limit.
    pub(crate) fn start(
        app: &App,
        id: &str,
        request: ExecRequest,
        input: Input,
        limit: Option<Duration>,
    ) -> Result<Self, ApiError> {
        let begun = (app.clone(), id.to_owned());
        let talk = app.talk(id, move |connection, say| {
            let exec = connection.exec(&request)?;
            let named = begun.0.sessions.begin(&begun.1, &exec, matches!(input, Input::Open));
            let started = Heard::Started { process: exec.pid.to_string(), session: Some(named.name()) };
            run(exec, started, &input, say)
        })?;
        let until = limit.map_or(Until::End, |limit| {
            let patience = limit + GRACE;
            Until::Deadline { at: Instant::now() + patience, patience }
        });
        Ok(Self { app: app.clone(), id: id.into(), talk, until, failed: false })
    }

    /// Follows a process from what is kept of its output to its end.
    pub(crate) fn follow(app: &App, id: &str, process: u64) -> Result<Self, ApiError> {
        let talk = app.talk(id, move |connection, say| attend(connection, process, say))?;
        let until = Until::Stopping(app.stopping.subscribe());
        Ok(Self { app: app.clone(), id: id.into(), talk, until, failed: false })
    }

    /// What is heard next; `None` when it is over. Nothing is heard after an error.
    pub(crate) async fn next(&mut self) -> Option<Result<Heard, CallError>> {
        if self.failed {
            return None;
        }
        let heard = self.hear().await;
        self.failed = matches!(heard, Some(Err(_)));
        heard
    }

    async fn hear(&mut self) -> Option<Result<Heard, CallError>> {
        match &mut self.until {
            Until::Deadline { at, patience } => {
                // A client that did not listen for long is no fault of the guest's.
                let until = (*at).max(Instant::now() + GRACE);
                if let Ok(heard) = tokio::time::timeout_at(until, self.talk.next()).await {
                    return heard;
                }
                let silence = SessionError::Timeout { waited: *patience }.into();
                let (app, id) = (self.app.clone(), self.id.clone());
                let explained = tokio::task::spawn_blocking(move || app.explained(&id, silence)).await;
                Some(Err(explained.unwrap_or(CallError::Left)))
            }
            Until::Stopping(stopping) => tokio::select! {
                heard = self.talk.next() => heard,
                _ = stopping.wait_for(|stopping| *stopping) => Some(Err(is_stopping().into())),
            },
            Until::End => self.talk.next().await,
        }
    }
}

/// What is told to who would have to wait for a daemon that ends.
pub(crate) fn is_stopping() -> ApiError {
    let message = "the daemon is about to end; ask again when the next one runs";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Code::Stopping, message)
}

fn run(mut exec: Exec, started: Heard, input: &Input, say: &Say<Heard>) -> Result<(), CallError> {
    let mut writer = exec.stdin();
    std::thread::scope(|scope| {
        if let Input::Whole(stdin) = input
            && !stdin.is_empty()
        {
            let feeder = move || {
                // A process need not read its input to the end; how it ended is heard anyway.
                if writer.write_all(stdin).is_ok() {
                    drop(writer.close());
                }
            };
            let feeder = std::thread::Builder::new().name("stdin".into()).spawn_scoped(scope, feeder);
            feeder.map_err(|source| SessionError::Lost { source })?;
        }
        say.say(started)?;
        loop {
            let (heard, is_last) = match exec.next_event()? {
                Event::Stdout(bytes) => (Heard::Stdout(bytes), false),
                Event::Stderr(bytes) => (Heard::Stderr(bytes), false),
                Event::Exited { status, timed_out } => (Heard::Exited { status, timed_out }, true),
            };
            let told = say.say(heard);
            if is_last || told.is_err() {
                // Whoever leaves early takes the connection along, which ends the command and the feeder.
                drop(exec);
                return told;
            }
        }
    })
}

fn attend(connection: Connection, process: u64, say: &Say<Heard>) -> Result<(), CallError> {
    let mut attached = connection.attach(process)?;
    say.say(Heard::Started { process: process.to_string(), session: None })?;
    loop {
        match attached.next_event()? {
            // An empty piece only says that the stream is over, which the exit says as well.
            AttachedEvent::Stdout(bytes) | AttachedEvent::Stderr(bytes) if bytes.is_empty() => {}
            AttachedEvent::Stdout(bytes) => say.say(Heard::Stdout(bytes))?,
            AttachedEvent::Stderr(bytes) => say.say(Heard::Stderr(bytes))?,
            AttachedEvent::Skipped { bytes } => say.say(Heard::Skipped(bytes))?,
            AttachedEvent::Exited { status, timed_out } => return say.say(Heard::Exited { status, timed_out }),
        }
    }
}

/// An exit code in the manner of Python: the negative number of the signal that ended it.
pub(crate) const fn exit_code(status: ExitStatus) -> i32 {
    match status {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => -signal,
    }
}

/// The signal that ended it.
pub(crate) const fn signal_of(status: ExitStatus) -> Option<i32> {
    match status {
        ExitStatus::Code(_) => None,
        ExitStatus::Signal(signal) => Some(signal),
    }
}

/// What a shell would return for a command that could not be started, and say about it.
pub(crate) fn not_started(error: &CallError) -> Option<(i32, String)> {
    let CallError::Guest(SessionError::Refused { code, message }) = error else { return None };
    match code {
        session::ErrorCode::NotFound => Some((127, message.clone())),
        session::ErrorCode::NotExecutable => Some((126, message.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_python_and_of_shells() {
        assert_eq!((exit_code(ExitStatus::Code(3)), signal_of(ExitStatus::Code(3))), (3, None));
        assert_eq!((exit_code(ExitStatus::Signal(9)), signal_of(ExitStatus::Signal(9))), (-9, Some(9)));
        let refused = |code| CallError::from(SessionError::Refused { code, message: "no".into() });
        assert_eq!(not_started(&refused(session::ErrorCode::NotFound)), Some((127, "no".into())));
        assert_eq!(not_started(&refused(session::ErrorCode::BadCwd)), None);
    }
}
