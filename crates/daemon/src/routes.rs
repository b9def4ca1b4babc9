//! The routes: each converts what came, calls a verb off the reactor, and converts what came of it.
//!
//! A route and its documentation are added together, so what is served and what [`openapi`] says are the same list; it
//! names what is served for any method itself.

mod branch;
mod console;
mod eval;
mod events;
mod exec;
mod files;
mod fork;
mod health;
mod images;
mod lines;
mod network;
mod openapi;
mod packs;
mod pause;
mod ping;
mod ports;
mod processes;
mod sandboxes;
mod session;
mod snapshots;
mod sse;
mod store;
mod tokens;
mod tree;
mod workspaces;

use api::{Code, ErrorBody};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::IntoResponses;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::body::MAX_BODY;
use crate::error::ApiError;
use crate::observe::observe;
use crate::state::App;

pub(crate) use ping::numpy_of;

/// How every route may fail.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it describes answers, and is never made")]
pub(crate) enum Failures {
    /// The request makes no sense.
    #[response(status = 400)]
    BadRequest(ErrorBody),
    /// The token is missing or not valid.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// The token does not allow it.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// There is no such thing.
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// The route does not know the method.
    #[response(status = 405)]
    MethodNotAllowed(ErrorBody),
    /// The body did not come in time.
    #[response(status = 408)]
    Timeout(ErrorBody),
    /// As things are, it cannot be done.
    #[response(status = 409)]
    Conflict(ErrorBody),
    /// The body is too long.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body is not said to be JSON.
    #[response(status = 415)]
    UnsupportedMediaType(ErrorBody),
    /// The body is JSON of another shape.
    #[response(status = 422)]
    Unprocessable(ErrorBody),
    /// The host, a VM or the daemon failed.
    #[response(status = 500)]
    Internal(ErrorBody),
    /// Too much is under way.
    #[response(status = 503)]
    Unavailable(ErrorBody),
    /// The disk is full: the guest's, or that of the store.
    #[response(status = 507)]
    InsufficientStorage(ErrorBody),
}

/// How work that makes something is answered when somebody watches.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it describes answers, and is never made")]
pub(crate) enum Told {
    /// How far it is, as `progress` events; then a `result` or an `error`.
    #[response(status = 200, content_type = "text/event-stream")]
    Events(String),
}

/// All routes, ready to serve, and what they are.
pub(crate) fn router(app: App) -> Router {
    let (router, document) = documented().split_for_parts();
    let served = openapi::Served::new(&document);
    router
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        .layer(axum::Extension(served))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

fn documented() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::about())
        .routes(routes!(health::healthz))
        .routes(routes!(health::version))
        .routes(routes!(health::metrics))
        .routes(routes!(health::daemon))
        .routes(routes!(openapi::openapi))
        .routes(routes!(snapshots::list, snapshots::create))
        .routes(routes!(snapshots::remove))
        .routes(routes!(snapshots::info))
        .routes(routes!(snapshots::compact))
        .routes(routes!(images::build))
        .routes(routes!(fork::fork))
        .routes(routes!(packs::pack))
        .routes(routes!(packs::push))
        .routes(routes!(packs::unpack))
        .routes(routes!(packs::pull))
        .routes(routes!(packs::progress))
        .routes(routes!(store::info))
        .routes(routes!(store::garbage, store::collect))
        .routes(routes!(store::verify))
        .routes(routes!(sandboxes::list, sandboxes::create))
        .routes(routes!(sandboxes::get, sandboxes::patch, sandboxes::remove))
        .routes(routes!(sandboxes::renew))
        .routes(routes!(network::get))
        .routes(routes!(network::set_egress))
        .routes(routes!(pause::pause))
        .routes(routes!(pause::resume))
        .routes(routes!(ping::ping))
        .routes(routes!(exec::exec))
        .routes(routes!(session::stdin))
        .routes(routes!(session::signal))
        .routes(routes!(session::resize))
        .routes(routes!(eval::eval))
        .routes(routes!(processes::list, processes::start))
        .routes(routes!(processes::get, processes::remove))
        .routes(routes!(processes::output))
        .routes(routes!(processes::stdin))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::resize))
        .routes(routes!(files::read, files::write, files::remove))
        .routes(routes!(files::stat))
        .routes(routes!(files::list))
        .routes(routes!(files::mkdir))
        .routes(routes!(files::rename))
        .routes(routes!(branch::branch))
        .routes(routes!(console::console))
        .routes(routes!(workspaces::list, workspaces::create))
        .routes(routes!(workspaces::get, workspaces::remove))
        .routes(routes!(workspaces::suspend))
        .routes(routes!(workspaces::resume))
        .routes(routes!(tree::tree))
        .routes(routes!(events::events))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::remove))
        // The published interface has it with a slash, too.
        .route("/healthz/", axum::routing::get(health::healthz))
        .route("/v1/sandboxes/{id}/lines", axum::routing::get(lines::connect))
        .route("/v1/sandboxes/{id}/ports/{port}", axum::routing::any(ports::connect))
        .route("/v1/sandboxes/{id}/ports/{port}/", axum::routing::any(ports::ask))
        .route("/v1/sandboxes/{id}/ports/{port}/{*path}", axum::routing::any(ports::ask))
}

async fn unknown_route(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    let message = format!("there is no {method} {path}; GET /v1/openapi.json lists what there is");
    ApiError::missing(Code::RouteNotFound, message)
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not know {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Code::MethodNotAllowed, message)
}

/// A handler that panics is an error of its request and of nobody else.
#[expect(clippy::needless_pass_by_value, reason = "this is how it is called")]
fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    ApiError::internal(format!("it failed in an unforeseen way: {}", text.unwrap_or("nothing is known")))
        .into_response()
}
