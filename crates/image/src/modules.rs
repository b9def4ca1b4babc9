//! The kernel modules a guest needs, in an order in which they load.
//!
//! Debian's packages come without `modules.dep` (depmod makes it on installation), so dependencies are read where they
//! come from: the `.modinfo` section of each module. A tree of modules is somebody's file, so sizes, numbers and
//! depths are bounded and a cycle is an error.

mod modinfo;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use modinfo::Modinfo;

/// A distribution's kernel has some 4000.
const MAX_MODULES: usize = 50_000;
const MAX_DEPTH: usize = 16;
/// The largest driver, with room: what decompressing one can make us hold.
const MAX_MODULE_BYTES: u64 = 64 << 20;
const MAX_BUILTIN_BYTES: u64 = 4 << 20;
/// A chain of dependencies has less than ten links.
const MAX_CHAIN: usize = 64;

/// Names in `softdep` that are algorithms, and the modules that provide them.
const ALGORITHMS: &[(&str, &[&str])] = &[("crc32c", &["crc32c_generic", "crc32c_intel"])];

/// Why the modules cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    /// A file or directory could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Too much of something.
    #[error("{} holds too many or too large files for a kernel's modules", path.display())]
    TooLarge {
        /// Where.
        path: PathBuf,
    },
    /// A file is not a module.
    #[error("{} is not a kernel module for x86-64", path.display())]
    NotAModule {
        /// Which.
        path: PathBuf,
    },
    /// A module that is needed is neither there nor built in.
    #[error("the kernel in {} has no module {name}, and it is not built in; use another kernel (--kernel)", root.display())]
    Missing {
        /// The module.
        name: String,
        /// Where it was looked for.
        root: PathBuf,
    },
    /// A module depends on itself.
    #[error("the module {name} depends on itself, through {chain}")]
    Cycle {
        /// The module.
        name: String,
        /// The way back to it.
        chain: String,
    },
}

/// A module that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: &'static str,
    /// Without an optional one the guest lacks something; without a required one it does not boot.
    pub(crate) required: bool,
}

/// A module as it goes into an initramfs.
#[derive(Debug)]
pub(crate) struct Module {
    /// With underscores.
    pub(crate) name: String,
    /// Decompressed.
    pub(crate) bytes: Vec<u8>,
}

/// A `lib/modules/<release>` directory.
pub(crate) struct ModuleTree {
    root: PathBuf,
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

impl ModuleTree {
    pub(crate) fn open(root: &Path) -> Result<Self, ModulesError> {
        let mut files = BTreeMap::new();
        collect(&root.join("kernel"), MAX_DEPTH, &mut files)?;
        Ok(Self { root: root.into(), files, builtin: read_builtin(&root.join("modules.builtin"))? })
    }

    /// As a module or built in.
    pub(crate) fn has(&self, name: &str) -> bool {
        let name = normal(name);
        self.files.contains_key(&name) || self.builtin.contains(&name)
    }

    /// The wanted modules and what they depend on, dependencies first. Built-in ones need no loading.
    pub(crate) fn resolve(&self, wanted: &[Wanted]) -> Result<Vec<Module>, ModulesError> {
        let mut order = Vec::new();
        for want in wanted {
            if want.required {
                self.add(&normal(want.name), &mut Vec::new(), &mut order)?;
            } else {
                self.add_if_whole(&normal(want.name), &mut Vec::new(), &mut order)?;
            }
        }
        Ok(order)
    }

    /// Depth first; `chain` is the way here, so a name that is in it already closes a cycle.
    fn add(&self, name: &str, chain: &mut Vec<String>, order: &mut Vec<Module>) -> Result<(), ModulesError> {
        if self.builtin.contains(name) || order.iter().any(|module| module.name == name) {
            return Ok(());
        }
        if chain.iter().any(|link| link == name) || chain.len() >= MAX_CHAIN {
            return Err(ModulesError::Cycle { name: name.into(), chain: chain.join(", ") });
        }
        let missing = || ModulesError::Missing { name: name.into(), root: self.root.clone() };
        let path = self.files.get(name).ok_or_else(missing)?;
        let bytes = read_module(path)?;
        let info = Modinfo::parse(&bytes).ok_or_else(|| ModulesError::NotAModule { path: path.clone() })?;
        chain.push(name.into());
        for soft in info.softdeps.iter().flat_map(|soft| providers(soft)) {
            // It may lead back here; being soft, that does not matter.
            if !chain.contains(&soft) {
                self.add_if_whole(&soft, chain, order)?;
            }
        }
        for dependency in &info.depends {
            self.add(dependency, chain, order)?;
        }
        chain.pop();
        order.push(Module { name: name.into(), bytes });
        Ok(())
    }

    /// Adds the module with all it depends on, or nothing if a part is missing.
    fn add_if_whole(&self, name: &str, chain: &mut Vec<String>, order: &mut Vec<Module>) -> Result<(), ModulesError> {
        let before = (chain.len(), order.len());
        match self.add(name, chain, order) {
            Err(ModulesError::Missing { name: missing, .. }) => {
                log::debug!("the kernel has no {missing}, so {name} is left out");
                chain.truncate(before.0);
                order.truncate(before.1);
                Ok(())
            }
            done => done,
        }
    }
}

/// `virtio-rng` in a file name is `virtio_rng` everywhere else.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

fn providers(soft: &str) -> Vec<String> {
    let algorithm = ALGORITHMS.iter().find(|(name, _)| *name == soft);
    algorithm.map_or_else(|| vec![soft.into()], |(_, modules)| modules.iter().map(|name| (*name).into()).collect())
}

/// The module's name, if the file is one: `virtio-rng.ko.xz` is `virtio_rng`.
fn module_name(file: &str) -> Option<String> {
    let (name, ending) = file.split_once(".ko")?;
    matches!(ending, "" | ".xz" | ".zst" | ".gz").then(|| normal(name))
}

fn collect(dir: &Path, depth: usize, files: &mut BTreeMap<String, PathBuf>) -> Result<(), ModulesError> {
    let failed = |source| ModulesError::Read { path: dir.into(), source };
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if files.len() > MAX_MODULES || (kind.is_dir() && depth == 0) {
            return Err(ModulesError::TooLarge { path: dir.into() });
        }
        if kind.is_dir() {
            collect(&entry.path(), depth - 1, files)?;
        } else if let Some(name) = entry.file_name().to_str().and_then(module_name) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// Lines such as `kernel/fs/ext4/ext4.ko`.
fn read_builtin(path: &Path) -> Result<BTreeSet<String>, ModulesError> {
    let failed = |source| ModulesError::Read { path: path.into(), source };
    let file = match File::open(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        opened => opened.map_err(failed)?,
    };
    let bytes = read_bounded(file, MAX_BUILTIN_BYTES).map_err(failed)?;
    let text = String::from_utf8_lossy(bytes.as_deref().ok_or_else(|| ModulesError::TooLarge { path: path.into() })?);
    Ok(text.lines().filter_map(|line| module_name(line.rsplit('/').next()?.trim())).collect())
}

/// The module as the kernel wants it, whatever it was compressed with.
fn read_module(path: &Path) -> Result<Vec<u8>, ModulesError> {
    let failed = |source| ModulesError::Read { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let bytes = match path.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => read_bounded(liblzma::read::XzDecoder::new(file), MAX_MODULE_BYTES),
        Some("zst") => zstd::Decoder::new(file).and_then(|decoder| read_bounded(decoder, MAX_MODULE_BYTES)),
        Some("ko") => read_bounded(file, MAX_MODULE_BYTES),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "modules compressed with gzip are not supported")),
    };
    bytes.map_err(failed)?.ok_or_else(|| ModulesError::TooLarge { path: path.into() })
}

/// Everything, or `None` if it is more than that.
fn read_bounded(reader: impl Read, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = reader.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((read as u64 <= limit).then_some(bytes))
}

#[cfg(test)]
pub(crate) mod tests;
