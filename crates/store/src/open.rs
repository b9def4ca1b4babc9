//! A snapshot as it lies on the disk. It is held by its directory's descriptor, so one that is replaced while it is
//! looked at stays one snapshot: never the manifest of one and the state of another. Its layers have the names of their
//! contents, so they cannot be those of another.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use layer::{Digest, Layer};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use types::Tag;

use crate::StoreError;
use crate::manifest::{BaseImage, LayerRef, MAX_BYTES, Manifest};
use crate::pool::{Pool, expect_length};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const STATE: &str = "state";

/// How much is read at once.
const CHUNK: usize = 64 << 10;

/// A snapshot that is ready.
#[derive(Debug)]
pub struct Snapshot {
    tag: Tag,
    dir: File,
    pool: Pool,
    manifest: Box<Manifest>,
}

/// A snapshot's files, open for reading.
#[derive(Debug)]
pub struct Files {
    /// vCPUs and devices.
    pub state: File,
    /// The layers of guest memory, lowest first.
    pub memory: Vec<File>,
    /// Each disk.
    pub disks: Vec<DiskFiles>,
}

/// The files of a disk, open for reading.
#[derive(Debug)]
pub struct DiskFiles {
    /// What is under its layers; without one, zeroes are.
    pub image: Option<File>,
    /// What was written over it, lowest first.
    pub layers: Vec<File>,
}

impl Snapshot {
    /// Reads the manifest, and nothing else: what that costs does not depend on how much lies below.
    pub(crate) fn open(path: &Path, pool: &Pool, tag: &Tag) -> Result<Self, StoreError> {
        let dir = open_dir(path, tag)?;
        let file = open_in(&dir, MANIFEST).map_err(|problem| damaged(tag, MANIFEST, problem))?;
        let bytes = read_bounded(file).map_err(StoreError::io("read", &path.join(MANIFEST)))?;
        let bytes = bytes.ok_or_else(|| StoreError::Manifest {
            tag: tag.clone(),
            reason: format!("longer than {MAX_BYTES} bytes"),
        })?;
        let manifest = Box::new(Manifest::parse(tag, &bytes)?);
        Ok(Self { tag: tag.clone(), dir, pool: pool.clone(), manifest })
    }

    /// What it says about itself.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(crate) fn into_manifest(self) -> Manifest {
        *self.manifest
    }

    /// Opens everything that a template needs, the disk images included.
    ///
    /// # Errors
    /// When a file is missing or has other contents, as far as that can be told without reading all layers.
    pub fn files(&self) -> Result<Files, StoreError> {
        let memory = self.memory_files()?;
        let disks = (0..self.manifest.disks.len()).map(|disk| {
            let image = self.manifest.disks[disk].image.as_ref();
            let image = image.map(|image| self.image(image)).transpose()?;
            Ok(DiskFiles { image, layers: into_files(self.disk_chain(disk)?) })
        });
        let disks = disks.collect::<Result<_, StoreError>>()?;
        Ok(Files { state: self.state()?, memory, disks })
    }

    /// Opens what the memory is made of, lowest first; also of one that was removed while somebody builds on it.
    ///
    /// # Errors
    /// When one of them is missing or another one.
    pub fn memory_files(&self) -> Result<Vec<File>, StoreError> {
        Ok(into_files(self.memory_chain()?))
    }

    /// The layers of the memory, lowest first, their tables checked.
    ///
    /// # Errors
    /// When one is missing or another one.
    pub fn memory_chain(&self) -> Result<Vec<Layer>, StoreError> {
        self.chain(&self.manifest.memory_layers, None)
    }

    /// The layers of a disk that the manifest has, in the same way.
    pub(crate) fn disk_chain(&self, disk: usize) -> Result<Vec<Layer>, StoreError> {
        let disk = &self.manifest.disks[disk];
        self.chain(&disk.layers, Some(disk.length))
    }

    fn chain(&self, layers: &[LayerRef], mut length: Option<u64>) -> Result<Vec<Layer>, StoreError> {
        let mut chain = Vec::new();
        for layer in layers {
            let opened = self.pool.open(layer, length);
            let opened = opened.map_err(|problem| damaged(&self.tag, &layer_name(&layer.digest), problem))?;
            length = Some(opened.len_bytes());
            chain.push(opened);
        }
        Ok(chain)
    }

    /// The state, if it is what was written.
    pub(crate) fn state(&self) -> Result<File, StoreError> {
        let broken = |problem| damaged(&self.tag, STATE, problem);
        let state = &self.manifest.state;
        let file = open_in(&self.dir, STATE).map_err(broken)?;
        expect_length(&file, state.bytes).map_err(broken)?;
        let found = digest_of(&file, state.bytes).map_err(|error| broken(format!("cannot be read: {error}")))?;
        if found == state.digest { Ok(file) } else { Err(broken("is not what was written".into())) }
    }

    pub(crate) fn image(&self, image: &BaseImage) -> Result<File, StoreError> {
        let refused = |problem| StoreError::Image { tag: self.tag.clone(), image: image.path.clone(), problem };
        let file = File::open(&image.path).map_err(|error| refused(format!("cannot be opened: {error}")))?;
        expect_length(&file, image.bytes).map_err(refused)?;
        match file.metadata() {
            Ok(meta) if mtime_ns(&meta) == image.mtime_ns => Ok(file),
            Ok(_) => Err(refused("was written to since the snapshot was taken".into())),
            Err(error) => Err(refused(format!("cannot be looked at: {error}"))),
        }
    }

    /// Whether all of its files are there and as long as they were.
    pub(crate) fn is_complete(&self) -> Result<(), StoreError> {
        let state = open_in(&self.dir, STATE).and_then(|file| expect_length(&file, self.manifest.state.bytes));
        state.map_err(|problem| damaged(&self.tag, STATE, problem))?;
        self.manifest.layers().try_for_each(|layer| {
            let there = self.pool.file(layer).map(|_| ());
            there.map_err(|problem| damaged(&self.tag, &layer_name(&layer.digest), problem))
        })
    }
}

pub(crate) fn open_dir(path: &Path, tag: &Tag) -> Result<File, StoreError> {
    File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Unknown { tag: tag.clone() },
        _ => StoreError::io("open", path)(error),
    })
}

/// Never waits, as opening a pipe would.
fn open_in(dir: &File, name: &str) -> Result<File, String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => Ok(File::from(fd)),
        Err(Errno::NOENT) => Err("is missing".into()),
        Err(error) => Err(format!("cannot be opened: {error}")),
    }
}

/// All of a file that is not longer than a manifest may be.
pub(crate) fn read_bounded(file: File) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MAX_BYTES).then_some(bytes))
}

/// Of so many bytes from the beginning; whoever reads the file next reads it from its beginning, too.
pub(crate) fn digest_of(file: &File, bytes: u64) -> io::Result<Digest> {
    let (mut hasher, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; CHUNK], 0);
    while at < bytes {
        let len = usize::try_from(bytes - at).map_or(CHUNK, |left| left.min(CHUNK));
        file.read_exact_at(&mut buffer[..len], at)?;
        hasher.update(&buffer[..len]);
        at += len as u64;
    }
    Ok(hasher.finalize().into())
}

pub(crate) fn mtime_ns(meta: &std::fs::Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

pub(crate) fn layer_name(digest: &Digest) -> String {
    format!("layer {:.12}", digest.to_string())
}

pub(crate) fn damaged(tag: &Tag, file: &str, problem: String) -> StoreError {
    StoreError::Damaged { tag: tag.clone(), file: file.into(), problem }
}

fn into_files(layers: Vec<Layer>) -> Vec<File> {
    layers.into_iter().map(Layer::into_file).collect()
}
