//! The tables, and how older files get them. A released step never changes; a new one is added at the end.

use rusqlite::{Connection, TransactionBehavior};

use super::RegistryError;

const STEPS: &[&str] = &[
    "
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
INSERT INTO facts VALUES ('id', lower(hex(randomblob(8))));

CREATE TABLE sandboxes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tag TEXT NOT NULL,
    created_unix INTEGER NOT NULL,
    pid INTEGER,
    memory_limit_mib INTEGER,
    labels TEXT NOT NULL,
    expires_unix INTEGER,
    status TEXT NOT NULL,
    reason TEXT,
    ended_unix INTEGER,
    branch_count INTEGER NOT NULL DEFAULT 0,
    last_branch TEXT,
    workspace TEXT
) STRICT;
CREATE INDEX sandboxes_by_expiry ON sandboxes (expires_unix) WHERE expires_unix IS NOT NULL AND status <> 'gone';
CREATE INDEX sandboxes_by_end ON sandboxes (ended_unix) WHERE ended_unix IS NOT NULL;

CREATE TABLE workspaces (
    name TEXT PRIMARY KEY,
    id TEXT NOT NULL,
    source_tag TEXT NOT NULL,
    status TEXT NOT NULL,
    created_unix INTEGER NOT NULL,
    last_active_unix INTEGER NOT NULL,
    state_tag TEXT,
    state_dir TEXT,
    sandbox TEXT,
    memory_limit_mib INTEGER,
    env TEXT NOT NULL
) STRICT;

CREATE TABLE branches (
    tag TEXT PRIMARY KEY,
    sandbox TEXT NOT NULL,
    workspace TEXT,
    started_unix INTEGER NOT NULL,
    failed TEXT
) STRICT;

CREATE TABLE snapshots (
    tag TEXT PRIMARY KEY,
    snapshot_id TEXT NOT NULL,
    labels TEXT NOT NULL,
    chained INTEGER NOT NULL,
    diff_ms REAL,
    diff_bytes INTEGER
) STRICT;

CREATE TABLE idempotency (
    token TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    created_unix INTEGER NOT NULL,
    status INTEGER,
    body TEXT,
    PRIMARY KEY (token, key)
) STRICT;

CREATE TABLE tokens (
    name TEXT PRIMARY KEY,
    digest BLOB NOT NULL,
    scopes TEXT NOT NULL,
    created_unix INTEGER NOT NULL,
    expires_unix INTEGER
) STRICT;

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ts INTEGER NOT NULL,
    kind TEXT NOT NULL,
    sandbox TEXT,
    tag TEXT,
    workspace TEXT,
    detail TEXT
) STRICT;
",
    "
ALTER TABLE sandboxes ADD COLUMN warm INTEGER;
ALTER TABLE sandboxes ADD COLUMN numpy TEXT;
",
    "
ALTER TABLE sandboxes ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sandboxes ADD COLUMN oom_killed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN throttled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN disk_full INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workspaces ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
",
    "
ALTER TABLE sandboxes ADD COLUMN netns TEXT;
",
    "
ALTER TABLE sandboxes ADD COLUMN language TEXT;
UPDATE sandboxes SET language = CASE warm WHEN 1 THEN 'python' WHEN 0 THEN 'none' END;
ALTER TABLE sandboxes DROP COLUMN warm;
",
    "
ALTER TABLE sandboxes ADD COLUMN pids_limited INTEGER NOT NULL DEFAULT 0;
",
    "
ALTER TABLE idempotency ADD COLUMN bytes_until INTEGER;
CREATE INDEX idempotency_by_time ON idempotency (created_unix);
CREATE INDEX idempotency_by_bytes ON idempotency (bytes_until) WHERE bytes_until IS NOT NULL;
",
];

/// Takes the steps that the file has not taken yet, each whole or not at all.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), RegistryError> {
    let found: usize = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if found > STEPS.len() {
        return Err(RegistryError::Newer { found, known: STEPS.len() });
    }
    for (done, step) in STEPS.iter().enumerate().skip(found) {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute_batch(step)?;
        tx.pragma_update(None, "user_version", done + 1)?;
        tx.commit()?;
    }
    Ok(())
}
