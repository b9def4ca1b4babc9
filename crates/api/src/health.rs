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
