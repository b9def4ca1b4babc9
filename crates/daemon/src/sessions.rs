//! Commands whose stream a client follows. For as long as it does, other requests reach them by name: their input, their
//! signals, their terminal.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::Code;
use axum::body::{Body, BodyDataStream, Bytes};
use session::{Exec, ExecControl, SessionError, StdinWriter};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;

use crate::error::ApiError;
use crate::guests::Place;
use crate::state::App;

/// How many pieces of input may wait for the guest.
const BACKLOG: usize = 4;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    sessions: HashMap<u64, Session>,
}

#[derive(Debug)]
struct Session {
    sandbox: String,
    control: ExecControl,
    input: Input,
    /// Its sender is dropped when the session is over.
    over: watch::Receiver<()>,
}

#[derive(Debug)]
enum Input {
    /// It was started without.
    None,
    /// It waits for more.
    Open(StdinWriter),
    /// Somebody gives it some.
    Taken,
    /// It gets no more.
    Closed,
}

/// A session that goes on until this is dropped.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    sessions: &'a Sessions,
    number: u64,
    _over: watch::Sender<()>,
}

impl Named<'_> {
    /// What it is called.
    pub(crate) fn name(&self) -> String {
        self.number.to_string()
    }
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        self.sessions.lock().sessions.remove(&self.number);
    }
}

impl Sessions {
    /// The state is whole at every step.
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command that has just been started.
    pub(crate) fn begin(&self, sandbox: &str, exec: &Exec, open_stdin: bool) -> Named<'_> {
        let (ending, over) = watch::channel(());
        let input = if open_stdin { Input::Open(exec.stdin()) } else { Input::None };
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.sessions.insert(number, Session { sandbox: sandbox.into(), control: exec.control(), input, over });
        Named { sessions: self, number, _over: ending }
    }

    fn with<T>(
        &self,
        sandbox: &str,
        name: &str,
        work: impl FnOnce(&mut Session) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut open = self.lock();
        let found = name.parse::<u64>().ok().and_then(|number| open.sessions.get_mut(&number));
        match found.filter(|session| session.sandbox == sandbox) {
            Some(session) => work(session),
            None => Err(over()),
        }
    }

    /// By which it is signalled, and told its terminal's size.
    pub(crate) fn control(&self, sandbox: &str, name: &str) -> Result<ExecControl, ApiError> {
        self.with(sandbox, name, |session| Ok(session.control.clone()))
    }

    fn take_input(&self, sandbox: &str, name: &str) -> Result<(StdinWriter, watch::Receiver<()>), ApiError> {
        self.with(sandbox, name, |session| match std::mem::replace(&mut session.input, Input::Taken) {
            Input::Open(writer) => Ok((writer, session.over.clone())),
            other => {
                let refused = match &other {
                    Input::None => ApiError::invalid("it was started without open_stdin"),
                    Input::Taken | Input::Open(_) => {
                        ApiError::conflict(Code::Busy, "another request gives it input right now; try again")
                    }
                    Input::Closed => ApiError::conflict(Code::ProcessEnded, "its input is over"),
                };
                session.input = other;
                Err(refused)
            }
        })
    }

    fn give_back(&self, sandbox: &str, name: &str, writer: Option<StdinWriter>) {
        let input = writer.map_or(Input::Closed, Input::Open);
        let given = self.with(sandbox, name, |session| {
            session.input = input;
            Ok(())
        });
        if let Err(error) = given {
            log::debug!("a command ended with its input: {error}");
        }
    }
}

fn over() -> ApiError {
    ApiError::missing(Code::ProcessNotFound, "there is no such command, or nobody follows it any more")
}

impl App {
    /// Gives a command what a body has, as it comes, and ends its input after that if that is wanted. One that ends, or that
    /// nobody follows any more, takes no more.
    pub(crate) async fn feed(&self, sandbox: &str, name: &str, body: Body, close: bool) -> Result<(), ApiError> {
        let place = self.guests.enter(sandbox)?;
        let (writer, mut ended) = self.sessions.take_input(sandbox, name)?;
        let (send, pieces) = mpsc::channel(BACKLOG);
        let feeding = tokio::task::spawn_blocking(move || take_in(writer, pieces, close, place));
        let app = self.clone();
        let (id, command) = (sandbox.to_owned(), name.to_owned());
        // Whoever asked may leave; the input is given back all the same.
        let fed = tokio::spawn(async move {
            let fed = feeding.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            let (left, result) = fed.map_or_else(|error| (None, Err(error)), |writer| (writer, Ok(())));
            app.sessions.give_back(&id, &command, left);
            result
        });
        let mut stream = body.into_data_stream();
        let passed = tokio::select! {
            passed = pass_on(&mut stream, send) => passed,
            _ = ended.changed() => Err(over()),
        };
        match fed.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(()) => passed,
            Err(error) => Err(ApiError::conflict(Code::ProcessEnded, format!("it takes no more input: {error}"))),
        }
    }

    /// Signals a command, or tells its terminal a new size.
    pub(crate) async fn control(
        &self,
        sandbox: &str,
        name: &str,
        work: impl FnOnce(ExecControl) -> Result<(), SessionError> + Send + 'static,
    ) -> Result<(), ApiError> {
        let control = self.sessions.control(sandbox, name)?;
        let place = self.guests.enter(sandbox)?;
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(control)
        });
        match done.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(SessionError::Ended)) => Err(over()),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(ApiError::internal(error.to_string())),
        }
    }
}

async fn pass_on(stream: &mut BodyDataStream, send: mpsc::Sender<Bytes>) -> Result<(), ApiError> {
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| ApiError::invalid(format!("the body broke off: {error}")))?;
        // When it takes no more, it is said why.
        if send.send(piece).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// The guest's side of it, on a thread. A command that reads nothing keeps it until it ends.
fn take_in(
    mut writer: StdinWriter,
    mut pieces: mpsc::Receiver<Bytes>,
    close: bool,
    _place: Place,
) -> std::io::Result<Option<StdinWriter>> {
    while let Some(piece) = pieces.blocking_recv() {
        writer.write_all(&piece)?;
    }
    if close {
        return writer.close().map(|()| None);
    }
    Ok(Some(writer))
}
