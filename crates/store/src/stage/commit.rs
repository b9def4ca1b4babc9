//! Giving a snapshot its name.
//!
//! ```text
//! state, layers, manifest written and synced     in the staging directory: garbage, should this be the end
//! layers moved, their directory synced           nobody names them yet: garbage
//! the directory renamed, or exchanged            there, whole
//! the store's directory synced                   there after a power failure, too
//! what was replaced removed with its layers      only now: until then it might have come back
//! ```

use std::path::{Path, PathBuf};

use layer::{Layer, LayerError};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Described, MEMORY, STATE, Staged, disk_name};
use crate::manifest::{DiskRef, FORMAT, LayerRef, Manifest, StateRef};
use crate::open::{MANIFEST, digest_of};
use crate::pool::{self, open_plain};
use crate::status::INTENT;
use crate::steps::reached;
use crate::{Snapshot, StoreError, sweep};

/// A layer that was staged.
struct Own {
    path: PathBuf,
    layer: LayerRef,
    /// The size of the memory or disk.
    length: u64,
}

impl Staged {
    /// Puts all of it on the disk and then under its tag, in one step.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when somebody else was quicker; [`StoreError::Unfit`] when the files are not what they
    /// should be; [`StoreError::Io`] when the disk is full, among others. Then nothing of it is left.
    pub fn commit(self, described: Described) -> Result<Snapshot, StoreError> {
        self.try_commit(described)
    }

    /// The same, but an error leaves a word under the tag on why there is no snapshot, as [`Staged::fail`] does.
    ///
    /// # Errors
    /// As [`Staged::commit`].
    pub fn commit_or_tell(self, described: Described) -> Result<Snapshot, StoreError> {
        self.try_commit(described).inspect_err(|error| {
            if let Err(left) = self.tell(&error.to_string()) {
                log::warn!("nothing says why `{}` failed: {left}", self.intent.tag);
            }
        })
    }

    fn try_commit(&self, described: Described) -> Result<Snapshot, StoreError> {
        let memory = self.own(MEMORY, self.memory_length()?)?;
        let disks = self.foundation.disks.iter().enumerate();
        let disks =
            disks.map(|(number, disk)| self.own(&disk_name(number), disk.length)).collect::<Result<Vec<_>, _>>()?;
        let manifest = self.manifest(described, &memory, &disks)?;
        manifest.check().map_err(|problem| self.unfit(problem.into()))?;
        self.write(MANIFEST, &manifest)?;
        pool::sync(&self.path.join(MANIFEST))?;
        pool::sync(&self.path)?;
        reached("synced");
        let _guard = sweep::guard(&self.store.dir)?;
        self.expect_free()?;
        let own: Vec<Own> = std::iter::once(memory).chain(disks).collect();
        let target = self.store.path(&self.intent.tag);
        if let Err(error) = self.publish(&own, &target) {
            self.store.drop_unneeded(own.into_iter().map(|own| own.layer.digest));
            return Err(error);
        }
        pool::sync(&self.store.dir)?;
        reached("published");
        self.tidy(&target);
        reached("tidied");
        Snapshot::open(&target, &self.store.pool, &self.intent.tag)
    }

    fn publish(&self, own: &[Own], target: &Path) -> Result<(), StoreError> {
        for Own { path, layer, .. } in own {
            self.store.pool.adopt(path, layer)?;
            reached("layer moved");
        }
        self.store.pool.sync()?;
        pool::sync(&self.path)?;
        self.put_in_place(target)
    }

    /// After an exchange, what had the name has ours. The caller holds the guard.
    pub(super) fn put_in_place(&self, target: &Path) -> Result<(), StoreError> {
        let how = if target.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        let put = renameat_with(CWD, &self.path, CWD, target, how);
        put.map_err(|error| StoreError::io("put in place", target)(error.into()))
    }

    /// Removes what was replaced. What cannot be removed is garbage, and the snapshot is there all the same.
    pub(super) fn tidy(&self, target: &Path) {
        if let Err(error) = self.store.discard(&self.path) {
            log::warn!("{} is left behind: {error}", self.path.display());
        }
        if let Err(error) = std::fs::remove_file(target.join(INTENT)) {
            log::warn!("{} is left behind in {}: {error}", INTENT, target.display());
        }
    }

    /// How large the memory is, if something lies below.
    fn memory_length(&self) -> Result<Option<u64>, StoreError> {
        let below = self.foundation.memory.last().map(|below| self.store.pool.open(below, None)).transpose();
        let below = below.map_err(|problem| self.unfit(format!("the memory that it lies on {problem}")))?;
        Ok(below.map(|layer| layer.len_bytes()))
    }

    /// Looks at a staged layer, all of it, and puts it on the disk. What it is, it says itself; that it is so is found out
    /// here, because a process that a guest may have taken over wrote it, and whoever has the same contents will be given
    /// this file.
    fn own(&self, name: &str, length: Option<u64>) -> Result<Own, StoreError> {
        let path = self.path.join(name);
        pool::seal(&path)?;
        let failed = StoreError::io("open", &path);
        let file = open_plain(&path).map_err(&failed)?;
        let file_bytes = file.metadata().map_err(&failed)?.len();
        let unfit = |error: LayerError| self.unfit(format!("{name}: {error}"));
        let layer = Layer::open(file, length).map_err(unfit)?;
        layer.check(|_| {}).map_err(unfit)?;
        let named = LayerRef { digest: layer.digest(), file_bytes, data_bytes: layer.stats().data_bytes };
        Ok(Own { path, layer: named, length: layer.len_bytes() })
    }

    fn state_ref(&self) -> Result<StateRef, StoreError> {
        let path = self.path.join(STATE);
        pool::sync(&path)?;
        let failed = StoreError::io("read", &path);
        let file = open_plain(&path).map_err(&failed)?;
        let bytes = file.metadata().map_err(&failed)?.len();
        Ok(StateRef { digest: digest_of(&file, bytes).map_err(&failed)?, bytes })
    }

    fn manifest(&self, described: Described, memory: &Own, disks: &[Own]) -> Result<Manifest, StoreError> {
        let over = |below: &[LayerRef], own: &Own| [below, &[own.layer]].concat();
        let disks = self.foundation.disks.iter().zip(disks).map(|(below, own)| DiskRef {
            image: below.image.clone(),
            length: own.length,
            layers: over(&below.layers, own),
        });
        Ok(Manifest {
            format: FORMAT,
            tag: self.intent.tag.clone(),
            id: self.intent.id.clone(),
            created_unix: self.intent.created_unix,
            parent: self.intent.parent.clone(),
            branched_from: self.intent.branched_from.clone(),
            pause_us: described.pause_us,
            recipe: described.recipe,
            kernel: described.kernel,
            agent: described.agent,
            vcpus: described.vcpus,
            memory: described.memory,
            network: described.network,
            egress: described.egress,
            interpreter: described.interpreter,
            ports: described.ports,
            state: self.state_ref()?,
            memory_layers: over(&self.foundation.memory, memory),
            disks: disks.collect(),
        })
    }

    fn unfit(&self, problem: String) -> StoreError {
        StoreError::Unfit { tag: self.intent.tag.clone(), problem }
    }
}
