//! Snapshots of sandboxes that run on.
//!
//! ```text
//! asked ─ slot ─ engine::branch ─ known: writing ─┬─ written ─ known: ready      answered 201, if it waits
//!                                                 └─ failed  ─ known: failed
//!                                 answered 202, if it does not
//! ```
//!
//! What is being written when the daemon is killed is gone from the store; the registry remembers that it was, and
//! [`crate::adopt`] calls it failed.

use std::time::Instant;

use api::{BranchMode, BranchSandbox, Code, EventKind, SnapshotInfo};
use axum::http::StatusCode;
use engine::{Branch, BranchSpec, Child, Extent, Kept, Store, branch, default_tag};
use tokio::sync::OwnedSemaphorePermit;
use types::Tag;

use crate::error::{ApiError, chain};
use crate::registry::{About, Change, Facts, RegistryError};
use crate::snapshots;
use crate::spawn::parse_tag;
use crate::state::App;

/// What was asked for, and makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) tag: Option<Tag>,
    pub(crate) extent: Extent,
    /// What differs is told.
    pub(crate) measured: bool,
    /// It keeps what it is made of from being removed.
    pub(crate) parent: Option<Tag>,
    pub(crate) wait: bool,
}

impl TryFrom<BranchSandbox> for Asked {
    type Error = ApiError;

    fn try_from(asked: BranchSandbox) -> Result<Self, ApiError> {
        let BranchSandbox { tag, mode, diff, live, measure_diff, wait, parent_tag } = asked;
        if mode.is_some() && (diff || live) {
            return Err(ApiError::invalid("mode says how to branch; leave diff and live out"));
        }
        if usize::from(measure_diff) + usize::from(diff) + usize::from(live) > 1 {
            return Err(ApiError::invalid("only one of measure_diff, diff and live can be true"));
        }
        let mode = mode.or_else(|| diff.then_some(BranchMode::Diff)).or_else(|| live.then_some(BranchMode::Live));
        if !wait && !matches!(mode, Some(BranchMode::Live | BranchMode::Full)) {
            return Err(ApiError::invalid("wait can be false only with mode `live` or `full`"));
        }
        if parent_tag.is_some() && mode != Some(BranchMode::Diff) {
            return Err(ApiError::invalid("parent_tag needs mode `diff`"));
        }
        Ok(Self {
            tag: tag.as_deref().map(parse_tag).transpose()?,
            extent: if mode == Some(BranchMode::Full) { Extent::Full } else { Extent::Diff },
            measured: measure_diff || mode == Some(BranchMode::Diff),
            parent: parent_tag.as_deref().map(parse_tag).transpose()?,
            wait,
        })
    }
}

/// A branch that can be forked, and is about to be written.
struct Taken {
    branch: Branch,
    child: Child,
    asked: Asked,
    _slot: OwnedSemaphorePermit,
}

impl App {
    /// Branches; the status says whether it is written.
    pub(crate) fn branch(&self, id: &str, asked: Asked) -> Result<(StatusCode, SnapshotInfo), ApiError> {
        let wait = asked.wait;
        let taken = self.take(id, asked, None)?;
        if wait {
            let tag = self.keep(taken, |_| Ok(()))?;
            return Ok((StatusCode::CREATED, snapshots::info(self, &tag)?));
        }
        // Before anybody can have finished it.
        let (told, pause_us) = (snapshots::info(self, taken.branch.tag()), taken.branch.pause_us());
        let app = self.clone();
        // What becomes of it is in the registry.
        tokio::runtime::Handle::current().spawn_blocking(move || app.keep(taken, |_| Ok(())).map(|_| ()));
        Ok((StatusCode::ACCEPTED, SnapshotInfo { pause_ms: Some(milliseconds(pause_us)), ..told? }))
    }

    /// Branches for a workspace and waits until it is in the store, and the workspace's state from then on: there is no
    /// instant at which it is there and nobody's.
    pub(crate) fn branch_for(&self, workspace: &str, id: &str, tag: &Tag) -> Result<(), ApiError> {
        let dir = Store::new(&self.dirs).path(tag).display().to_string();
        let asked = Asked { tag: Some(tag.clone()), extent: Extent::Diff, measured: false, parent: None, wait: true };
        let taken = self.take(id, asked, Some(workspace))?;
        let kept = self.keep(taken, |change| change.suspend_workspace(workspace, tag.as_str(), &dir));
        if let Err(error) = kept {
            // It may be in the store all the same, and a change that is said to have failed may have taken place. What
            // nobody can tell is left: the next daemon can.
            if self.registry.workspace_of_state(tag.as_str())?.is_none() {
                self.remove_state(tag.as_str());
                return Err(error);
            }
            log::warn!("workspace `{workspace}` is suspended, although that was said to fail: {}", error.message);
        }
        if let Err(error) = self.registry.sync() {
            log::error!("workspace `{workspace}` is suspended, which a power failure may undo: {}", chain(&error));
        }
        Ok(())
    }

    fn take(&self, id: &str, asked: Asked, workspace: Option<&str>) -> Result<Taken, ApiError> {
        let (known, child) = self.living(id)?;
        if let Some(parent) = asked.parent.as_ref().filter(|parent| parent.as_str() != known.tag) {
            let message = format!("parent_tag is `{parent}`, and sandbox {id} was forked from `{}`", known.tag);
            return Err(ApiError::invalid(message));
        }
        let slot = self.branch_slots.clone().try_acquire_owned().map_err(|_| {
            let message =
                format!("{} branches are being written, which is all that may be; try again", self.branch_cap);
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Code::BranchBusy, message)
        })?;
        let tag = asked.tag.clone().map_or_else(|| default_tag(&child), Ok)?;
        let spec = BranchSpec { child: child.clone(), tag: tag.clone(), extent: asked.extent };
        let branch = branch(spec, &self.dirs)?;
        self.metrics.branch_pause.record(milliseconds(branch.pause_us()) / 1000.0);
        let dir = Store::new(&self.dirs).path(&tag).display().to_string();
        self.registry.change(|change| {
            change.begin_branch(tag.as_str(), id, workspace)?;
            change.count_branch(id, tag.as_str(), &dir)?;
            change.tell(EventKind::SnapshotWriting, About { sandbox: Some(id), workspace, ..About::tag(tag.as_str()) })
        })?;
        Ok(Taken { branch, child, asked, _slot: slot })
    }

    /// Waits until it is written, and makes that known together with whatever else belongs to the same change. Nothing
    /// can fail after that.
    fn keep(
        &self,
        taken: Taken,
        besides: impl FnOnce(&mut Change<'_>) -> Result<(), RegistryError>,
    ) -> Result<Tag, ApiError> {
        let Taken { branch, child, asked, _slot } = taken;
        let (tag, begun) = (branch.tag().clone(), Instant::now());
        match branch.keep(None) {
            Ok(kept) => {
                let facts = facts(&kept, &asked, begun);
                self.registry.change(|change| {
                    change.set_facts(tag.as_str(), &facts)?;
                    change.finish_branch(tag.as_str())?;
                    besides(change)
                })?;
                self.metrics.counter("forkd_branches_total", &[("result", "ready")]).increment(1);
                Ok(tag)
            }
            Err(error) => {
                self.metrics.counter("forkd_branches_total", &[("result", "failed")]).increment(1);
                log::error!("the branch `{tag}` of {} failed: {}", child.id(), chain(&error));
                self.registry.change(|change| change.fail_branch(tag.as_str(), &chain(&error)))?;
                Err(error.into())
            }
        }
    }
}

fn facts(kept: &Kept, asked: &Asked, begun: Instant) -> Facts {
    Facts {
        snapshot_id: kept.snapshot.manifest().id.clone(),
        chained: asked.parent.is_some(),
        diff_ms: asked.measured.then(|| begun.elapsed().as_secs_f64() * 1000.0),
        diff_bytes: asked.measured.then_some(kept.memory_bytes),
        ..Facts::default()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a pause is far below the point where this matters")]
pub(crate) fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Asked, ApiError> {
        serde_json::from_str::<BranchSandbox>(text).unwrap().try_into()
    }

    #[test]
    fn what_excludes_itself_is_refused() {
        for bad in [
            r#"{"mode":"diff","diff":true}"#,
            r#"{"mode":"full","live":true}"#,
            r#"{"diff":true,"measure_diff":true}"#,
            r#"{"diff":true,"live":true}"#,
            r#"{"wait":false}"#,
            r#"{"wait":false,"mode":"diff"}"#,
            r#"{"parent_tag":"t"}"#,
            r#"{"parent_tag":"t","mode":"live"}"#,
            r#"{"tag":"../../etc"}"#,
        ] {
            assert_eq!(asked(bad).unwrap_err().status.as_u16(), 400, "{bad}");
        }
    }

    #[test]
    fn what_published_clients_say_means_what_it_says() {
        let plain = asked("{}").unwrap();
        assert_eq!((plain.extent, plain.measured, plain.wait), (Extent::Diff, false, true));
        assert_eq!(asked(r#"{"mode":"full"}"#).unwrap().extent, Extent::Full);
        assert!(asked(r#"{"diff":true}"#).unwrap().measured);
        assert!(!asked(r#"{"live":true,"wait":false}"#).unwrap().wait);
        assert!(asked(r#"{"mode":"diff","parent_tag":"t"}"#).unwrap().parent.is_some());
    }
}
