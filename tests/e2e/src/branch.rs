//! Branching: a sandbox that runs on, and templates and snapshots of what it was at one instant.
//!
//! ```text
//! torn        many branches of a guest that notices when an instant was torn
//! stall       for how long its source does not run
//! source      what the branched sandbox notices
//! chain       branches of branches, and what each of them stores
//! packs       to another store and back to life, over a server
//! hub         that server
//! full        a disk that is full while something is stored
//! keeping     forks of what is still being written, and who dies meanwhile
//! ```

pub(crate) mod chain;
pub(crate) mod full;
mod hub;
pub(crate) mod keeping;
pub(crate) mod packs;
pub(crate) mod source;
pub(crate) mod stall;
pub(crate) mod torn;

use anyhow::Result;
use engine::{Branch, BranchSpec, Child, Extent, Lifetime, Removal, branch, remove_snapshot};
use types::{Dirs, Tag};

use crate::fork::Children;

pub(crate) use hub::Hub;

/// Branches a child under a name of the test's.
pub(crate) fn take(child: &Child, tag: &Tag, dirs: &Dirs) -> Result<Branch> {
    Ok(branch(BranchSpec { child: child.clone(), tag: tag.clone(), extent: Extent::Diff }, dirs)?)
}

/// One child of a tag.
pub(crate) fn one(tag: &Tag, dirs: &Dirs) -> Result<Children> {
    Children::fork_in(dirs, tag, 1, Lifetime::Connection)
}

/// Snapshots that go with the test, the latest first.
pub(crate) struct Taken<'a> {
    dirs: &'a Dirs,
    tags: Vec<Tag>,
}

impl<'a> Taken<'a> {
    pub(crate) const fn new(dirs: &'a Dirs) -> Self {
        Self { dirs, tags: Vec::new() }
    }

    /// Puts a branch into the store.
    pub(crate) fn keep(&mut self, branch: Branch) -> Result<engine::Kept> {
        let tag = branch.tag().clone();
        let kept = branch.keep(None)?;
        self.tags.push(tag);
        Ok(kept)
    }

    /// Counts one in that somebody else made.
    fn adopt(&mut self, tag: &Tag) {
        self.tags.push(tag.clone());
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for tag in self.tags.iter().rev() {
            if let Err(error) = remove_snapshot(tag, Removal::Force, self.dirs) {
                log(&format!("the snapshot `{tag}` is left: {error}"));
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn log(text: &str) {
    eprintln!("{text}");
}
