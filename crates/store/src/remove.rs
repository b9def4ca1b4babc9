//! Removing snapshots, and the layers that nobody needs any more.
//!
//! A name is taken away first, and that is on the disk before a layer goes: a snapshot that can be seen is whole.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use layer::Digest;
use types::Tag;

use crate::manifest::{Manifest, Parent};
use crate::open::{MANIFEST, read_bounded};
use crate::pool::open_plain;
use crate::status::is_failed;
use crate::steps::reached;
use crate::{Ancestor, Snapshot, Store, StoreError, pool, sweep};

/// What becomes of those that are made of what is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// They keep it from being removed.
    Plain,
    /// They go too.
    Cascade,
    /// They stay, and stay whole.
    Force,
}

impl Store {
    /// Removes a snapshot, be it ready, failed or damaged; returns all that went, in that order.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is none, [`StoreError::HasChildren`] when others are made of it,
    /// [`StoreError::Writing`] when one that would have to go is not there yet.
    pub fn remove(&self, tag: &Tag, removal: Removal) -> Result<Vec<Tag>, StoreError> {
        let _guard = sweep::guard(&self.dir)?;
        if !self.path(tag).exists() {
            return Err(self.status(tag).map_or_else(|error| error, |_| StoreError::Writing { tag: tag.clone() }));
        }
        let family = Family::of(self)?;
        let mut doomed = match removal {
            Removal::Force => Vec::new(),
            Removal::Plain | Removal::Cascade => family.descendants(tag),
        };
        if removal == Removal::Plain && !doomed.is_empty() {
            return Err(StoreError::HasChildren { tag: tag.clone(), children: family.children(tag) });
        }
        doomed.reverse();
        doomed.push(tag.clone());
        if let Some(unborn) = doomed.iter().find(|tag| !self.path(tag).exists()) {
            return Err(StoreError::Writing { tag: unborn.clone() });
        }
        for tag in &doomed {
            self.take_away(tag)?;
        }
        Ok(doomed)
    }

    fn take_away(&self, tag: &Tag) -> Result<(), StoreError> {
        let nameless = self.dir.join(sweep::staging_name().map_err(StoreError::io("name a directory in", &self.dir))?);
        fs::rename(self.path(tag), &nameless).map_err(StoreError::io("remove", &self.path(tag)))?;
        pool::sync(&self.dir)?;
        reached("nameless");
        self.discard(&nameless)
    }

    /// Removes a snapshot's directory that has no tag any more, and what only it needed. The caller holds the guard.
    pub(crate) fn discard(&self, nameless: &Path) -> Result<(), StoreError> {
        // One that failed has no manifest; what a damaged one needed is found by who collects garbage.
        let manifest = open_plain(&nameless.join(MANIFEST)).and_then(read_bounded).ok().flatten();
        let manifest: Option<Manifest> = manifest.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        sweep::remove_tree(nameless)?;
        if let Some(manifest) = manifest {
            self.drop_unneeded(manifest.layers().map(|layer| layer.digest));
        }
        Ok(())
    }

    /// Removes those of these layers that nobody needs. Should that not work, they are garbage. The caller holds the
    /// guard.
    pub(crate) fn drop_unneeded(&self, layers: impl IntoIterator<Item = Digest>) {
        let removed = self.needed().and_then(|needed| self.pool.remove(layers, &needed));
        if let Err(error) = removed {
            log::warn!("layers that may not be needed any more stay until `forkd gc`: {error}");
        }
    }

    /// The layers of all snapshots, and those that the living writers build on. The caller holds the guard.
    pub(crate) fn needed(&self) -> Result<HashSet<Digest>, StoreError> {
        let mut needed: HashSet<Digest> = self.writers()?.into_iter().flat_map(|intent| intent.under).collect();
        for tag in self.tags()? {
            match Snapshot::open(&self.path(&tag), &self.pool, &tag) {
                Ok(snapshot) => needed.extend(snapshot.manifest().layers().map(|layer| layer.digest)),
                // The former kept its files to itself, the latter has none.
                Err(StoreError::Older { .. }) => {}
                Err(_) if is_failed(&self.path(&tag)) => {}
                Err(source) => return Err(StoreError::Unreachable { tag, source: Box::new(source) }),
            }
        }
        Ok(needed)
    }
}

/// Who descends from whom, as far as it can be told; those that are being written included.
#[derive(Debug)]
pub(crate) struct Family {
    members: Vec<(Parent, Option<Parent>)>,
}

impl Family {
    pub(crate) fn of(store: &Store) -> Result<Self, StoreError> {
        let writers = store.writers()?;
        let mut members = Vec::new();
        for tag in store.tags()? {
            if let Ok(snapshot) = Snapshot::open(&store.path(&tag), &store.pool, &tag) {
                let Manifest { id, parent, .. } = snapshot.into_manifest();
                members.push((Parent { tag, id }, parent));
            }
        }
        // Behind those that are ready: until the new one takes its place, a tag is the old one's.
        for intent in writers {
            let name = Parent { tag: intent.tag, id: intent.id };
            if members.iter().all(|(member, _)| *member != name) {
                members.push((name, intent.parent));
            }
        }
        Ok(Self { members })
    }

    /// Those made of what has this tag now, in order.
    pub(crate) fn children(&self, tag: &Tag) -> Vec<Tag> {
        let Some((name, _)) = self.members.iter().find(|(name, _)| name.tag == *tag) else { return Vec::new() };
        let children = self.members.iter().filter(|(_, parent)| parent.as_ref() == Some(name));
        let mut children: Vec<Tag> = children.map(|(name, _)| name.tag.clone()).collect();
        children.sort();
        children.dedup();
        children
    }

    /// Those made of it, and those made of them: each after what it is made of.
    pub(crate) fn descendants(&self, tag: &Tag) -> Vec<Tag> {
        let mut found = self.children(tag);
        let mut next = 0;
        while let Some(tag) = found.get(next).cloned() {
            // A parent in a circle can only come from somebody's editor.
            let new: Vec<_> = self.children(&tag).into_iter().filter(|child| !found.contains(child)).collect();
            found.extend(new);
            next += 1;
        }
        found.retain(|child| child != tag);
        found
    }

    /// What somebody with this parent descends from, nearest first; the last one may be gone.
    pub(crate) fn ancestors(&self, parent: Option<&Parent>) -> Vec<Ancestor> {
        let mut ancestors = Vec::new();
        let mut next = parent;
        // One more than there are can only be a circle.
        while let Some(name) = next.filter(|_| ancestors.len() <= self.members.len()) {
            let found = self.members.iter().find(|(member, _)| member == name);
            ancestors.push(Ancestor { tag: name.tag.clone(), is_there: found.is_some() });
            next = found.and_then(|(_, parent)| parent.as_ref());
        }
        ancestors
    }
}
