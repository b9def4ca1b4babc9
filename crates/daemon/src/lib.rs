//! The daemon: REST v1 over TCP and a unix socket.
//!
//! ```text
//! serve ─ observe (who, audit, counting) ─ routes (convert) ─ verbs off the reactor: spawn, branching, workspaces, ...
//!                                                              engine: what happens to VMs
//!                                                              registry: what is remembered
//! start: adopt what lives     all the time: reaper     end: drain
//! ```
//!
//! Async only moves bytes; every verb is a blocking call of the engine's on a thread of its own. The VMs own themselves:
//! the daemon can be killed and started again at any moment, and goes on with what lives.

#![forbid(unsafe_code)]

mod adopt;
mod audit;
mod auth;
mod body;
mod booting;
mod branching;
mod budget;
mod busy;
mod clients;
mod config;
mod cookies;
mod denials;
mod doors;
mod ends;
mod error;
mod forking;
mod forward;
mod guests;
mod hosts;
mod images;
mod limits;
mod lines;
mod metrics;
mod networks;
mod observe;
mod outside;
mod packs;
mod parts;
mod ports;
mod reaper;
mod registry;
mod routes;
mod running;
mod serve;
mod sessions;
mod snapshots;
mod socket;
mod spawn;
mod spawns;
mod state;
mod subject;
mod tls;
mod upkeep;
mod upload;
mod work;
mod workspaces;

pub use auth::Door;
pub use config::{ConfigError, ServeArgs};
pub use forward::{Inside, forward};
pub use outside::build_for;
pub use registry::RegistryError;
pub use serve::{ServeError, serve};
pub use tls::TlsError;
pub use work::relay;
