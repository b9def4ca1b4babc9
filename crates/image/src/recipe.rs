//! A recipe: what a root filesystem consists of, and how a VM with it is made worth forking.
//!
//! ```toml
//! description = "Python 3 with numpy"
//! [base]
//! debian = "bookworm"
//! packages = ["python3", "python3-numpy"]
//! [disk]
//! size = "2G"
//! [warm]                                  # optional, like everything in it
//! interpreter = "python3"
//! modules = ["numpy"]
//! command = "redis-server --daemonize yes"
//! ready = "redis-cli ping"
//! [size]                                  # optional: what a VM gets when nobody says
//! memory = "512M"
//! vcpus = 1
//! ```
//!
//! A recipe comes from anywhere, and its words end up on command lines: every field is a type that cannot hold an
//! option, a path or a shell's character, and a field we do not know is refused. What is meant for a shell is run in
//! the guest only.

mod package;
mod start;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use types::{NameError, RecipeName, SizeError, parse_bytes};

pub use package::{PackageName, PackageNameError, Suite, SuiteError};
pub use start::{ShellLine, ShellLineError, Size, Warm, WarmInterpreter};

use crate::digest::Hasher;

/// Changes whenever the same recipe would give a different image.
const BUILDER: &str = "forkd image builder 1";
/// Overrides the built-in recipes with a directory of `<name>/recipe.toml`.
const RECIPES_VAR: &str = "FORKD_RECIPES";
/// No recipe is longer; no file can make us read more.
const MAX_TEXT: u64 = 64 << 10;
/// The smallest disk a Debian fits on, and more than anybody needs as a root.
const DISK_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=1 << 40;
/// More than any sane recipe; bounds the command line.
const MAX_PACKAGES: usize = 1000;

const BUILTIN: &[(&str, &str)] = &[
    ("debian", include_str!("../../../recipes/debian/recipe.toml")),
    ("python-numpy", include_str!("../../../recipes/python-numpy/recipe.toml")),
];

/// Why there is no recipe.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// No recipe has the name.
    #[error("there is no recipe `{name}`; there are: {known}. A path to a recipe.toml works too")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names that would have worked.
        known: String,
    },
    /// The name cannot be a recipe's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The path does not say what the recipe is called.
    #[error("{} does not end in a name for the recipe", path.display())]
    Nameless {
        /// The path.
        path: PathBuf,
    },
    /// The file could not be read.
    #[error("cannot read the recipe {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not TOML, a field missing, unknown or of the wrong kind, a package or suite that is none.
    #[error("recipe `{name}` is not valid: {reason}")]
    Invalid {
        /// The recipe.
        name: RecipeName,
        /// Where and what, as the TOML parser says it.
        reason: String,
    },
    /// The disk's size is not one.
    #[error("recipe `{name}`: disk.size")]
    DiskSize {
        /// The recipe.
        name: RecipeName,
        /// Why.
        source: SizeError,
    },
    /// The disk is too small, too large or not a number of blocks.
    #[error("recipe `{name}`: disk.size is {bytes} bytes; it must be 64M to 1T, in steps of 4K")]
    DiskRange {
        /// The recipe.
        name: RecipeName,
        /// The size asked for.
        bytes: u64,
    },
}

/// What a root filesystem consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// What it is called.
    pub name: RecipeName,
    /// One line for a person.
    pub description: String,
    /// What is done before a VM is frozen.
    pub warm: Warm,
    /// How large a VM is.
    pub size: Size,
    pub(crate) suite: Suite,
    pub(crate) packages: BTreeSet<PackageName>,
    pub(crate) disk_bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    description: String,
    base: BaseFile,
    disk: DiskFile,
    #[serde(default)]
    warm: Warm,
    #[serde(default)]
    size: Size,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BaseFile {
    debian: Suite,
    #[serde(default)]
    packages: Vec<PackageName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskFile {
    size: String,
}

impl Recipe {
    /// The recipe of that name, or in that file or directory: what contains a `/` or ends in `.toml` is a path. Names
    /// are looked up in the directory `$FORKD_RECIPES` if that is set, otherwise among the built-in ones.
    ///
    /// # Errors
    /// When there is none, or it is not valid.
    pub fn find(name_or_path: &str) -> Result<Self, RecipeError> {
        let dir = std::env::var_os(RECIPES_VAR).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        Self::find_in(dir.as_deref(), name_or_path)
    }

    /// The recipes that come with forkd.
    pub fn builtin() -> impl Iterator<Item = Self> {
        BUILTIN.iter().map(|(name, text)| {
            let name = name.parse().expect("a test parses every built-in name");
            Self::parse(name, text).expect("a test parses every built-in recipe")
        })
    }

    /// Reads a recipe's text.
    ///
    /// # Errors
    /// When a field is missing, unknown or not acceptable.
    pub fn parse(name: RecipeName, text: &str) -> Result<Self, RecipeError> {
        let file: RecipeFile = match toml::from_str(text) {
            Ok(file) => file,
            Err(err) => return Err(RecipeError::Invalid { name, reason: err.to_string().trim_end().into() }),
        };
        if file.base.packages.len() > MAX_PACKAGES {
            return Err(RecipeError::Invalid { name, reason: format!("more than {MAX_PACKAGES} packages") });
        }
        let disk_bytes = match parse_bytes(&file.disk.size) {
            Ok(bytes) => bytes,
            Err(source) => return Err(RecipeError::DiskSize { name, source }),
        };
        if !DISK_BYTES.contains(&disk_bytes) || !disk_bytes.is_multiple_of(4096) {
            return Err(RecipeError::DiskRange { name, bytes: disk_bytes });
        }
        let RecipeFile { description, base, warm, size, .. } = file;
        let packages = base.packages.into_iter().collect();
        Ok(Self { name, description, warm, size, suite: base.debian, packages, disk_bytes })
    }

    /// What the image depends on, as SHA-256 in hex: the recipe's content, whatever the order of its packages, and the
    /// builder's version. Not the name, the description, nor what happens to a VM once it runs.
    #[must_use]
    pub fn digest(&self) -> String {
        let start = Hasher::default().part(BUILDER.as_bytes()).part(self.suite.as_str().as_bytes());
        let packages = self.packages.iter().fold(start, |hash, package| hash.part(package.as_str().as_bytes()));
        packages.part(b"disk").part(&self.disk_bytes.to_le_bytes()).hex()
    }

    fn find_in(dir: Option<&Path>, name_or_path: &str) -> Result<Self, RecipeError> {
        if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
            return Self::read(Path::new(name_or_path));
        }
        let name: RecipeName = name_or_path.parse()?;
        let unknown = |known: Vec<String>| RecipeError::Unknown { name: name_or_path.into(), known: known.join(", ") };
        if let Some(dir) = dir {
            let path = dir.join(name.as_str()).join("recipe.toml");
            return if path.is_file() { Self::read(&path) } else { Err(unknown(names_in(dir)?)) };
        }
        let text = BUILTIN.iter().find(|(known, _)| *known == name.as_str()).map(|(_, text)| *text);
        let text = text.ok_or_else(|| unknown(BUILTIN.iter().map(|(known, _)| (*known).into()).collect()))?;
        Self::parse(name, text)
    }

    /// `some/where/<name>/recipe.toml`, `some/where/<name>` or `<name>.toml`.
    fn read(path: &Path) -> Result<Self, RecipeError> {
        let file = if path.is_dir() { path.join("recipe.toml") } else { path.to_owned() };
        let read = |source| RecipeError::Read { path: file.clone(), source };
        let absolute = std::path::absolute(&file).map_err(read)?;
        let named_by = if absolute.ends_with("recipe.toml") { absolute.parent() } else { Some(absolute.as_path()) };
        let name = named_by.and_then(Path::file_name).and_then(|name| name.to_str());
        let name = name.ok_or_else(|| RecipeError::Nameless { path: file.clone() })?;
        let name = name.strip_suffix(".toml").unwrap_or(name).parse()?;
        let mut text = String::new();
        let opened = File::open(&file).map_err(read)?;
        if opened.take(MAX_TEXT + 1).read_to_string(&mut text).map_err(read)? as u64 > MAX_TEXT {
            return Err(RecipeError::Invalid { name, reason: format!("longer than {MAX_TEXT} bytes") });
        }
        Self::parse(name, &text)
    }
}

fn names_in(dir: &Path) -> Result<Vec<String>, RecipeError> {
    let entries = dir.read_dir().map_err(|source| RecipeError::Read { path: dir.into(), source })?;
    let with_recipe = entries.flatten().filter(|entry| entry.path().join("recipe.toml").is_file());
    let mut names: Vec<_> = with_recipe.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests;
