//! A snapshot of a sandbox that runs on.

use api::{BranchSandbox, SnapshotInfo};
use axum::extract::State;
use axum::http::StatusCode;

use super::Failures;
use crate::body::{ApiJson, Name};
use crate::branching::Asked;
use crate::error::ApiError;
use crate::state::App;
use crate::subject::Subject;

/// Takes a snapshot of a sandbox, which runs on after milliseconds. It can be forked at once; 202 says that it is still
/// being written.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/branch", tag = "sandboxes", params(("id" = String, Path)),
    request_body = BranchSandbox,
    responses((status = 201, body = SnapshotInfo), (status = 202, body = SnapshotInfo), Failures))]
pub(super) async fn branch(
    State(app): State<App>,
    subject: Subject,
    Name(id): Name,
    ApiJson(asked): ApiJson<BranchSandbox>,
) -> Result<(StatusCode, ApiJson<SnapshotInfo>), ApiError> {
    let asked = Asked::try_from(asked)?;
    let (status, told) = app.verb(move |app| app.branch(&id, asked)).await?;
    subject.tag(&told.tag);
    Ok((status, ApiJson(told)))
}
