//! What every failed request is answered with.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// For a person: what went wrong and what to do.
    pub error: String,
    /// For a program: which case it is.
    pub code: Code,
}

/// Which case an error is. A name never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// No token came.
    MissingToken,
    /// The token is unknown, or its time is over.
    InvalidToken,
    /// The token does not allow this.
    Forbidden,
    /// There is no such route.
    RouteNotFound,
    /// The route does not know the method.
    MethodNotAllowed,
    /// The body is no JSON.
    MalformedJson,
    /// The body, a query or a header is not what is expected here.
    InvalidRequest,
    /// The body is not said to be JSON.
    UnsupportedMediaType,
    /// The body is longer than what is taken.
    TooLarge,
    /// The body did not come in time.
    RequestTimeout,
    /// Not a tag.
    InvalidTag,
    /// Not a name.
    InvalidName,
    /// What is asked for is not offered here.
    NotOffered,
    /// The host has not enough memory left.
    HostFull,
    /// There is no such snapshot.
    SnapshotNotFound,
    /// The tag is taken.
    SnapshotExists,
    /// It is still being written.
    SnapshotNotReady,
    /// It could not be written, is damaged, or cannot run here.
    SnapshotUnusable,
    /// Other snapshots are made of it.
    SnapshotHasChildren,
    /// A workspace has its state there.
    SnapshotInUse,
    /// It is no pack, or a damaged or hostile one.
    BadPack,
    /// The hub or the server has no such pack.
    PackNotFound,
    /// A server that a pack comes from or goes to cannot be reached, says no, or hands out something else.
    ServerFailed,
    /// There is no such sandbox.
    SandboxNotFound,
    /// There was one, and it ended.
    SandboxGone,
    /// It stands still.
    SandboxPaused,
    /// It has no network.
    NoNetwork,
    /// Nobody listens on that port of it.
    NobodyListens,
    /// The host cannot make or change a network.
    NetworkUnavailable,
    /// It cannot be branched as it is.
    BranchRefused,
    /// As many branches as may be are under way.
    BranchBusy,
    /// Somebody else does something with this right now.
    Busy,
    /// There is no such workspace.
    WorkspaceNotFound,
    /// The name is taken.
    WorkspaceExists,
    /// It does not run.
    WorkspaceNotRunning,
    /// It runs.
    WorkspaceRunning,
    /// Its VM ended, and nothing of it was ever kept.
    WorkspaceStateLost,
    /// There is no such token.
    TokenNotFound,
    /// The name is taken.
    TokenExists,
    /// The key came before, with another request.
    IdempotencyMismatch,
    /// The request with this key is still under way.
    IdempotencyInProgress,
    /// The daemon is about to end.
    Stopping,
    /// The guest's agent does not answer.
    AgentUnreachable,
    /// The guest's agent says no.
    AgentRefused,
    /// The snapshot's agent is older than what is asked of it; make the snapshot anew.
    AgentTooOld,
    /// There is no such program in the sandbox.
    ProgramNotFound,
    /// It is there and cannot be executed.
    ProgramNotExecutable,
    /// It takes no input now.
    ProcessNotReading,
    /// There is no such file in the sandbox.
    FileNotFound,
    /// It is a directory.
    IsADirectory,
    /// It, or a part of its path, is not a directory.
    NotADirectory,
    /// It is a device, a socket or a pipe.
    NotAFile,
    /// There is something of that name already.
    FileExists,
    /// The directory is not empty.
    DirectoryNotEmpty,
    /// The guest's user may not do that.
    PermissionDenied,
    /// The disk is full: the guest's, or that of the store.
    NoSpace,
    /// The guest's file system cannot be written to.
    ReadOnly,
    /// Both are on different file systems of the guest's.
    CrossDevice,
    /// Somebody in the guest uses it.
    FileBusy,
    /// There is no such process, or not any more.
    ProcessNotFound,
    /// The process is over, or takes no input any more.
    ProcessEnded,
    /// As many processes as may be are known already.
    TooManyProcesses,
    /// As much as the daemon can do at once is under way; try again.
    Overloaded,
    /// A browser was led here under a name that is not this host's; give the daemon a token.
    HostNotAllowed,
    /// A limit cannot be held on this host.
    LimitUnavailable,
    /// A child, a template or a guest failed.
    VmFailed,
    /// The host or the daemon failed; its log has the details under the request's id.
    Internal,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_written_as_a_word() {
        let body = ErrorBody { error: "no".into(), code: Code::SandboxNotFound };
        assert_eq!(serde_json::to_string(&body).unwrap(), r#"{"error":"no","code":"sandbox_not_found"}"#);
    }
}
