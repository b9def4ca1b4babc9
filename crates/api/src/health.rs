//! Who answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The daemon lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always true.
    pub ok: bool,
}

/// Which daemon it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Its version.
    pub version: String,
    /// What it speaks.
    pub api: String,
}

/// The daemon as who runs it wants to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonInfo {
    /// Its version.
    pub version: String,
    /// Since when it runs, in seconds since 1970.
    pub started_at_unix: u64,
    /// It ends by itself after so many seconds without a client and a sandbox; null when it does not.
    pub idle_secs: Option<u64>,
    /// How many sandboxes it looks after.
    pub sandboxes: u64,
    /// How many others are connected to it, besides who asks.
    pub clients: usize,
}
