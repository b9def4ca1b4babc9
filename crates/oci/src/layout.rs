//! Images on this computer: the OCI layout, in a directory or an archive, and what `docker save` writes.
//!
//! ```text
//! index.json              which images there are          manifest.json      (docker)
//! blobs/sha256/<digest>   everything else
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::blob::Blob;
use crate::digest::Digest;
use crate::image::{Blobs, Found, ImageError, Layer, document};
use crate::manifest::{ConfigFile, Descriptor, DockerManifest, Index, MAX_DOCUMENT, MAX_LAYERS, Platform};
use crate::source::Place;
use crate::tar::{Archive, MemberKind};

/// More members than any archive of an image has.
const MAX_MEMBERS: usize = 100_000;
/// Layers of old archives are links to others.
const MAX_HOPS: usize = 8;

/// A directory, or an archive whose members are known.
#[derive(Debug)]
enum Files {
    Directory(PathBuf),
    Archive { path: PathBuf, members: BTreeMap<Vec<u8>, Member> },
}

#[derive(Debug)]
enum Member {
    File(Blob),
    Link(Vec<u8>),
}

/// Files of an image.
#[derive(Debug)]
pub(crate) struct Layout {
    files: Files,
}

impl Layout {
    pub(crate) fn directory(path: &Path) -> Self {
        Self { files: Files::Directory(path.into()) }
    }

    /// Reads where in the archive everything lies.
    pub(crate) fn archive(path: &Path) -> Result<Self, ImageError> {
        let whole = Blob::open(path).map_err(ImageError::read(path))?;
        let mut archive = Archive::new(whole.reader());
        let mut members = BTreeMap::new();
        let malformed = |source| ImageError::Archive { path: path.into(), source };
        while let Some(member) = archive.next().map_err(malformed)? {
            let found = match member.kind {
                MemberKind::File(_) => whole.part(member.at, member.stored).map(Member::File),
                MemberKind::Symlink => Some(Member::Link(beside(&member.path, &member.link))),
                MemberKind::HardLink => Some(Member::Link(plain(&member.link))),
                _ => None,
            };
            members.extend(found.map(|found| (plain(&member.path), found)));
            if members.len() > MAX_MEMBERS {
                return Err(ImageError::Malformed {
                    what: path.display().to_string(),
                    reason: "too many files".into(),
                });
            }
        }
        Ok(Self { files: Files::Archive { path: path.into(), members } })
    }

    /// The image of that name, or the only one.
    pub(crate) fn open(self, place: &Place, platform: &Platform) -> Result<Found, ImageError> {
        let index: Index = self.json("index.json")?;
        let at = || place.path.clone();
        let chosen = match &place.name {
            Some(name) => {
                let named: Vec<_> = index.manifests.iter().filter(|found| found.is_called(name)).cloned().collect();
                match &named[..] {
                    [] => return Err(ImageError::NoSuchImage { name: name.clone(), at: at() }),
                    [only] => Some(only.clone()),
                    _ => Index { manifests: named }.choose(platform).cloned(),
                }
            }
            // Which of several is meant is not ours to guess.
            None => match index.fitting(platform)[..] {
                [] if !index.manifests.is_empty() => {
                    return Err(ImageError::Platform { wanted: platform.clone(), found: index.platforms() });
                }
                [only] => Some(only.clone()),
                _ => None,
            },
        };
        Found::resolve(&self, &chosen.ok_or_else(|| ImageError::Ambiguous { at: at() })?, platform)
    }

    /// The image that `docker save` wrote under that name, or the only one.
    pub(crate) fn open_docker(self, place: &Place, platform: &Platform) -> Result<Found, ImageError> {
        let manifests: Vec<DockerManifest> = self.json("manifest.json")?;
        let is_called = |found: &&DockerManifest, name: &str| {
            let tags = found.repo_tags.iter().flatten();
            let latest = format!("{name}:latest");
            tags.into_iter()
                .any(|tag| [name, &latest].iter().any(|name| tag == name || tag.ends_with(&format!("/{name}"))))
        };
        let found = match &place.name {
            Some(name) => manifests
                .iter()
                .find(|found| is_called(found, name))
                .ok_or_else(|| ImageError::NoSuchImage { name: name.clone(), at: place.path.clone() })?,
            None if manifests.len() == 1 => &manifests[0],
            None => return Err(ImageError::Ambiguous { at: place.path.clone() }),
        };
        let config = self.text(&found.config)?;
        if let Some(expected) = named_digest(&found.config) {
            let found = Digest::of(&config);
            if found != expected {
                return Err(ImageError::Digest { expected, found });
            }
        }
        let parsed: ConfigFile = document(&config, &found.config)?;
        let same = found.layers.len() == parsed.rootfs.diff_ids.len() && found.layers.len() <= MAX_LAYERS;
        if !same {
            return Err(ImageError::Layers { layers: found.layers.len(), named: parsed.rootfs.diff_ids.len() });
        }
        let layers = found.layers.iter().zip(&parsed.rootfs.diff_ids).map(|(name, diff_id)| {
            let blob = self.file(name)?;
            Ok(Layer::of_image(blob, diff_id.clone()))
        });
        let layers = layers.collect::<Result<_, ImageError>>()?;
        Found::new(parsed, layers, platform)
    }

    fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, ImageError> {
        document(&self.text(name)?, name)
    }

    fn text(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let blob = self.file(name)?;
        let text = blob.text(MAX_DOCUMENT).map_err(ImageError::read(&self.place(name)))?;
        text.ok_or_else(|| ImageError::Malformed {
            what: name.into(),
            reason: format!("longer than {MAX_DOCUMENT} bytes"),
        })
    }

    fn file(&self, name: &str) -> Result<Blob, ImageError> {
        match &self.files {
            Files::Directory(_) => {
                let is_inside =
                    Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
                let path = self.place(name);
                if !is_inside {
                    return Err(ImageError::read(&path)(io::ErrorKind::InvalidInput.into()));
                }
                Blob::open(&path).map_err(ImageError::read(&path))
            }
            Files::Archive { members, .. } => {
                let mut wanted = plain(name.as_bytes());
                for _ in 0..MAX_HOPS {
                    match members.get(&wanted) {
                        Some(Member::File(blob)) => return Ok(blob.clone()),
                        Some(Member::Link(target)) => wanted.clone_from(target),
                        None => break,
                    }
                }
                Err(ImageError::read(&self.place(name))(io::ErrorKind::NotFound.into()))
            }
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        match &self.files {
            Files::Directory(path) | Files::Archive { path, .. } => path.join(name),
        }
    }
}

impl Blobs for Layout {
    fn blob(&self, descriptor: &Descriptor) -> Result<Blob, ImageError> {
        let digest = &descriptor.digest;
        let name = format!("blobs/{}/{}", digest.algorithm(), digest.hex());
        let blob = self.file(&name)?;
        if blob.len() != descriptor.size {
            return Err(ImageError::Size { digest: digest.clone(), expected: descriptor.size, found: blob.len() });
        }
        let found = blob.digest(digest).map_err(ImageError::read(&self.place(&name)))?;
        if found == *digest { Ok(blob) } else { Err(ImageError::Digest { expected: digest.clone(), found }) }
    }
}

/// What a configuration is by its name, when that says so: `blobs/sha256/<digest>`, or `<digest>.json` as it once was.
fn named_digest(name: &str) -> Option<Digest> {
    let last = name.rsplit('/').next()?;
    format!("sha256:{}", last.strip_suffix(".json").unwrap_or(last)).parse().ok()
}

/// A member's name without what says nothing.
fn plain(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

/// Where a link in an archive leads.
fn beside(path: &[u8], target: &[u8]) -> Vec<u8> {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    plain(&[&path[..end], b"/", target].concat())
}
