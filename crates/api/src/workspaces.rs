//! Workspaces: sandboxes whose state outlives them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sandboxes::SandboxLimits;

/// A workspace to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateWorkspace {
    /// What it shall be called.
    pub name: String,
    /// The snapshot it begins with.
    pub snapshot_tag: String,
    /// As for a sandbox.
    #[serde(default)]
    pub per_child_netns: bool,
    /// The most memory of the host's that it may use, whenever it runs.
    #[serde(default)]
    pub memory_limit_mib: Option<u64>,
    /// What else it may use at most, whenever it runs.
    #[serde(default, skip_serializing_if = "SandboxLimits::is_empty")]
    pub limits: SandboxLimits,
    /// In the environment of whatever runs in it, whenever it runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// A workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceInfo {
    /// Its id.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// The snapshot it began with.
    pub source_snapshot_tag: String,
    /// How it is.
    pub status: WorkspaceStatus,
    /// Since when, in seconds since 1970.
    pub created_at_unix: u64,
    /// When it was last made, suspended or resumed.
    pub last_active_unix: u64,
    /// The snapshot that holds what it was when it was last suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_state_tag: Option<String>,
    /// The sandbox that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_sandbox_id: Option<String>,
    /// Where the state is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_branch_memory_path: Option<String>,
}

/// How a workspace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceStatus {
    /// It runs.
    Running,
    /// Its state is kept.
    Suspended,
    /// Its VM ended without being suspended; what was kept before is still there.
    Stale,
}

impl WorkspaceStatus {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Stale => "stale",
        }
    }
}

/// How to suspend a workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SuspendWorkspace {
    /// Store what differs; otherwise, too, as that is all that is needed.
    #[serde(default)]
    pub diff: bool,
}
