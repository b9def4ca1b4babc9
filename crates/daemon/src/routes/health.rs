//! Whether the daemon lives, which one it is, and how much it does.

use api::{DaemonInfo, Health, Version};
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use engine::Store;

use super::Failures;
use crate::body::ApiJson;
use crate::error::ApiError;
use crate::state::App;

/// The daemon lives. Needs no token.
#[utoipa::path(get, path = "/healthz", tag = "daemon", security(()), responses((status = 200, body = Health), Failures))]
pub(super) async fn healthz() -> Json<Health> {
    Json(Health { ok: true })
}

/// Which daemon it is.
#[utoipa::path(get, path = "/version", tag = "daemon", responses((status = 200, body = Version), Failures))]
pub(super) async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION").into(), api: "v1".into() })
}

/// What who runs the daemon wants to know of it.
#[utoipa::path(get, path = "/v1/daemon", tag = "daemon", responses((status = 200, body = DaemonInfo), Failures))]
pub(super) async fn daemon(State(app): State<App>) -> Result<ApiJson<DaemonInfo>, ApiError> {
    let sandboxes = app.verb(|app| Ok(app.registry.count_living()?)).await?;
    Ok(ApiJson(DaemonInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        started_at_unix: app.started_unix,
        idle_secs: app.idle.map(|idle| idle.as_secs()),
        sandboxes,
        clients: app.clients.count().saturating_sub(1),
    }))
}

/// What is counted and measured, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "daemon",
    responses((status = 200, body = String, content_type = "text/plain"), Failures))]
pub(super) async fn metrics(State(app): State<App>) -> Result<impl IntoResponse, ApiError> {
    let text = app
        .verb(|app| {
            look(app)?;
            Ok(app.metrics.render())
        })
        .await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}

/// Counts what is there now.
fn look(app: &App) -> Result<(), ApiError> {
    let snapshots = Store::new(&app.dirs).list()?;
    let counts = app.registry.count_sandboxes()?;
    let of = |status: &str| counts.iter().find(|(is, _)| is == status).map_or(0, |(_, count)| *count);
    let set = |name, labels: &[(&'static str, &str)], value: usize| {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        app.metrics.gauge(name, labels).set(f64::from(value));
    };
    let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    set("forkd_snapshots_total", &[], snapshots.len());
    set("forkd_sandboxes_active", &[], size(of("running") + of("paused")));
    for status in ["running", "paused", "gone"] {
        set("forkd_sandboxes", &[("status", status)], size(of(status)));
    }
    for status in ["writing", "ready", "failed"] {
        let has = |found: &&engine::Listed| found.1.as_ref().map_or("failed", engine::Status::word) == status;
        set("forkd_snapshots", &[("status", status)], snapshots.iter().filter(has).count());
    }
    let cap = usize::try_from(app.branch_cap).unwrap_or(usize::MAX);
    set("forkd_branches_in_flight", &[], cap.saturating_sub(app.branch_slots.available_permits()));
    set("forkd_branch_concurrency_cap", &[], cap);
    set("forkd_guest_calls_in_flight", &[], app.guests.count());
    let runs = |(tag, status): &engine::Listed| {
        status.as_ref().is_ok_and(|status| engine::template_runs(tag, status.id(), &app.dirs).unwrap_or(false))
    };
    set("forkd_templates_running", &[], snapshots.iter().filter(|listed| runs(listed)).count());
    let (ready, used) = app.networks.counts();
    set("forkd_networks", &[("status", "ready")], ready);
    set("forkd_networks", &[("status", "used")], used);
    Ok(())
}
