//! The verbs on VMs: blocking calls, one file each, without a terminal and without printing.
//!
//! ```text
//! doctor     what this machine can do                  place      where VMs run here
//! boot       VMM process + agent = Vm                  snapshot   boot, warm up, keep in the store
//! fork       n children of a snapshot's template       template   the process they are forked from
//! branch     a template and a snapshot of a child that runs on
//! list, open, find, kill, pause, exec, eval, ping      a child, by its id
//! files, processes, dial                               what is in it, runs in it, listens in it
//! lineage    which snapshot is made of which
//! ```
//!
//! A [`Vm`] is a guard: when it is dropped, its process, its directory and its network are gone. A [`Child`] is a name:
//! it lives by itself, whoever made it, until it is killed or, if it was made so, until its [`Forked`] is dropped.

mod admission;
mod boot;
mod branch;
mod build;
mod caller;
mod cancel;
mod cgroup;
mod child;
mod childdir;
mod cmdline;
mod console;
mod cores;
mod dial;
pub mod doctor;
mod eval;
mod exec;
mod files;
mod fork;
mod freeze;
mod hearing;
mod kill;
mod limits;
mod lineage;
mod list;
mod longest_file;
mod memory;
mod nameless;
mod network;
mod page_map;
mod pause;
mod pidfd;
mod ping;
pub mod place;
mod pool;
mod probe;
mod probe_memory;
mod process;
mod processes;
mod programs;
mod random;
mod said;
mod snapshot;
mod sys;
mod template;
#[cfg(test)]
mod testing;
mod uids;
mod vm;
mod vmdir;
mod watchdog;
mod written;

pub use admission::{AdmissionError, NoRoom};
pub use boot::{BootError, BootSpec, boot};
pub use branch::{Branch, BranchError, BranchSpec, Extent, Kept, branch, default_tag};
pub use build::{BuildError, BuildSpec, build};
pub use cancel::Cancel;
pub use cgroup::{
    CgroupError, CpuLimit, CpuWeight, DiskLimit, Hits, IoLimit, LimitError, Limits, MemoryLimit, PidsLimit, SwapLimit,
    Within,
};
pub use child::{Child, Death};
pub use cores::{Cores, CoresError};
pub use fork::{
    ChildError, ChildOptions, ForkError, ForkSpec, ForkTimings, Forked, ForkedChild, MAX_CHILDREN, Results, fork,
    fork_on,
};
pub use freeze::{FreezeError, Frozen};
pub use kill::{KillError, kill, kill_many, sweep, sweep_but};
pub use limits::raise_descriptors;
pub use lineage::{Lineage, LineageError, LineageNode, LineageSandbox};
pub use list::{FindError, find, list, open};
pub use memory::MemoryUse;
pub use net::{
    Attempt, Directory as Namespaces, Door, DoorError, Egress, Lease, Limits as NetworkLimits, NamesReport, Network,
    NetworkError, PolicyError, Pool, Report as NetworkReport, Tap, TapError, Traffic, Turn, plan,
};
pub use network::{ChildNetwork, EgressError, Networks, networks};
pub use pause::{ChildStatus, PauseError};
pub use ping::Pong;
pub use probe::{KvmVerdict, Probe};
pub use process::ProcessError;
pub use programs::{Program, ProgramError, on_path};
pub use proto::control::{Lifetime, Outcome};
pub use snapshot::{ReadyCheck, SnapshotError, SnapshotSpec, Taken, WarmError, WarmUp, snapshot};
pub use store::{
    Ancestor, Collected, Existing, Failure, Finding, Garbage, Info, Intent, Listed, Manifest, Parent, Removal,
    Snapshot, Status, Store, StoreError, Stored, Verified,
};
pub use template::{TemplateError, remove_snapshot, start_template, stop_template, sweep_templates, template_runs};
pub use uids::UidError;
pub use vm::{BootTimings, Stopper, Vm};
pub use vmdir::VmDirError;
