//! What the daemon remembers: sandboxes, workspaces, tokens, what is under way, and what has happened.
//!
//! One SQLite file, one connection, one transaction per change. What a change tells the world is written in the same
//! transaction and handed to those who listen after it. The VMs own themselves: what is here about them is checked against
//! what lives ([`crate::adopt`]), never the other way round.

mod branches;
mod events;
mod idempotency;
mod rows;
mod sandboxes;
mod schema;
mod tokens;
mod workspaces;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{Event, EventKind};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::broadcast;

pub(crate) use branches::{BranchRow, Facts};
pub(crate) use idempotency::Before;
pub(crate) use sandboxes::{Filter, NO_LANGUAGE, Sandbox};
pub(crate) use tokens::Token;
pub(crate) use workspaces::Workspace;

/// How many changes a listener may be behind before it has to read them from the file.
const EVENT_BACKLOG: usize = 4096;
/// What every SQLite file begins with.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// How long another process may hold the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Why the registry cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// SQLite says no.
    #[error("the registry cannot be used: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// It is not where it should be.
    #[error("cannot keep the registry in {}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "{} is not a registry of this forkd, and is left as it is; give another file with --state (FORKD_STATE): the state \
         of another implementation cannot be taken over",
        path.display()
    )]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
    /// A later forkd wrote it.
    #[error("the registry is of version {found}; this forkd knows versions up to {known}: use a newer one")]
    Newer {
        /// Its version.
        found: usize,
        /// Ours.
        known: usize,
    },
}

/// What the daemon remembers.
#[derive(Debug)]
pub(crate) struct Registry {
    connection: Mutex<Connection>,
    events: broadcast::Sender<Arc<Event>>,
    /// Drawn once, when the file was made: what marks sandboxes as made by this daemon.
    id: String,
}

/// A change under way: all of it happens, or nothing.
pub(crate) struct Change<'c> {
    tx: Transaction<'c>,
    told: Vec<Event>,
    /// Seconds since 1970.
    pub(crate) now: u64,
}

/// What a change is about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About<'a> {
    pub(crate) sandbox: Option<&'a str>,
    pub(crate) tag: Option<&'a str>,
    pub(crate) workspace: Option<&'a str>,
    pub(crate) detail: Option<&'a str>,
}

impl Registry {
    /// Opens the file, makes it if there is none, and brings an old one up to date.
    pub(crate) fn open(path: &Path) -> Result<Self, RegistryError> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|source| RegistryError::Io { path: path.into(), source })?;
        }
        refuse_foreign(path)?;
        // It holds what others told us in confidence: the environments of workspaces.
        let private = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        private.map_err(|source| RegistryError::Io { path: path.into(), source })?;
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(LOCK_PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        schema::migrate(&mut connection)?;
        let id = connection.query_row("SELECT value FROM facts WHERE name = 'id'", [], |row| row.get(0))?;
        Ok(Self { connection: Mutex::new(connection), events: broadcast::channel(EVENT_BACKLOG).0, id })
    }

    /// What marks sandboxes as made by this daemon.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Every change from now on.
    pub(crate) fn listen(&self) -> broadcast::Receiver<Arc<Event>> {
        self.events.subscribe()
    }

    /// A change that survives the daemon. Should the power fail at once, it may be as if it had not happened, as it is
    /// with the sandboxes themselves.
    pub(crate) fn change<T>(
        &self,
        work: impl FnOnce(&mut Change<'_>) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let mut connection = self.lock();
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut change = Change { tx, told: Vec::new(), now: now_unix() };
        let done = work(&mut change)?;
        let told = change.commit()?;
        // In the order of the ids, because the lock is still held. Without listeners nobody needs to be told.
        for event in told {
            drop(self.events.send(Arc::new(event)));
        }
        drop(connection);
        Ok(done)
    }

    /// A change that is on the disk when this returns.
    pub(crate) fn change_durably<T>(
        &self,
        work: impl FnOnce(&mut Change<'_>) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let done = self.change(work)?;
        self.sync()?;
        Ok(done)
    }

    /// Returns when all changes are on the disk. They are in one log, which is written through with the next of them; a
    /// checkpoint would do less when somebody else reads the file, and not fail.
    pub(crate) fn sync(&self) -> Result<(), RegistryError> {
        let connection = self.lock();
        connection.pragma_update(None, "synchronous", "full")?;
        let written = connection.execute("UPDATE facts SET value = value WHERE name = 'id'", []);
        connection.pragma_update(None, "synchronous", "normal")?;
        drop(connection);
        Ok(written.map(drop)?)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // Whoever panicked in a transaction has rolled it back.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that is there has to be a database; one that is empty is about to become one.
fn refuse_foreign(path: &Path) -> Result<(), RegistryError> {
    let io = |source| RegistryError::Io { path: path.into(), source };
    let mut begin = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(io)?.take(MAGIC.len() as u64).read_to_end(&mut begin).map_err(io)?,
    };
    if begin.is_empty() || begin == MAGIC { Ok(()) } else { Err(RegistryError::Foreign { path: path.into() }) }
}

impl Change<'_> {
    /// Something the world shall know.
    pub(crate) fn tell(&mut self, kind: EventKind, about: About<'_>) -> Result<(), RegistryError> {
        let event = events::insert(&self.tx, self.now, kind, about)?;
        self.told.push(event);
        Ok(())
    }

    fn commit(self) -> Result<Vec<Event>, RegistryError> {
        if let Some(last) = self.told.last() {
            events::prune(&self.tx, last.id)?;
        }
        self.tx.commit()?;
        Ok(self.told)
    }
}

impl<'a> About<'a> {
    pub(crate) const fn sandbox(id: &'a str) -> Self {
        Self { sandbox: Some(id), tag: None, workspace: None, detail: None }
    }

    pub(crate) const fn tag(tag: &'a str) -> Self {
        Self { sandbox: None, tag: Some(tag), workspace: None, detail: None }
    }

    pub(crate) const fn workspace(name: &'a str) -> Self {
        Self { sandbox: None, tag: None, workspace: Some(name), detail: None }
    }
}

/// Seconds since 1970.
pub(crate) fn now_unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A registry in a directory of its own.
    pub(crate) fn registry() -> (tempfile::TempDir, Registry) {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(&dir.path().join("deep/registry.db")).unwrap();
        (dir, registry)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::registry;
    use super::*;

    #[test]
    fn a_change_is_all_or_nothing_and_only_then_told() {
        let (_dir, registry) = registry();
        let mut listener = registry.listen();
        let failed: Result<(), _> = registry.change(|change| {
            change.tell(EventKind::SandboxGone, About::sandbox("sb-1"))?;
            Err(RegistryError::Newer { found: 1, known: 0 })
        });
        failed.unwrap_err();
        assert!(listener.try_recv().is_err(), "nothing happened");
        registry.change(|change| change.tell(EventKind::SandboxReady, About::sandbox("sb-2"))).unwrap();
        assert_eq!(listener.try_recv().unwrap().kind, EventKind::SandboxReady);
        assert_eq!(registry.events_since(0, 10).unwrap().len(), 1);
    }

    #[test]
    fn it_is_the_same_when_opened_again_and_a_stranger_is_refused() {
        let (dir, registry) = registry();
        let id = registry.id().to_owned();
        drop(registry);
        let path = dir.path().join("deep/registry.db");
        assert_eq!(Registry::open(&path).unwrap().id(), id);
        std::fs::write(dir.path().join("text"), "{\"snapshots\": {}} is what others keep here").unwrap();
        assert!(matches!(Registry::open(&dir.path().join("text")), Err(RegistryError::Foreign { .. })));
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(Registry::open(&path), Err(RegistryError::Newer { found: 99, .. })));
    }

    #[test]
    fn who_reads_keeps_nothing_from_the_disk() {
        let (dir, registry) = registry();
        let reader = Connection::open(dir.path().join("deep/registry.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM facts").unwrap();
        let begun = std::time::Instant::now();
        registry.change_durably(|change| change.tell(EventKind::SandboxReady, About::sandbox("sb-1"))).unwrap();
        assert!(begun.elapsed() < LOCK_PATIENCE, "a checkpoint would have waited for the reader");
        let synchronous: i64 = registry.lock().query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap();
        assert_eq!(synchronous, 1, "others do not pay for it");
    }
}
