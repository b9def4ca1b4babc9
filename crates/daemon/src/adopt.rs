//! What the daemon finds when it starts: it may have been killed in the middle of anything.
//!
//! ```text
//! registry: runs     it lives            managed again
//!                    it does not         gone, with the reason if the host knows it
//! not in registry    ours                made for a request that was never answered: ended
//!                    others'             managed from now on
//! branches           in the store        ready; one that nobody's state is after all is removed
//!                    not in the store    failed
//! ```

use std::collections::{BTreeMap, BTreeSet};

use api::SandboxStatus;
use engine::{Child, FindError, Status, Store, kill_many, list, sweep_but, sweep_templates};

use crate::error::{ApiError, chain};
use crate::registry::{BranchRow, Change, Filter, Sandbox};
use crate::spawn::parse_tag;
use crate::state::{App, end_of, note_death, pid_of};

/// Why a branch failed that nobody finished.
const CUT_SHORT: &str = "the daemon was ended while it was being written; take it again";

/// How many ask for processes at once.
const MAX_ASKING: usize = 16;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Live and are managed again.
    pub(crate) adopted: usize,
    /// Do not live any more.
    pub(crate) gone: usize,
    /// Were ended, because nobody knows them.
    pub(crate) ended: usize,
}

/// Brings the registry and what lives together. Nobody else may be at work yet.
pub(crate) fn adopt(app: &App) -> Result<Found, ApiError> {
    app.registry.release_all_keys()?;
    let known: Vec<_> = app.registry.sandboxes(&Filter::default())?.sandboxes;
    let mut living: BTreeMap<String, Child> =
        list(&app.dirs)?.into_iter().map(|child| (child.id().to_owned(), child)).collect();
    let mut found = Found::default();
    let (alive, gone): (Vec<_>, Vec<_>) =
        known.into_iter().map(|known| (living.remove(&known.id), known)).partition(|(child, _)| child.is_some());
    (found.adopted, found.gone) = (alive.len(), gone.len());
    let alive: Vec<(Child, Sandbox)> = alive.into_iter().filter_map(|(child, known)| Some((child?, known))).collect();
    manage_again(app, alive)?;
    gone.iter().for_each(|(_, known)| note_end(app, known));
    let (ours, others): (Vec<Child>, Vec<Child>) =
        living.into_values().partition(|child| child.owner() == Some(app.registry.id()));
    found.ended = ours.len();
    for error in kill_many(&ours).into_iter().filter_map(Result::err) {
        log::error!("a sandbox that nobody knows is left: {}", chain(&error));
    }
    for (child, pid) in others.iter().zip(pids_of(&others)) {
        found.adopted += usize::from(app.take_in_as(child, pid)?.is_some());
    }
    finish_branches(app)?;
    tidy(app);
    Ok(found)
}

/// Goes on with those that live, as they are now.
fn manage_again(app: &App, alive: Vec<(Child, Sandbox)>) -> Result<(), ApiError> {
    let children: Vec<Child> = alive.iter().map(|(child, _)| child.clone()).collect();
    app.adopt_networks(&children);
    let mut corrected = Vec::new();
    for ((child, known), pid) in alive.into_iter().zip(pids_of(&children)) {
        if known.workspace.is_some() && known.status != SandboxStatus::Paused {
            go_on(&child);
        }
        let known = app.as_it_is(known, &child)?;
        if pid != known.pid {
            corrected.push((known.id, pid));
        }
    }
    let all = |change: &mut Change<'_>| corrected.iter().try_for_each(|(id, pid)| change.correct_pid(id, *pid));
    Ok(app.registry.change(all)?)
}

/// The processes of many, asked for by a few at once: one that is slow to answer holds up only those after it.
fn pids_of(children: &[Child]) -> Vec<Option<u32>> {
    let part = children.len().div_ceil(MAX_ASKING).max(1);
    std::thread::scope(|scope| {
        let asking: Vec<_> = children
            .chunks(part)
            .map(|part| (part.len(), scope.spawn(move || part.iter().map(pid_of).collect::<Vec<_>>())))
            .collect();
        let told = asking.into_iter().flat_map(|(count, part)| part.join().unwrap_or_else(|_| vec![None; count]));
        told.collect()
    })
}

/// Lets a workspace's sandbox go on that stands still: its daemon was ended while it suspended it.
fn go_on(child: &Child) {
    if child.is_paused()
        && let Err(error) = child.resume()
    {
        log::error!("sandbox {} of a workspace stands still: {}", child.id(), chain(&error));
    }
}

/// Notes that a sandbox ended, with the reason if the host knows it. One that cannot be looked at stays what it was, and
/// keeps nobody from looking at the others.
pub(crate) fn note_end(app: &App, known: &Sandbox) {
    let id = known.id.as_str();
    let noted = match engine::open(id, &app.dirs) {
        // It was not listed for an instant only.
        Ok(_) => Ok(()),
        Err(_) if app.ends.has(id) => Ok(()),
        Err(error) if is_over(&error) => {
            let reason = end_of(&error);
            log::info!("sandbox {id} is gone: {reason}");
            app.metrics.counter("forkd_sandboxes_gone_total", &[]).increment(1);
            let ended = app.registry.change(|change| note_death(change, known, &error, &reason));
            ended.map_err(ApiError::from)
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = noted {
        log::warn!("nobody can tell whether sandbox {id} lives: {}", error.message);
    }
}

/// Whether a sandbox that was not found has ended. What the host could not look at may live.
pub(crate) const fn is_over(error: &FindError) -> bool {
    matches!(error, FindError::Unknown { .. } | FindError::Died(_))
}

/// Ends a sandbox, if it lives.
pub(crate) fn end(app: &App, id: &str) -> Result<(), ApiError> {
    match engine::open(id, &app.dirs) {
        Ok(child) => Ok(engine::kill(&child)?),
        Err(error) if is_over(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ends sandboxes of workspaces that have let go of them.
pub(crate) fn end_unwanted(app: &App) -> Result<(), ApiError> {
    for unwanted in app.registry.unwanted()? {
        debug_assert_ne!(unwanted.status, SandboxStatus::Gone);
        let _ending = app.ends.begin(&unwanted.id);
        end(app, &unwanted.id)?;
        app.registry.change(|change| change.remove_sandbox(&unwanted.id))?;
    }
    Ok(())
}

fn finish_branches(app: &App) -> Result<(), ApiError> {
    for branch in app.registry.branches()?.into_iter().filter(|branch| branch.failed.is_none()) {
        let tag = parse_tag(&branch.tag)?;
        let is_there = matches!(Store::new(&app.dirs).status(&tag), Ok(Status::Ready(_)));
        if !is_there {
            app.registry.change(|change| change.fail_branch(&branch.tag, CUT_SHORT))?;
        } else if is_nobodys(app, &branch)? {
            app.remove_state(&branch.tag);
        } else {
            app.registry.change(|change| change.finish_branch(&branch.tag))?;
        }
    }
    Ok(())
}

/// It was to be a workspace's state, and did not become it.
fn is_nobodys(app: &App, branch: &BranchRow) -> Result<bool, ApiError> {
    Ok(branch.workspace.is_some() && app.registry.workspace_of_state(&branch.tag)?.is_none())
}

/// Removes what dead VMs left, once it is noted what they died of.
pub(crate) fn bury(app: &App) -> Result<(), ApiError> {
    let known = app.registry.sandboxes(&Filter::default())?.sandboxes;
    let awaited: BTreeSet<&str> = known.iter().map(|known| known.id.as_str()).collect();
    sweep_but(|id| awaited.contains(id), &app.dirs).map_err(|error| ApiError::internal(chain(&error)))
}

/// Removes what the dead left on the host.
fn tidy(app: &App) {
    if let Err(error) = end_unwanted(app) {
        log::error!("a sandbox that belongs to nobody is left: {}", error.message);
    }
    if let Err(error) = bury(app) {
        log::warn!("what dead VMs left cannot be removed: {}", error.message);
    }
    if let Err(error) = sweep_templates(&app.dirs) {
        log::warn!("templates that nobody keeps may still run: {}", chain(&error));
    }
}
