//! The wire types of REST v1: what is sent and what is answered, without any I/O.
//!
//! Unknown fields of a request are ignored, because clients of other versions send them. What a client of the published
//! interface reads is always there: `null` where it expects `null`, absent where it expects nothing. Names, sizes and tags
//! are plain text here; whoever takes a request checks them.

#![forbid(unsafe_code)]

mod error;
mod events;
mod exec;
mod files;
mod forks;
mod health;
mod network;
mod packs;
mod patch;
mod processes;
mod progress;
mod sandboxes;
mod snapshots;
mod store;
mod tokens;
mod tree;
mod workspaces;

pub use error::{Code, ErrorBody};
pub use events::{Event, EventKind};
pub use exec::{
    Chunk, Encoding, EvalOutput, EvalOutputKind, EvalRequest, EvalResult, ExecRequest, ExecResult, Exit, Loss, Pong,
    Started, default_timeout_secs,
};
pub use files::{FileInfo, FileKind, MakeDir, MoveFile};
pub use forks::{ForkSnapshot, ForkTimings, Forked, ForkedSandbox};
pub use health::{DaemonInfo, Health, Version};
pub use network::{Attempt, EgressPolicy, Names, NetworkInfo, NetworkLimits, SetEgress, Traffic};
pub use packs::{PullPack, PushPack, Pushed, Unpacked};
pub use processes::{ProcessInfo, ProcessStatus, SendSignal, Signal, Skipped, StartProcess, TtySize};
pub use progress::{EVENT_STREAM, Progress, Watch, WorkError};
pub use sandboxes::{
    CreateSandboxes, MemoryUse, PatchSandbox, PerChild, RenewSandbox, SandboxInfo, SandboxLimits, SandboxStatus,
};
pub use snapshots::{
    BranchMode, BranchSandbox, BuildImage, BuildSteps, BuiltImage, CompactSnapshot, CreateSnapshot, ReadyCheck,
    ReadyWay, SnapshotDetail, SnapshotInfo, SnapshotStatus, Start, Took, WarmUp,
};
pub use store::{Finding, Garbage, Leftover, Removed, StoreInfo, Verified, VerifySnapshots};
pub use tokens::{CreateToken, NewToken, Scope, TokenInfo};
pub use tree::{TreeNode, TreeSandbox};
pub use workspaces::{CreateWorkspace, SuspendWorkspace, WorkspaceInfo, WorkspaceStatus};

/// The header that makes a creation happen once.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header that has the rest of a list.
pub const NEXT_CURSOR: &str = "x-next-cursor";
/// The header that names a request, in answers and in the audit log.
pub const REQUEST_ID: &str = "x-request-id";
/// The header by which a client says that it wants to be told what was removed, and what it says then.
pub const PREFER: &str = "prefer";
/// See [`PREFER`].
pub const REPRESENTATION: &str = "return=representation";
/// The most sandboxes of one request.
pub const MAX_SANDBOXES: u32 = 1000;
