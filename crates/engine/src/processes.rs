//! A child's processes that outlive their clients.

use session::{Attached, ExecRequest, InputWriter, ProcessInfo, SessionError, TtySize};

use crate::child::Child;

impl Child {
    /// Starts a process that nobody has to stay for; it survives branches too.
    ///
    /// # Errors
    /// When the child is gone, or [`SessionError::Refused`], whose code says why; as for all that names a process.
    pub fn start_process(&self, request: &ExecRequest) -> Result<ProcessInfo, SessionError> {
        self.connect()?.start_process(request)
    }

    /// All that were started so and not forgotten, oldest first.
    ///
    /// # Errors
    /// As [`Self::start_process`].
    pub fn processes(&self) -> Result<Vec<ProcessInfo>, SessionError> {
        self.connect()?.list_processes()
    }

    /// What is known of a process.
    ///
    /// # Errors
    /// As [`Self::start_process`].
    pub fn show_process(&self, id: u64) -> Result<ProcessInfo, SessionError> {
        self.connect()?.show_process(id)
    }

    /// Follows a process: what is kept of its output, what comes then, and its exit.
    ///
    /// # Errors
    /// As [`Self::start_process`].
    pub fn attach(&self, id: u64) -> Result<Attached, SessionError> {
        self.connect()?.attach(id)
    }

    /// Begins to feed a process; with `close` its input is over after that.
    ///
    /// # Errors
    /// As [`Self::start_process`].
    pub fn feed(&self, id: u64, close: bool) -> Result<InputWriter, SessionError> {
        self.connect()?.feed(id, close)
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    /// As [`Self::start_process`].
    pub fn signal_process(&self, id: u64, signal: i32) -> Result<(), SessionError> {
        self.connect()?.signal_process(id, signal)
    }

    /// Tells its terminal a new size.
    ///
    /// # Errors
    /// As [`Self::start_process`].
    pub fn resize_process(&self, id: u64, size: TtySize) -> Result<(), SessionError> {
        self.connect()?.resize_process(id, size)
    }

    /// Kills its process group, if it runs, and forgets it.
    ///
    /// # Errors
    /// As [`Self::start_process`].
    pub fn forget_process(&self, id: u64) -> Result<(), SessionError> {
        self.connect()?.forget_process(id)
    }
}
