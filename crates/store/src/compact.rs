//! One layer each out of a chain of them.

use std::fs::File;
use std::io;

use layer::{Bottom, Layer, merge};
use types::Tag;
use types::progress::Progress;

use crate::stage::{Described, Existing, Origin, Under};
use crate::{Snapshot, Staged, Store, StoreError};

impl Store {
    /// Makes a snapshot `to` of the same contents as `from` that needs no other: its memory is one layer, and each disk
    /// one over the image that it had.
    ///
    /// # Errors
    /// When `from` is not ready or damaged, `to` is taken, or the disk is full. Then nothing is left.
    pub fn compact(&self, from: &Tag, to: &Tag, progress: &dyn Progress) -> Result<Snapshot, StoreError> {
        let source = self.get(from)?;
        let manifest = source.manifest();
        let origin = Origin {
            parent: None,
            branched_from: Some(format!("compact:{from}")),
            egress: None,
            under: Under::ImagesOf(Box::new(manifest.clone())),
        };
        let staged = self.stage(to, Existing::Keep, origin)?;
        let failed = |source| StoreError::Io { action: "copy the state to", path: self.path(to), source };
        io::copy(&mut source.state()?, &mut staged.state()?).map_err(failed)?;
        self.merge_all(&source, &staged, progress)?;
        let _stage = progress.stage("Putting it on the disk", None);
        staged.commit(Described {
            recipe: manifest.recipe.clone(),
            kernel: manifest.kernel.clone(),
            agent: manifest.agent.clone(),
            vcpus: manifest.vcpus,
            memory: manifest.memory,
            network: manifest.network,
            egress: manifest.egress.clone(),
            interpreter: manifest.interpreter,
            ports: manifest.ports.clone(),
            pause_us: manifest.pause_us,
        })
    }

    fn merge_all(&self, source: &Snapshot, staged: &Staged, progress: &dyn Progress) -> Result<(), StoreError> {
        let manifest = source.manifest();
        let merged = |what: String, layers: &[Layer], bottom, to: &File| {
            let stage = progress.stage(&format!("Merging {what}"), None);
            stage.note(&format!("{} layers", layers.len()));
            let tag = manifest.tag.clone();
            merge(layers, bottom, to).map(|_| ()).map_err(|source| StoreError::Merge { tag, what, source })
        };
        merged("the memory".into(), &source.memory_chain()?, Bottom::Zero, &staged.memory()?)?;
        for (number, disk) in manifest.disks.iter().enumerate() {
            let bottom = if disk.image.is_some() { Bottom::Inherit } else { Bottom::Zero };
            merged(format!("disk {number}"), &source.disk_chain(number)?, bottom, &staged.layer(number)?)?;
        }
        Ok(())
    }
}
