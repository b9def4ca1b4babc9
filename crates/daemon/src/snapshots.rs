//! Snapshots as the published interface tells them.

use std::collections::{BTreeMap, BTreeSet};

use api::{Code, SnapshotDetail, SnapshotInfo, SnapshotStatus};
use engine::{Info, Manifest, Removal, Status, Store, StoreError, remove_snapshot};
use types::{Interpreter, Tag};

use crate::branching::milliseconds;
use crate::error::{ApiError, chain};
use crate::registry::{BranchRow, Facts, NO_LANGUAGE};
use crate::state::App;

/// The kind of thing that is not to be disturbed.
pub(crate) const KIND: &str = "snapshot";

/// A snapshot of which nothing else is known.
fn bare(tag: &str, status: SnapshotStatus) -> SnapshotInfo {
    SnapshotInfo {
        tag: tag.into(),
        dir: String::new(),
        created_at_unix: 0,
        status,
        bootable: false,
        branched_from: None,
        pause_ms: None,
        diff_ms: None,
        diff_physical_bytes: None,
        diff_logical_bytes: None,
        memory_own_bytes: None,
        disk_own_bytes: None,
        took: None,
        warning: None,
        id: None,
        parent_tag: None,
        recipe: None,
        kernel: None,
        vcpus: None,
        memory_bytes: None,
        occupied_bytes: None,
        interpreter: None,
        ports: Vec::new(),
        labels: BTreeMap::new(),
    }
}

/// All of them, those that are being written and those that failed included.
pub(crate) fn list(app: &App) -> Result<Vec<SnapshotInfo>, ApiError> {
    let listed = Store::new(&app.dirs).list()?;
    let there: BTreeSet<String> = listed.iter().map(|(tag, _)| tag.to_string()).collect();
    let told = listed.into_iter().map(|(tag, status)| told(app, &tag, status));
    let mut all: Vec<SnapshotInfo> = told.collect::<Result<_, _>>()?;
    let lost = app.registry.branches()?.into_iter().filter(|branch| !there.contains(&branch.tag));
    all.extend(lost.filter(|branch| branch.failed.is_some()).map(|branch| failed(app, branch)));
    Ok(all)
}

/// One of them.
pub(crate) fn info(app: &App, tag: &Tag) -> Result<SnapshotInfo, ApiError> {
    told(app, tag, Ok(Store::new(&app.dirs).status(tag)?))
}

fn told(app: &App, tag: &Tag, status: Result<Status, StoreError>) -> Result<SnapshotInfo, ApiError> {
    let dir = Store::new(&app.dirs).path(tag).display().to_string();
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let warning = Some(chain(&error));
            return Ok(SnapshotInfo { dir, warning, ..bare(tag.as_str(), SnapshotStatus::Failed) });
        }
    };
    let parent_tag = status.parent().map(|parent| parent.tag.to_string());
    let base = bare(tag.as_str(), word(&status));
    let base = SnapshotInfo { dir, created_at_unix: status.created_unix(), parent_tag, ..base };
    Ok(match status {
        Status::Ready(snapshot) => {
            let manifest = snapshot.manifest();
            let facts = app.registry.facts(tag.as_str(), &manifest.id)?.unwrap_or_default();
            ready(base, manifest, facts)
        }
        Status::Writing(intent) => SnapshotInfo { bootable: true, branched_from: intent.branched_from, ..base },
        Status::Failed(failure) => {
            let (branched_from, warning) = (failure.intent.branched_from, Some(failure.reason));
            SnapshotInfo { branched_from, warning, ..base }
        }
    })
}

fn ready(base: SnapshotInfo, manifest: &Manifest, facts: Facts) -> SnapshotInfo {
    SnapshotInfo {
        bootable: true,
        branched_from: manifest.branched_from.clone(),
        pause_ms: manifest.pause_us.map(milliseconds),
        diff_ms: facts.diff_ms,
        diff_physical_bytes: facts.diff_bytes,
        diff_logical_bytes: facts.diff_bytes.map(|_| manifest.memory.bytes()),
        memory_own_bytes: Some(manifest.memory_stored().own),
        disk_own_bytes: Some(manifest.disk_stored().own),
        id: Some(manifest.id.clone()),
        recipe: manifest.recipe.as_ref().map(ToString::to_string),
        kernel: Some(manifest.kernel.clone()),
        vcpus: Some(manifest.vcpus.get().into()),
        memory_bytes: Some(manifest.memory.bytes()),
        occupied_bytes: Some(manifest.stored_bytes()),
        interpreter: manifest.interpreter.map(|interpreter| interpreter.to_string()),
        ports: manifest.ports.iter().map(|port| port.get()).collect(),
        labels: facts.labels,
        ..base
    }
}

const fn word(status: &Status) -> SnapshotStatus {
    match status {
        Status::Ready(_) => SnapshotStatus::Ready,
        Status::Writing(_) => SnapshotStatus::Writing,
        Status::Failed(_) => SnapshotStatus::Failed,
    }
}

/// One that the store knows nothing about.
fn failed(app: &App, branch: BranchRow) -> SnapshotInfo {
    SnapshotInfo {
        dir: Store::new(&app.dirs).dir().join(&branch.tag).display().to_string(),
        created_at_unix: branch.started_unix,
        branched_from: Some(branch.sandbox),
        warning: branch.failed,
        ..bare(&branch.tag, SnapshotStatus::Failed)
    }
}

/// All about one.
pub(crate) fn detail(app: &App, tag: &Tag) -> Result<SnapshotDetail, ApiError> {
    let store = Store::new(&app.dirs);
    let info = store.info(tag)?;
    let manifest = info.manifest();
    let below = |manifest: &Manifest| {
        let layers = &manifest.memory_layers;
        manifest.parent.as_ref().and_then(|_| Some(layers.get(layers.len().checked_sub(2)?)?.digest.to_string()))
    };
    let (memory, disk) = manifest.map(|it| (it.memory_stored(), it.disk_stored())).unwrap_or_default();
    let length = |manifest: &Manifest| manifest.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.length));
    let ancestors = |is_there| {
        let wanted = info.ancestors.iter().filter(|it| it.is_there == is_there);
        wanted.map(|it| it.tag.to_string()).collect()
    };
    Ok(SnapshotDetail {
        tag: tag.to_string(),
        id: info.status.id().to_owned(),
        status: word(&info.status),
        warning: if let Status::Failed(failure) = &info.status { Some(failure.reason.clone()) } else { None },
        dir: store.path(tag).display().to_string(),
        created_at_unix: Some(info.status.created_unix()),
        memory_logical_bytes: manifest.map_or(0, |manifest| manifest.memory.bytes()),
        memory_physical_bytes: memory.chain,
        memory_own_bytes: memory.own,
        disk_logical_bytes: manifest.map_or(0, length),
        disk_physical_bytes: disk.chain,
        disk_own_bytes: disk.own,
        vmstate_bytes: manifest.map_or(0, |manifest| manifest.state.bytes),
        branched_from: manifest.and_then(|manifest| manifest.branched_from.clone()),
        pause_us: manifest.and_then(|manifest| manifest.pause_us),
        parent_tag: info.parent().map(|parent| parent.tag.to_string()),
        parent_content_hash: manifest.and_then(below),
        chain_depth: manifest.map_or(0, |manifest| manifest.depth() as u64),
        dependents: info.dependants.iter().map(Tag::to_string).collect(),
        ancestors: ancestors(true),
        missing_ancestors: ancestors(false),
    })
}

/// What the warm interpreter of a snapshot speaks, or [`NO_LANGUAGE`]; `None` when it cannot be told (yet).
pub(crate) fn warm_language(app: &App, tag: &str) -> Option<&'static str> {
    match Store::new(&app.dirs).status(&tag.parse().ok()?) {
        Ok(Status::Ready(snapshot)) => Some(snapshot.manifest().interpreter.map_or(NO_LANGUAGE, Interpreter::language)),
        _ => None,
    }
}

/// Removes a snapshot. What was branched through the daemon without being chained stays, whole as it is; other snapshots
/// that are made of it keep it from going, unless it is said what shall become of them.
pub(crate) fn remove(app: &App, tag: &Tag, removal: Removal) -> Result<Vec<Tag>, ApiError> {
    let mut alone = vec![app.busy.alone(KIND, tag.as_str())?];
    refuse_if_awaited(app, tag)?;
    if removal != Removal::Force {
        refuse_if_needed(app, tag)?;
    }
    if removal == Removal::Cascade {
        for descendant in Store::new(&app.dirs).descendants(tag)? {
            alone.push(app.busy.alone(KIND, descendant.as_str())?);
            refuse_if_awaited(app, &descendant)?;
            refuse_if_needed(app, &descendant)?;
        }
    }
    take_away(app, tag, removal)
}

/// Removes a snapshot, whoever needs it; what is gone.
pub(crate) fn take_away(app: &App, tag: &Tag, removal: Removal) -> Result<Vec<Tag>, ApiError> {
    let store = Store::new(&app.dirs);
    let removal = match (removal, store.info(tag)) {
        (Removal::Plain, Ok(info)) if !is_chained(app, &store, &info)? => Removal::Force,
        (removal, _) => removal,
    };
    let gone = match remove_snapshot(tag, removal, &app.dirs).map_err(ApiError::from) {
        // The store knows nothing about a branch whose writer was killed.
        Err(error) if error.code == Code::SnapshotNotFound && has_failed(app, tag)? => vec![tag.clone()],
        removed => removed?,
    };
    app.registry.change(|change| gone.iter().try_for_each(|tag| change.remove_snapshot(tag.as_str())))?;
    Ok(gone)
}

/// What is about to be a workspace's state is its state before anybody can say so.
fn refuse_if_awaited(app: &App, tag: &Tag) -> Result<(), ApiError> {
    let branches = app.registry.branches()?;
    let under_way = branches.into_iter().find(|branch| branch.tag == tag.as_str() && branch.failed.is_none());
    let Some(workspace) = under_way.and_then(|branch| branch.workspace) else { return Ok(()) };
    let message = format!("`{tag}` is about to be the state of workspace `{workspace}`, which is being suspended");
    Err(ApiError::conflict(Code::SnapshotInUse, message))
}

/// A workspace needs its state to be resumed, and what its sandbox was forked from to be suspended.
fn refuse_if_needed(app: &App, tag: &Tag) -> Result<(), ApiError> {
    let state = app.registry.workspace_of_state(tag.as_str())?.map(|workspace| ("the state", workspace));
    let needed = match state {
        Some(state) => Some(state),
        None => app.registry.workspace_that_runs_of(tag.as_str())?.map(|workspace| ("the base", workspace)),
    };
    let Some((what, workspace)) = needed else { return Ok(()) };
    let message = format!("`{tag}` is {what} of workspace `{workspace}`; delete that, or say force");
    Err(ApiError::conflict(Code::SnapshotInUse, message))
}

/// The tags of all that a workspace has its state in, or will have, or was forked from.
pub(crate) fn needed(app: &App) -> Result<Vec<Tag>, ApiError> {
    let mut needed = Vec::new();
    for workspace in app.registry.workspaces()? {
        needed.extend(workspace.state.map(|(tag, _)| tag));
        let runs = workspace.sandbox.map(|id| app.registry.sandbox(&id)).transpose()?.flatten();
        needed.extend(runs.map(|sandbox| sandbox.tag));
    }
    let branches = app.registry.branches()?.into_iter().filter(|branch| branch.failed.is_none());
    needed.extend(branches.map(|branch| branch.tag));
    Ok(needed.iter().filter_map(|tag| tag.parse().ok()).collect())
}

fn is_chained(app: &App, store: &Store, info: &Info) -> Result<bool, ApiError> {
    for child in &info.dependants {
        let known = match store.status(child) {
            Ok(Status::Ready(snapshot)) => app.registry.facts(child.as_str(), &snapshot.manifest().id)?,
            _ => None,
        };
        if known.is_none_or(|facts| facts.chained) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has_failed(app: &App, tag: &Tag) -> Result<bool, ApiError> {
    Ok(app.registry.branches()?.iter().any(|branch| branch.tag == tag.as_str() && branch.failed.is_some()))
}
