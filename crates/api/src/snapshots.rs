//! Snapshots and branches.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::network::EgressPolicy;

/// A snapshot to be made by booting a VM: of a recipe, or of a kernel and a root file system on the daemon's host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateSnapshot {
    /// What it shall be called.
    pub tag: String,
    /// The kernel's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The path of a raw ext4 image, which is never written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<String>,
    /// A recipe's name, instead of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// Needs nothing here: what a guest writes goes to a layer of its own.
    #[serde(default)]
    pub rw: bool,
    /// A network device of the host's; not offered, because children could not share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<String>,
    /// Gives it, and every sandbox of it, a network; and says where it may connect to while it warms up, and they may if
    /// nobody says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// How long warming up may take, at most 60 seconds, which it is when nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_wait_secs: Option<u64>,
    /// The same in seconds and parts of them, up to a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_timeout_secs: Option<f64>,
    /// How long the guest's agent may take to answer; two minutes when nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_timeout_secs: Option<f64>,
    /// The path of an initramfs that fits the kernel; one with the daemon's own agent is made when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initramfs: Option<String>,
    /// Words to add to the guest kernel's command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append: Option<String>,
    /// What completes the root file system before it is booted; what the recipe says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildSteps>,
    /// What is done before it is taken; what the recipe says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmUp>,
    /// TCP ports that something listens on then, to be told later; those of the recipe when there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// The recipe that the root file system was built of, to be told later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_from: Option<String>,
    /// Take the place of a snapshot of that tag.
    #[serde(default)]
    pub replace: bool,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// What to find it by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Steps that complete a root file system: run in a VM of it, never on the host. The disk that they leave is kept, and used
/// again for the same steps over the same root file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildSteps {
    /// Lines for the guest's shell, run as root one after the other.
    pub run: Vec<String>,
    /// Where they may connect to; nowhere when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// How long each of them may take, up to a day; ten minutes when nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<u32>,
}

/// An image to be built: of a recipe, or of a root file system and steps that complete it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BuildImage {
    /// A recipe's name, instead of all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// The kernel's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The path of an initramfs that fits the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initramfs: Option<String>,
    /// The path of a raw ext4 image, which is never written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<String>,
    /// What completes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildSteps>,
    /// The recipe that the root file system was built of, to name the image after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_from: Option<String>,
    /// Virtual CPUs of the VM that the steps run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// How long its agent may take to answer; two minutes when nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_timeout_secs: Option<f64>,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuiltImage {
    /// Where, on the daemon's host; to be a `rootfs`.
    pub path: String,
    /// What it can hold.
    pub bytes: u64,
    /// What it takes.
    pub occupied_bytes: u64,
}

/// What a VM does before it is frozen, so that its children need not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUp {
    /// The interpreter to keep warm, such as `python3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// What it imports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// A line for the guest's shell that is run to its end; what it leaves running is part of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What is started after that and stays; it is a process like any other that outlives its client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// What has to be so before it is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyCheck>,
    /// How long all of it may take, up to a day, when the request says nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<u32>,
}

/// What a warm-up starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Start {
    /// A line for the guest's shell.
    Line(String),
    /// A program and its arguments; no shell is needed.
    Program(Vec<String>),
}

/// How a warm-up is told to be over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ReadyCheck {
    /// A line for the guest's shell that is run until it succeeds.
    Command(String),
    /// One of several ways.
    Way(ReadyWay),
}

/// One way to tell that a warm-up is over; exactly one of `command`, `tcp`, `http` and `line` is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadyWay {
    /// A line for the guest's shell that is run until it succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A TCP port of the guest's that somebody listens on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<u16>,
    /// One where a server answers with 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<u16>,
    /// What it is asked for; `/` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Text in a line that what was started writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// How long the making of a snapshot took, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Took {
    /// Until the guest's agent answered.
    pub boot_ms: f64,
    /// Warming up.
    pub warm_ms: f64,
    /// Writing it down.
    pub write_ms: f64,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotInfo {
    /// What it is called.
    pub tag: String,
    /// Where it is.
    pub dir: String,
    /// Since when, in seconds since 1970.
    pub created_at_unix: u64,
    /// How far it is.
    pub status: SnapshotStatus,
    /// It can be forked.
    pub bootable: bool,
    /// The sandbox it was taken of, or `compact:<tag>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branched_from: Option<String>,
    /// For how long the guest stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// How long writing what differs took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_ms: Option<f64>,
    /// How much memory differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_physical_bytes: Option<u64>,
    /// How much memory there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_logical_bytes: Option<u64>,
    /// What it added to the memory below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_own_bytes: Option<u64>,
    /// What it added to the disk below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_own_bytes: Option<u64>,
    /// How long it took, where it was just made by booting a VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took: Option<Took>,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Which one it is: another that comes to be called so is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What it is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tag: Option<String>,
    /// What its disk image was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// The guest's kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// The guest's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// What is stored of it; what it shares with others included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occupied_bytes: Option<u64>,
    /// The interpreter that is warm in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// TCP ports that something listens on in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// What it is found by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// How far a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotStatus {
    /// It can be forked, and is being written.
    Writing,
    /// It is written.
    Ready,
    /// It could not be written, or is damaged.
    Failed,
}

impl SnapshotStatus {
    /// One word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Writing => "writing",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}

/// All about a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDetail {
    /// What it is called.
    pub tag: String,
    /// Which one it is: another that comes to be called so is another one.
    pub id: String,
    /// How far it is.
    pub status: SnapshotStatus,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Where it is.
    pub dir: String,
    /// Since when, in seconds since 1970.
    pub created_at_unix: Option<u64>,
    /// The guest's memory.
    pub memory_logical_bytes: u64,
    /// How much of it is stored, what it is made of included.
    pub memory_physical_bytes: u64,
    /// How much of it is its own.
    pub memory_own_bytes: u64,
    /// The guest's disks.
    pub disk_logical_bytes: u64,
    /// How much of them is stored, what they are made of included, but not the images below.
    pub disk_physical_bytes: u64,
    /// How much of it is its own.
    pub disk_own_bytes: u64,
    /// vCPUs and devices.
    pub vmstate_bytes: u64,
    /// The sandbox it was taken of, or `compact:<tag>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branched_from: Option<String>,
    /// For how long the guest stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_us: Option<u64>,
    /// The snapshot it descends from.
    pub parent_tag: Option<String>,
    /// The digest of the memory layer below its own.
    pub parent_content_hash: Option<String>,
    /// How many layers lie over the lowest.
    pub chain_depth: u64,
    /// What is made of it.
    pub dependents: Vec<String>,
    /// What it descends from, the first of all first.
    pub ancestors: Vec<String>,
    /// What it descends from and is gone; what comes before those is not known.
    pub missing_ancestors: Vec<String>,
}

/// How a branch is taken. All of them leave the sandbox running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BranchMode {
    /// All of it is stored.
    Full,
    /// What differs is stored.
    Diff,
    /// What differs is stored; may be answered before it is.
    Live,
}

/// A snapshot of a sandbox that runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the published interface")]
pub struct BranchSandbox {
    /// What it shall be called; a new name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// How it is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<BranchMode>,
    /// An older way to say `mode: diff`.
    #[serde(default)]
    pub diff: bool,
    /// An older way to say `mode: live`.
    #[serde(default)]
    pub live: bool,
    /// Say what differs.
    #[serde(default)]
    pub measure_diff: bool,
    /// Answer when it is stored; only those of mode `live` and `full` need not wait.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Keep it chained to the snapshot that the sandbox was forked from, which is named here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tag: Option<String>,
}

const fn yes() -> bool {
    true
}

/// A snapshot of the same contents that needs no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompactSnapshot {
    /// What it shall be called.
    pub to: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_check_is_a_command_or_a_table() {
        for (text, ready) in [
            (r#""true""#, ReadyCheck::Command("true".into())),
            (r#"{"tcp":80}"#, ReadyCheck::Way(ReadyWay { tcp: Some(80), ..ReadyWay::default() })),
        ] {
            assert_eq!(serde_json::from_str::<ReadyCheck>(text).unwrap(), ready);
            assert_eq!(serde_json::to_string(&ready).unwrap(), text);
        }
        serde_json::from_str::<ReadyCheck>(r#"{"udp":80}"#).unwrap_err();
    }

    #[test]
    fn an_empty_branch_waits_and_absent_facts_are_not_written() {
        assert!(serde_json::from_str::<BranchSandbox>("{}").unwrap().wait);
        let info = SnapshotInfo {
            tag: "t".into(),
            dir: "/d".into(),
            created_at_unix: 1,
            status: SnapshotStatus::Ready,
            bootable: true,
            branched_from: None,
            pause_ms: None,
            diff_ms: None,
            diff_physical_bytes: None,
            diff_logical_bytes: None,
            memory_own_bytes: None,
            disk_own_bytes: None,
            took: None,
            warning: None,
            id: None,
            parent_tag: None,
            recipe: None,
            kernel: None,
            vcpus: None,
            memory_bytes: None,
            occupied_bytes: None,
            interpreter: None,
            ports: Vec::new(),
            labels: BTreeMap::new(),
        };
        let text = serde_json::to_string(&info).unwrap();
        assert_eq!(text, r#"{"tag":"t","dir":"/d","created_at_unix":1,"status":"ready","bootable":true}"#);
    }
}
