//! A snapshot by booting a VM.

use std::time::Duration;

use api::{Code, CreateSnapshot, EventKind, SnapshotInfo, Took};
use axum::http::StatusCode;
use engine::{BootSpec, Egress, Existing, SnapshotSpec, Store, Tap, snapshot};
use types::Tag;

use crate::branching::milliseconds;
use crate::error::ApiError;
use crate::images;
use crate::networks::egress;
use crate::parts::{Parts, Wanted};
use crate::registry::{About, Facts};
use crate::snapshots;
use crate::spawn::{check_labels, parse_tag};
use crate::state::App;
use crate::work::Job;

/// How long a guest's agent may take to answer.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// The longest warm-up, and what it is when nobody says.
const MAX_WARM_SECS: u64 = 60;
/// The longest time limit that can be said otherwise: a day.
const MAX_SECS: f64 = 86_400.0;

/// How long it may take.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limits {
    boot: Duration,
    /// Nothing when the request says nothing: then it is what the recipe says.
    warm: Option<Duration>,
}

impl TryFrom<&CreateSnapshot> for Limits {
    type Error = ApiError;

    fn try_from(asked: &CreateSnapshot) -> Result<Self, ApiError> {
        let wait = asked.boot_wait_secs;
        if let Some(wait) = wait.filter(|wait| *wait > MAX_WARM_SECS) {
            return Err(ApiError::invalid(format!("boot_wait_secs is {wait}; it can be up to {MAX_WARM_SECS}")));
        }
        let warm = asked.warm_timeout_secs.map(|secs| seconds("warm_timeout_secs", secs)).transpose()?;
        let warm = warm.or_else(|| wait.map(|secs| Duration::from_secs(secs.max(1))));
        Ok(Self { boot: boot_limit(asked.boot_timeout_secs)?, warm })
    }
}

/// How long a guest's agent may take to answer.
pub(crate) fn boot_limit(secs: Option<f64>) -> Result<Duration, ApiError> {
    Ok(secs.map(|secs| seconds("boot_timeout_secs", secs)).transpose()?.unwrap_or(BOOT_LIMIT))
}

fn seconds(name: &str, secs: f64) -> Result<Duration, ApiError> {
    if secs > 0.0 && secs <= MAX_SECS {
        return Ok(Duration::from_secs_f64(secs));
    }
    Err(ApiError::invalid(format!("{name} is {secs}; it must be more than 0 and can be up to {MAX_SECS}")))
}

/// Boots, warms up, keeps.
pub(crate) fn create(app: &App, asked: CreateSnapshot, job: &Job) -> Result<SnapshotInfo, ApiError> {
    let tag = parse_tag(&asked.tag)?;
    check_labels(&asked.labels)?;
    if asked.tap.is_some() {
        let message = "tap is not offered: each sandbox has a network of its own; say `egress` instead";
        return Err(ApiError::invalid(message).with_code(Code::NotOffered));
    }
    let limits = Limits::try_from(&asked)?;
    let egress = asked.egress.as_ref().map(egress).transpose()?;
    let existing = existing(app, &asked, &tag).map_err(of_tag)?;
    let asked = build_outside(app, asked, job)?;
    let parts = Wanted::try_from(&asked)?.find(&app.dirs, job.progress())?;
    let image = images::complete(app, &parts, limits.boot, job)?;
    let egress = egress.or_else(|| parts.egress.clone());
    let limit = limits.warm.or(parts.warm_limit).unwrap_or(Duration::from_secs(MAX_WARM_SECS));
    let CreateSnapshot { labels, append, .. } = asked;
    let Parts { kernel, initramfs, vcpus, memory, warm_up, recipe, ports, .. } = parts;
    let cancel = Some(job.cancel());
    let tap = egress.as_ref().map(|egress| tap(app, egress)).transpose()?;
    let boot = BootSpec { vcpus, memory, kernel, initramfs, image, append, tap, limit: limits.boot, cancel };
    let spec = SnapshotSpec { tag: tag.clone(), existing, boot, egress, recipe, ports, warm_up, limit };
    let taken = snapshot(spec, &app.dirs, job.progress()).map_err(ApiError::from).map_err(of_tag)?;
    let facts = Facts { snapshot_id: taken.snapshot.manifest().id.clone(), labels, ..Facts::default() };
    app.registry.change(|change| {
        change.set_facts(tag.as_str(), &facts)?;
        change.forget_branch(tag.as_str())?;
        change.tell(EventKind::SnapshotReady, About::tag(tag.as_str()))
    })?;
    let took = Took {
        boot_ms: milliseconds(taken.boot_us),
        warm_ms: milliseconds(taken.warm_us),
        write_ms: milliseconds(taken.freeze_us),
    };
    Ok(SnapshotInfo { took: Some(took), ..snapshots::info(app, &tag)? })
}

/// The same with files instead of a recipe, where recipes are built by others.
pub(crate) fn build_outside(app: &App, asked: CreateSnapshot, job: &Job) -> Result<CreateSnapshot, ApiError> {
    match (&app.outside, &asked.recipe) {
        (Some(outside), Some(_)) => outside.build(&asked, job.progress(), &|| job.is_cancelled()),
        _ => Ok(asked),
    }
}

/// A network to boot on. It is nobody's again as soon as the VM has ended.
pub(crate) fn tap(app: &App, egress: &Egress) -> Result<Tap, ApiError> {
    let lease = app.networks.get()?.take(1)?.pop().ok_or_else(|| ApiError::internal("there is no network"))?;
    lease.network.set_egress(egress)?;
    Ok(Tap::of_network(lease.tap))
}

/// What becomes of a snapshot that has the tag. It is told before anything is built for nothing; what a workspace needs is
/// not replaced, whatever the request says.
fn existing(app: &App, asked: &CreateSnapshot, tag: &Tag) -> Result<Existing, ApiError> {
    if !asked.replace {
        Store::new(&app.dirs).expect_free(tag)?;
        return Ok(Existing::Keep);
    }
    if snapshots::needed(app)?.contains(tag) {
        let message = format!("a workspace needs `{tag}`; delete that first, or take another tag");
        return Err(ApiError::conflict(Code::SnapshotInUse, message));
    }
    Ok(Existing::Replace)
}

/// Where a branch's tag that is taken is a conflict, the published interface calls this a bad request.
fn of_tag(error: ApiError) -> ApiError {
    if error.code == Code::SnapshotExists { error.with_status(StatusCode::BAD_REQUEST) } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(text: &str) -> Result<Limits, ApiError> {
        Limits::try_from(&serde_json::from_str::<CreateSnapshot>(text).unwrap())
    }

    #[test]
    fn time_limits_are_checked() {
        let plain = limits(r#"{"tag":"t"}"#).unwrap();
        assert_eq!(plain, Limits { boot: BOOT_LIMIT, warm: None });
        assert_eq!(limits(r#"{"tag":"t","boot_wait_secs":0}"#).unwrap().warm, Some(Duration::from_secs(1)));
        let said = limits(r#"{"tag":"t","warm_timeout_secs":90.5,"boot_timeout_secs":300}"#).unwrap();
        assert_eq!(said, Limits { boot: Duration::from_secs(300), warm: Some(Duration::from_millis(90_500)) });
        for bad in [r#""boot_wait_secs":61"#, r#""warm_timeout_secs":0"#, r#""boot_timeout_secs":-1"#] {
            assert_eq!(limits(&format!(r#"{{"tag":"t",{bad}}}"#)).unwrap_err().status.as_u16(), 400, "{bad}");
        }
    }
}
