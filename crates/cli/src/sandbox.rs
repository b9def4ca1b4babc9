//! The sandbox that is meant.

use anyhow::{Context, bail};
use api::SandboxInfo;
use client::{Client, path};
use engine::plan;

/// More than are worth naming.
const CANDIDATES: usize = 5;

/// The one with this id or network namespace, or the only one whose id begins so or goes on so after `sb-`. One that nobody knows is named as it
/// is: the daemon has the last word.
pub(crate) fn find(client: &Client, id: &str) -> anyhow::Result<String> {
    if id.is_empty() {
        return Err(none(id));
    }
    if id.starts_with(plan::NAMESPACE) {
        let all: Vec<SandboxInfo> = client.get(&path(&["sandboxes"], &[]))?;
        let found = all.into_iter().find(|one| one.netns.as_deref() == Some(id));
        return found.map(|one| one.id).with_context(|| format!("no sandbox has the network namespace `{id}`"));
    }
    // One that lives comes before all that are gone.
    for status in [None, Some("gone")] {
        let limit = CANDIDATES.to_string();
        let query = [("id", id), ("limit", &*limit)].into_iter().chain(status.map(|status| ("status", status)));
        let found: Vec<SandboxInfo> = client.get(&path(&["sandboxes"], &query.collect::<Vec<_>>()))?;
        match &found[..] {
            [] => {}
            [only] => return Ok(only.id.clone()),
            many if many.iter().any(|one| one.id == id) => return Ok(id.into()),
            many => {
                let names: Vec<&str> = many.iter().take(CANDIDATES - 1).map(|one| one.id.as_str()).collect();
                bail!("`{id}` could be {}; write more of the id", names.join(", "));
            }
        }
    }
    Ok(id.into())
}

/// What is said where nothing runs at all.
pub(crate) fn none(id: &str) -> anyhow::Error {
    anyhow::anyhow!("no sandbox `{id}` runs; `forkd ls` lists those that do")
}
