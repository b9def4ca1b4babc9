//! What has changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One change. Each has a higher id than all before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Increasing, with gaps.
    pub id: i64,
    /// Seconds since 1970.
    pub ts: u64,
    /// What happened.
    pub kind: EventKind,
    /// To which sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// To which snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// To which workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        pub enum EventKind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)*
        }

        impl EventKind {
            /// As it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// As it was written.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$kind),)* _ => None }
            }
        }
    };
}

kinds! {
    /// A sandbox was made, or one that others made was found.
    SandboxCreated = "sandbox.created",
    /// It can be used.
    SandboxReady = "sandbox.ready",
    /// It stands still.
    SandboxPaused = "sandbox.paused",
    /// It goes on.
    SandboxResumed = "sandbox.resumed",
    /// Its time to live or its labels changed.
    SandboxRenewed = "sandbox.renewed",
    /// A snapshot was taken of it.
    SandboxBranched = "sandbox.branched",
    /// It hit one of its limits for the first time.
    SandboxLimited = "sandbox.limited",
    /// It was ended on request.
    SandboxKilled = "sandbox.killed",
    /// It was ended because its time was up.
    SandboxExpired = "sandbox.expired",
    /// It ended by itself.
    SandboxGone = "sandbox.gone",
    /// A snapshot can be forked and is being written.
    SnapshotWriting = "snapshot.writing",
    /// It is written.
    SnapshotReady = "snapshot.ready",
    /// It could not be written.
    SnapshotFailed = "snapshot.failed",
    /// It was removed.
    SnapshotDeleted = "snapshot.deleted",
    /// A workspace was made.
    WorkspaceCreated = "workspace.created",
    /// Its state is kept and its VM ended.
    WorkspaceSuspended = "workspace.suspended",
    /// It runs again.
    WorkspaceResumed = "workspace.resumed",
    /// Its VM ended without being suspended.
    WorkspaceStale = "workspace.stale",
    /// It was removed.
    WorkspaceDeleted = "workspace.deleted",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_one_name_everywhere() {
        for kind in [EventKind::SandboxCreated, EventKind::SnapshotFailed, EventKind::WorkspaceDeleted] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(EventKind::from_name(kind.as_str()), Some(kind));
        }
        assert_eq!(EventKind::from_name("sandbox.danced"), None);
    }
}
