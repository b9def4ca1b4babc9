//! Bodies of requests: JSON, bounded in length and time, and refused in our words.

use api::Code;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::Patience;
use crate::error::ApiError;

/// The longest body: a command's input, mostly.
pub(crate) const MAX_BODY: usize = 16 << 20;

/// A JSON body of a request, with the bytes it was made of; or one of an answer.
#[derive(Debug)]
pub(crate) struct ApiJson<T>(pub(crate) T);

/// The same, with the bytes.
#[derive(Debug)]
pub(crate) struct WithBytes<T>(pub(crate) T, pub(crate) Bytes);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let patience = request.extensions().get().copied();
        let read = in_time(patience, Json::<T>::from_request(request, state)).await?;
        read.map(|Json(value)| Self(value)).map_err(|rejection| refused(&rejection))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for WithBytes<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (patience, headers) = (request.extensions().get().copied(), request.headers().clone());
        let read = in_time(patience, Bytes::from_request(request, state)).await?;
        let bytes = read.map_err(|rejection| of_status(rejection.status(), &rejection))?;
        // Once more, by the one who knows what is wrong with it.
        let mut again = Request::new(bytes.clone().into());
        *again.headers_mut() = headers;
        let Json(value) = Json::<T>::from_request(again, state).await.map_err(|rejection| refused(&rejection))?;
        Ok(Self(value, bytes))
    }
}

impl<T: Serialize> IntoResponse for ApiJson<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}

/// Reads, for as long as a body may take to come.
async fn in_time<T>(patience: Option<Patience>, read: impl Future<Output = T>) -> Result<T, ApiError> {
    let unknown = || ApiError::internal("nobody knows how long this request may take");
    let limit = patience.ok_or_else(unknown)?.body;
    tokio::time::timeout(limit, read).await.map_err(|_| {
        let message = format!("the body did not come within {} s", limit.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, Code::RequestTimeout, message)
    })
}

fn refused(rejection: &JsonRejection) -> ApiError {
    of_status(rejection.status(), rejection)
}

fn of_status(status: StatusCode, error: &dyn std::error::Error) -> ApiError {
    let code = match status {
        StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        StatusCode::UNPROCESSABLE_ENTITY => Code::InvalidRequest,
        _ => Code::MalformedJson,
    };
    ApiError::new(status, code, crate::error::chain(error))
}

/// A query, refused in our words.
#[derive(Debug)]
pub(crate) struct ApiQuery<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        query.map(|query| Self(query.0)).map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}

/// The one thing that a path names, refused in our words.
#[derive(Debug)]
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        named(parts, state).await.map(Self)
    }
}

/// A sandbox, and what is in it that a path names.
#[derive(Debug)]
pub(crate) struct NameIn {
    pub(crate) sandbox: String,
    pub(crate) name: String,
}

impl<S: Send + Sync> FromRequestParts<S> for NameIn {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let (sandbox, name) = named(parts, state).await?;
        Ok(Self { sandbox, name })
    }
}

async fn named<T, S>(parts: &mut Parts, state: &S) -> Result<T, ApiError>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
    path.map(|path| path.0).map_err(|rejection| ApiError::invalid(rejection.body_text()))
}
