//! What a pack says about itself: `manifest.toml`, its first member. Read from a stranger: its version first, then
//! strictly, then checked for being about one thing.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use layer::{Digest, MAX_LENGTH};
use serde::{Deserialize, Serialize};
use types::Tag;

/// The version this build writes and reads.
pub const VERSION: u32 = 3;
/// The last version whose packs hold VMs of another VMM.
const LAST_FOREIGN: u32 = 2;
/// More than any state needs.
pub const MAX_STATE: u64 = 64 << 20;
/// More than any snapshot's manifest needs.
const MAX_SNAPSHOT_MANIFEST: u64 = 256 << 10;
/// More than anybody reads.
const MAX_TEXT: usize = 4096;
const MAX_FLAGS: usize = 512;

/// How much a pack may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Length of its manifest.
    pub manifest: u64,
    /// Snapshots in it.
    pub links: usize,
    /// Members besides the manifest.
    pub members: usize,
    /// Bytes of all members.
    pub total: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // A layer can have a whole disk in it and a table for that; what there is room for is another question.
        Self { manifest: 1 << 20, links: 64, members: 2048, total: 2 * MAX_LENGTH }
    }
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not a manifest.
    #[error("its manifest cannot be understood: {0}")]
    Toml(String),
    /// A pack of the system that forkd took its commands from.
    #[error(
        "it is a pack of version {found}, which was made for another VMM; only who packed it can make one of version \
         {VERSION}, from the image it was made of"
    )]
    Foreign {
        /// Its version.
        found: u32,
    },
    /// A later forkd made it.
    #[error("it is a pack of version {found}, and this forkd reads version {VERSION}; use a newer forkd")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// It contradicts itself, or asks for too much.
    #[error("its manifest makes no sense: {0}")]
    Nonsense(String),
}

/// What is in a pack and what it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The layout of the pack and of this file.
    pub forkd_pack_version: u32,
    /// What the snapshot was called.
    pub tag: Tag,
    /// A word on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_image: Option<String>,
    /// When it was packed, as RFC 3339 has it.
    pub created_at: String,
    /// What packed it.
    pub forkd_version: String,
    /// What it needs.
    pub requires: Requires,
    /// The snapshot, last, after those that it descends from.
    pub chain: Vec<Link>,
    /// All members that follow, in order.
    pub files: Vec<Member>,
}

/// What a host must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requires {
    /// Of the CPU.
    pub arch: String,
    /// Its maker, as it says itself.
    pub cpu_vendor: String,
    /// What the guest may have come to rely on, as `/proc/cpuinfo` names it.
    pub cpu_flags: Vec<String>,
    /// `uname -r` of the guest.
    pub guest_kernel: String,
    /// Of the state file.
    pub state_format: u32,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Memory.
    pub memory_mib: u64,
}

/// A snapshot in a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// What it was called.
    pub tag: Tag,
    /// Which one it is.
    pub id: String,
    /// The id of the one that it descends from, be it in the pack or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// A member of a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its name.
    pub path: Path,
    /// Its length.
    pub size: u64,
    /// Of all of it.
    pub sha256: Sha256,
}

/// The name of a member. There are no others than these, so none leads anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Path {
    /// What a snapshot of the chain says about itself.
    Manifest(usize),
    /// Its vCPUs and devices.
    State(usize),
    /// A layer.
    Layer(Digest),
}

/// A SHA-256 sum; as text, 64 hexadecimal digits in lower case.
pub type Sha256 = Digest;

/// The part that every version has.
#[derive(Deserialize)]
struct Header {
    forkd_pack_version: u32,
}

impl Manifest {
    /// Reads a manifest that anybody may have written.
    ///
    /// # Errors
    /// When it is of another version, or not about one snapshot and what that needs.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self, ManifestError> {
        let toml = |error: toml::de::Error| ManifestError::Toml(first_line(error.message()));
        let text = str::from_utf8(bytes).map_err(|_| ManifestError::Toml("it is not text".into()))?;
        match toml::from_str::<Header>(text).map_err(toml)?.forkd_pack_version {
            VERSION => {}
            found if found <= LAST_FOREIGN => return Err(ManifestError::Foreign { found }),
            found => return Err(ManifestError::Newer { found }),
        }
        let manifest: Self = toml::from_str(text).map_err(toml)?;
        manifest.check(limits).map_err(ManifestError::Nonsense)?;
        Ok(manifest)
    }

    /// As it is in the pack.
    #[must_use]
    pub fn to_text(&self) -> String {
        toml::to_string(self).expect("a manifest holds only numbers, texts and lists of them")
    }

    /// How many bytes all members have.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.files.iter().fold(0, |sum, member| sum.saturating_add(member.size))
    }

    fn check(&self, limits: &Limits) -> Result<(), String> {
        let texts = [Some(&self.created_at), Some(&self.forkd_version), self.description.as_ref()];
        let own = [&self.requires.arch, &self.requires.cpu_vendor, &self.requires.guest_kernel];
        let texts = texts.into_iter().flatten().chain(&self.base_image).chain(own);
        if texts.chain(&self.requires.cpu_flags).any(|text| text.len() > MAX_TEXT) {
            return Err(format!("it has a text of more than {MAX_TEXT} bytes"));
        }
        if self.requires.cpu_flags.len() > MAX_FLAGS {
            return Err(format!("it asks for more than {MAX_FLAGS} features of the CPU"));
        }
        self.check_chain(limits)?;
        self.check_files(limits)
    }

    fn check_chain(&self, limits: &Limits) -> Result<(), String> {
        if self.chain.len() > limits.links {
            return Err(format!("it has {} snapshots, and there can be {}", self.chain.len(), limits.links));
        }
        if self.chain.last().is_none_or(|head| head.tag != self.tag) {
            return Err("its chain does not end with the snapshot it is of".into());
        }
        let (mut tags, mut ids) = (HashSet::new(), HashSet::new());
        if !self.chain.iter().all(|link| tags.insert(&link.tag) && ids.insert(&link.id)) {
            return Err("a snapshot comes twice in its chain".into());
        }
        if let Some(link) = self.chain.iter().find(|link| !is_id(&link.id)) {
            return Err(format!("snapshot `{}` has an id that is none", link.tag));
        }
        let mut pairs = self.chain.iter().zip(self.chain.iter().skip(1));
        if pairs.any(|(above, link)| link.parent.as_ref() != Some(&above.id)) {
            return Err("its chain is no chain".into());
        }
        Ok(())
    }

    fn check_files(&self, limits: &Limits) -> Result<(), String> {
        if self.files.len() > limits.members {
            return Err(format!("it has {} members, and there can be {}", self.files.len(), limits.members));
        }
        let mut paths = HashSet::new();
        for Member { path, size, .. } in &self.files {
            if !paths.insert(path) {
                return Err(format!("`{path}` is listed twice"));
            }
            let most = match path {
                Path::Manifest(link) | Path::State(link) if *link >= self.chain.len() => {
                    return Err(format!("`{path}` is of no snapshot in it"));
                }
                Path::Manifest(_) => MAX_SNAPSHOT_MANIFEST,
                Path::State(_) => MAX_STATE,
                Path::Layer(_) => limits.total,
            };
            if *size > most {
                return Err(format!("`{path}` has {size} bytes, and there can be {most}"));
            }
        }
        let own = (0..self.chain.len()).flat_map(|link| [Path::Manifest(link), Path::State(link)]);
        if let Some(path) = own.into_iter().find(|path| !paths.contains(path)) {
            return Err(format!("`{path}` is not listed"));
        }
        if self.total() > limits.total {
            return Err(format!("its members have {} bytes, and there can be {}", self.total(), limits.total));
        }
        Ok(())
    }
}

/// As the store makes them.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest(link) => write!(f, "snapshots/{link}/manifest.json"),
            Self::State(link) => write!(f, "snapshots/{link}/state"),
            Self::Layer(digest) => write!(f, "layers/{digest}"),
        }
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = match text.split('/').collect::<Vec<_>>()[..] {
            ["snapshots", link, "manifest.json"] => link.parse().ok().map(Self::Manifest),
            ["snapshots", link, "state"] => link.parse().ok().map(Self::State),
            ["layers", digest] => digest.parse().ok().map(Self::Layer),
            _ => None,
        };
        // Numbers can be written in more ways than one.
        path.filter(|path| path.to_string() == text).ok_or_else(|| format!("`{}` is no member of a pack", shown(text)))
    }
}

impl TryFrom<String> for Path {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Path> for String {
    fn from(path: Path) -> Self {
        path.to_string()
    }
}

/// A stranger's text, fit for a terminal.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_debug).collect()
}

fn first_line(text: &str) -> String {
    shown(text.lines().next().unwrap_or_default())
}
