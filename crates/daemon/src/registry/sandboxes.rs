//! The sandboxes that live, and for a while those that ended without being asked to.

use std::collections::BTreeMap;

use api::{EventKind, SandboxInfo, SandboxLimits, SandboxStatus};
use engine::Hits;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension as _, Row, params, params_from_iter};

use super::{About, Change, Registry, RegistryError, rows};

/// How long one that ended is remembered, in seconds.
const REMEMBERED_SECS: u64 = 24 * 60 * 60;
/// Where every guest would see itself, as published clients expect it.
const GUEST_ADDR: &str = "10.42.0.2:8888";

/// What is remembered of a sandbox without a warm interpreter.
pub(crate) const NO_LANGUAGE: &str = "none";

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) tag: String,
    pub(crate) created_unix: u64,
    pub(crate) pid: Option<u32>,
    pub(crate) memory_limit_mib: Option<u64>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) expires_unix: Option<u64>,
    pub(crate) status: SandboxStatus,
    /// Why it ended.
    pub(crate) reason: Option<String>,
    pub(crate) branch_count: u64,
    /// Where the last snapshot of it is.
    pub(crate) last_branch: Option<String>,
    /// Whose it is, if it belongs to a workspace.
    pub(crate) workspace: Option<String>,
    /// What the warm interpreter of its snapshot speaks, or [`NO_LANGUAGE`] if there is none; absent when nobody knows.
    pub(crate) language: Option<String>,
    /// The version of numpy in it, once somebody has asked.
    pub(crate) numpy: Option<String>,
    pub(crate) limits: SandboxLimits,
    /// Which of them it has hit.
    pub(crate) hits: Hits,
    /// Its network's namespace, if it has one.
    pub(crate) netns: Option<String>,
}

impl From<Sandbox> for SandboxInfo {
    fn from(sandbox: Sandbox) -> Self {
        Self {
            hostname: sandbox.id.clone(),
            id: sandbox.id,
            snapshot_tag: sandbox.tag,
            netns: sandbox.netns,
            guest_addr: GUEST_ADDR.into(),
            created_at_unix: sandbox.created_unix,
            pid: sandbox.pid,
            memory_limit_mib: sandbox.memory_limit_mib,
            has_branched: sandbox.branch_count > 0,
            last_branch_memory_path: sandbox.last_branch,
            branch_count: sandbox.branch_count,
            status: sandbox.status,
            labels: sandbox.labels,
            expires_at_unix: sandbox.expires_unix,
            reason: sandbox.reason,
            limits: sandbox.limits,
            oom_killed: sandbox.hits.oom_killed,
            throttled: sandbox.hits.throttled,
            disk_full: sandbox.hits.disk_full,
            pids_limited: sandbox.hits.pids_limited,
            memory: None,
        }
    }
}

/// Which sandboxes are meant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// The beginning of its id, with or without what all begin with.
    pub(crate) begins: Option<String>,
    pub(crate) tag: Option<String>,
    pub(crate) labels: Vec<(String, String)>,
    /// The living, if nobody says.
    pub(crate) status: Option<SandboxStatus>,
    /// After this one.
    pub(crate) after: i64,
    pub(crate) limit: Option<usize>,
}

/// Some of them.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) sandboxes: Vec<Sandbox>,
    /// What the next page is after, if there is one.
    pub(crate) next: Option<i64>,
}

impl Registry {
    /// The one with this id.
    pub(crate) fn sandbox(&self, id: &str) -> Result<Option<Sandbox>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT * FROM sandboxes WHERE id = ?")?;
        Ok(statement.query_row([id], read).optional()?)
    }

    /// Those that are meant, in the order in which they came.
    pub(crate) fn sandboxes(&self, filter: &Filter) -> Result<Page, RegistryError> {
        let mut sql = String::from("SELECT * FROM sandboxes WHERE seq > ?");
        let mut values: Vec<Value> = vec![filter.after.into()];
        match filter.status {
            Some(status) => {
                sql += " AND status = ?";
                values.push(status.as_str().to_owned().into());
            }
            None => sql += " AND status <> 'gone'",
        }
        if let Some(begin) = &filter.begins {
            sql += " AND (substr(id, 1, length(?)) = ? OR substr(id, 4, length(?)) = ?)";
            values.extend(std::iter::repeat_n(Value::from(begin.clone()), 4));
        }
        if let Some(tag) = &filter.tag {
            sql += " AND tag = ?";
            values.push(tag.clone().into());
        }
        for (key, value) in &filter.labels {
            sql += " AND EXISTS (SELECT 1 FROM json_each(labels) AS label WHERE label.key = ? AND label.value = ?)";
            values.extend([key.clone().into(), value.clone().into()]);
        }
        sql += " ORDER BY seq LIMIT ?";
        // One more than wanted tells whether there are more; a negative limit is none.
        let limit = filter.limit.and_then(|limit| i64::try_from(limit).ok());
        values.push(limit.map_or(-1, |limit| limit.saturating_add(1)).into());
        let connection = self.lock();
        let mut statement = connection.prepare_cached(&sql)?;
        let found = statement.query_map(params_from_iter(values), |row| Ok((row.get("seq")?, read(row)?)))?;
        let mut found: Vec<(i64, Sandbox)> = found.collect::<Result<_, _>>()?;
        let more = filter.limit.is_some_and(|limit| found.len() > limit);
        found.truncate(filter.limit.unwrap_or(usize::MAX));
        let next = found.last().filter(|_| more).map(|(seq, _)| *seq);
        Ok(Page { sandboxes: found.into_iter().map(|(_, sandbox)| sandbox).collect(), next })
    }

    /// Those whose time is up.
    pub(crate) fn expired(&self, now: u64) -> Result<Vec<Sandbox>, RegistryError> {
        let connection = self.lock();
        let sql = "SELECT * FROM sandboxes WHERE expires_unix <= ? AND status <> 'gone' ORDER BY expires_unix";
        let mut statement = connection.prepare_cached(sql)?;
        Ok(statement.query_map([now], read)?.collect::<Result<_, _>>()?)
    }

    /// Does something if it lives and its time is up; no change happens meanwhile.
    pub(crate) fn if_expired<T>(
        &self,
        id: &str,
        now: u64,
        then: impl FnOnce() -> T,
    ) -> Result<Option<T>, RegistryError> {
        let connection = self.lock();
        let sql = "SELECT EXISTS (SELECT 1 FROM sandboxes WHERE id = ? AND expires_unix <= ? AND status <> 'gone')";
        let is_expired: bool = connection.prepare_cached(sql)?.query_row(params![id, now], |row| row.get(0))?;
        Ok(is_expired.then(then))
    }

    /// Living ones of workspaces that have let go of them.
    pub(crate) fn unwanted(&self) -> Result<Vec<Sandbox>, RegistryError> {
        let connection = self.lock();
        let sql = "SELECT * FROM sandboxes WHERE workspace IS NOT NULL AND status <> 'gone' AND NOT EXISTS
                   (SELECT 1 FROM workspaces WHERE workspaces.sandbox = sandboxes.id)";
        let mut statement = connection.prepare_cached(sql)?;
        Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
    }

    /// How many live.
    pub(crate) fn count_living(&self) -> Result<u64, RegistryError> {
        let connection = self.lock();
        let sql = "SELECT count(*) FROM sandboxes WHERE status <> 'gone'";
        Ok(connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
    }

    /// How many there are of each status.
    pub(crate) fn count_sandboxes(&self) -> Result<Vec<(String, u64)>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT status, count(*) FROM sandboxes GROUP BY status")?;
        Ok(statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?)
    }
}

impl Change<'_> {
    /// One that lives; false when it is known already.
    pub(crate) fn add_sandbox(&mut self, new: &Sandbox) -> Result<bool, RegistryError> {
        let sql = "INSERT INTO sandboxes
                   (id, tag, created_unix, pid, memory_limit_mib, labels, expires_unix, status, workspace, language,
                   limits, netns)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING";
        let added = self.tx.prepare_cached(sql)?.execute(params![
            new.id,
            new.tag,
            new.created_unix,
            new.pid,
            new.memory_limit_mib,
            rows::to_json(&new.labels),
            new.expires_unix,
            new.status.as_str(),
            new.workspace,
            new.language,
            rows::limits_to_json(&new.limits),
            new.netns,
        ])?;
        if added > 0 {
            let about = About { tag: Some(&new.tag), ..About::sandbox(&new.id) };
            self.tell(EventKind::SandboxCreated, about)?;
            self.tell(EventKind::SandboxReady, about)?;
        }
        Ok(added > 0)
    }

    /// It ended without being asked to; so did the workspace it was the VM of. Nothing happens twice.
    pub(crate) fn end_sandbox(&mut self, id: &str, kind: EventKind, reason: &str) -> Result<(), RegistryError> {
        let sql = "UPDATE sandboxes SET status = 'gone', reason = ?, ended_unix = ?, pid = NULL
                   WHERE id = ? AND status <> 'gone'";
        if self.tx.prepare_cached(sql)?.execute(params![reason, self.now, id])? > 0 {
            self.tell(kind, About { detail: Some(reason), ..About::sandbox(id) })?;
            self.lose_workspace_of(id, reason)?;
        }
        Ok(())
    }

    /// It was ended on request, and is not spoken of any more.
    pub(crate) fn remove_sandbox(&mut self, id: &str) -> Result<(), RegistryError> {
        let status: Option<String> = self
            .tx
            .prepare_cached("DELETE FROM sandboxes WHERE id = ? RETURNING status")?
            .query_row([id], |row| row.get(0))
            .optional()?;
        if status.is_some_and(|status| status != SandboxStatus::Gone.as_str()) {
            self.tell(EventKind::SandboxKilled, About::sandbox(id))?;
            self.lose_workspace_of(id, "its sandbox was killed")?;
        }
        Ok(())
    }

    /// Until when it may live, and what it is found by; absent is unchanged. False when it does not live.
    pub(crate) fn renew_sandbox(
        &mut self,
        id: &str,
        expires_unix: Option<Option<u64>>,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Result<bool, RegistryError> {
        let sql = "UPDATE sandboxes SET expires_unix = iif(?1, ?2, expires_unix), labels = coalesce(?3, labels)
                   WHERE id = ?4 AND status <> 'gone'";
        let values = params![expires_unix.is_some(), expires_unix.flatten(), labels.map(rows::to_json), id];
        let changed = self.tx.prepare_cached(sql)?.execute(values)? > 0;
        if changed {
            self.tell(EventKind::SandboxRenewed, About::sandbox(id))?;
        }
        Ok(changed)
    }

    /// It stands still, or goes on. Nothing happens twice.
    pub(crate) fn set_status(&mut self, id: &str, status: SandboxStatus) -> Result<(), RegistryError> {
        let sql = "UPDATE sandboxes SET status = ?1 WHERE id = ?2 AND status <> 'gone' AND status <> ?1";
        if self.tx.prepare_cached(sql)?.execute([status.as_str(), id])? > 0 {
            let paused = status == SandboxStatus::Paused;
            let kind = if paused { EventKind::SandboxPaused } else { EventKind::SandboxResumed };
            self.tell(kind, About::sandbox(id))?;
        }
        Ok(())
    }

    /// It hit limits. Nothing happens twice.
    pub(crate) fn add_hits(&mut self, id: &str, hits: Hits) -> Result<(), RegistryError> {
        let Hits { oom_killed, throttled, disk_full, pids_limited } = hits;
        let sql = "UPDATE sandboxes SET oom_killed = ?1, throttled = ?2, disk_full = ?3, pids_limited = ?4
                   WHERE id = ?5 AND (oom_killed, throttled, disk_full, pids_limited) <> (?1, ?2, ?3, ?4)";
        let values = params![oom_killed, throttled, disk_full, pids_limited, id];
        if self.tx.prepare_cached(sql)?.execute(values)? > 0 {
            let ended = [(oom_killed, "oom_killed"), (throttled, "throttled")];
            let words = ended.into_iter().chain([(disk_full, "disk_full"), (pids_limited, "pids_limited")]);
            let words: Vec<_> = words.filter_map(|(hit, word)| hit.then_some(word)).collect();
            self.tell(EventKind::SandboxLimited, About { detail: Some(&words.join(", ")), ..About::sandbox(id) })?;
        }
        Ok(())
    }

    /// The version of numpy in it.
    pub(crate) fn set_numpy(&mut self, id: &str, version: &str) -> Result<(), RegistryError> {
        self.tx.prepare_cached("UPDATE sandboxes SET numpy = ? WHERE id = ?")?.execute([version, id])?;
        Ok(())
    }

    /// A snapshot was taken of it, and is there.
    pub(crate) fn count_branch(&mut self, id: &str, tag: &str, dir: &str) -> Result<(), RegistryError> {
        let sql = "UPDATE sandboxes SET branch_count = branch_count + 1, last_branch = ? WHERE id = ?";
        self.tx.prepare_cached(sql)?.execute([dir, id])?;
        self.tell(EventKind::SandboxBranched, About { tag: Some(tag), ..About::sandbox(id) })
    }

    /// Its process is another one than was known.
    pub(crate) fn correct_pid(&mut self, id: &str, pid: Option<u32>) -> Result<(), RegistryError> {
        self.tx.prepare_cached("UPDATE sandboxes SET pid = ? WHERE id = ?")?.execute(params![pid, id])?;
        Ok(())
    }

    /// Forgets those that ended long ago.
    pub(crate) fn forget_sandboxes(&mut self) -> Result<(), RegistryError> {
        let before = self.now.saturating_sub(REMEMBERED_SECS);
        self.tx.prepare_cached("DELETE FROM sandboxes WHERE ended_unix < ?")?.execute([before])?;
        Ok(())
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Sandbox> {
    let status = |text: &str| match text {
        "running" => Some(SandboxStatus::Running),
        "paused" => Some(SandboxStatus::Paused),
        "gone" => Some(SandboxStatus::Gone),
        _ => None,
    };
    Ok(Sandbox {
        id: row.get("id")?,
        tag: row.get("tag")?,
        created_unix: row.get("created_unix")?,
        pid: row.get("pid")?,
        memory_limit_mib: row.get("memory_limit_mib")?,
        labels: rows::map(row, "labels")?,
        expires_unix: row.get("expires_unix")?,
        status: rows::from_text(row, "status", status)?,
        reason: row.get("reason")?,
        branch_count: row.get("branch_count")?,
        last_branch: row.get("last_branch")?,
        workspace: row.get("workspace")?,
        language: row.get("language")?,
        numpy: row.get("numpy")?,
        limits: rows::limits(row)?,
        hits: Hits {
            oom_killed: row.get("oom_killed")?,
            throttled: row.get("throttled")?,
            disk_full: row.get("disk_full")?,
            pids_limited: row.get("pids_limited")?,
        },
        netns: row.get("netns")?,
    })
}

#[cfg(test)]
mod tests;
