//! Processes that outlive their clients: started, listed, followed, fed and forgotten, each by its id.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use proto::codec::{Channel, read_frame};
use proto::guest::{ExecRequest, ExitStatus, MAX_PROCESSES, ProcessInfo, ProcessRequest, Reply, Request, TtySize};

use crate::connection::REPLY_PATIENCE;
use crate::exec::chunk;
use crate::feed::Feed;
use crate::transport::Until;
use crate::{Connection, SessionError, Transport};

impl Connection {
    /// Starts a process that nobody has to stay for.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it could not be started; its code says why. `TooMany` when as many as there may be run.
    pub fn start_process(&mut self, request: &ExecRequest) -> Result<ProcessInfo, SessionError> {
        self.expect_process(ProcessRequest::Start(Box::new(request.clone())))
    }

    /// All processes that were started so and not forgotten, oldest first.
    ///
    /// # Errors
    /// When the agent does not answer.
    pub fn list_processes(&mut self) -> Result<Vec<ProcessInfo>, SessionError> {
        let mut reply = self.process(ProcessRequest::List)?;
        let mut all = Vec::new();
        loop {
            match reply {
                Reply::Process(info) if all.len() < MAX_PROCESSES => all.push(info),
                Reply::Done => return Ok(all),
                reply => return Err(SessionError::unexpected(&reply)),
            }
            let mut until = Until::new(self.transport(), REPLY_PATIENCE);
            let next = proto::codec::read_message(&mut until);
            let next = next.map_err(|error| SessionError::from_codec(error, REPLY_PATIENCE))?;
            until.lift().map_err(|source| SessionError::Lost { source })?;
            reply = next.ok_or_else(SessionError::closed)?;
        }
    }

    /// What is known of a process.
    ///
    /// # Errors
    /// [`SessionError::Refused`] with `NoSuchProcess`, as for all that names a process.
    pub fn show_process(&mut self, id: u64) -> Result<ProcessInfo, SessionError> {
        self.expect_process(ProcessRequest::Show { id })
    }

    /// Follows a process: what is kept of its output, what comes then, and its exit.
    ///
    /// # Errors
    /// As [`Self::show_process`].
    pub fn attach(self, id: u64) -> Result<Attached, SessionError> {
        match self.process(ProcessRequest::Attach { id })? {
            Reply::Process(process) => Ok(Attached { process, transport: self.into_transport(), over: false }),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    /// Begins to feed a process that was started with pipes or a terminal. With `close` its input is over after that.
    ///
    /// # Errors
    /// As [`Self::show_process`]; `BadArgument` when it takes no input, `Ended` when it is over.
    pub fn feed(self, id: u64, close: bool) -> Result<InputWriter, SessionError> {
        match self.process(ProcessRequest::Feed { id, close })? {
            Reply::Done => Ok(InputWriter { feed: Feed::new(self.into_transport(), REPLY_PATIENCE) }),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    /// As [`Self::show_process`]; `Ended` when it is over.
    pub fn signal_process(&mut self, id: u64, signal: i32) -> Result<(), SessionError> {
        self.expect_done(&Request::Process { op: ProcessRequest::Signal { id, signal } })
    }

    /// Tells its terminal a new size.
    ///
    /// # Errors
    /// As [`Self::show_process`]; `BadArgument` when it has none.
    pub fn resize_process(&mut self, id: u64, size: TtySize) -> Result<(), SessionError> {
        self.expect_done(&Request::Process { op: ProcessRequest::Resize { id, size } })
    }

    /// Kills its process group, if it runs, and forgets it.
    ///
    /// # Errors
    /// As [`Self::show_process`].
    pub fn forget_process(&mut self, id: u64) -> Result<(), SessionError> {
        self.expect_done(&Request::Process { op: ProcessRequest::Forget { id } })
    }

    fn process(&self, op: ProcessRequest) -> Result<Reply, SessionError> {
        self.ask(&Request::Process { op }, REPLY_PATIENCE)
    }

    fn expect_process(&self, op: ProcessRequest) -> Result<ProcessInfo, SessionError> {
        match self.process(op)? {
            Reply::Process(info) => Ok(info),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }
}

/// What a process that is followed does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachedEvent {
    /// It wrote to standard output, or its terminal.
    Stdout(Vec<u8>),
    /// It wrote to standard error.
    Stderr(Vec<u8>),
    /// So much was written that is kept no longer: before this client came, or because it reads too slowly.
    Skipped {
        /// How much.
        bytes: u64,
    },
    /// It ended; nothing comes after this.
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The agent killed it because its time was up.
        timed_out: bool,
    },
}

/// A process that is followed. Dropping this does nothing to it.
#[derive(Debug)]
pub struct Attached {
    /// What it was when it was attached to.
    pub process: ProcessInfo,
    transport: Arc<Transport>,
    over: bool,
}

impl Attached {
    /// Waits for what it does next, however long that takes.
    ///
    /// # Errors
    /// [`SessionError::Lost`] when the VM goes away, [`SessionError::Ended`] after [`AttachedEvent::Exited`].
    pub fn next_event(&mut self) -> Result<AttachedEvent, SessionError> {
        if self.over {
            return Err(SessionError::Ended);
        }
        let event = self.receive();
        self.over = matches!(event, Ok(AttachedEvent::Exited { .. }) | Err(_));
        event
    }

    /// Ends the wait of whoever is in [`Self::next_event`], from another thread.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let transport = Arc::clone(&self.transport);
        // Fails when the agent is gone already, which is what was wanted.
        move || drop(transport.hang_up())
    }

    fn receive(&self) -> Result<AttachedEvent, SessionError> {
        let frame = read_frame(&mut &*self.transport)?.ok_or_else(SessionError::closed)?;
        match frame.channel {
            Channel::Stdout => Ok(AttachedEvent::Stdout(chunk(frame)?)),
            Channel::Stderr => Ok(AttachedEvent::Stderr(chunk(frame)?)),
            Channel::Stdin => Err(SessionError::unexpected(&frame.channel)),
            Channel::Message => match frame.message()? {
                Reply::Skipped { bytes } => Ok(AttachedEvent::Skipped { bytes }),
                Reply::Exited { status, timed_out } => Ok(AttachedEvent::Exited { status, timed_out }),
                Reply::Error { code, message } => Err(SessionError::Refused { code, message }),
                reply => Err(SessionError::unexpected(&reply)),
            },
        }
    }
}

/// Input for a process. A process that takes none for a minute is an error and no hang.
///
/// Dropped before its end, what was sent may be taken or not; input that was to be closed after it is closed, as that of any
/// pipe whose writer ends.
#[derive(Debug)]
pub struct InputWriter {
    feed: Feed,
}

impl InputWriter {
    /// Sends some of the bytes; how many.
    ///
    /// # Errors
    /// [`SessionError::Refused`] with `Ended` when the process takes no more, [`SessionError::NotTaken`] when it takes none.
    pub fn send(&mut self, bytes: &[u8]) -> Result<usize, SessionError> {
        let sent = self.feed.send(bytes);
        sent.map_err(|error| self.not_taken(error))
    }

    /// The same for a process that may take none for so long.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.feed.set_patience(patience);
        self
    }

    /// An agent that says nothing waits for its process.
    fn not_taken(&self, error: SessionError) -> SessionError {
        match error {
            SessionError::Timeout { waited } => SessionError::NotTaken { waited, taken_bytes: self.feed.taken_bytes() },
            error => error,
        }
    }

    /// Waits until the process has been given all of it.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn finish(mut self) -> Result<(), SessionError> {
        let finished = self.feed.finish();
        match finished.map_err(|error| self.not_taken(error))? {
            Reply::Done => Ok(()),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }
}

impl Write for InputWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
