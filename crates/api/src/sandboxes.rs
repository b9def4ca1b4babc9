//! Sandboxes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::network::{EgressPolicy, NetworkLimits};
use crate::patch::present;

/// Children of a snapshot, all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the published interface and stands by itself")]
pub struct CreateSandboxes {
    /// Of which snapshot.
    pub snapshot_tag: String,
    /// How many.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    pub n: u32,
    /// Changes nothing: every sandbox of a snapshot that has a network has one of its own, and of a snapshot that was taken
    /// without `egress` none has, which `netns` says.
    #[serde(default)]
    pub per_child_netns: bool,
    /// The most memory of the host's that each may use.
    #[serde(default)]
    #[schema(minimum = 16)]
    pub memory_limit_mib: Option<u64>,
    /// What else each may use at most.
    #[serde(default, skip_serializing_if = "SandboxLimits::is_empty")]
    pub limits: SandboxLimits,
    /// Needs nothing here: a template has what its children touch first.
    #[serde(default)]
    pub prewarm: bool,
    /// Needs nothing here: every sandbox can be branched while it runs.
    #[serde(default)]
    pub live_fork: bool,
    /// Needs nothing here: pages are shared with the template as they are.
    #[serde(default)]
    pub hugepages: bool,
    /// Where they may connect to, instead of what their snapshot says, which must have a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// How much of their networks they may use.
    #[serde(default, skip_serializing_if = "NetworkLimits::is_empty")]
    pub network_limits: NetworkLimits,
    /// They are ended after so many seconds; null lets them live until they are killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_secs: Option<u64>,
    /// What to find them by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// In the environment of whatever runs in them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What each gets besides, in order; as many as there are sandboxes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_child: Vec<PerChild>,
}

const fn one() -> u32 {
    1
}

/// What one child gets besides what all get, and over it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PerChild {
    /// In its environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What to find it by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What it may use at most.
    #[serde(default, skip_serializing_if = "SandboxLimits::is_empty")]
    pub limits: SandboxLimits,
}

/// What a sandbox may use at most. What is absent is not limited; a limit that the host cannot hold fails the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxLimits {
    /// Memory of the host's; who needs more is ended. Goes before `memory_limit_mib`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16)]
    pub memory_mib: Option<u64>,
    /// Memory of the host's; who needs more is slowed down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16)]
    pub memory_high_mib: Option<u64>,
    /// How much of it may be swapped out; none where memory is limited and this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_mib: Option<u64>,
    /// Thousandths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 10, maximum = 1_000_000)]
    pub cpu_millis: Option<u64>,
    /// Its share where CPUs are short; 100 is everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub cpu_weight: Option<u64>,
    /// What is read from the host's disks in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub read_mib_per_sec: Option<u64>,
    /// What is written to them in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub write_mib_per_sec: Option<u64>,
    /// What the guest may write to its disks before they give errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub disk_mib: Option<u64>,
    /// Processes and threads that its VMM may have on the host; 512 where anything else is limited and this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 64, maximum = 32_768)]
    pub pids: Option<u64>,
}

impl SandboxLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the published interface and stands by itself")]
pub struct SandboxInfo {
    /// Its name.
    pub id: String,
    /// The snapshot it was forked from.
    pub snapshot_tag: String,
    /// Its network namespace, if it has one that others can enter.
    pub netns: Option<String>,
    /// Where the guest sees itself in its own network.
    pub guest_addr: String,
    /// Since when, in seconds since 1970.
    pub created_at_unix: u64,
    /// Its process on the host.
    pub pid: Option<u32>,
    /// The most memory of the host's that it may use.
    pub memory_limit_mib: Option<u64>,
    /// A snapshot was taken of it.
    pub has_branched: bool,
    /// Where the last one is.
    pub last_branch_memory_path: Option<String>,
    /// How many were taken.
    pub branch_count: u64,
    /// How it is.
    pub status: SandboxStatus,
    /// What it is found by.
    pub labels: BTreeMap<String, String>,
    /// When it is ended, in seconds since 1970.
    pub expires_at_unix: Option<u64>,
    /// Why it is gone.
    pub reason: Option<String>,
    /// What it is called inside.
    pub hostname: String,
    /// What it may use at most.
    #[serde(default)]
    pub limits: SandboxLimits,
    /// It needed more memory than it may have, and was ended.
    #[serde(default)]
    pub oom_killed: bool,
    /// It wanted more CPU time or memory than it may have, and was made to wait.
    #[serde(default)]
    pub throttled: bool,
    /// It wanted to write more to its disks than it may, and got errors.
    #[serde(default)]
    pub disk_full: bool,
    /// Its VMM wanted more processes or threads than it may have.
    #[serde(default)]
    pub pids_limited: bool,
    /// What its memory costs now, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
}

/// Memory of a sandbox's process on the host, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// Its alone: what would be free if it ended.
    pub private_kib: u64,
    /// Used by others of its snapshot, too.
    pub shared_kib: u64,
    /// The page tables, which the two above do not count.
    pub tables_kib: u64,
}

/// How a sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxStatus {
    /// It runs.
    Running,
    /// It stands still and can go on.
    Paused,
    /// It ended by itself or because its time was up.
    Gone,
}

impl SandboxStatus {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Gone => "gone",
        }
    }
}

/// What shall change; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PatchSandbox {
    /// From now on; null lets it live until it is killed.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub ttl_secs: Option<Option<u64>>,
    /// Instead of those it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// How much longer it shall live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewSandbox {
    /// From now on; null lets it live until it is killed. It must be said: nobody becomes immortal by a slip.
    #[schema(required = true)]
    #[serde(deserialize_with = "crate::patch::said")]
    pub ttl_secs: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_published_clients_send_is_understood() {
        let text = r#"{"snapshot_tag":"t","n":2,"per_child_netns":false,"memory_limit_mib":256,"prewarm":false}"#;
        let asked: CreateSandboxes = serde_json::from_str(text).unwrap();
        assert_eq!((asked.n, asked.memory_limit_mib), (2, Some(256)));
        let asked: CreateSandboxes = serde_json::from_str(r#"{"snapshot_tag":"t"}"#).unwrap();
        assert_eq!((asked.n, asked.ttl_secs), (1, None));
    }

    #[test]
    fn absent_and_null_differ_in_a_patch() {
        let patch = |text| serde_json::from_str::<PatchSandbox>(text).unwrap().ttl_secs;
        assert_eq!(patch("{}"), None);
        assert_eq!(patch(r#"{"ttl_secs":null}"#), Some(None));
        assert_eq!(patch(r#"{"ttl_secs":7}"#), Some(Some(7)));
    }
}
