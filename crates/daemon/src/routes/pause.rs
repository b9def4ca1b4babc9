//! Sandboxes that stand still, and go on.

use api::{SandboxInfo, SandboxStatus};
use axum::extract::State;

use super::Failures;
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::registry::Sandbox;
use crate::state::App;

/// Has a sandbox stand still: its processors and its devices. It keeps its memory, and can be branched and killed. One that
/// does already is no error.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/pause", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = SandboxInfo), Failures))]
pub(super) async fn pause(State(app): State<App>, Name(id): Name) -> Result<ApiJson<SandboxInfo>, ApiError> {
    let paused = app.verb(move |app| change(app, &id, SandboxStatus::Paused)).await?;
    Ok(ApiJson(paused.into()))
}

/// Has a sandbox go on. One that runs is no error.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = SandboxInfo), Failures))]
pub(super) async fn resume(State(app): State<App>, Name(id): Name) -> Result<ApiJson<SandboxInfo>, ApiError> {
    let resumed = app.verb(move |app| change(app, &id, SandboxStatus::Running)).await?;
    Ok(ApiJson(resumed.into()))
}

fn change(app: &App, id: &str, wanted: SandboxStatus) -> Result<Sandbox, ApiError> {
    let (known, child) = app.living(id)?;
    // That of a workspace stands still while it is suspended, and has to.
    let _undisturbed = known.workspace.as_deref().map(|name| app.busy.alone("workspace", name)).transpose()?;
    if wanted == SandboxStatus::Paused {
        child.pause()?;
    } else {
        child.resume()?;
    }
    app.registry.change(|change| change.set_status(id, wanted))?;
    Ok(app.living(id)?.0)
}
