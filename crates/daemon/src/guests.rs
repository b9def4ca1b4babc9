//! Conversations with guests, each on a thread of its own.
//!
//! ```text
//! request ── Talk ◄── channel ◄── thread: living, connect, work
//!              └─ leash ─────────────────► hang up, when the request is dropped before the end
//! ```
//!
//! A guest may answer never: there is room for a number of conversations, and for fewer with one sandbox, so that one that
//! hangs disturbs nobody else. The daemon's other verbs have threads that no guest can hold. What a guest says goes through
//! a short channel, so that a client that reads slowly slows its guest down and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::Code;
use axum::http::StatusCode;
use engine::Child;
use session::{Connection, HangUp, SessionError};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendError;

use crate::error::ApiError;
use crate::state::{App, is_gone};

/// The most conversations at once.
pub(crate) const MAX_TALKS: usize = 2048;
/// The most with one sandbox.
const MAX_OF_ONE: usize = 256;
/// How much may wait for the client, in pieces of at most 64 KiB: there is a thread with one more behind it.
const BACKLOG: usize = 2;

/// Why a conversation came to nothing.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It did not begin.
    Daemon(ApiError),
    /// The guest's agent says no, or nothing.
    Guest(SessionError),
    /// Nobody wants to hear it any more.
    Left,
}

impl From<ApiError> for CallError {
    fn from(error: ApiError) -> Self {
        Self::Daemon(error)
    }
}

impl From<SessionError> for CallError {
    fn from(error: SessionError) -> Self {
        Self::Guest(error)
    }
}

impl CallError {
    /// As an answer; what the guest says means what `meaning` says.
    pub(crate) fn meaning(self, meaning: impl FnOnce(SessionError) -> ApiError) -> ApiError {
        match self {
            Self::Daemon(error) => error,
            Self::Guest(error) => meaning(error),
            Self::Left => ApiError::internal("nothing was heard of its end"),
        }
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        error.meaning(Self::from)
    }
}

/// Who talks to whom.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    talks: Mutex<Talks>,
}

#[derive(Debug, Default)]
struct Talks {
    all: usize,
    of_each: HashMap<String, usize>,
}

impl Guests {
    /// How many conversations there are.
    pub(crate) fn count(&self) -> usize {
        self.talks.lock().unwrap_or_else(PoisonError::into_inner).all
    }

    /// Room for one more.
    pub(crate) fn enter(self: &Arc<Self>, id: &str) -> Result<Place, ApiError> {
        let mut talks = self.talks.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |what: String| {
            let message = format!("{what}, which is all that may be; try again");
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, message))
        };
        if talks.all >= MAX_TALKS {
            return full(format!("{MAX_TALKS} requests wait for sandboxes"));
        }
        let of_this = talks.of_each.get(id).copied().unwrap_or(0);
        if of_this >= MAX_OF_ONE {
            return full(format!("{MAX_OF_ONE} requests wait for sandbox {id}"));
        }
        talks.of_each.insert(id.into(), of_this + 1);
        talks.all += 1;
        Ok(Place { guests: Arc::clone(self), id: id.into() })
    }
}

/// Room for a conversation; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    guests: Arc<Guests>,
    id: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut talks = self.guests.talks.lock().unwrap_or_else(PoisonError::into_inner);
        talks.all -= 1;
        if let Some(left) = talks.of_each.get_mut(&self.id) {
            *left -= 1;
            if *left == 0 {
                talks.of_each.remove(&self.id);
            }
        }
    }
}

/// How far a conversation is, for whoever wants to end it.
#[derive(Debug)]
enum Line {
    /// The guest is being called.
    Calling,
    /// It can be hung up.
    Open(HangUp),
    /// Nobody wants it any more.
    Left,
}

/// Ends the conversation when dropped.
#[derive(Debug)]
struct Leash(Arc<Mutex<Line>>);

impl Drop for Leash {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), Line::Left);
        if let Line::Open(line) = before {
            line.hang_up();
        }
    }
}

/// What a thread tells a request.
#[derive(Debug)]
enum Told<T> {
    Said(Result<T, CallError>),
    /// There is no more: a thread that panicked has no end.
    Over,
}

/// By which a thread tells it.
#[derive(Debug)]
pub(crate) struct Say<T>(mpsc::Sender<Told<T>>);

impl<T> Say<T> {
    /// Waits until there is room for it.
    pub(crate) fn say(&self, what: T) -> Result<(), CallError> {
        self.0.blocking_send(Told::Said(Ok(what))).map_err(|_| CallError::Left)
    }
}

/// A conversation, as a request follows it. Dropping it hangs up.
#[derive(Debug)]
pub(crate) struct Talk<T> {
    heard: mpsc::Receiver<Told<T>>,
    over: bool,
    _leash: Leash,
}

impl<T> Talk<T> {
    /// What is heard next; `None` when it is over. Nothing is heard after an error.
    pub(crate) async fn next(&mut self) -> Option<Result<T, CallError>> {
        if self.over {
            return None;
        }
        let heard = match self.heard.recv().await {
            Some(Told::Said(said)) => Some(said),
            Some(Told::Over) => None,
            None => Some(Err(CallError::Left)),
        };
        self.over = !matches!(heard, Some(Ok(_)));
        heard
    }

    /// The only thing that is heard.
    pub(crate) async fn only(mut self) -> Result<T, CallError> {
        self.next().await.unwrap_or(Err(CallError::Left))
    }
}

impl App {
    /// Begins a conversation with a sandbox's agent.
    pub(crate) fn talk<T, W>(&self, id: &str, work: W) -> Result<Talk<T>, ApiError>
    where
        T: Send + 'static,
        W: FnOnce(Connection, &Say<T>) -> Result<(), CallError> + Send + 'static,
    {
        let place = self.guests.enter(id)?;
        let (say, heard) = mpsc::channel(BACKLOG);
        let say = Say(say);
        let line = Arc::new(Mutex::new(Line::Calling));
        let leash = Leash(Arc::clone(&line));
        let (app, id) = (self.clone(), id.to_owned());
        tokio::task::spawn_blocking(move || {
            let done = app
                .call(&id, &line)
                .and_then(|(child, connection)| work(connection, &say).map_err(|error| app.mourned(&child, error)));
            let last = done.map_or_else(|error| Told::Said(Err(app.explained(&id, error))), |()| Told::Over);
            if let Err(SendError(Told::Said(Err(error)))) = say.0.blocking_send(last) {
                log::debug!("a talk with {id} was left: {error:?}");
            }
            drop(place);
        });
        Ok(Talk { heard, over: false, _leash: leash })
    }

    /// Has a short conversation with a sandbox's agent.
    pub(crate) async fn ask<T, W>(&self, id: &str, work: W) -> Result<T, CallError>
    where
        T: Send + 'static,
        W: FnOnce(Connection) -> Result<T, SessionError> + Send + 'static,
    {
        self.talk(id, |connection, say| say.say(work(connection)?))?.only().await
    }

    /// Silence of a sandbox that somebody has paused meanwhile is no fault of its agent's.
    pub(crate) fn explained(&self, id: &str, error: CallError) -> CallError {
        use SessionError::{Lost, NotTaken, Timeout};
        let is_silence = matches!(error, CallError::Guest(Timeout { .. } | Lost { .. } | NotTaken { .. }));
        if is_silence && engine::open(id, &self.dirs).is_ok_and(|child| child.is_paused()) {
            return SessionError::Paused { id: id.into() }.into();
        }
        error
    }

    /// A connection that broke says little; the host may know what ended the sandbox, and otherwise its console says why.
    fn mourned(&self, child: &Child, error: CallError) -> CallError {
        use SessionError::{Lost, NotListening, Unreachable};
        let CallError::Guest(Lost { .. } | NotListening { .. } | Unreachable { .. }) = &error else { return error };
        if child.is_paused() {
            return error;
        }
        if let Some(death) = child.cause_of_death() {
            return is_gone(child.id(), &death.to_string()).into();
        }
        let gone = self.living(child.id()).err().filter(|gone| gone.code == Code::SandboxGone);
        let mut told = gone.unwrap_or_else(|| error.into());
        told.message += &format!("; its console's last lines:\n{}", child.console_tail());
        told.into()
    }

    fn call(&self, id: &str, line: &Mutex<Line>) -> Result<(Child, Connection), CallError> {
        let (_, child) = self.living(id)?;
        let connection = child.connect().map_err(|error| self.mourned(&child, error.into()))?;
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*line, Line::Left) {
            return Err(CallError::Left);
        }
        *line = Line::Open(connection.hang_up_handle());
        Ok((child, connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_talk_that_breaks_off_is_not_over() {
        for is_whole in [true, false] {
            let (say, heard) = mpsc::channel(BACKLOG);
            let mut talk = Talk { heard, over: false, _leash: Leash(Arc::new(Mutex::new(Line::Calling))) };
            say.send(Told::Said(Ok(1))).await.unwrap();
            if is_whole {
                say.send(Told::Over).await.unwrap();
            }
            drop(say);
            assert!(matches!(talk.next().await, Some(Ok(1))));
            let last = talk.next().await;
            assert_eq!(matches!(last, Some(Err(CallError::Left))), !is_whole, "{last:?}");
            assert!(talk.next().await.is_none());
        }
    }

    #[test]
    fn one_sandbox_takes_not_all_the_room_and_all_take_no_more_than_there_is() {
        let guests = Arc::new(Guests::default());
        let of_one: Vec<Place> = (0..MAX_OF_ONE).map(|_| guests.enter("sb-1").unwrap()).collect();
        let refused = guests.enter("sb-1").unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (503, Code::Overloaded));
        let others: Vec<Place> = (MAX_OF_ONE..MAX_TALKS).map(|n| guests.enter(&format!("sb-x{n}")).unwrap()).collect();
        assert_eq!(guests.enter("sb-2").unwrap_err().code, Code::Overloaded);
        drop(of_one);
        drop(guests.enter("sb-1").unwrap());
        drop(others);
        let talks = guests.talks.lock().unwrap();
        assert_eq!((talks.all, talks.of_each.len()), (0, 0), "all of it is given back");
    }
}
