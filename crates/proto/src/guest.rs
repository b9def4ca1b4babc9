//! Host to guest agent.
//!
//! A connection begins with `Hello` from the client; the agent answers with the generation both will speak, the lower
//! of the two. After that the client makes requests, one at a time. `Exec` turns the connection into a session until
//! its `Exited`:
//!
//! ```text
//! client                                agent
//!   Exec{argv, ...}              ->
//!                                <-     Started{pid}         (or Error: nothing was started)
//!   stdin bytes, Signal, Resize  ->
//!                                <-     StdinCredit, stdout bytes, stderr bytes
//!                                <-     Exited{status}
//! ```
//!
//! Many execs at once are many connections. A client may have at most [`STDIN_WINDOW`] bytes of stdin on the way that
//! the agent has not credited, so a process that does not read its input never keeps a signal from being delivered.
//! When a client goes away inside a session, the process group is killed.
//!
//! What outlives a connection has requests of its own: [`FileRequest`], [`ProcessRequest`]. [`Request::Dial`] turns the
//! connection into somebody else's.
//!
//! The generation is one number for the whole surface. A snapshot holds the agent it was taken with for ever, so the
//! host adapts: a message is sent only to an agent whose generation is at least the message's [`Request::since`].

mod dial;
mod eval;
mod files;
mod processes;
mod renew;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use types::Interpreter;

pub use dial::DialTarget;
pub use eval::{
    EvalError, EvalRequest, Evaluated, Exception, InterpreterState, MAX_EVAL_OUTPUT, MAX_EVAL_TIMEOUT_MS, MAX_SHOWN,
    SHOWN_SINCE, Shown, ShownKind, WarmRequest, Warmed,
};
pub use files::{
    FileInfo, FileKind, FileRequest, GuestPath, ListFiles, MAX_LIST_DEPTH, MakeDir, MoveFile, ReadFile, RemoveFile,
    StatFile, WriteFile,
};
pub use processes::{MAX_KEPT_OUTPUT, MAX_PROCESSES, ProcessInfo, ProcessRequest};
pub use renew::{Entropy, FieldError, HostName, MachineId, Metadata, RenewRequest, Renewed, Variables, Word};

/// The newest generation this build speaks.
pub const GENERATION: u16 = 3;
/// The vsock port the agent listens on.
pub const AGENT_PORT: u32 = 1717;
/// How much stdin may be under way without the agent's credit.
pub const STDIN_WINDOW: usize = 256 << 10;
/// The most either side puts into one data frame.
pub const MAX_CHUNK: usize = 64 << 10;

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// First on every connection.
    Hello {
        /// The newest generation the client speaks.
        generation: u16,
        /// Proof of the right to connect, where the transport itself proves nothing (TCP).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// Starts a process and begins a session.
    Exec(ExecRequest),
    /// Inside a session: sends a signal to the process group.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// Inside a session with a terminal: the window changed.
    Resize(TtySize),
    /// Is anybody there? Answered with [`Reply::Done`].
    Ping,
    /// After a fork: makes the guest somebody of its own. Answered with [`Reply::Renewed`] when it is; sent again, it
    /// does everything again.
    Renew(Box<RenewRequest>),
    /// Sets the wall clock, and nothing else: a renewal can be long under way, and then tells a time that is over.
    /// Answered with [`Reply::Done`].
    SetClock {
        /// Nanoseconds since 1970.
        unix_ns: u64,
    },
    /// Starts the warm interpreter. Answered with [`Reply::Warmed`].
    Warm(WarmRequest),
    /// Runs code in the warm interpreter. Answered with what it wrote, as data frames, what it showed, as
    /// [`Reply::Shown`], and [`Reply::Evaluated`].
    Eval(EvalRequest),
    /// Syncs the disks and powers the guest off. Answered with [`Reply::Done`] before it happens.
    Poweroff,
    /// Syncs the disks and restarts the guest. Answered with [`Reply::Done`] before it happens.
    Reboot,
    /// Something with files.
    File {
        /// What.
        op: FileRequest,
    },
    /// Something with processes that outlive their clients.
    Process {
        /// What.
        op: ProcessRequest,
    },
    /// Connects to somebody in the guest. Answered with [`Reply::Done`]; from then on the connection carries no frames but
    /// the bytes of both sides, and either may end its own half.
    Dial {
        /// To whom.
        to: DialTarget,
    },
}

impl Request {
    /// The generation that introduced this message.
    #[must_use]
    pub const fn since(&self) -> u16 {
        match self {
            Self::Hello { .. }
            | Self::Exec(_)
            | Self::Signal { .. }
            | Self::Resize(_)
            | Self::Ping
            | Self::Renew(_)
            | Self::SetClock { .. }
            | Self::Warm(WarmRequest { program: Interpreter::Python3, .. })
            | Self::Eval(_)
            | Self::Poweroff
            | Self::Reboot => 1,
            Self::File { .. } | Self::Process { .. } | Self::Dial { .. } => 2,
            Self::Warm(WarmRequest { program: Interpreter::Node | Interpreter::Jupyter, .. }) => 3,
        }
    }
}

/// What to run, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Program and arguments; the program is looked up in the `PATH` the process will have.
    pub argv: Vec<String>,
    /// Added to the agent's own small default environment (`PATH`, `HOME`, `USER`, `TERM`, `LANG`) and to what
    /// [`Request::Renew`] brought; wins over both.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where to start; the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// After this long the whole process group is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Where standard input, output and error go.
    #[serde(default)]
    pub stdio: Stdio,
}

/// Where a process's standard streams go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdio {
    /// Output is streamed; stdin is empty.
    #[default]
    Output,
    /// Output is streamed, stdin comes from the client.
    Pipes,
    /// All three are one terminal of the given size; its output comes as stdout.
    Tty(TtySize),
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Answers `Hello`.
    Hello(AgentHello),
    /// The process runs.
    Started {
        /// Its process id in the guest; also its process group.
        pid: i32,
    },
    /// The process took this much stdin; as much more may be sent.
    StdinCredit {
        /// How much.
        bytes: u64,
    },
    /// The process ended and all its output was sent. Ends the session.
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The agent killed it because its time was up.
        #[serde(default)]
        timed_out: bool,
    },
    /// The guest is somebody of its own.
    Renewed(Renewed),
    /// The interpreter is warm.
    Warmed(Warmed),
    /// A piece of what the code shows; sent to clients of generation 3 and later.
    Shown(Shown),
    /// The code has ended.
    Evaluated(Evaluated),
    /// A file.
    File(FileInfo),
    /// Some files of a list; more follow, or [`Reply::Done`].
    Files {
        /// As many as fit well into a message.
        files: Vec<FileInfo>,
    },
    /// A process that outlives its clients.
    Process(ProcessInfo),
    /// So much output came that is kept no longer; what comes next is from behind it.
    Skipped {
        /// How much.
        bytes: u64,
    },
    /// The request was carried out and has no other answer.
    Done,
    /// The request was not carried out. Ends the session if there was one.
    Error {
        /// Which case it is.
        code: ErrorCode,
        /// What a person should read.
        message: String,
    },
}

/// Who the agent is and what it runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentHello {
    /// The generation spoken on this connection from here on.
    pub generation: u16,
    /// The agent's version.
    pub agent: String,
    /// `uname -r` of the guest.
    pub kernel: String,
    /// From the kernel's first instant until the agent was ready to serve.
    pub boot_ms: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ExitStatus {
    /// The code a shell would show: 128 and the signal's number for a killed process.
    #[must_use]
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// Why the agent refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The bytes, or their order, are not this protocol.
    Protocol,
    /// The token is missing or wrong.
    Denied,
    /// The program, or the file, does not exist.
    NotFound,
    /// The program exists and cannot be executed.
    NotExecutable,
    /// No such user or group.
    NoSuchUser,
    /// The working directory cannot be entered.
    BadCwd,
    /// An argument cannot be used (empty argv, a NUL byte, a bad signal).
    BadArgument,
    /// It was not done in the time it was given.
    Timeout,
    /// A module could not be imported; the message is the traceback.
    ImportFailed,
    /// The guest could not do it (no memory, no processes left, ...).
    Failed,
    /// The user may not do that.
    PermissionDenied,
    /// It is a directory.
    IsADirectory,
    /// A part of the path, or the path, is not a directory.
    NotADirectory,
    /// There is no file to read or replace: a device, a socket, a pipe.
    NotAFile,
    /// There is something of that name already.
    AlreadyExists,
    /// The directory is not empty.
    NotEmpty,
    /// The disk, or the user's share of it, is full.
    NoSpace,
    /// The file system cannot be written to.
    ReadOnly,
    /// Both are on different file systems.
    CrossDevice,
    /// Somebody uses it.
    Busy,
    /// No process has that id, or not any more.
    NoSuchProcess,
    /// The process is over, or takes no input any more.
    Ended,
    /// There are as many of them as there may be.
    TooMany,
    /// Nobody listens there.
    ConnectionRefused,
    /// A code of a later generation.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests;
