//! A blocking client of the daemon: requests and answers in the types of [`api`], over TCP, TLS or a unix socket.
//!
//! ```text
//! Endpoint ─ Client ─┬─ get, post, delete ──> an answer, or the daemon's error with its code
//!                    ├─ work ───────────────> the same, with how far it is meanwhile
//!                    ├─ read ───────────────> bytes as they come
//!                    ├─ send, pour ─────────> bytes as they are given
//!                    ├─ dial ───────────────> a connection to a port of a sandbox
//!                    └─ events ─────────────> server-sent events, to their end
//! ```
//!
//! No time limit is set on answers unless it is asked for: some take as long as what was asked for. Connections are kept and used again.

#![forbid(unsafe_code)]

mod dial;
mod endpoint;
mod error;
mod events;
mod hear;
mod path;
mod requests;
mod unix;

pub use dial::Dialled;
pub use endpoint::{Endpoint, EndpointError};
pub use error::ClientError;
pub use events::{Event, Events};
pub use path::path;
pub use requests::{Client, Reader};
