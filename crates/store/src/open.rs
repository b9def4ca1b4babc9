//! A snapshot as it lies on the disk. It is held by its directory's descriptor, so one that is replaced while it is
//! looked at stays one snapshot: never the manifest of one and the memory of another.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use types::Tag;

use crate::StoreError;
use crate::manifest::{BaseImage, MAX_BYTES, Manifest};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const STATE: &str = "state";
pub(crate) const MEMORY: &str = "memory";

pub(crate) fn layer_name(disk: usize) -> String {
    format!("disk-{disk}.layer")
}

/// A complete snapshot.
#[derive(Debug)]
pub struct Snapshot {
    tag: Tag,
    dir: File,
    manifest: Manifest,
}

/// A snapshot's files, open for reading.
#[derive(Debug)]
pub struct Files {
    /// vCPUs and devices.
    pub state: File,
    /// Guest memory.
    pub memory: File,
    /// For each disk its layers, lowest first: the image, then what was written over it.
    pub disks: Vec<Vec<File>>,
}

impl Snapshot {
    pub(crate) fn open(path: &Path, tag: &Tag) -> Result<Self, StoreError> {
        let dir = File::options().read(true).open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Unknown { tag: tag.clone() },
            _ => StoreError::io("open", path)(error),
        })?;
        let mut bytes = Vec::new();
        let file = open_in(&dir, MANIFEST, tag)?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(StoreError::io("read", &path.join(MANIFEST)))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(StoreError::Manifest { tag: tag.clone(), reason: format!("longer than {MAX_BYTES} bytes") });
        }
        let manifest = Manifest::parse(tag, &bytes)?;
        let snapshot = Self { tag: tag.clone(), dir, manifest };
        snapshot.own_files()?;
        Ok(snapshot)
    }

    /// What it says about itself.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Opens everything that a template needs, the disk images included.
    ///
    /// # Errors
    /// When a file is missing or has another length than it had.
    pub fn files(&self) -> Result<Files, StoreError> {
        let (state, memory, layers) = self.own_files()?;
        let images = self.manifest.images.iter().map(|image| self.image(image)).collect::<Result<Vec<_>, _>>()?;
        let disks = images.into_iter().zip(layers).map(|(image, layer)| vec![image, layer]).collect();
        Ok(Files { state, memory, disks })
    }

    fn own_files(&self) -> Result<(File, File, Vec<File>), StoreError> {
        let sizes = &self.manifest.sizes;
        let layers = sizes.layers.iter().enumerate();
        let layers = layers.map(|(disk, length)| self.file(&layer_name(disk), *length)).collect::<Result<_, _>>()?;
        Ok((self.file(STATE, sizes.state)?, self.file(MEMORY, sizes.memory)?, layers))
    }

    fn file(&self, name: &str, length: u64) -> Result<File, StoreError> {
        let file = open_in(&self.dir, name, &self.tag)?;
        check(&file, length).map_err(|problem| damaged(&self.tag, name, problem))?;
        Ok(file)
    }

    fn image(&self, image: &BaseImage) -> Result<File, StoreError> {
        let refused = |problem| StoreError::Image { tag: self.tag.clone(), image: image.path.clone(), problem };
        let file = File::open(&image.path).map_err(|error| refused(format!("cannot be opened: {error}")))?;
        check(&file, image.bytes).map_err(refused)?;
        Ok(file)
    }
}

/// Never waits, as opening a pipe would.
fn open_in(dir: &File, name: &str, tag: &Tag) -> Result<File, StoreError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => Ok(File::from(fd)),
        Err(Errno::NOENT) => Err(damaged(tag, name, "is missing".into())),
        Err(error) => Err(damaged(tag, name, format!("cannot be opened: {error}"))),
    }
}

fn check(file: &File, length: u64) -> Result<(), String> {
    let meta = file.metadata().map_err(|error| format!("cannot be looked at: {error}"))?;
    if !meta.is_file() {
        return Err("is not a plain file".into());
    }
    if meta.len() != length {
        return Err(format!("is {} bytes long and was {length}", meta.len()));
    }
    Ok(())
}

fn damaged(tag: &Tag, file: &str, problem: String) -> StoreError {
    StoreError::Damaged { tag: tag.clone(), file: file.into(), problem }
}
