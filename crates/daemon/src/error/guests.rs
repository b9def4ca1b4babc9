//! What the failures of a guest's agent are in HTTP.

use api::Code;
use axum::http::StatusCode;
use session::{ErrorCode, SessionError};

use super::ApiError;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_status_and_its_code() {
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
}
