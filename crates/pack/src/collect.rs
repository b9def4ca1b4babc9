//! What goes into a pack, taken from the store.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use layer::{Digest, Layer, Written};
use serde::Deserialize;
use store::{BaseImage, DiskFiles, LayerRef, MAX_CHAIN, Snapshot, Store, StoreError};
use types::Tag;
use types::progress::Progress;

use crate::host::HostCpu;
use crate::manifest::{Limits, Link, MAX_STATE, Path, Requires};
use crate::pack::PackError;
use crate::write::{Bodies, Body};

const STATE_MAGIC: &str = "forkd-state";

/// A chain and its files.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) chain: Vec<Link>,
    pub(crate) bodies: Bodies,
}

/// Takes up a snapshot and, as far as they are still there, those that it descends from.
pub(crate) fn collect(
    store: &Store,
    tag: &Tag,
    cpu: &HostCpu,
    progress: &dyn Progress,
) -> Result<(Collected, Requires), PackError> {
    let lineage = lineage(store, store.get(tag)?)?;
    let mut collector =
        Collector { store, progress, images: HashMap::new(), layers: HashSet::new(), to: Collected::default() };
    let mut requires = None;
    for (link, snapshot) in lineage.iter().enumerate() {
        requires = Some(collector.add(link, snapshot, cpu)?);
    }
    Ok((collector.to, requires.expect("a lineage ends with the snapshot itself")))
}

/// The first of all first.
fn lineage(store: &Store, head: Snapshot) -> Result<Vec<Snapshot>, PackError> {
    let mut lineage = vec![head];
    while lineage.len() < Limits::default().links {
        let Some(parent) = lineage.last().and_then(|last| last.manifest().parent.clone()) else { break };
        match store.get(&parent.tag) {
            Ok(found) if found.manifest().id == parent.id => lineage.push(found),
            // Gone, or another has its name: what descends from it is whole without it.
            Ok(_) | Err(StoreError::Unknown { .. } | StoreError::Writing { .. } | StoreError::Failed { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    lineage.reverse();
    Ok(lineage)
}

struct Collector<'a> {
    store: &'a Store,
    progress: &'a dyn Progress,
    /// What images became.
    images: HashMap<PathBuf, LayerRef>,
    layers: HashSet<Digest>,
    to: Collected,
}

impl Collector<'_> {
    fn add(&mut self, link: usize, snapshot: &Snapshot, cpu: &HostCpu) -> Result<Requires, PackError> {
        let files = snapshot.files()?;
        let mut manifest = snapshot.manifest().clone();
        let tag = manifest.tag.clone();
        let state = read_state(&files.state, &tag)?;
        let requires = requires(&manifest, &state, cpu)?;
        for file in files.memory {
            self.add_layer(&tag, file)?;
        }
        for (disk, DiskFiles { image, layers }) in manifest.disks.iter_mut().zip(files.disks) {
            if let (Some(described), Some(image)) = (disk.image.take(), image) {
                if disk.layers.len() >= MAX_CHAIN {
                    return Err(StoreError::TooDeep { tag }.into());
                }
                disk.layers.insert(0, self.add_image(&tag, &described, &image)?);
            }
            for file in layers {
                self.add_layer(&tag, file)?;
            }
        }
        let text = serde_json::to_vec_pretty(&manifest).expect("a manifest is plain data");
        self.to.bodies.push((Path::Manifest(link), Body::Bytes(text)));
        self.to.bodies.push((Path::State(link), Body::Bytes(state)));
        let parent = manifest.parent.map(|parent| parent.id);
        self.to.chain.push(Link { tag, id: manifest.id, parent });
        Ok(requires)
    }

    fn add_layer(&mut self, tag: &Tag, file: File) -> Result<(), PackError> {
        let unfit = |source| PackError::Layer { tag: tag.clone(), source };
        let layer = Layer::open(file, None).map_err(unfit)?;
        if self.layers.insert(layer.digest()) {
            self.to.bodies.push((Path::Layer(layer.digest()), Body::Layer(Box::new(layer))));
        }
        Ok(())
    }

    /// An image becomes a layer, in a file that has no name and is gone with us.
    fn add_image(&mut self, tag: &Tag, described: &BaseImage, image: &File) -> Result<LayerRef, PackError> {
        if let Some(known) = self.images.get(&described.path) {
            return Ok(*known);
        }
        let failed = |source| PackError::Image { image: described.path.clone(), source };
        let stage = self.progress.stage("Reading the disk image", Some(described.bytes));
        let file = tempfile::tempfile_in(self.store.dir()).map_err(failed)?;
        let Written { digest, stats } = layer::from_image(image, &file, |at| stage.advance(at)).map_err(failed)?;
        let file_bytes = file.metadata().map_err(failed)?.len();
        self.add_layer(tag, file)?;
        let known = LayerRef { digest, file_bytes, data_bytes: stats.data_bytes };
        self.images.insert(described.path.clone(), known);
        Ok(known)
    }
}

fn read_state(file: &File, tag: &Tag) -> Result<Vec<u8>, PackError> {
    let refused = |problem: String| PackError::State { tag: tag.clone(), problem };
    let bytes = file.metadata().map_err(|error| refused(error.to_string()))?.len();
    if bytes > MAX_STATE {
        return Err(refused(format!("it has {bytes} bytes, and there can be {MAX_STATE}")));
    }
    let mut state = vec![0; usize::try_from(bytes).expect("it is bounded")];
    file.read_exact_at(&mut state, 0).map_err(|error| refused(error.to_string()))?;
    Ok(state)
}

/// The part of a state file's second line that says what it needs.
#[derive(Deserialize)]
struct StateHeader {
    arch: String,
    cpu_vendor: String,
}

fn requires(manifest: &store::Manifest, state: &[u8], cpu: &HostCpu) -> Result<Requires, PackError> {
    let unknown = |problem: &str| PackError::State { tag: manifest.tag.clone(), problem: problem.into() };
    let mut lines = state.splitn(3, |byte| *byte == b'\n');
    let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut words = first.splitn(3, |byte| *byte == b' ');
    let (magic, format) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let format = str::from_utf8(format).ok().and_then(|text| text.parse().ok());
    let Some(state_format) = format.filter(|_| magic == STATE_MAGIC.as_bytes()) else {
        return Err(unknown("it does not begin as one does"));
    };
    let header: StateHeader = serde_json::from_slice(second).map_err(|error| unknown(&error.to_string()))?;
    Ok(Requires {
        arch: header.arch,
        cpu_vendor: header.cpu_vendor,
        cpu_flags: cpu.visible_flags(),
        guest_kernel: manifest.kernel.clone(),
        state_format,
        vcpus: manifest.vcpus.get().into(),
        memory_mib: manifest.memory.mib(),
    })
}
