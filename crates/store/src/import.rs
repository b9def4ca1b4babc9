//! Snapshots that come from elsewhere: a whole chain in one step.
//!
//! ```text
//! state, layers, manifests checked, written and synced   in one staging directory: garbage, should this be the end
//! layers moved, their directory synced                   nobody names them yet: garbage
//! one directory after the other renamed, or exchanged    each whole; all are given back when one cannot be
//! the store's directory synced                           there after a power failure, too
//! what was replaced removed with its layers              only now
//! ```

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use layer::{Digest, Layer};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use types::Tag;

use crate::manifest::{LayerRef, Manifest, Parent};
use crate::open::{MANIFEST, STATE, digest_of};
use crate::pool::{self, open_plain};
use crate::stage::Existing;
use crate::status::{INTENT, Intent, is_failed};
use crate::steps::reached;
use crate::{Snapshot, Store, StoreError, sweep};

/// Snapshots without a name; gone when dropped.
#[derive(Debug)]
pub struct Import {
    store: Store,
    path: PathBuf,
    /// Holds the lock that keeps it from being swept.
    _lock: File,
}

/// A layer that was staged: what it is, and of how much memory or disk.
type Layers = HashMap<Digest, (LayerRef, u64)>;

/// What was put in place, and how.
struct Put<'i> {
    staged: PathBuf,
    target: PathBuf,
    tag: &'i Tag,
    how: RenameFlags,
}

impl Store {
    /// An empty place for a chain of snapshots that ends with this one; gone when dropped without [`Import::commit`].
    ///
    /// # Errors
    /// When there is no room for it.
    pub fn import(&self, head: &Parent) -> Result<Import, StoreError> {
        let _guard = sweep::guard(&self.dir)?;
        self.pool.make()?;
        sweep::each_dead(&self.dir, sweep::remove_tree)?;
        let (path, lock) = sweep::make(&self.dir)?;
        let import = Import { store: self.clone(), path, _lock: lock };
        let intent = Intent {
            tag: head.tag.clone(),
            id: head.id.clone(),
            created_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            parent: None,
            branched_from: None,
            egress: None,
            under: Vec::new(),
        };
        let text = serde_json::to_vec_pretty(&intent).expect("it holds only numbers, texts and lists of them");
        import.write("intent.new", &text)?;
        let (new, path) = (import.path.join("intent.new"), import.path.join(INTENT));
        fs::rename(&new, &path).map_err(StoreError::io("put in place", &path))?;
        Ok(import)
    }

    /// Reads a manifest that somebody else's store has written.
    ///
    /// # Errors
    /// When it is of another format, or makes no sense.
    pub fn read_manifest(&self, tag: &Tag, bytes: &[u8]) -> Result<Manifest, StoreError> {
        Manifest::parse(tag, bytes)
    }
}

impl Import {
    /// The empty file for a layer, open for reading and writing.
    ///
    /// # Errors
    /// When it cannot be made, or was made before.
    pub fn layer(&self, digest: &Digest) -> Result<File, StoreError> {
        self.file(&format!("{digest}.layer"))
    }

    /// Keeps the state of one of the snapshots, counted from the first of all.
    ///
    /// # Errors
    /// When it cannot be written, or was before.
    pub fn state(&self, link: usize, bytes: &[u8]) -> Result<(), StoreError> {
        self.write(&format!("{link}.state"), bytes)
    }

    /// Puts all of it on the disk and then under its tags: the manifests', the first of all first. A snapshot that is
    /// there already stays; returned are the tags that are new.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when another snapshot has one of the tags and may not be replaced;
    /// [`StoreError::Unfit`] when a manifest does not fit what was staged; [`StoreError::Io`] when the disk is full,
    /// among others. Then nothing of it is left.
    pub fn commit(self, chain: &[Manifest], existing: Existing) -> Result<Vec<Tag>, StoreError> {
        let layers = self.layers(chain)?;
        for (link, manifest) in chain.iter().enumerate() {
            self.prepare(link, manifest, &layers)?;
        }
        pool::sync(&self.path)?;
        reached("synced");
        let _guard = sweep::guard(&self.store.dir)?;
        let mut puts = Vec::new();
        for (link, manifest) in chain.iter().enumerate() {
            puts.extend(self.plan(link, manifest, existing)?);
        }
        if let Err(error) = self.publish(&layers, &puts) {
            self.store.drop_unneeded(layers.into_keys());
            return Err(error);
        }
        reached("published");
        self.tidy(&puts);
        if puts.len() < chain.len() {
            // What is there already may have other layers.
            self.store.drop_unneeded(layers.into_keys());
        }
        Ok(puts.iter().map(|put| put.tag.clone()).collect())
    }

    /// Looks at all staged layers that are named, and puts them on the disk.
    fn layers(&self, chain: &[Manifest]) -> Result<Layers, StoreError> {
        let mut layers = Layers::new();
        for manifest in chain {
            let unfit = |digest: &Digest, problem: String| StoreError::Unfit {
                tag: manifest.tag.clone(),
                problem: format!("layer {digest} {problem}"),
            };
            for LayerRef { digest, .. } in manifest.layers() {
                if layers.contains_key(digest) {
                    continue;
                }
                let path = self.path.join(format!("{digest}.layer"));
                let file = open_plain(&path).map_err(|_| unfit(digest, "is missing".into()))?;
                let file_bytes = file.metadata().map_err(StoreError::io("look at", &path))?.len();
                let opened =
                    Layer::open(file, None).map_err(|error| unfit(digest, format!("cannot be used: {error}")))?;
                if opened.digest() != *digest {
                    return Err(unfit(digest, "has the contents of another".into()));
                }
                pool::seal(&path)?;
                let layer = LayerRef { digest: *digest, file_bytes, data_bytes: opened.stats().data_bytes };
                layers.insert(*digest, (layer, opened.len_bytes()));
            }
        }
        Ok(layers)
    }

    /// Makes a snapshot's directory, as it will be.
    fn prepare(&self, link: usize, manifest: &Manifest, layers: &Layers) -> Result<(), StoreError> {
        check(manifest, layers).map_err(|problem| StoreError::Unfit { tag: manifest.tag.clone(), problem })?;
        let (dir, staged) = (self.dir(link), self.path.join(format!("{link}.state")));
        DirBuilder::new().mode(0o700).create(&dir).map_err(StoreError::io("create", &dir))?;
        let unfit = |problem: &str| StoreError::Unfit { tag: manifest.tag.clone(), problem: problem.into() };
        let file = open_plain(&staged).map_err(|_| unfit("its state is missing"))?;
        let failed = StoreError::io("read", &staged);
        let bytes = file.metadata().map_err(&failed)?.len();
        if bytes != manifest.state.bytes || digest_of(&file, bytes).map_err(&failed)? != manifest.state.digest {
            return Err(unfit("its state is another one"));
        }
        let state = dir.join(STATE);
        fs::rename(&staged, &state).map_err(StoreError::io("put in place", &state))?;
        pool::sync(&state)?;
        let path = dir.join(MANIFEST);
        let text = serde_json::to_vec_pretty(manifest).expect("it holds only numbers, texts and lists of them");
        fs::write(&path, text).map_err(StoreError::io("write", &path))?;
        pool::sync(&path)?;
        pool::sync(&dir)
    }

    /// What is to be done about a snapshot; nothing, when it is there. The caller holds the guard.
    fn plan<'i>(&self, link: usize, manifest: &'i Manifest, existing: Existing) -> Result<Option<Put<'i>>, StoreError> {
        let (staged, target) = (self.dir(link), self.store.path(&manifest.tag));
        let put = |how| Some(Put { staged, target: target.clone(), tag: &manifest.tag, how });
        if !target.exists() {
            return Ok(put(RenameFlags::NOREPLACE));
        }
        let found = Snapshot::open(&target, &self.store.pool, &manifest.tag);
        if found.is_ok_and(|found| found.manifest().id == manifest.id && found.is_complete().is_ok()) {
            return Ok(None);
        }
        if existing == Existing::Keep && !is_failed(&target) {
            return Err(StoreError::Exists { tag: manifest.tag.clone() });
        }
        Ok(put(RenameFlags::EXCHANGE))
    }

    fn publish(&self, layers: &Layers, puts: &[Put<'_>]) -> Result<(), StoreError> {
        for (layer, _) in layers.values() {
            self.store.pool.adopt(&self.path.join(format!("{}.layer", layer.digest)), layer)?;
            reached("layer moved");
        }
        self.store.pool.sync()?;
        for (done, put) in puts.iter().enumerate() {
            if let Err(error) = put.rename(&put.staged, &put.target) {
                puts[..done].iter().rev().for_each(Put::take_back);
                return Err(error);
            }
            reached("put in place");
        }
        pool::sync(&self.store.dir)
    }

    /// Removes what was replaced. What cannot be removed is garbage, and the snapshots are there all the same.
    fn tidy(&self, puts: &[Put<'_>]) {
        for put in puts.iter().filter(|put| put.how == RenameFlags::EXCHANGE) {
            if let Err(error) = self.store.discard(&put.staged) {
                log::warn!("{} is left behind: {error}", put.staged.display());
            }
        }
    }

    fn dir(&self, link: usize) -> PathBuf {
        self.path.join(link.to_string())
    }

    fn file(&self, name: &str) -> Result<File, StoreError> {
        let path = self.path.join(name);
        File::options().read(true).write(true).create_new(true).open(&path).map_err(StoreError::io("create", &path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.file(name)?.write_all(bytes).map_err(StoreError::io("write", &self.path.join(name)))
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if let Err(error) = sweep::remove_tree(&self.path) {
            log::warn!("{} is left behind: {error}", self.path.display());
        }
    }
}

impl Put<'_> {
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let put = renameat_with(CWD, from, CWD, to, self.how);
        put.map_err(|error| StoreError::io("put in place", to)(error.into()))
    }

    fn take_back(&self) {
        if let Err(error) = self.rename(&self.target, &self.staged) {
            log::warn!("snapshot `{}` stays although others of its pack do not: {error}", self.tag);
        }
    }
}

/// Whether a manifest from elsewhere is about what came with it, and about nothing else on this host.
fn check(manifest: &Manifest, layers: &Layers) -> Result<(), String> {
    manifest.check()?;
    if let Some(image) = manifest.disks.iter().find_map(|disk| disk.image.as_ref()) {
        return Err(format!("it names a file of this host, {}", image.path.display()));
    }
    let of_length = |chain: &[LayerRef]| {
        let lengths: Result<HashSet<u64>, String> = chain.iter().map(|layer| length(layer, layers)).collect();
        match lengths?.into_iter().collect::<Vec<_>>()[..] {
            [length] => Ok(length),
            _ => Err("its layers are of different lengths".to_owned()),
        }
    };
    of_length(&manifest.memory_layers)?;
    for disk in &manifest.disks {
        if of_length(&disk.layers)? != disk.length {
            return Err("the layers of a disk are of another length than the disk".into());
        }
    }
    Ok(())
}

fn length(layer: &LayerRef, layers: &Layers) -> Result<u64, String> {
    match layers.get(&layer.digest) {
        Some((found, length)) if found == layer => Ok(*length),
        _ => Err(format!("layer {} is not what it says", layer.digest)),
    }
}
