//! What is stored of all snapshots together.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What all snapshots take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreInfo {
    /// How many there are, whatever their status is.
    pub snapshots: u64,
    /// How many layers those that are ready need.
    pub layers: u64,
    /// What they take; what they share counts once.
    pub occupied_bytes: u64,
}

/// What no snapshot needs: what was left by somebody who was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Garbage {
    /// Layers.
    pub layers: Vec<Leftover>,
    /// Snapshots that nobody finishes any more.
    pub unfinished: Vec<Leftover>,
    /// Downloads that nobody finishes any more; a pull of the same address would go on with it.
    pub downloads: Vec<Leftover>,
    /// What it takes, all together.
    pub bytes: u64,
    /// Templates of branches that nobody keeps any more, which were ended.
    pub ended_templates: u64,
}

/// Something that is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Leftover {
    /// What it is called.
    pub name: String,
    /// What it takes.
    pub bytes: u64,
}

/// Which snapshots to compare with what was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifySnapshots {
    /// All when none is named.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// What was looked at, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verified {
    /// How many snapshots.
    pub snapshots: u64,
    /// How many layers.
    pub layers: u64,
    /// How many bytes of them were read.
    pub bytes: u64,
    /// What is not what was written.
    pub findings: Vec<Finding>,
}

/// Something that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// Whose.
    pub tag: String,
    /// What it is, and what to do.
    pub problem: String,
}

/// Snapshots that were removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// What they were called.
    pub removed: Vec<String>,
}
