//! The client side of the guest protocol: blocking, over any stream.
//!
//! ```text
//! connect_vsock ─┐
//! UnixStream ────┼─> Transport ─ Connection::open ─> Connection ─ exec ─> Exec ─ Exited ─> into_connection
//! TcpStream ─────┘                (hello, token)      ping, set_clock      ├ next_event   stdout, stderr, credits
//!                                                     renew, warm, eval    ├ stdin()      from any thread
//!                                                     poweroff, reboot     └ control()    signal, resize
//!                                                     stat_file, move_file, ...
//!                                                     read_file ─> FileReader   write_file ─> FileWriter
//!                                                     start_process, signal_process, ...
//!                                                     attach ─> Attached        feed ─> InputWriter
//!                                                     dial ─> Transport, somebody else's from then on
//! ```
//!
//! [`lines`] serves, with such a connection, those who speak the line protocol of published clients.
//!
//! One connection carries one exec at a time; many execs are many connections. Whoever drops an [`Exec`] before its
//! end has left the session, and the agent kills the process group. The agent is not trusted: what it sends is
//! bounded by the codec, and a credit it had no reason to give is an error.

#![forbid(unsafe_code)]

mod connection;
mod dial;
mod error;
mod eval;
mod exec;
mod feed;
mod files;
mod flow;
pub mod lines;
pub mod numpy;
mod output;
mod processes;
mod transport;

pub use connection::{Connection, HangUp};
pub use error::SessionError;
pub use eval::{Bundle, Evaluation};
pub use exec::{Event, Exec};
pub use files::{FileList, FileReader, FileWriter};
pub use flow::{ExecControl, StdinWriter};
pub use output::Output;
pub use processes::{Attached, AttachedEvent, InputWriter};
pub use proto::guest::{
    AgentHello, DialTarget, Entropy, ErrorCode, EvalError, EvalRequest, Exception, ExecRequest, ExitStatus, FieldError,
    FileInfo, FileKind, GuestPath, HostName, InterpreterState, ListFiles, MachineId, MakeDir, Metadata, MoveFile,
    ProcessInfo, ReadFile, RemoveFile, RenewRequest, Renewed, ShownKind, StatFile, Stdio, TtySize, Variables,
    WarmRequest, Warmed, Word, WriteFile,
};
pub use transport::{Transport, connect_vsock};
