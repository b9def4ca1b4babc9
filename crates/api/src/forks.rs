//! Many sandboxes of one snapshot at once, told about one by one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::network::{EgressPolicy, NetworkLimits};
use crate::sandboxes::{SandboxInfo, SandboxLimits};

/// How to fork a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkSnapshot {
    /// How many.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 4096)]
    pub n: u32,
    /// The most memory of the host's that each may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16)]
    pub memory_limit_mib: Option<u64>,
    /// What else each may use at most.
    #[serde(default, skip_serializing_if = "SandboxLimits::is_empty")]
    pub limits: SandboxLimits,
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
    /// For whoever wants to read it in them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Keep those that work when some fail, instead of all or none.
    #[serde(default)]
    pub keep_working: bool,
    /// How long it may take until all are ready; five minutes when nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<f64>,
    /// They live as long as the answer, which is a stream of events: `forked`, and then nothing until the client leaves.
    #[serde(default)]
    pub attached: bool,
}

const fn one() -> u32 {
    1
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forked {
    /// Those that are ready.
    pub sandboxes: Vec<ForkedSandbox>,
    /// Why others are not.
    pub failures: Vec<String>,
    /// Where the time went.
    pub timings: ForkTimings,
}

/// A sandbox that is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedSandbox {
    /// It.
    #[serde(flatten)]
    pub sandbox: SandboxInfo,
    /// Its VMM's own work: from its first instant until its vCPUs ran.
    pub setup_us: u64,
    /// The agent's work of making it somebody of its own.
    pub renew_us: u64,
    /// From the beginning until it had said that it is ready.
    pub ready_us: u64,
}

/// Where the time of a fork went, in microseconds from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkTimings {
    /// A template was there.
    pub template_us: u64,
    /// The directories were made, and the control groups if there are limits.
    pub directories_us: u64,
    /// The last process was forked.
    pub forked_us: u64,
    /// The last sandbox's vCPUs ran.
    pub started_us: u64,
    /// The last sandbox was ready.
    pub ready_us: u64,
}
