//! Workspaces.

use api::{CreateWorkspace, SuspendWorkspace, WorkspaceInfo};
use axum::extract::State;
use axum::http::StatusCode;

use super::Failures;
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::state::App;
use crate::subject::Subject;

/// All workspaces.
#[utoipa::path(get, path = "/v1/workspaces", tag = "workspaces",
    responses((status = 200, body = [WorkspaceInfo]), Failures))]
pub(super) async fn list(State(app): State<App>) -> Result<ApiJson<Vec<WorkspaceInfo>>, ApiError> {
    let workspaces = app.verb(|app| Ok(app.registry.workspaces()?)).await?;
    Ok(ApiJson(workspaces.into_iter().map(Into::into).collect()))
}

/// Makes a workspace: a sandbox that can be put away and taken up again.
#[utoipa::path(post, path = "/v1/workspaces", tag = "workspaces", request_body = CreateWorkspace,
    responses((status = 201, body = WorkspaceInfo), Failures))]
pub(super) async fn create(
    State(app): State<App>,
    subject: Subject,
    ApiJson(asked): ApiJson<CreateWorkspace>,
) -> Result<(StatusCode, ApiJson<WorkspaceInfo>), ApiError> {
    subject.workspace(&asked.name);
    subject.tag(&asked.snapshot_tag);
    let made = app.verb(move |app| app.create_workspace(asked)).await?;
    subject.sandboxes(made.sandbox.as_deref());
    Ok((StatusCode::CREATED, ApiJson(made.into())))
}

/// One workspace.
#[utoipa::path(get, path = "/v1/workspaces/{name}", tag = "workspaces", params(("name" = String, Path)),
    responses((status = 200, body = WorkspaceInfo), Failures))]
pub(super) async fn get(State(app): State<App>, Name(name): Name) -> Result<ApiJson<WorkspaceInfo>, ApiError> {
    let found = app.verb(move |app| app.workspace(&name)).await?;
    Ok(ApiJson(found.into()))
}

/// Ends a workspace's sandbox and removes its state, but not the snapshot it began with.
#[utoipa::path(delete, path = "/v1/workspaces/{name}", tag = "workspaces", params(("name" = String, Path)),
    responses((status = 204), Failures))]
pub(super) async fn remove(State(app): State<App>, Name(name): Name) -> Result<StatusCode, ApiError> {
    app.verb(move |app| app.delete_workspace(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Keeps a workspace's memory and disk, and ends its sandbox once they are on the disk.
#[utoipa::path(post, path = "/v1/workspaces/{name}/suspend", tag = "workspaces", params(("name" = String, Path)),
    request_body = SuspendWorkspace, responses((status = 200, body = WorkspaceInfo), Failures))]
pub(super) async fn suspend(
    State(app): State<App>,
    Name(name): Name,
    ApiJson(_how): ApiJson<SuspendWorkspace>,
) -> Result<ApiJson<WorkspaceInfo>, ApiError> {
    let suspended = app.verb(move |app| app.suspend(&name)).await?;
    Ok(ApiJson(suspended.into()))
}

/// Takes a workspace up again, as it was when it was last suspended.
#[utoipa::path(post, path = "/v1/workspaces/{name}/resume", tag = "workspaces", params(("name" = String, Path)),
    responses((status = 200, body = WorkspaceInfo), Failures))]
pub(super) async fn resume(
    State(app): State<App>,
    subject: Subject,
    Name(name): Name,
) -> Result<ApiJson<WorkspaceInfo>, ApiError> {
    let resumed = app.verb(move |app| app.resume(&name)).await?;
    subject.sandboxes(resumed.sandbox.as_deref());
    Ok(ApiJson(resumed.into()))
}
