//! Processes that outlive their clients.
//!
//! ```text
//! client                                agent
//!   Start(ExecRequest)           ->
//!                                <-     Process                        (or Error: nothing was started)
//!   List                         ->
//!                                <-     Process, Process, ..., Done
//!   Attach{id}                   ->
//!                                <-     Process, stdout bytes, stderr bytes, Skipped
//!                                <-     Exited
//!   Feed{id, close}              ->
//!                                <-     Done                           (or Error: it takes no input)
//!   stdin bytes, an empty frame  ->
//!                                <-     StdinCredit as it is taken; Done when all of it was, or Error
//! ```
//!
//! All others are answered with one message. Of what a process writes the last [`MAX_KEPT_OUTPUT`] bytes are kept, also
//! after its end. Whoever attaches gets them and what comes then, until its exit. A client that reads too slowly holds up
//! nobody: it is told how much it missed. Processes and what is kept of them are in the guest's memory, so a fork has them
//! too.

use serde::{Deserialize, Serialize};

use super::{ExecRequest, ExitStatus, TtySize};

/// How much of its output is kept.
pub const MAX_KEPT_OUTPUT: usize = 1 << 20;
/// How many processes there are at most, ended ones included. When there is no room, those that ended are forgotten, the
/// oldest first.
pub const MAX_PROCESSES: usize = 128;

/// Something with processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessRequest {
    /// Starts one.
    Start(Box<ExecRequest>),
    /// All there are, oldest first.
    List,
    /// One of them. Answered with [`super::Reply::Process`].
    Show {
        /// Which.
        id: u64,
    },
    /// Its output.
    Attach {
        /// Whose.
        id: u64,
    },
    /// Input for it, if it was started with a way to take any.
    Feed {
        /// For whom.
        id: u64,
        /// It is the last.
        #[serde(default)]
        close: bool,
    },
    /// Sends a signal to the process group. Answered with [`super::Reply::Done`].
    Signal {
        /// To whose.
        id: u64,
        /// The signal's number.
        signal: i32,
    },
    /// The window of its terminal changed. Answered with [`super::Reply::Done`].
    Resize {
        /// Whose.
        id: u64,
        /// The size it has now.
        size: TtySize,
    },
    /// Kills the process group, if it runs, and forgets it. Answered with [`super::Reply::Done`].
    Forget {
        /// Which.
        id: u64,
    },
}

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its name here; none is given twice.
    pub id: u64,
    /// Its process id in the guest; also its process group.
    pub pid: i32,
    /// Program and arguments; those beyond 16 KiB are left out.
    pub argv: Vec<String>,
    /// Where it was started; the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Who it runs as; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When it was started, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Its terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// How it ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ExitStatus>,
    /// The agent killed it because its time was up.
    #[serde(default)]
    pub timed_out: bool,
}
