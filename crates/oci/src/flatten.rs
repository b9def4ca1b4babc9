//! Layers, one over the other, become one tree.
//!
//! Everything happens to a tree in memory: no name, link or device of an image ever reaches the host's file system.
//!
//! - A member replaces what has its name, but a directory stays with what is in it.
//! - `.wh.NAME` takes NAME of the layers below away, `.wh..wh..opq` all that they put into its directory; what the
//!   same layer brings stays, whether it comes before or after.
//! - Directories that a path leads through may be symbolic links, which lead nowhere but into the tree: `/` is its
//!   root, and there is nothing above it. Those that are missing are made.
//! - A hard link is another name of what its target names at that moment.

mod walk;

use std::collections::BTreeMap;

use ext4::{Content, Entry, Kind, MAX_FILE, Meta, Name, NameError, Node, NodeId, Time, Tree, TreeError};

use crate::stream::StreamError;
use crate::tar::{Archive, Member, MemberKind, Stream, TarError};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Bookkeeping of a file system of long ago.
const BOOKKEEPING: &[u8] = b".wh..wh.";
/// The longest path, as for the kernel.
const MAX_PATH: usize = 4096;
/// What an attribute takes in memory besides its bytes.
const XATTR_BYTES: usize = 64;
/// At most so much of a name is repeated to a person.
const SHOWN: usize = 256;

/// How much an image may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Members of all layers, and directories that they imply.
    pub entries: u64,
    /// Bytes of names, links, attributes and maps of holes.
    pub metadata_bytes: u64,
    /// Bytes of all layers once they are uncompressed.
    pub unpacked_bytes: u64,
}

impl Limits {
    /// What no image needs.
    pub(crate) const UNPACKED_BYTES: u64 = 64 << 30;
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 1 << 20, metadata_bytes: 256 << 20, unpacked_bytes: Self::UNPACKED_BYTES }
    }
}

/// Layers that are no image.
#[derive(Debug, thiserror::Error)]
pub enum FlattenError {
    /// A layer is no archive.
    #[error(transparent)]
    Tar(TarError),
    /// A layer is not what it is said to be, or more than we take.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A path with `..` in it.
    #[error("`{path}` leads out of the image")]
    Escapes {
        /// The path.
        path: String,
    },
    /// A path that no file can have.
    #[error("`{path}` cannot be the path of a file")]
    Path {
        /// The path.
        path: String,
        /// Why, when it is for one of its names.
        source: Option<NameError>,
    },
    /// A path through something that has nothing below it.
    #[error("`{path}` leads through something that is not a directory")]
    NotADirectory {
        /// The path.
        path: String,
    },
    /// Links that lead to each other.
    #[error("`{path}` leads through too many symbolic links")]
    Loop {
        /// The path.
        path: String,
    },
    /// A hard link to nothing, or to a directory.
    #[error("`{path}` is a hard link to `{target}`, and there is no such file")]
    HardLink {
        /// The link.
        path: String,
        /// Where it leads.
        target: String,
    },
    /// A whiteout of nothing, of a directory itself or of the one above.
    #[error("`{path}` takes away what is not its to take")]
    Whiteout {
        /// The path.
        path: String,
    },
    /// A file longer than a disk.
    #[error("`{path}` has {len} bytes; a file has at most {MAX_FILE}")]
    FileTooLong {
        /// The path.
        path: String,
        /// What it says.
        len: u64,
    },
    /// A symbolic link to nothing, or further than a path can lead.
    #[error("`{path}`")]
    Node {
        /// The path.
        path: String,
        /// Why it cannot be.
        source: TreeError,
    },
    /// The image has more files than we take.
    #[error("the image has more than {limit} entries")]
    TooManyEntries {
        /// How many we take.
        limit: u64,
    },
    /// Layers take back what they have brought again and again.
    #[error("the image has more whiteouts over more files than any honest image; it looks made to keep forkd busy")]
    TooManyWhiteouts,
    /// The image has longer names, links and attributes than we take.
    #[error("the names, links and attributes of the image take more than {limit} bytes")]
    TooMuchMetadata {
        /// How many bytes we take.
        limit: u64,
    },
}

/// What the members of a layer mean to what lies below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The layer of an image: names that begin with `.wh.` take something away.
    Image,
    /// An archive by itself, in which such names are nothing in particular.
    Archive,
    /// Files that are added: also, what is there as a directory, or as a link to one, stays what it is. A directory says
    /// that there is one, and whose it is unless it is root's.
    Addition,
}

/// A file's bytes: in which layer, and where in its uncompressed stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) node: NodeId,
    pub(crate) layer: u32,
    pub(crate) at: u64,
}

/// All layers as one.
#[derive(Debug)]
pub(crate) struct Flat {
    pub(crate) tree: Tree,
    /// In the order of layers, and of their bytes.
    pub(crate) files: Vec<Stored>,
    /// Files that are of no layer.
    pub(crate) texts: Vec<(NodeId, Vec<u8>)>,
}

/// Takes layers from the lowest to the highest.
#[derive(Debug)]
pub(crate) struct Flattener {
    tree: Tree,
    files: Vec<Stored>,
    texts: Vec<(NodeId, Vec<u8>)>,
    limits: Limits,
    /// Names that were walked.
    steps: u64,
    /// The layer under way; entries are marked with the last one that touched them.
    layer: u32,
    entries: u64,
    metadata_bytes: u64,
}

impl Flattener {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::over(Tree::new(Meta { mode: 0o755, ..Meta::default() }), limits)
    }

    /// With layers over what is there already.
    pub(crate) const fn over(tree: Tree, limits: Limits) -> Self {
        Self { tree, files: Vec::new(), texts: Vec::new(), limits, steps: 0, layer: 0, entries: 0, metadata_bytes: 0 }
    }

    /// Lays one more layer over the others, and reads it to its end.
    pub(crate) fn layer<R: Stream>(&mut self, source: R, meaning: Meaning) -> Result<R, FlattenError> {
        self.layer += 1;
        let mut archive = Archive::new(source);
        while let Some(member) = archive.next()? {
            self.member(&member, meaning)?;
        }
        Ok(archive.finish()?)
    }

    /// A file of our own over everything else.
    pub(crate) fn text(&mut self, path: &str, text: &[u8]) -> Result<(), FlattenError> {
        self.layer += 1;
        let path = path.as_bytes();
        let mut names = names(path)?;
        let last = names.pop().ok_or_else(|| FlattenError::Path { path: shown(path), source: None })?;
        let dir = self.directory(path, &names)?;
        let name = name(last, path)?;
        self.tree.remove(dir, &name);
        let meta = Meta { mode: 0o644, ..Meta::default() };
        let node = Node { meta, kind: Kind::File(Content::whole(text.len() as u64)) };
        let node = self.tree.insert(dir, name, node, self.layer);
        let node = node.map_err(|source| FlattenError::Node { path: shown(path), source })?;
        self.texts.push((node, text.into()));
        Ok(())
    }

    /// A directory that is to be there; made if nothing has its name. Something that is no directory stays in its way.
    pub(crate) fn ensure_directory(&mut self, path: &str) -> Result<(), FlattenError> {
        self.layer += 1;
        match self.directory(path.as_bytes(), &names(path.as_bytes())?) {
            Ok(_) | Err(FlattenError::NotADirectory { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What the path names, if it is there; directories on the way may be links.
    pub(crate) fn find(&mut self, path: &str) -> Result<Option<NodeId>, FlattenError> {
        let mut names = names(path.as_bytes())?;
        let Some(last) = names.pop() else { return Ok(Some(NodeId::ROOT)) };
        let Some(dir) = self.existing(path.as_bytes(), &names)? else { return Ok(None) };
        Ok(self.tree.get(dir, &name(last, path.as_bytes())?).map(|entry| entry.node))
    }

    /// The directory that the path names, if it is there; it may be a link itself.
    pub(crate) fn find_directory(&mut self, path: &str) -> Result<Option<NodeId>, FlattenError> {
        self.existing(path.as_bytes(), &names(path.as_bytes())?)
    }

    /// Where a file's bytes are, if they are in a layer.
    pub(crate) fn stored(&self, node: NodeId) -> Option<Stored> {
        self.files.iter().rfind(|file| file.node == node).copied()
    }

    pub(crate) const fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn finish(self) -> Flat {
        Flat { tree: self.tree, files: self.files, texts: self.texts }
    }

    fn member(&mut self, member: &Member, meaning: Meaning) -> Result<(), FlattenError> {
        self.count(1)?;
        self.weigh(member)?;
        let mut names = names(&member.path)?;
        if meaning == Meaning::Addition && matches!(member.kind, MemberKind::Directory) {
            return self.add_directory(member, &names);
        }
        let Some(last) = names.pop() else {
            // The root itself: it has a mode and attributes, and is a directory whatever the archive says.
            *self.tree.meta_mut(NodeId::ROOT) = meta(member);
            return Ok(());
        };
        let is_whiteout = meaning == Meaning::Image && last.starts_with(WHITEOUT);
        if meaning == Meaning::Image && names.first().is_some_and(|name| name.starts_with(BOOKKEEPING)) {
            return Ok(());
        }
        if is_whiteout {
            // Nothing is there to be taken away where there is no directory.
            let dir = self.existing(&member.path, &names)?;
            return dir.map_or(Ok(()), |dir| self.whiteout(dir, last, &member.path));
        }
        let dir = self.directory(&member.path, &names)?;
        let name = name(last, &member.path)?;
        self.put(dir, name, member)
    }

    fn add_directory(&mut self, member: &Member, names: &[&[u8]]) -> Result<(), FlattenError> {
        let node = self.directory(&member.path, names)?;
        if (member.uid, member.gid) != (0, 0) {
            let meta = self.tree.meta_mut(node);
            (meta.uid, meta.gid) = (member.uid, member.gid);
        }
        Ok(())
    }

    fn put(&mut self, dir: NodeId, name: Name, member: &Member) -> Result<(), FlattenError> {
        let failed = |path: &[u8]| {
            let path = shown(path);
            |source| FlattenError::Node { path, source }
        };
        let kind = match &member.kind {
            MemberKind::HardLink => return self.hard_link(dir, name, member),
            MemberKind::Directory => {
                if let Some(entry) = self.tree.get(dir, &name)
                    && self.tree.entries(entry.node).is_some()
                {
                    *self.tree.meta_mut(entry.node) = meta(member);
                    self.tree.mark(dir, &name, self.layer);
                    return Ok(());
                }
                Kind::Directory(BTreeMap::new())
            }
            MemberKind::File(content) => Kind::File(checked(content, &member.path)?),
            MemberKind::Symlink => Kind::Symlink(member.link.as_slice().into()),
            MemberKind::Device(kind) => Kind::Device { kind: *kind, major: member.device.0, minor: member.device.1 },
            MemberKind::Fifo => Kind::Fifo,
        };
        let has_bytes = matches!(&kind, Kind::File(content) if !content.pieces.is_empty());
        self.tree.remove(dir, &name);
        let node = Node { meta: meta(member), kind };
        let node = self.tree.insert(dir, name, node, self.layer).map_err(failed(&member.path))?;
        if has_bytes {
            self.files.push(Stored { node, layer: self.layer - 1, at: member.at });
        }
        Ok(())
    }

    fn hard_link(&mut self, dir: NodeId, name: Name, member: &Member) -> Result<(), FlattenError> {
        let missing = || FlattenError::HardLink { path: shown(&member.path), target: shown(&member.link) };
        let mut target = names(&member.link)?;
        let last = target.pop().ok_or_else(missing)?;
        let found_in = self.existing(&member.link, &target)?.ok_or_else(missing)?;
        let found = self.tree.get(found_in, &self::name(last, &member.link)?).ok_or_else(missing)?;
        if self.tree.entries(found.node).is_some() {
            return Err(missing());
        }
        self.tree.remove(dir, &name);
        let entry = Entry { node: found.node, mark: self.layer };
        self.tree.link(dir, name, entry).map_err(|source| FlattenError::Node { path: shown(&member.path), source })
    }

    fn whiteout(&mut self, dir: NodeId, last: &[u8], path: &[u8]) -> Result<(), FlattenError> {
        if last == OPAQUE {
            return self.uncover(dir);
        }
        if last.starts_with(BOOKKEEPING) {
            return Ok(());
        }
        let gone = Name::new(&last[WHITEOUT.len()..]);
        let gone = gone.map_err(|_| FlattenError::Whiteout { path: shown(path) })?;
        match self.tree.get(dir, &gone) {
            // What this layer has put there stays, but nothing below that is of others.
            Some(entry) if entry.mark == self.layer => self.uncover(entry.node),
            Some(_) => {
                self.tree.remove(dir, &gone);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes away all that this layer did not bring. It can be asked to as often as there are members, so what it looks
    /// at is counted.
    fn uncover(&mut self, dir: NodeId) -> Result<(), FlattenError> {
        let layer = self.layer;
        let mut waiting = vec![dir];
        while let Some(dir) = waiting.pop() {
            let mut seen = 1;
            self.tree.retain(dir, |_, entry| {
                seen += 1;
                let stays = entry.mark == layer;
                if stays {
                    waiting.push(entry.node);
                }
                stays
            });
            if !self.may_step(seen) {
                return Err(FlattenError::TooManyWhiteouts);
            }
        }
        Ok(())
    }

    fn count(&mut self, more: u64) -> Result<(), FlattenError> {
        self.entries += more;
        let limit = self.limits.entries;
        if self.entries > limit { Err(FlattenError::TooManyEntries { limit }) } else { Ok(()) }
    }

    fn weigh(&mut self, member: &Member) -> Result<(), FlattenError> {
        let xattrs: usize = member.xattrs.iter().map(|(name, value)| name.len() + value.len() + XATTR_BYTES).sum();
        let map = if let MemberKind::File(content) = &member.kind { content.pieces.len() * 16 } else { 0 };
        self.metadata_bytes += (member.path.len() + member.link.len() + xattrs + map) as u64;
        let limit = self.limits.metadata_bytes;
        if self.metadata_bytes > limit { Err(FlattenError::TooMuchMetadata { limit }) } else { Ok(()) }
    }
}

fn meta(member: &Member) -> Meta {
    // Other systems have others, which say nothing on Linux.
    let (known, foreign): (Vec<_>, Vec<_>) = member.xattrs.iter().partition(|(name, _)| ext4::is_attribute(name));
    for (name, _) in foreign {
        log::debug!("{}: attribute {} is passed over", shown(&member.path), shown(name));
    }
    let xattrs = known.into_iter().map(|(name, value)| (name.as_slice().into(), value.as_slice().into()));
    let Member { mode, uid, gid, mtime, .. } = *member;
    Meta { mode, uid, gid, mtime, xattrs: xattrs.collect() }
}

/// Directories that only their contents tell of.
fn implied() -> Node {
    let meta = Meta { mode: 0o755, mtime: Time::default(), ..Meta::default() };
    Node { meta, kind: Kind::Directory(BTreeMap::new()) }
}

fn checked(content: &Content, path: &[u8]) -> Result<Content, FlattenError> {
    if content.len > MAX_FILE {
        return Err(FlattenError::FileTooLong { path: shown(path), len: content.len });
    }
    Ok(content.clone())
}

/// The names of a path. `.` and empty ones say nothing; one that begins with `/` begins at the image's root anyway.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, FlattenError> {
    if path.len() > MAX_PATH {
        return Err(FlattenError::Path { path: shown(path), source: None });
    }
    let names: Vec<_> = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(FlattenError::Escapes { path: shown(path) });
    }
    Ok(names)
}

fn name(bytes: &[u8], path: &[u8]) -> Result<Name, FlattenError> {
    Name::new(bytes).map_err(|source| FlattenError::Path { path: shown(path), source: Some(source) })
}

/// Hostile bytes as a person can read them.
fn shown(path: &[u8]) -> String {
    let cut = &path[..path.len().min(SHOWN)];
    let dots = if cut.len() < path.len() { "..." } else { "" };
    format!("{}{dots}", cut.escape_ascii())
}

impl From<TarError> for FlattenError {
    fn from(error: TarError) -> Self {
        match error {
            TarError::Read { source } => match source.downcast::<StreamError>() {
                Ok(stream) => Self::Stream(stream),
                Err(source) => Self::Tar(TarError::Read { source }),
            },
            error => Self::Tar(error),
        }
    }
}

#[cfg(test)]
mod tests;
