//! Branches under way and those that failed, and what only the daemon knows about snapshots.

use std::collections::BTreeMap;

use api::EventKind;
use rusqlite::{OptionalExtension as _, params};

use super::{About, Change, Registry, RegistryError, rows};

/// A branch under way, or one that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BranchRow {
    pub(crate) tag: String,
    pub(crate) sandbox: String,
    /// Whose state it shall be.
    pub(crate) workspace: Option<String>,
    pub(crate) started_unix: u64,
    /// Why it is none.
    pub(crate) failed: Option<String>,
}

/// What only the daemon knows about a snapshot; of the one that has this id.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    pub(crate) snapshot_id: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// It keeps what it is made of from being removed.
    pub(crate) chained: bool,
    pub(crate) diff_ms: Option<f64>,
    pub(crate) diff_bytes: Option<u64>,
}

impl Registry {
    /// All that are under way or failed.
    pub(crate) fn branches(&self) -> Result<Vec<BranchRow>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT * FROM branches ORDER BY tag")?;
        let branches = statement.query_map([], |row| {
            Ok(BranchRow {
                tag: row.get("tag")?,
                sandbox: row.get("sandbox")?,
                workspace: row.get("workspace")?,
                started_unix: row.get("started_unix")?,
                failed: row.get("failed")?,
            })
        })?;
        Ok(branches.collect::<Result<_, _>>()?)
    }

    /// What is known about the snapshot that has this tag and id.
    pub(crate) fn facts(&self, tag: &str, snapshot_id: &str) -> Result<Option<Facts>, RegistryError> {
        let connection = self.lock();
        let sql = "SELECT * FROM snapshots WHERE tag = ? AND snapshot_id = ?";
        let mut statement = connection.prepare_cached(sql)?;
        let facts = statement.query_row([tag, snapshot_id], |row| {
            Ok(Facts {
                snapshot_id: row.get("snapshot_id")?,
                labels: rows::map(row, "labels")?,
                chained: row.get("chained")?,
                diff_ms: row.get("diff_ms")?,
                diff_bytes: row.get("diff_bytes")?,
            })
        });
        Ok(facts.optional()?)
    }
}

impl Change<'_> {
    /// A branch begins.
    pub(crate) fn begin_branch(
        &mut self,
        tag: &str,
        sandbox: &str,
        workspace: Option<&str>,
    ) -> Result<(), RegistryError> {
        let sql = "INSERT OR REPLACE INTO branches (tag, sandbox, workspace, started_unix) VALUES (?, ?, ?, ?)";
        self.tx.prepare_cached(sql)?.execute(params![tag, sandbox, workspace, self.now])?;
        Ok(())
    }

    /// It never came to be a snapshot that anybody saw.
    pub(crate) fn forget_branch(&mut self, tag: &str) -> Result<(), RegistryError> {
        self.tx.prepare_cached("DELETE FROM branches WHERE tag = ?")?.execute([tag])?;
        Ok(())
    }

    /// It is written.
    pub(crate) fn finish_branch(&mut self, tag: &str) -> Result<(), RegistryError> {
        self.forget_branch(tag)?;
        self.tell(EventKind::SnapshotReady, About::tag(tag))
    }

    /// It will never be; who had seen it learns why.
    pub(crate) fn fail_branch(&mut self, tag: &str, reason: &str) -> Result<(), RegistryError> {
        self.tx.prepare_cached("UPDATE branches SET failed = ? WHERE tag = ?")?.execute([reason, tag])?;
        self.tell(EventKind::SnapshotFailed, About { detail: Some(reason), ..About::tag(tag) })
    }

    /// What is known about a snapshot from now on.
    pub(crate) fn set_facts(&mut self, tag: &str, facts: &Facts) -> Result<(), RegistryError> {
        let Facts { snapshot_id, labels, chained, diff_ms, diff_bytes } = facts;
        let sql = "INSERT OR REPLACE INTO snapshots (tag, snapshot_id, labels, chained, diff_ms, diff_bytes)
                   VALUES (?, ?, ?, ?, ?, ?)";
        let values = params![tag, snapshot_id, rows::to_json(labels), chained, diff_ms, diff_bytes];
        self.tx.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// It is not there any more.
    pub(crate) fn remove_snapshot(&mut self, tag: &str) -> Result<(), RegistryError> {
        self.tx.prepare_cached("DELETE FROM snapshots WHERE tag = ?")?.execute([tag])?;
        self.forget_branch(tag)?;
        self.tell(EventKind::SnapshotDeleted, About::tag(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::registry;

    #[test]
    fn a_branch_is_under_way_until_it_is_over() {
        let (_dir, registry) = registry();
        for tag in ["a", "b"] {
            registry.change(|change| change.begin_branch(tag, "sb-1", None)).unwrap();
        }
        registry.change(|change| change.finish_branch("a")).unwrap();
        registry.change(|change| change.fail_branch("b", "no room")).unwrap();
        let left = registry.branches().unwrap();
        assert_eq!((left.len(), left[0].failed.as_deref()), (1, Some("no room")));
        registry.change(|change| change.begin_branch("b", "sb-2", Some("w"))).unwrap();
        let again = registry.branches().unwrap();
        assert_eq!((again[0].failed.as_deref(), again[0].workspace.as_deref()), (None, Some("w")));
    }

    #[test]
    fn facts_are_of_one_snapshot_and_not_of_its_tag() {
        let (_dir, registry) = registry();
        let facts = Facts { snapshot_id: "1".into(), chained: true, diff_ms: Some(1.5), ..Facts::default() };
        registry.change(|change| change.set_facts("t", &facts)).unwrap();
        assert_eq!(registry.facts("t", "1").unwrap(), Some(facts));
        assert_eq!(registry.facts("t", "2").unwrap(), None);
    }
}
