//! What a session's client sends: stdin within its window, signals and window sizes beside it.
//!
//! Several threads send on one connection. `sending` keeps their frames whole and in order; `window` says how much
//! stdin may still go and is never held while a frame is written, so that the reader can always grant credit.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use proto::codec::{Channel, CodecError, write_frame, write_message};
use proto::guest::{ErrorCode, MAX_CHUNK, Request, STDIN_WINDOW, TtySize};

use crate::{SessionError, Transport};

/// The sending half of a session, shared by its handles.
#[derive(Debug)]
pub(crate) struct Flow {
    transport: Arc<Transport>,
    sending: Mutex<()>,
    window: Mutex<Window>,
    changed: Condvar,
}

#[derive(Debug)]
struct Window {
    /// How many bytes of stdin may still be sent.
    open: usize,
    /// The session is over; nothing may be sent any more.
    ended: bool,
}

/// A poisoned lock guards plain numbers, which are whole at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flow {
    pub(crate) fn new(transport: Arc<Transport>) -> Self {
        let window = Window { open: STDIN_WINDOW, ended: false };
        Self { transport, sending: Mutex::new(()), window: Mutex::new(window), changed: Condvar::new() }
    }

    /// The agent took so much stdin. False when that is more than was sent.
    pub(crate) fn credit(&self, bytes: u64) -> bool {
        let mut window = lock(&self.window);
        let room = STDIN_WINDOW - window.open;
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= room => window.open += bytes,
            _ => return false,
        }
        self.changed.notify_all();
        true
    }

    /// The session is over. When this returns, nothing more will be sent.
    pub(crate) fn end(&self) {
        lock(&self.window).ended = true;
        self.changed.notify_all();
        drop(lock(&self.sending));
    }

    /// Waits for room and takes up to `wanted` bytes of it; `None` when the session ended.
    fn reserve(&self, wanted: usize) -> Option<usize> {
        let window = lock(&self.window);
        let waited = self.changed.wait_while(window, |window| window.open == 0 && !window.ended);
        let mut window = waited.unwrap_or_else(PoisonError::into_inner);
        if window.ended {
            return None;
        }
        let granted = wanted.min(window.open).min(MAX_CHUNK);
        window.open -= granted;
        Some(granted)
    }

    fn send(&self, write: impl FnOnce(&mut &Transport) -> Result<(), CodecError>) -> Result<(), SessionError> {
        let sending = lock(&self.sending);
        if lock(&self.window).ended {
            return Err(SessionError::Ended);
        }
        let result = write(&mut &*self.transport);
        drop(sending);
        result.map_err(Into::into)
    }
}

/// Feeds a process's standard input. Usable from another thread than the one that waits for events, and it should be:
/// a writer that fills the window blocks until somebody's [`crate::Exec::next_event`] has taken in the credit.
#[derive(Debug)]
pub struct StdinWriter {
    flow: Arc<Flow>,
}

impl StdinWriter {
    pub(crate) const fn new(flow: Arc<Flow>) -> Self {
        Self { flow }
    }

    /// Tells the process that its input is over. Without this it waits for more, also after the writer is dropped.
    ///
    /// # Errors
    /// When the session ended.
    pub fn close(self) -> io::Result<()> {
        self.send(&[])
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.flow.send(|stream| write_frame(stream, Channel::Stdin, bytes)).map_err(|error| match error {
            SessionError::Lost { source } => source,
            error => io::Error::new(io::ErrorKind::BrokenPipe, error),
        })
    }
}

impl Write for StdinWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let granted = self.flow.reserve(bytes.len());
        let count = granted.ok_or_else(|| io::Error::new(io::ErrorKind::BrokenPipe, SessionError::Ended))?;
        self.send(&bytes[..count])?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Signals and resizes a process from any thread.
#[derive(Clone, Debug)]
pub struct ExecControl {
    flow: Arc<Flow>,
}

impl ExecControl {
    pub(crate) const fn new(flow: Arc<Flow>) -> Self {
        Self { flow }
    }

    /// Sends a signal to the process group.
    ///
    /// # Errors
    /// [`SessionError::Ended`] when the process is over; [`SessionError::Refused`] when there is no such signal, which
    /// is found here because asking the agent would end the session.
    pub fn signal(&self, signal: i32) -> Result<(), SessionError> {
        if !(1..=64).contains(&signal) {
            let message = format!("{signal} is not a signal; they go from 1 to 64");
            return Err(SessionError::Refused { code: ErrorCode::BadArgument, message });
        }
        self.flow.send(|stream| write_message(stream, &Request::Signal { signal }))
    }

    /// Tells the process's terminal its new size; only for a process that has one.
    ///
    /// # Errors
    /// [`SessionError::Ended`] when the process is over.
    pub fn resize(&self, size: TtySize) -> Result<(), SessionError> {
        self.flow.send(|stream| write_message(stream, &Request::Resize(size)))
    }
}
