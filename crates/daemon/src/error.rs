//! The one error of all routes, and the one place that decides what a failure is in HTTP.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use api::{Code, ErrorBody};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::{
    AdmissionError, BranchError, FindError, ForkError, KillError, LineageError, PauseError, SnapshotError, StoreError,
    TemplateError,
};
use session::{ErrorCode, SessionError};
use types::TagError;

use crate::registry::RegistryError;

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// What a failed request leaves in its answer for the audit log.
#[derive(Clone, Debug)]
pub(crate) struct Said(pub(crate) Arc<ErrorBody>);

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// What was asked for makes no sense.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Code::InvalidRequest, message)
    }

    /// There is no such thing.
    pub(crate) fn missing(code: Code, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// As things are, it cannot be done.
    pub(crate) fn conflict(code: Code, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// The host or the daemon failed.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, message)
    }

    fn of(status: StatusCode, code: Code, error: &dyn Error) -> Self {
        Self::new(status, code, chain(error))
    }

    fn failed(code: Code, error: &dyn Error) -> Self {
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, code, error)
    }

    fn refused(code: Code, error: &dyn Error) -> Self {
        Self::of(StatusCode::CONFLICT, code, error)
    }

    /// The same with another status, where the published interface wants one.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The same as a case of its own.
    pub(crate) fn with_code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// The body of the answer.
    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody { error: self.message.clone(), code: self.code }
    }
}

/// An error and all that caused it, in one line; a cause that its effect quotes already is not repeated.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            write!(text, ": {words}").expect("text takes text");
        }
        next = cause.source();
    }
    text
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Arc::new(self.body());
        let mut response = (self.status, Json(&*body)).into_response();
        response.extensions_mut().insert(Said(body));
        response
    }
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        Self::failed(Code::Internal, &error)
    }
}

impl From<TagError> for ApiError {
    fn from(error: TagError) -> Self {
        Self::of(StatusCode::BAD_REQUEST, Code::InvalidTag, &error)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unknown { .. } => Self::of(StatusCode::NOT_FOUND, Code::SnapshotNotFound, &error),
            StoreError::Writing { .. } => Self::refused(Code::SnapshotNotReady, &error),
            StoreError::Exists { .. } => Self::refused(Code::SnapshotExists, &error),
            StoreError::HasChildren { .. } => Self::refused(Code::SnapshotHasChildren, &error),
            StoreError::Failed { .. }
            | StoreError::TooDeep { .. }
            | StoreError::Older { .. }
            | StoreError::Newer { .. }
            | StoreError::Manifest { .. }
            | StoreError::Damaged { .. }
            | StoreError::Image { .. } => Self::refused(Code::SnapshotUnusable, &error),
            _ => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::Store(error) => error.into(),
            TemplateError::Refused { .. } => Self::refused(Code::SnapshotUnusable, &error),
            TemplateError::Died { .. } | TemplateError::Slow { .. } => Self::failed(Code::VmFailed, &error),
            error => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<ForkError> for ApiError {
    fn from(error: ForkError) -> Self {
        match error {
            ForkError::Store(error) => error.into(),
            ForkError::Template(error) => error.into(),
            ForkError::Count { .. } => Self::invalid(chain(&error)),
            ForkError::Network { .. } => Self::refused(Code::SnapshotUnusable, &error),
            ForkError::Admission(AdmissionError::NoRoom(_)) => {
                Self::of(StatusCode::INSUFFICIENT_STORAGE, Code::HostFull, &error)
            }
            ForkError::Cgroup(_) => Self::failed(Code::LimitUnavailable, &error),
            ForkError::Child { .. } => Self::failed(Code::VmFailed, &error),
            error => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<FindError> for ApiError {
    fn from(error: FindError) -> Self {
        match &error {
            FindError::Unknown { .. } | FindError::Ambiguous { .. } => {
                Self::of(StatusCode::NOT_FOUND, Code::SandboxNotFound, &error)
            }
            FindError::Died(_) => Self::of(StatusCode::NOT_FOUND, Code::SandboxGone, &error),
            FindError::Io { .. } => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<LineageError> for ApiError {
    fn from(error: LineageError) -> Self {
        match error {
            LineageError::Store(error) => error.into(),
            LineageError::Find(error) => error.into(),
        }
    }
}

impl From<BranchError> for ApiError {
    fn from(error: BranchError) -> Self {
        match error {
            BranchError::Store(error) => error.into(),
            BranchError::Gone { .. } | BranchError::Died(_) => {
                Self::of(StatusCode::NOT_FOUND, Code::SandboxGone, &error)
            }
            BranchError::Orphan { .. } | BranchError::Parent { .. } => Self::refused(Code::BranchRefused, &error),
            BranchError::Failed { .. }
            | BranchError::Slow { .. }
            | BranchError::Write { .. }
            | BranchError::WriterDied { .. } => Self::failed(Code::VmFailed, &error),
            error => Self::failed(Code::Internal, &error),
        }
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Store(error) => error.into(),
            error => Self::failed(Code::VmFailed, &error),
        }
    }
}

impl From<PauseError> for ApiError {
    fn from(error: PauseError) -> Self {
        match error {
            PauseError::Gone { .. } | PauseError::Died(_) => Self::of(StatusCode::NOT_FOUND, Code::SandboxGone, &error),
            error => Self::failed(Code::VmFailed, &error),
        }
    }
}

impl From<KillError> for ApiError {
    fn from(error: KillError) -> Self {
        Self::failed(Code::VmFailed, &error)
    }
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        let SessionError::Refused { code, .. } = &error else {
            return match &error {
                SessionError::Paused { .. } => Self::refused(Code::SandboxPaused, &error),
                SessionError::NotTaken { .. } => Self::refused(Code::ProcessNotReading, &error),
                SessionError::AgentTooOld { .. } => Self::refused(Code::AgentTooOld, &error),
                SessionError::RequestTooLong => Self::of(StatusCode::PAYLOAD_TOO_LARGE, Code::TooLarge, &error),
                _ => Self::failed(Code::AgentUnreachable, &error),
            };
        };
        let (status, code) = said_by_agent(*code);
        Self::of(status, code, &error)
    }
}

/// What an agent's refusal is, whatever was asked of it.
const fn said_by_agent(code: ErrorCode) -> (StatusCode, Code) {
    match code {
        ErrorCode::NoSuchUser | ErrorCode::BadCwd | ErrorCode::BadArgument | ErrorCode::NotFound => {
            (StatusCode::BAD_REQUEST, Code::AgentRefused)
        }
        ErrorCode::NotExecutable => (StatusCode::BAD_REQUEST, Code::ProgramNotExecutable),
        ErrorCode::PermissionDenied => (StatusCode::FORBIDDEN, Code::PermissionDenied),
        ErrorCode::IsADirectory => (StatusCode::BAD_REQUEST, Code::IsADirectory),
        ErrorCode::NotADirectory => (StatusCode::BAD_REQUEST, Code::NotADirectory),
        ErrorCode::NotAFile => (StatusCode::BAD_REQUEST, Code::NotAFile),
        ErrorCode::AlreadyExists => (StatusCode::CONFLICT, Code::FileExists),
        ErrorCode::NotEmpty => (StatusCode::CONFLICT, Code::DirectoryNotEmpty),
        ErrorCode::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, Code::NoSpace),
        ErrorCode::ReadOnly => (StatusCode::CONFLICT, Code::ReadOnly),
        ErrorCode::CrossDevice => (StatusCode::CONFLICT, Code::CrossDevice),
        ErrorCode::Busy => (StatusCode::CONFLICT, Code::FileBusy),
        ErrorCode::NoSuchProcess => (StatusCode::NOT_FOUND, Code::ProcessNotFound),
        ErrorCode::Ended => (StatusCode::CONFLICT, Code::ProcessEnded),
        ErrorCode::TooMany => (StatusCode::CONFLICT, Code::TooManyProcesses),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, Code::AgentRefused),
    }
}

impl ApiError {
    /// What an agent says about a file.
    pub(crate) fn of_file(error: SessionError) -> Self {
        match &error {
            SessionError::Refused { code: ErrorCode::NotFound, .. } => {
                Self::of(StatusCode::NOT_FOUND, Code::FileNotFound, &error)
            }
            _ => error.into(),
        }
    }

    /// What an agent says about a program to be started.
    pub(crate) fn of_program(error: SessionError) -> Self {
        match &error {
            SessionError::Refused { code: ErrorCode::NotFound, .. } => {
                Self::of(StatusCode::BAD_REQUEST, Code::ProgramNotFound, &error)
            }
            _ => error.into(),
        }
    }
}

/// What breaks a body off.
impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_status_and_its_code() {
        let tag: types::Tag = "t".parse().unwrap();
        let unknown = ApiError::from(ForkError::from(StoreError::Unknown { tag: tag.clone() }));
        assert_eq!((unknown.status.as_u16(), unknown.code), (404, Code::SnapshotNotFound));
        let writing = ApiError::from(TemplateError::from(StoreError::Writing { tag }));
        assert_eq!((writing.status.as_u16(), writing.code), (409, Code::SnapshotNotReady));
        let tag = ApiError::from("../x".parse::<types::Tag>().unwrap_err());
        assert_eq!((tag.status.as_u16(), tag.code), (400, Code::InvalidTag));
        let user = SessionError::Refused { code: ErrorCode::NoSuchUser, message: "no user `x`".into() };
        assert_eq!(ApiError::from(user).status.as_u16(), 400);
        let not_taken = SessionError::NotTaken { waited: std::time::Duration::from_secs(60), taken_bytes: 5 };
        let not_taken = ApiError::from(not_taken);
        assert_eq!((not_taken.status.as_u16(), not_taken.code), (409, Code::ProcessNotReading));
        assert!(not_taken.message.contains("5 bytes"), "{}", not_taken.message);
        let missing = || SessionError::Refused { code: ErrorCode::NotFound, message: "none".into() };
        assert_eq!(ApiError::of_file(missing()).code, Code::FileNotFound);
        assert_eq!(ApiError::of_program(missing()).code, Code::ProgramNotFound);
        assert_eq!(ApiError::from(missing()).code, Code::AgentRefused);
    }

    #[test]
    fn a_cause_is_told_once() {
        let source = std::io::Error::other("disk on fire");
        let error = KillError::Io { id: "sb-1".into(), source };
        assert_eq!(chain(&error), "cannot end sandbox sb-1: disk on fire");
    }
}
