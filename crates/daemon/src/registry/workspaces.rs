//! Workspaces: which sandbox runs for them, and which snapshot holds what they were.

use std::collections::BTreeMap;

use api::{EventKind, SandboxLimits, WorkspaceInfo, WorkspaceStatus};
use rusqlite::{OptionalExtension as _, Row, params};

use super::{About, Change, Registry, RegistryError, rows};

/// A workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workspace {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) source_tag: String,
    pub(crate) status: WorkspaceStatus,
    pub(crate) created_unix: u64,
    pub(crate) last_active_unix: u64,
    /// What holds its state, and where that is.
    pub(crate) state: Option<(String, String)>,
    /// What runs for it.
    pub(crate) sandbox: Option<String>,
    pub(crate) memory_limit_mib: Option<u64>,
    pub(crate) limits: SandboxLimits,
    pub(crate) env: BTreeMap<String, String>,
}

impl From<Workspace> for WorkspaceInfo {
    fn from(workspace: Workspace) -> Self {
        let (current_state_tag, last_branch_memory_path) = workspace.state.unzip();
        Self {
            id: workspace.id,
            name: workspace.name,
            source_snapshot_tag: workspace.source_tag,
            status: workspace.status,
            created_at_unix: workspace.created_unix,
            last_active_unix: workspace.last_active_unix,
            current_state_tag,
            live_sandbox_id: workspace.sandbox,
            last_branch_memory_path,
        }
    }
}

impl Registry {
    /// The one with this name.
    pub(crate) fn workspace(&self, name: &str) -> Result<Option<Workspace>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT * FROM workspaces WHERE name = ?")?;
        Ok(statement.query_row([name], read).optional()?)
    }

    /// All of them.
    pub(crate) fn workspaces(&self) -> Result<Vec<Workspace>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT * FROM workspaces ORDER BY created_unix, name")?;
        Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
    }

    /// Whose state a snapshot is.
    pub(crate) fn workspace_of_state(&self, tag: &str) -> Result<Option<String>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT name FROM workspaces WHERE state_tag = ?")?;
        Ok(statement.query_row([tag], |row| row.get(0)).optional()?)
    }

    /// The workspace whose sandbox was forked from this tag and lives.
    pub(crate) fn workspace_that_runs_of(&self, tag: &str) -> Result<Option<String>, RegistryError> {
        let connection = self.lock();
        let sql = "SELECT workspaces.name FROM workspaces JOIN sandboxes ON workspaces.sandbox = sandboxes.id
                   WHERE sandboxes.tag = ? AND sandboxes.status <> 'gone' LIMIT 1";
        let mut statement = connection.prepare_cached(sql)?;
        Ok(statement.query_row([tag], |row| row.get(0)).optional()?)
    }
}

impl Change<'_> {
    /// A new one that runs; false when the name is taken.
    pub(crate) fn add_workspace(&mut self, new: &Workspace) -> Result<bool, RegistryError> {
        let sql = "INSERT INTO workspaces
                   (name, id, source_tag, status, created_unix, last_active_unix, sandbox, memory_limit_mib, env, limits)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING";
        let added = self.tx.prepare_cached(sql)?.execute(params![
            new.name,
            new.id,
            new.source_tag,
            new.status.as_str(),
            new.created_unix,
            new.last_active_unix,
            new.sandbox,
            new.memory_limit_mib,
            rows::to_json(&new.env),
            rows::limits_to_json(&new.limits),
        ])?;
        if added > 0 {
            self.tell(EventKind::WorkspaceCreated, About::workspace(&new.name))?;
        }
        Ok(added > 0)
    }

    /// Its state is this snapshot from now on, and nothing runs for it.
    pub(crate) fn suspend_workspace(&mut self, name: &str, tag: &str, dir: &str) -> Result<(), RegistryError> {
        let sql = "UPDATE workspaces SET status = 'suspended', state_tag = ?, state_dir = ?, sandbox = NULL,
                   last_active_unix = ? WHERE name = ?";
        self.tx.prepare_cached(sql)?.execute(params![tag, dir, self.now, name])?;
        self.tell(EventKind::WorkspaceSuspended, About { tag: Some(tag), ..About::workspace(name) })
    }

    /// This runs for it from now on.
    pub(crate) fn resume_workspace(&mut self, name: &str, sandbox: &str) -> Result<(), RegistryError> {
        let sql = "UPDATE workspaces SET status = 'running', sandbox = ?, last_active_unix = ? WHERE name = ?";
        self.tx.prepare_cached(sql)?.execute(params![sandbox, self.now, name])?;
        self.tell(EventKind::WorkspaceResumed, About { sandbox: Some(sandbox), ..About::workspace(name) })
    }

    /// It is not there any more.
    pub(crate) fn remove_workspace(&mut self, name: &str) -> Result<(), RegistryError> {
        self.tx.prepare_cached("DELETE FROM workspaces WHERE name = ?")?.execute([name])?;
        self.tell(EventKind::WorkspaceDeleted, About::workspace(name))
    }

    /// What ran for it ended.
    pub(super) fn lose_workspace_of(&mut self, sandbox: &str, reason: &str) -> Result<(), RegistryError> {
        let sql = "UPDATE workspaces SET status = 'stale', sandbox = NULL WHERE sandbox = ? RETURNING name";
        let lost: Option<String> = self.tx.prepare_cached(sql)?.query_row([sandbox], |row| row.get(0)).optional()?;
        lost.map_or(Ok(()), |name| {
            self.tell(EventKind::WorkspaceStale, About { detail: Some(reason), ..About::workspace(&name) })
        })
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Workspace> {
    let status = |text: &str| match text {
        "running" => Some(WorkspaceStatus::Running),
        "suspended" => Some(WorkspaceStatus::Suspended),
        "stale" => Some(WorkspaceStatus::Stale),
        _ => None,
    };
    let tag: Option<String> = row.get("state_tag")?;
    let dir: Option<String> = row.get("state_dir")?;
    Ok(Workspace {
        name: row.get("name")?,
        id: row.get("id")?,
        source_tag: row.get("source_tag")?,
        status: rows::from_text(row, "status", status)?,
        created_unix: row.get("created_unix")?,
        last_active_unix: row.get("last_active_unix")?,
        state: tag.zip(dir),
        sandbox: row.get("sandbox")?,
        memory_limit_mib: row.get("memory_limit_mib")?,
        limits: rows::limits(row)?,
        env: rows::map(row, "env")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::registry;

    fn workspace(name: &str, sandbox: &str) -> Workspace {
        Workspace {
            name: name.into(),
            id: format!("ws-{sandbox}"),
            source_tag: "base".into(),
            status: WorkspaceStatus::Running,
            created_unix: 1,
            last_active_unix: 1,
            state: None,
            sandbox: Some(sandbox.into()),
            memory_limit_mib: Some(64),
            limits: SandboxLimits { cpu_millis: Some(500), ..SandboxLimits::default() },
            env: [("A".to_owned(), "b".to_owned())].into(),
        }
    }

    #[test]
    fn a_name_is_had_once_and_what_it_had_stays() {
        let (_dir, registry) = registry();
        let new = workspace("w", "sb-1");
        assert!(registry.change(|change| change.add_workspace(&new)).unwrap());
        assert!(!registry.change(|change| change.add_workspace(&workspace("w", "sb-2"))).unwrap());
        registry.change(|change| change.suspend_workspace("w", "ws-w-state", "/d")).unwrap();
        registry.change(|change| change.resume_workspace("w", "sb-3")).unwrap();
        let now = registry.workspace("w").unwrap().unwrap();
        assert_eq!((now.memory_limit_mib, now.limits, &now.env), (new.memory_limit_mib, new.limits, &new.env));
        assert_eq!(now.state, Some(("ws-w-state".into(), "/d".into())));
        assert_eq!(registry.workspace_of_state("ws-w-state").unwrap().as_deref(), Some("w"));
    }

    #[test]
    fn one_whose_sandbox_ends_is_stale_and_keeps_its_state() {
        let (_dir, registry) = registry();
        registry.change(|change| change.add_workspace(&workspace("w", "sb-1"))).unwrap();
        registry.change(|change| change.suspend_workspace("w", "ws-w-state", "/d")).unwrap();
        registry.change(|change| change.resume_workspace("w", "sb-2")).unwrap();
        registry.change(|change| change.lose_workspace_of("sb-1", "an earlier one")).unwrap();
        assert_eq!(registry.workspace("w").unwrap().unwrap().status, WorkspaceStatus::Running);
        registry.change(|change| change.lose_workspace_of("sb-2", "it died")).unwrap();
        let stale = registry.workspace("w").unwrap().unwrap();
        assert_eq!((stale.status, stale.sandbox), (WorkspaceStatus::Stale, None));
        assert!(stale.state.is_some());
    }
}
