//! Garbage: what killed writers left, and layers that no snapshot needs.

use layer::Digest;

use crate::{Store, StoreError, sweep};

/// What becomes of garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// It is only looked at.
    Count,
    /// It is removed.
    Remove,
}

/// What was, or would be, removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Layers that no snapshot needs, and the bytes that each occupies.
    pub layers: Vec<(Digest, u64)>,
    /// Names of directories that a writer left, and the bytes that each occupies.
    pub staging: Vec<(String, u64)>,
}

impl Collected {
    /// All of it together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let (layers, staging) =
            (self.layers.iter().map(|(_, bytes)| bytes), self.staging.iter().map(|(_, bytes)| bytes));
        layers.chain(staging).sum()
    }
}

impl Store {
    /// Finds garbage. What a living writer has staged is none, nor what it builds on. What could not be written stays
    /// listed until it is removed.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] when a manifest cannot be understood: then nobody knows what it needs.
    pub fn gc(&self, garbage: Garbage) -> Result<Collected, StoreError> {
        let _guard = sweep::guard(&self.dir)?;
        let needed = self.needed()?;
        let mut collected = Collected { layers: self.pool.all()?, staging: Vec::new() };
        collected.layers.retain(|(digest, _)| !needed.contains(digest));
        sweep::each_dead(&self.dir, |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            collected.staging.push((name, sweep::occupied(path)?));
            if garbage == Garbage::Remove { sweep::remove_tree(path) } else { Ok(()) }
        })?;
        if garbage == Garbage::Remove {
            self.pool.remove(collected.layers.iter().map(|(digest, _)| *digest), &needed)?;
        }
        Ok(collected)
    }
}
