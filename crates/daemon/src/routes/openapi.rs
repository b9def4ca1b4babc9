//! What there is, for programs: OpenAPI 3.1, made of the routes themselves.

use axum::Extension;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, InfoBuilder, OpenApi, OpenApiBuilder};

use super::Failures;

/// What is served for any method, or for any path below one, and so is not added together with its documentation.
#[derive(utoipa::OpenApi)]
#[openapi(paths(super::lines::connect, super::ports::connect, super::ports::ask))]
struct Open;

/// The document, written once.
#[derive(Clone, Debug)]
pub(super) struct Served(Bytes);

impl Served {
    pub(super) fn new(document: &OpenApi) -> Self {
        Self(document.to_json().expect("a document can be written as JSON").into())
    }
}

/// What belongs to no route.
pub(super) fn about() -> OpenApi {
    let mut components = Components::new();
    components.add_security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    let about =
        OpenApiBuilder::new()
            .info(InfoBuilder::new().title("forkd").version(env!("CARGO_PKG_VERSION")).description(Some(
                "MicroVM sandboxes that fork: snapshots, sandboxes, commands, branches, workspaces.",
            )))
            .components(Some(components))
            .security(Some([SecurityRequirement::new::<_, _, &str>("token", [])]));
    about.build().merge_from(<Open as utoipa::OpenApi>::openapi())
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "daemon",
    responses((status = 200, body = serde_json::Value), Failures))]
pub(super) async fn openapi(Extension(served): Extension<Served>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], served.0)
}
