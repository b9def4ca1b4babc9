//! What lies beside a recipe: in its directory, or in this program for those that come with forkd.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::copy::CopyStep;
use crate::layer::{Layer, LayerError, Look};

include!(concat!(env!("OUT_DIR"), "/builtin.rs"));

/// Where the files are that a recipe copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beside {
    /// In a directory of this computer.
    Directory(PathBuf),
    /// In this program.
    Builtin(&'static Builtin),
}

impl Beside {
    /// Where files are looked for that are not copied, such as images. A recipe of this program has none.
    #[must_use]
    pub fn directory(&self) -> &Path {
        match self {
            Self::Directory(dir) => dir,
            Self::Builtin(_) => Path::new("/"),
        }
    }

    /// Lays what a step copies into an archive.
    pub(crate) fn copy<W: Write>(&self, step: &CopyStep, layer: &mut Layer<W>) -> Result<(), LayerError> {
        let owner = step.owner.unwrap_or_default();
        let look = Look { mode: step.mode.map(|mode| mode.bits()), uid: owner.uid, gid: owner.gid };
        match self {
            Self::Directory(dir) => layer.copy(dir, step.from.as_str(), step.to.as_str(), look),
            Self::Builtin(builtin) => builtin.copy(step, look, layer),
        }
    }
}

/// A recipe that comes with forkd, and all that is in its directory.
#[derive(Debug, PartialEq, Eq)]
pub struct Builtin {
    pub(super) name: &'static str,
    pub(super) files: &'static [BuiltinFile],
}

/// A file in such a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BuiltinFile {
    /// As seen from the recipe.
    pub(super) path: &'static str,
    pub(super) executable: bool,
    pub(super) bytes: &'static [u8],
}

impl Builtin {
    /// All its files: where they are, as seen from the recipe, whether they can be executed, and what is in them.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, bool, &'static [u8])> {
        self.files.iter().map(|file| (file.path, file.executable, file.bytes))
    }

    /// The files that a step names. Only those have a name here, so there is no other way than to them.
    fn copy<W: Write>(&self, step: &CopyStep, look: Look, layer: &mut Layer<W>) -> Result<(), LayerError> {
        let from = step.from.as_str();
        let mut found = false;
        for file in self.files {
            let Some(below) = file.path.strip_prefix(from) else { continue };
            if below.is_empty() || below.starts_with('/') {
                let to = format!("{}{below}", step.to);
                layer.file(&to, look, file.executable, file.bytes.len() as u64, file.bytes)?;
                found = true;
            }
        }
        let path = || Path::new(self.name).join(from);
        if found { Ok(()) } else { Err(LayerError::Read { path: path(), source: io::ErrorKind::NotFound.into() }) }
    }

    /// The text of the recipe itself.
    pub(super) fn recipe(&self) -> Option<&'static str> {
        let file = self.files.iter().find(|file| file.path == super::FILE_NAME)?;
        std::str::from_utf8(file.bytes).ok()
    }
}
