//! Unpacking: from a stream into the store.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use layer::Digest;
use store::{Existing, Import, Parent, Status, Store, StoreError};
use types::Tag;
use types::progress::Progress;

use crate::host::{HostCpu, Unmet};
use crate::manifest::{Limits, Manifest, Path, shown};
use crate::read::{ReadError, Sink, read};
use crate::room;

/// More than any version or kernel's name has.
const MAX_WORD: usize = 256;

/// Why a pack was not unpacked. The store is as it was.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It is no pack, or a damaged or hostile one.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It cannot live here.
    #[error("the snapshot in the pack cannot be used on this host: {0}")]
    Unmet(#[from] Unmet),
    /// What CPU this is cannot be told.
    #[error("cannot tell what the CPU here can do")]
    Cpu {
        /// What the system says.
        source: io::Error,
    },
    /// There is not enough room.
    #[error(
        "the pack needs {needed} bytes, and there are {free} on the disk of {}; make room, perhaps with `forkd gc`",
        dir.display()
    )]
    Space {
        /// How much it needs.
        needed: u64,
        /// How much there is.
        free: u64,
        /// Where.
        dir: PathBuf,
    },
    /// How much room there is cannot be told.
    #[error("cannot tell how much room there is")]
    Room {
        /// What the system says.
        source: io::Error,
    },
    /// A snapshot cannot be told from others.
    #[error("cannot get random bytes for the name of a snapshot")]
    Random {
        /// What the system says.
        source: io::Error,
    },
    /// A tag is taken by another snapshot.
    #[error(
        "the pack holds a snapshot `{tag}`, and there is another one of that name; replace it with --force, or choose \
         another name with --tag"
    )]
    Taken {
        /// The tag.
        tag: Tag,
    },
    /// There is no name left for a snapshot.
    #[error("a snapshot that `{head}` descends from needs a name, and `{name}` cannot be it; choose another --tag")]
    Name {
        /// What the head shall be called.
        head: Tag,
        /// What was tried.
        name: String,
    },
    /// A snapshot in the pack is not what the pack's manifest says.
    #[error("the pack is refused: its snapshot `{tag}` {problem}")]
    Snapshot {
        /// Which.
        tag: Tag,
        /// What is wrong with it.
        problem: String,
    },
    /// The store takes it not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How a pack shall be unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpackSpec {
    /// What the snapshot shall be called instead.
    pub tag: Option<Tag>,
    /// What becomes of other snapshots that have a name of one in the pack.
    pub existing: Existing,
    /// What is never replaced.
    pub spared: Vec<Tag>,
}

/// A snapshot of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// What it is called here.
    pub tag: Tag,
    /// Whether it was not there before.
    pub is_new: bool,
}

/// Reads a pack into the store; returns its chain, the snapshot itself last. Whether it can be used here is known before
/// anything is written. `cancelled` is asked now and then.
///
/// # Errors
/// Whatever it is, the store is as it was.
pub fn unpack(
    store: &Store,
    from: impl Read,
    spec: &UnpackSpec,
    progress: &dyn Progress,
    cancelled: &dyn Fn() -> bool,
) -> Result<Vec<Installed>, UnpackError> {
    let cpu = HostCpu::here().map_err(|source| UnpackError::Cpu { source })?;
    unpack_on(&cpu, store, from, spec, progress, cancelled)
}

pub(crate) fn unpack_on(
    cpu: &HostCpu,
    store: &Store,
    from: impl Read,
    spec: &UnpackSpec,
    progress: &dyn Progress,
    cancelled: &dyn Fn() -> bool,
) -> Result<Vec<Installed>, UnpackError> {
    let accept = |manifest: &Manifest| {
        cpu.meets(&manifest.requires)?;
        let known = known(store)?;
        let names = names(&known, manifest, spec)?;
        if names.iter().all(|name| known.contains(name)) {
            return Err(Stop::Here(names));
        }
        expect_room(store, manifest.total())?;
        let head = names.last().expect("a chain ends with the snapshot it is of");
        let import = store.import(head)?;
        Ok(Incoming { import, names, manifests: HashMap::new() })
    };
    let (manifest, incoming) = match read(from, &Limits::default(), progress, cancelled, accept) {
        Ok(read) => read,
        Err(Stop::Here(names)) => {
            return Ok(names.into_iter().map(|name| Installed { tag: name.tag, is_new: false }).collect());
        }
        Err(Stop::Failed(error)) => return Err(error),
    };
    let chain = incoming.chain(store, &manifest)?;
    let stage = progress.stage("Putting it in place", None);
    let new = incoming.import.commit(&chain, spec.existing)?;
    drop(stage);
    let installed = chain.into_iter().map(|link| Installed { is_new: new.contains(&link.tag), tag: link.tag });
    Ok(installed.collect())
}

/// Why a pack is not read on.
enum Stop {
    /// All of it is here.
    Here(Vec<Parent>),
    /// It cannot be used.
    Failed(UnpackError),
}

impl<E: Into<UnpackError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

struct Incoming {
    import: Import,
    names: Vec<Parent>,
    manifests: HashMap<usize, Vec<u8>>,
}

impl Sink for Incoming {
    fn layer(&mut self, digest: Digest) -> io::Result<File> {
        self.import.layer(&digest).map_err(io::Error::other)
    }

    fn manifest(&mut self, link: usize, bytes: Vec<u8>) -> io::Result<()> {
        self.manifests.insert(link, bytes);
        Ok(())
    }

    fn state(&mut self, link: usize, bytes: &[u8]) -> io::Result<()> {
        self.import.state(link, bytes).map_err(io::Error::other)
    }
}

impl Incoming {
    /// The snapshots' manifests, under the names they have here.
    fn chain(&self, store: &Store, pack: &Manifest) -> Result<Vec<store::Manifest>, UnpackError> {
        let mut chain = Vec::new();
        let mut unused: HashSet<Digest> = pack.files.iter().filter_map(|member| layer_of(member.path)).collect();
        for (index, link) in pack.chain.iter().enumerate() {
            let refused = |problem: &str| UnpackError::Snapshot { tag: link.tag.clone(), problem: problem.into() };
            let bytes = self.manifests.get(&index).ok_or_else(|| refused("has no manifest"))?;
            let mut manifest = store.read_manifest(&link.tag, bytes)?;
            let parent = manifest.parent.as_ref().map(|parent| &parent.id);
            if (&manifest.tag, &manifest.id, parent) != (&link.tag, &link.id, link.parent.as_ref()) {
                return Err(refused("is another one than the list says"));
            }
            let words = [Some(&manifest.kernel), Some(&manifest.agent), manifest.branched_from.as_ref()];
            if words.into_iter().flatten().any(|word| word.len() > MAX_WORD || shown_otherwise(word)) {
                return Err(refused("has a text that is not fit to be shown"));
            }
            manifest.layers().for_each(|layer| {
                unused.remove(&layer.digest);
            });
            let Parent { tag, id } = self.names[index].clone();
            (manifest.tag, manifest.id) = (tag, id);
            // Who made the pack has no say in what may be reached from here.
            manifest.egress = None;
            if index > 0 {
                manifest.parent = Some(self.names[index - 1].clone());
            }
            chain.push(manifest);
        }
        match unused.into_iter().next() {
            Some(digest) => Err(UnpackError::Snapshot {
                tag: pack.tag.clone(),
                problem: format!("does not need layer {digest}, which the pack has"),
            }),
            None => Ok(chain),
        }
    }
}

fn shown_otherwise(word: &str) -> bool {
    word.chars().any(char::is_control) || shown(word).len() > 4 * MAX_WORD
}

const fn layer_of(path: Path) -> Option<Digest> {
    match path {
        Path::Layer(digest) => Some(digest),
        Path::Manifest(_) | Path::State(_) => None,
    }
}

/// What the snapshots of a pack will be called here, and which ones they are. Those that are here keep their names;
/// only the last one may come a second time, under another name, and is another one then.
fn names(known: &[Parent], pack: &Manifest, spec: &UnpackSpec) -> Result<Vec<Parent>, UnpackError> {
    let (head, ancestors) = pack.chain.split_last().expect("a chain ends with the snapshot it is of");
    let head_tag = spec.tag.clone().unwrap_or_else(|| head.tag.clone());
    let is_free = |tag: &Tag, id: &str| {
        (spec.existing == Existing::Replace && !spec.spared.contains(tag))
            || known.iter().all(|other| other.tag != *tag || other.id == id)
    };
    let mut names = Vec::new();
    for (number, link) in (1..).zip(ancestors) {
        let here = known.iter().find(|other| other.id == link.id);
        let tag = match here {
            Some(other) => other.tag.clone(),
            None if link.tag != head_tag && is_free(&link.tag, &link.id) => link.tag.clone(),
            None if spec.tag.is_none() => return Err(UnpackError::Taken { tag: link.tag.clone() }),
            None => {
                let name = format!("{head_tag}-{number}");
                let tag = name.parse().ok().filter(|tag| is_free(tag, &link.id));
                tag.ok_or(UnpackError::Name { head: head_tag.clone(), name })?
            }
        };
        names.push(Parent { tag, id: link.id.clone() });
    }
    if !is_free(&head_tag, &head.id) {
        return Err(UnpackError::Taken { tag: head_tag });
    }
    if let Some(twice) = names.iter().find(|name| name.tag == head_tag) {
        return Err(UnpackError::Taken { tag: twice.tag.clone() });
    }
    let elsewhere = known.iter().any(|other| other.id == head.id && other.tag != head_tag);
    let id = if elsewhere { fresh_id()? } else { head.id.clone() };
    names.push(Parent { tag: head_tag, id });
    Ok(names)
}

/// The snapshots that are here, and the names of those that are damaged or not there yet. What could not be written
/// takes up no name.
fn known(store: &Store) -> Result<Vec<Parent>, UnpackError> {
    let listed = store.list()?.into_iter().filter_map(|(tag, status)| match status {
        Ok(Status::Ready(snapshot)) => Some(Parent { tag, id: snapshot.manifest().id.clone() }),
        Ok(Status::Failed(_)) => None,
        Ok(Status::Writing(_)) | Err(_) => Some(Parent { tag, id: String::new() }),
    });
    Ok(listed.collect())
}

fn fresh_id() -> Result<String, UnpackError> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    got.map_err(|error| UnpackError::Random { source: error.into() })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Looks at the nearest directory that is there: the store's own may not have been made yet.
fn expect_room(store: &Store, needed: u64) -> Result<(), UnpackError> {
    let there = |dir: &&std::path::Path| dir.exists();
    let dir = store.dir().ancestors().find(there).unwrap_or(std::path::Path::new("/"));
    let free = room::free(dir).map_err(|source| UnpackError::Room { source })?;
    if needed > free {
        return Err(UnpackError::Space { needed, free, dir: dir.into() });
    }
    Ok(())
}
