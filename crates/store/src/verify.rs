//! Whether all is still what was written: every byte of every layer is read, once. A disk image under the lowest layer is not in
//! the store, and nobody knows its digest; it is compared as it is whenever a snapshot is opened, by length and time.

use std::collections::HashMap;

use layer::{Digest, Layer, LayerError};
use types::Tag;
use types::progress::{Progress, Stage};

use crate::manifest::LayerRef;
use crate::open::{damaged, layer_name};
use crate::{Snapshot, Store, StoreError};

/// What was looked at, and what is wrong.
#[derive(Debug, Default)]
pub struct Verified {
    /// How many snapshots.
    pub snapshots: usize,
    /// How many layers.
    pub layers: usize,
    /// How many bytes they have.
    pub bytes: u64,
    /// What is wrong, in the order of the tags.
    pub findings: Vec<Finding>,
}

/// Something that is not what was written.
#[derive(Debug)]
pub struct Finding {
    /// Whose.
    pub tag: Tag,
    /// What it is, and what to do.
    pub problem: StoreError,
}

/// A check under way: what was found of each layer.
struct Check<'s> {
    store: &'s Store,
    stage: Box<dyn Stage>,
    layers: HashMap<Digest, Option<String>>,
    done: u64,
}

impl Store {
    /// Reads all that these snapshots need, or all that any does, and compares it with what was written.
    ///
    /// # Errors
    /// When one that is named is not ready, or the store cannot be read. Damage is not an error but what is returned.
    pub fn verify(&self, tags: &[Tag], progress: &dyn Progress) -> Result<Verified, StoreError> {
        let mut verified = Verified::default();
        let mut snapshots = Vec::new();
        for tag in if tags.is_empty() { self.tags()? } else { tags.to_vec() } {
            match self.get(&tag) {
                Ok(snapshot) => snapshots.push((tag, snapshot)),
                Err(error @ (StoreError::Unknown { .. } | StoreError::Writing { .. } | StoreError::Failed { .. })) => {
                    // There is nothing to look at, unless somebody asked for it.
                    if !tags.is_empty() {
                        return Err(error);
                    }
                }
                Err(problem) => verified.findings.push(Finding { tag, problem }),
            }
        }
        let layers: HashMap<_, _> =
            snapshots.iter().flat_map(|(_, it)| it.manifest().layers()).map(|layer| (layer.digest, layer)).collect();
        let total = layers.values().fold(0, |sum: u64, layer| sum.saturating_add(layer.data_bytes));
        let stage = progress.stage("Reading all layers", Some(total));
        let mut check = Check { store: self, stage, layers: HashMap::new(), done: 0 };
        for (tag, snapshot) in &snapshots {
            verified.snapshots += 1;
            let problems = check.snapshot(tag, snapshot);
            if problems.is_empty() || self.is_still(tag, snapshot) {
                verified.findings.extend(problems.into_iter().map(|problem| Finding { tag: tag.clone(), problem }));
            }
        }
        verified.layers = check.layers.len();
        verified.bytes = check.done;
        verified.findings.sort_by(|a, b| a.tag.cmp(&b.tag));
        Ok(verified)
    }

    /// Whether the tag still has this snapshot: of one that was removed, layers are missing.
    fn is_still(&self, tag: &Tag, snapshot: &Snapshot) -> bool {
        self.get(tag).is_ok_and(|now| now.manifest().id == snapshot.manifest().id)
    }
}

impl Check<'_> {
    fn snapshot(&mut self, tag: &Tag, snapshot: &Snapshot) -> Vec<StoreError> {
        let manifest = snapshot.manifest();
        let images = manifest.disks.iter().filter_map(|disk| disk.image.as_ref());
        let mut problems: Vec<_> = images.filter_map(|image| snapshot.image(image).err()).collect();
        problems.extend(snapshot.state().err());
        for layer in manifest.layers() {
            if let Some(problem) = self.layer(layer) {
                problems.push(damaged(tag, &layer_name(&layer.digest), problem));
            }
        }
        // Each is whole; together they must be layers of one thing.
        if problems.is_empty() {
            problems.extend(snapshot.files().err());
        }
        problems
    }

    /// What is wrong with a layer; it is read when it is asked for first.
    fn layer(&mut self, layer: &LayerRef) -> Option<String> {
        if let Some(known) = self.layers.get(&layer.digest) {
            return known.clone();
        }
        let checked =
            self.store.pool.open(layer, None).and_then(|opened| self.read(&opened).map_err(|it| it.to_string()));
        self.layers.insert(layer.digest, checked.clone().err());
        checked.err()
    }

    fn read(&mut self, layer: &Layer) -> Result<(), LayerError> {
        let before = self.done;
        layer.check(|bytes| self.stage.advance(before + bytes))?;
        self.done = before + layer.stats().data_bytes;
        Ok(())
    }
}
