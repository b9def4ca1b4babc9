//! A recipe: what a root file system consists of, and how a VM with it is made worth forking.
//!
//! ```toml
//! description = "A web server with numpy"
//! [base]                                  # or image = "python:3.12-slim"
//! debian = "bookworm"
//! packages = ["python3", "python3-numpy"]
//! pip = ["bottle==0.13.2"]
//! [[copy]]                                # from beside the recipe
//! from = "server.py"
//! to = "/opt/server.py"
//! [build]                                 # in a VM; the disk is kept
//! run = ["useradd --create-home web"]
//! [exec]                                  # how commands are run where they say nothing else
//! user = "web"
//! env = { PORT = "8080" }
//! [warm]                                  # in a VM, before each snapshot
//! start = "python3 /opt/server.py"
//! ready = { http = 8080, path = "/health" }
//! [network]
//! ports = [8080]
//! [size]
//! memory = "512M"
//! ```
//!
//! A recipe comes from anywhere, and its words end up on command lines: every field is a type that cannot hold an
//! option, a path that leads elsewhere or a shell's character, and a field we do not know is refused. What is meant for a
//! shell is run in the guest only. `recipes/recipe.schema.json` says the same to editors, and a test compares them.

mod base;
mod beside;
mod copy;
mod exec;
mod line;
mod package;
mod program;
mod ready;
mod start;
mod word;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use oci::Platform;
use serde::Deserialize;
use types::{NameError, RecipeName};

pub use base::{Base, Bottom, Disk, ImageName, ImageNameError};
pub use beside::{Beside, Builtin};
pub use copy::{BesidePath, BesidePathError, CopyStep, GuestPath, GuestPathError, Mode, ModeError, Owner, OwnerError};
pub use exec::{Exec, UserName, UserNameError, VariableName, VariableNameError, VariableValue, VariableValueError};
pub use line::{ShellLine, ShellLineError};
pub use package::{
    NpmPackage, NpmPackageError, PackageName, PackageNameError, PipPackage, PipPackageError, Suite, SuiteError,
};
pub use program::{Argument, ArgumentError, Arguments, Start};
pub use ready::{LineText, LineTextError, Ready, UrlPath, UrlPathError};
pub use start::{Build, Network, Seconds, Size, Warm, WarmInterpreter};

use crate::extra::INSTALL;
use crate::layer::{Layer, LayerError};

/// What a recipe may say, as a JSON Schema.
pub const SCHEMA: &str = include_str!("../../../recipes/recipe.schema.json");

/// Overrides the built-in recipes with a directory of `<name>/recipe.toml`.
const RECIPES_VAR: &str = "FORKD_RECIPES";
/// No recipe is longer; no file can make us read more.
const MAX_TEXT: u64 = 64 << 10;
/// What a recipe is called in its directory.
const FILE_NAME: &str = "recipe.toml";

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
}

/// What a root file system consists of, and how a VM with it is made worth forking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// What it is called.
    pub name: RecipeName,
    /// One line for a person.
    pub description: String,
    /// What its disk consists of.
    pub base: Base,
    /// What is copied onto it.
    pub copy: Vec<CopyStep>,
    /// Where that is copied from.
    pub beside: Beside,
    /// What is run in a VM to complete it.
    pub build: Build,
    /// How commands are run.
    pub exec: Exec,
    /// What is done before a VM is frozen.
    pub warm: Warm,
    /// What its sandboxes have to do with the world.
    pub network: Network,
    /// How large its disk is.
    pub disk: Disk,
    /// How large a VM is.
    pub size: Size,
}

/// recipe.toml: what a snapshot is made of, and how it is warmed up.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "recipe.toml"))]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    /// One line for a person.
    description: String,
    /// What the disk consists of.
    #[cfg_attr(test, schemars(with = "base::BaseFile"))]
    base: Base,
    /// Files and directories beside recipe.toml that are copied onto it, in this order.
    #[serde(default)]
    copy: Vec<CopyStep>,
    /// Steps that complete the disk, run in a VM.
    #[serde(default)]
    build: Build,
    /// How commands are run where they say nothing else: those of `forkd exec`, the warm-up, the interpreter.
    #[serde(default)]
    exec: Exec,
    /// What is done in a VM once it has booted, before it is frozen.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "start::WarmFile"))]
    warm: Warm,
    /// What sandboxes have to do with the world.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "start::NetworkFile"))]
    network: Network,
    /// How large the disk is.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "base::DiskFile"))]
    disk: Disk,
    /// How large a VM is.
    #[serde(default)]
    size: Size,
}

impl Recipe {
    /// The recipe of that name, or in that file or directory: what contains a `/` or ends in `.toml` is a path. Names
    /// are looked up in the directory `$FORKD_RECIPES` if that is set, otherwise among the built-in ones.
    ///
    /// # Errors
    /// When there is none, or it is not valid.
    pub fn find(name_or_path: &str) -> Result<Self, RecipeError> {
        Self::find_in(own_directory().as_deref(), name_or_path)
    }

    /// The recipes that can be named, by their names: those in the directory `$FORKD_RECIPES` if that is set, otherwise the
    /// built-in ones.
    ///
    /// # Errors
    /// When the directory cannot be read, or one of them is not valid.
    pub fn known() -> Result<Vec<Self>, RecipeError> {
        match own_directory() {
            Some(dir) => names_in(&dir)?.iter().map(|name| Self::find_in(Some(&dir), name)).collect(),
            None => Ok(Self::builtin().collect()),
        }
    }

    /// Looks at everything that is copied.
    ///
    /// # Errors
    /// When something is missing, or cannot be copied.
    pub fn check_files(&self) -> Result<(), LayerError> {
        let mut layer = Layer::new(io::sink());
        self.copy.iter().try_for_each(|step| self.beside.copy(step, &mut layer))?;
        layer.finish().map(drop)
    }

    /// The recipes that come with forkd.
    pub fn builtin() -> impl Iterator<Item = Self> {
        beside::BUILTIN.iter().map(|builtin| {
            let name = builtin.name.parse().expect("a test parses every built-in name");
            let text = builtin.recipe().expect("a test reads every built-in recipe");
            Self::parse(name, text, Beside::Builtin(builtin)).expect("a test parses every built-in recipe")
        })
    }

    /// Reads a recipe's text.
    ///
    /// # Errors
    /// When a field is missing, unknown or not acceptable.
    pub fn parse(name: RecipeName, text: &str, beside: Beside) -> Result<Self, RecipeError> {
        let file: RecipeFile = match toml::from_str(text) {
            Ok(file) => file,
            Err(err) => return Err(RecipeError::Invalid { name, reason: err.to_string().trim_end().into() }),
        };
        let RecipeFile { description, base, copy, build, exec, warm, network, disk, size } = file;
        Ok(Self { name, description, base, copy, beside, build, exec, warm, network, disk, size })
    }

    /// A container image as if a recipe said so; files are looked for in `dir`.
    #[must_use]
    pub fn of_image(name: RecipeName, image: ImageName, platform: Platform, dir: &Path) -> Self {
        let base = Base {
            bottom: Bottom::Image { name: image, platform },
            packages: BTreeSet::new(),
            pip: BTreeSet::new(),
            npm: BTreeSet::new(),
        };
        Self {
            name,
            description: String::new(),
            base,
            copy: Vec::new(),
            beside: Beside::Directory(dir.into()),
            build: Build::default(),
            exec: Exec::default(),
            warm: Warm::default(),
            network: Network::default(),
            disk: Disk::default(),
            size: Size::default(),
        }
    }

    /// What is run in a VM to complete the disk, one after the other: the packages that are to be installed into an image,
    /// and what the recipe says.
    #[must_use]
    pub fn steps(&self) -> Vec<String> {
        let install = self.base.has_extra().then(|| INSTALL.to_owned());
        install.into_iter().chain(self.build.run.iter().map(ToString::to_string)).collect()
    }

    fn find_in(dir: Option<&Path>, name_or_path: &str) -> Result<Self, RecipeError> {
        if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
            return Self::read(Path::new(name_or_path));
        }
        let name: RecipeName = name_or_path.parse()?;
        let unknown = |known: Vec<String>| RecipeError::Unknown { name: name_or_path.into(), known: known.join(", ") };
        if let Some(dir) = dir {
            let path = dir.join(name.as_str()).join(FILE_NAME);
            return if path.is_file() { Self::read(&path) } else { Err(unknown(names_in(dir)?)) };
        }
        let mut builtin = Self::builtin();
        let found = builtin.find(|recipe| recipe.name == name);
        found.ok_or_else(|| unknown(Self::builtin().map(|recipe| recipe.name.to_string()).collect()))
    }

    /// `some/where/<name>/recipe.toml`, `some/where/<name>` or `<name>.toml`.
    fn read(path: &Path) -> Result<Self, RecipeError> {
        let file = if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() };
        let read = |source| RecipeError::Read { path: file.clone(), source };
        let absolute = std::path::absolute(&file).map_err(read)?;
        let named_by = if absolute.ends_with(FILE_NAME) { absolute.parent() } else { Some(absolute.as_path()) };
        let name = named_by.and_then(Path::file_name).and_then(|name| name.to_str());
        let name = name.ok_or_else(|| RecipeError::Nameless { path: file.clone() })?;
        let name = name.strip_suffix(".toml").unwrap_or(name).parse()?;
        let mut text = String::new();
        let opened = File::open(&file).map_err(read)?;
        if opened.take(MAX_TEXT + 1).read_to_string(&mut text).map_err(read)? as u64 > MAX_TEXT {
            return Err(RecipeError::Invalid { name, reason: format!("longer than {MAX_TEXT} bytes") });
        }
        let beside = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        Self::parse(name, &text, Beside::Directory(beside))
    }
}

/// Where the user keeps recipes.
fn own_directory() -> Option<PathBuf> {
    std::env::var_os(RECIPES_VAR).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

fn names_in(dir: &Path) -> Result<Vec<String>, RecipeError> {
    let entries = dir.read_dir().map_err(|source| RecipeError::Read { path: dir.into(), source })?;
    let with_recipe = entries.flatten().filter(|entry| entry.path().join(FILE_NAME).is_file());
    let mut names: Vec<_> = with_recipe.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests;
