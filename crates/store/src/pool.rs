//! The layers of all snapshots, each once, by the digest of what is in it.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use layer::{Digest, Layer};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::StoreError;
use crate::manifest::LayerRef;

/// The directory `layers`.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    dir: PathBuf,
}

impl Pool {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(crate) fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.to_string())
    }

    /// A layer's file if it is there and as long as it was; otherwise what is wrong.
    pub(crate) fn file(&self, layer: &LayerRef) -> Result<File, String> {
        let file = open_plain(&self.path(&layer.digest)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "is missing".to_owned(),
            _ => format!("cannot be opened: {error}"),
        })?;
        expect_length(&file, layer.file_bytes)?;
        Ok(file)
    }

    /// The same with its table, which must be the one that it is named after.
    pub(crate) fn open(&self, layer: &LayerRef, length: Option<u64>) -> Result<Layer, String> {
        let opened = Layer::open(self.file(layer)?, length).map_err(|error| format!("cannot be used: {error}"))?;
        if opened.digest() != layer.digest {
            return Err("has the contents of another".into());
        }
        Ok(opened)
    }

    /// Gives a layer its name. One that has it already is kept if it is what its name says, to the last block. The caller
    /// holds the store's lock and syncs the directory.
    pub(crate) fn adopt(&self, path: &Path, layer: &LayerRef) -> Result<(), StoreError> {
        let target = self.path(&layer.digest);
        match self.open(layer, None).and_then(|there| there.check(|_| {}).map_err(|error| error.to_string())) {
            Ok(()) => return fs::remove_file(path).map_err(StoreError::io("remove", path)),
            Err(problem) if target.exists() => log::warn!("{} {problem} and is replaced", target.display()),
            Err(_) => {}
        }
        fs::rename(path, &target).map_err(StoreError::io("put in place", &target))
    }

    /// Makes the directory, if it is not there.
    pub(crate) fn make(&self) -> Result<(), StoreError> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(StoreError::io("create", &self.dir))
    }

    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        sync(&self.dir)
    }

    /// All layers and what each occupies. Whatever else lies there is not ours.
    pub(crate) fn all(&self) -> Result<Vec<(Digest, u64)>, StoreError> {
        let failed = StoreError::io("list", &self.dir);
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries.collect::<Result<Vec<_>, _>>().map_err(&failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let named = entries.iter().filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry)));
        let mut all = named
            .map(|(digest, entry)| Ok((digest, entry.metadata().map_err(&failed)?.blocks() * 512)))
            .collect::<Result<Vec<_>, StoreError>>()?;
        all.sort_unstable();
        Ok(all)
    }

    /// Removes those of these layers that are not needed. The caller holds the store's lock.
    pub(crate) fn remove(
        &self,
        layers: impl IntoIterator<Item = Digest>,
        needed: &HashSet<Digest>,
    ) -> Result<(), StoreError> {
        for digest in layers.into_iter().filter(|digest| !needed.contains(digest)) {
            let path = self.path(&digest);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::io("remove", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Opens a file for reading. Never waits, as opening a pipe would, and follows no link.
pub(crate) fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(File::from(openat(CWD, path, flags, Mode::empty())?))
}

/// What is wrong with a file that was so long.
pub(crate) fn expect_length(file: &File, length: u64) -> Result<(), String> {
    let meta = file.metadata().map_err(|error| format!("cannot be looked at: {error}"))?;
    if !meta.is_file() {
        return Err("is not a plain file".into());
    }
    if meta.len() != length {
        return Err(format!("is {} bytes long and was {length}", meta.len()));
    }
    Ok(())
}

/// Nobody shall write to it again; on the disk before it is named.
pub(crate) fn seal(path: &Path) -> Result<(), StoreError> {
    fs::set_permissions(path, Permissions::from_mode(0o444)).map_err(StoreError::io("seal", path))?;
    sync(path)
}

pub(crate) fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(StoreError::io("sync", path))
}
