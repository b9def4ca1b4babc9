//! Workspaces: a sandbox that can be put away and taken up again, as it was.
//!
//! ```text
//! suspend   branch to a new tag, until it is in the store ─ registry: that tag, no sandbox ─ kill ─ remove the old tag
//! resume    fork the state ─ registry: that sandbox
//! ```
//!
//! The registry changes in one step, and only once the new state is on the disk: until then the new tag is a branch under
//! way, which nobody can remove, and from then on the workspace's. Whatever happens before it leaves a
//! workspace that runs and its old state; whatever happens after it leaves a sandbox or a snapshot that belongs to nobody,
//! which [`crate::adopt`] and [`crate::reaper`] remove.

use api::{Code, CreateWorkspace, SandboxStatus, WorkspaceStatus};
use engine::{Removal, Store, StoreError};
use session::Metadata;
use types::Tag;

use crate::error::{ApiError, chain};
use crate::limits::checked;
use crate::networks::Wishes;
use crate::registry::{Workspace, now_unix};
use crate::snapshots;
use crate::spawn::{New, Spawn, Terms, check_name, parse_tag, variables};
use crate::state::App;

/// The kind of thing that is not to be disturbed.
const KIND: &str = "workspace";
/// How much of a workspace's name goes into its state's tag.
const MAX_NAME_IN_TAG: usize = 40;
/// How many tags for the state are tried.
const MAX_TAGS: u32 = 1000;

impl App {
    /// Makes one that runs.
    pub(crate) fn create_workspace(&self, asked: CreateWorkspace) -> Result<Workspace, ApiError> {
        let CreateWorkspace { name, snapshot_tag, memory_limit_mib, limits, env, .. } = asked;
        check_name(&name)?;
        let _undisturbed = self.busy.alone(KIND, &name)?;
        if self.registry.workspace(&name)?.is_some() {
            return Err(ApiError::conflict(Code::WorkspaceExists, format!("there is a workspace `{name}` already")));
        }
        let tag = parse_tag(&snapshot_tag)?;
        // Without it the workspace could not be suspended. Once that is known, it keeps its base itself.
        let _base = self.busy.together(snapshots::KIND, tag.as_str())?;
        let spawn = Spawn {
            tag,
            children: vec![New {
                env: variables(env.clone())?,
                limits: checked(&limits, memory_limit_mib)?,
                ..New::default()
            }],
            network: Wishes::default(),
            expires_unix: None,
            workspace: Some(name.clone()),
            metadata: Metadata::default(),
            terms: Terms::default(),
        };
        let mut made = None;
        self.spawn(spawn, |change, sandboxes| {
            let sandbox = sandboxes[0].id.clone();
            let now = now_unix();
            let new = Workspace {
                name,
                id: format!("ws-{}", sandbox.chars().take(16).collect::<String>()),
                source_tag: snapshot_tag,
                status: WorkspaceStatus::Running,
                created_unix: now,
                last_active_unix: now,
                state: None,
                sandbox: Some(sandbox),
                memory_limit_mib,
                limits,
                env,
            };
            change.add_workspace(&new)?;
            made = Some(new);
            Ok(())
        })?;
        made.ok_or_else(|| ApiError::internal("the workspace was not made"))
    }

    /// The one with this name.
    pub(crate) fn workspace(&self, name: &str) -> Result<Workspace, ApiError> {
        let shown: String = name.chars().take(64).collect();
        let missing = || ApiError::missing(Code::WorkspaceNotFound, format!("there is no workspace `{shown}`"));
        self.registry.workspace(name)?.ok_or_else(missing)
    }

    /// Keeps its state and ends its sandbox.
    pub(crate) fn suspend(&self, name: &str) -> Result<Workspace, ApiError> {
        self.workspace(name)?;
        let _undisturbed = self.busy.alone(KIND, name)?;
        let before = self.workspace(name)?;
        let (WorkspaceStatus::Running, Some(sandbox)) = (before.status, &before.sandbox) else {
            let message = format!("workspace `{name}` does not run; it is {}", before.status.as_str());
            return Err(ApiError::invalid(message).with_code(Code::WorkspaceNotRunning));
        };
        let (known, child) = self.living(sandbox)?;
        let tag = self.free_state_tag(name)?;
        // What it did after the instant that is kept would be lost without a word.
        child.pause()?;
        if let Err(error) = self.branch_for(name, sandbox, &tag) {
            if known.status != SandboxStatus::Paused
                && let Err(stuck) = child.resume()
            {
                log::error!("workspace `{name}` could not be suspended, and stands still: {}", chain(&stuck));
            }
            return Err(error);
        }
        // From here on nothing can be lost any more; what cannot be tidied up now is tidied up later.
        let _ending = self.ends.begin(sandbox);
        match engine::kill(&child) {
            Ok(()) => self.registry.change(|change| change.remove_sandbox(sandbox))?,
            Err(error) => log::error!("workspace `{name}` is suspended, but {error}"),
        }
        if let Some((old, _)) = &before.state {
            self.remove_state(old);
        }
        self.workspace(name)
    }

    /// Forks its state.
    pub(crate) fn resume(&self, name: &str) -> Result<Workspace, ApiError> {
        self.workspace(name)?;
        let _undisturbed = self.busy.alone(KIND, name)?;
        let before = self.workspace(name)?;
        if before.status == WorkspaceStatus::Running {
            let message = format!("workspace `{name}` runs already");
            return Err(ApiError::invalid(message).with_code(Code::WorkspaceRunning));
        }
        let Some((state, _)) = &before.state else {
            let message = format!(
                "the VM of workspace `{name}` ended before it was ever suspended, so nothing of it is left; delete it \
                 and make it again from `{}`",
                before.source_tag
            );
            return Err(ApiError::conflict(Code::WorkspaceStateLost, message));
        };
        let spawn = Spawn {
            tag: parse_tag(state)?,
            children: vec![New {
                env: variables(before.env.clone())?,
                limits: checked(&before.limits, before.memory_limit_mib)?,
                ..New::default()
            }],
            network: Wishes::default(),
            expires_unix: None,
            workspace: Some(name.into()),
            metadata: Metadata::default(),
            terms: Terms::default(),
        };
        self.spawn(spawn, |change, made| change.resume_workspace(name, &made[0].id))?;
        self.workspace(name)
    }

    /// Ends its sandbox and removes its state.
    pub(crate) fn delete_workspace(&self, name: &str) -> Result<(), ApiError> {
        self.workspace(name)?;
        let _undisturbed = self.busy.alone(KIND, name)?;
        let before = self.workspace(name)?;
        self.registry.change(|change| change.remove_workspace(name))?;
        if let Some(sandbox) = &before.sandbox {
            let found = self.living(sandbox);
            let _ending = self.ends.begin(sandbox);
            match found {
                Ok((_, child)) => {
                    engine::kill(&child)?;
                    self.registry.change(|change| change.remove_sandbox(sandbox))?;
                }
                Err(error) if error.code == Code::SandboxGone => {}
                Err(error) => return Err(error),
            }
        }
        if let Some((state, _)) = &before.state {
            self.remove_state(state);
        }
        Ok(())
    }

    /// Removes a snapshot that is nobody's state any more. What is made of it stays.
    pub(crate) fn remove_state(&self, tag: &str) {
        let removed = parse_tag(tag).and_then(|tag| snapshots::take_away(self, &tag, Removal::Force));
        match removed {
            Err(error) if error.code != Code::SnapshotNotFound => {
                log::error!("the old state `{tag}` is left behind: {}", error.message);
            }
            _ => {}
        }
    }

    /// A tag for the state of a workspace, which nothing has yet.
    fn free_state_tag(&self, name: &str) -> Result<Tag, ApiError> {
        let store = Store::new(&self.dirs);
        for number in 0..MAX_TAGS {
            let tag = state_tag(name, number)?;
            match store.status(&tag) {
                Err(StoreError::Unknown { .. }) => return Ok(tag),
                _ => log::debug!("`{tag}` is taken"),
            }
        }
        Err(ApiError::conflict(Code::SnapshotExists, format!("every tag for the state of `{name}` is taken")))
    }
}

/// `ws-<name>-state`, and when that is taken `ws-<name>-state-2` and so on.
fn state_tag(name: &str, number: u32) -> Result<Tag, ApiError> {
    let name: String = name.chars().take(MAX_NAME_IN_TAG).collect();
    let suffix = if number == 0 { String::new() } else { format!("-{}", number + 1) };
    parse_tag(&format!("ws-{name}-state{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_makes_a_tag() {
        assert_eq!(state_tag("Agent_7", 0).unwrap().as_str(), "ws-Agent_7-state");
        assert_eq!(state_tag(&"X".repeat(64), MAX_TAGS).unwrap().as_str().len(), 3 + 40 + 6 + 5);
    }
}
