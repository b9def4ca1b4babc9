//! What has happened, kept for those who come later.

use api::{Event, EventKind};
use rusqlite::{Row, Transaction, params};

use super::{About, Registry, RegistryError, rows};

/// How many are kept.
const KEPT: i64 = 10_000;

pub(super) fn insert(
    tx: &Transaction<'_>,
    now: u64,
    kind: EventKind,
    about: About<'_>,
) -> Result<Event, RegistryError> {
    let About { sandbox, tag, workspace, detail } = about;
    let sql = "INSERT INTO events (ts, kind, sandbox, tag, workspace, detail) VALUES (?, ?, ?, ?, ?, ?)";
    tx.prepare_cached(sql)?.execute(params![now, kind.as_str(), sandbox, tag, workspace, detail])?;
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let (sandbox, tag, workspace, detail) = (owned(sandbox), owned(tag), owned(workspace), owned(detail));
    Ok(Event { id: tx.last_insert_rowid(), ts: now, kind, sandbox, tag, workspace, detail })
}

/// Forgets the oldest.
pub(super) fn prune(tx: &Transaction<'_>, last: i64) -> Result<(), RegistryError> {
    tx.prepare_cached("DELETE FROM events WHERE id <= ?")?.execute([last - KEPT])?;
    Ok(())
}

impl Registry {
    /// Those after this id that are kept, oldest first, at most so many.
    pub(crate) fn events_since(&self, id: i64, limit: usize) -> Result<Vec<Event>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT * FROM events WHERE id > ? ORDER BY id LIMIT ?")?;
        let events = statement.query_map(params![id, limit], read)?;
        Ok(events.collect::<Result<_, _>>()?)
    }

    /// The id of the last one.
    pub(crate) fn last_event(&self) -> Result<i64, RegistryError> {
        Ok(self.lock().query_row("SELECT coalesce(max(id), 0) FROM events", [], |row| row.get(0))?)
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Event> {
    Ok(Event {
        id: row.get("id")?,
        ts: row.get("ts")?,
        kind: rows::from_text(row, "kind", EventKind::from_name)?,
        sandbox: row.get("sandbox")?,
        tag: row.get("tag")?,
        workspace: row.get("workspace")?,
        detail: row.get("detail")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::registry;

    #[test]
    fn the_last_ones_are_kept() {
        let (_dir, registry) = registry();
        let many = KEPT + 20;
        registry
            .change(|change| (0..many).try_for_each(|_| change.tell(EventKind::SandboxReady, About::tag("t"))))
            .unwrap();
        let kept = registry.events_since(0, usize::MAX >> 1).unwrap();
        assert_eq!((kept.len(), kept[0].id), (usize::try_from(KEPT).unwrap(), 21));
        assert_eq!(registry.last_event().unwrap(), many);
        assert_eq!(registry.events_since(many - 2, 10).unwrap().len(), 2);
    }
}
