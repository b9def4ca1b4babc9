//! The one error of all routes. What a failure of the engine's or of a guest's is in HTTP is decided here and nowhere else.

mod guests;
mod verbs;

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use api::{Code, ErrorBody};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
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
    fn a_cause_is_told_once() {
        let source = std::io::Error::other("disk on fire");
        let error = engine::KillError::Io { id: "sb-1".into(), source };
        assert_eq!(chain(&error), "cannot end sandbox sb-1: disk on fire");
    }
}
