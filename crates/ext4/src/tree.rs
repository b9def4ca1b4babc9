//! A tree of files as plain data: what an image consists of, without the contents of its files.
//!
//! Nodes lie in one vector and are named by number, so trees of any depth are built, walked and dropped without
//! recursion. A directory has exactly one entry that names it; everything else may have many (hard links).

use std::collections::BTreeMap;
use std::fmt;

/// The longest name of a file.
const MAX_NAME: usize = 255;
/// The longest target of a symbolic link.
const MAX_TARGET: usize = 4095;

/// Not a name of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a name: it has 1 to {MAX_NAME} bytes, none of them `/` or NUL, and is not `.` or `..`")]
pub struct NameError {
    /// What is not one.
    pub name: String,
}

/// A change that no tree can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// Something is to be put into what is no directory.
    #[error("not a directory")]
    NotADirectory,
    /// A directory cannot have two names.
    #[error("a directory cannot be linked")]
    IsADirectory,
    /// The name is taken.
    #[error("there is something of that name")]
    Exists,
    /// A link that leads nowhere, or further than a path can.
    #[error("the target of a symbolic link has 1 to {MAX_TARGET} bytes")]
    Target,
    /// No numbers are left.
    #[error("too many files")]
    Full,
}

/// The name of an entry: bytes, as file systems have them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks that it is one.
    ///
    /// # Errors
    /// When it is empty, too long, `.` or `..`, or contains `/` or NUL.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        let fits = (1..=MAX_NAME).contains(&bytes.len()) && bytes != b"." && bytes != b"..";
        if fits && !bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            Ok(Self(bytes.into()))
        } else {
            let shown = &bytes[..bytes.len().min(MAX_NAME)];
            Err(NameError { name: shown.escape_ascii().to_string() })
        }
    }

    /// As bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Names a node of one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// The directory all others lie below.
    pub const ROOT: Self = Self(0);

    /// To index what is kept beside a tree.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A point in time, as files have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970.
    pub secs: i64,
    /// Below 10^9.
    pub nanos: u32,
}

/// What every kind of file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permissions, set-id bits and the sticky bit; what is above `0o7777` does not count.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When it was changed last.
    pub mtime: Time,
    /// By full name, such as `user.comment` or `security.capability`, in the form that `getxattr` returns.
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

/// A block or a character device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// As disks are.
    Block,
    /// As terminals are.
    Character,
}

/// Bytes of a file that are there; between pieces are holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the file.
    pub at: u64,
    /// How many bytes.
    pub len: u64,
}

/// How long a file is and where it has bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The file's length.
    pub len: u64,
    /// In order, none touching what is beyond the length, none overlapping.
    pub pieces: Vec<Piece>,
}

impl Content {
    /// A file without holes.
    #[must_use]
    pub fn whole(len: u64) -> Self {
        Self { len, pieces: if len == 0 { Vec::new() } else { vec![Piece { at: 0, len }] } }
    }

    /// Whether the pieces are in order, apart, and within the length.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let mut end = 0;
        self.pieces.iter().all(|piece| {
            let after = piece.at.checked_add(piece.len).filter(|after| piece.at >= end && *after <= self.len);
            end = after.unwrap_or(end);
            after.is_some()
        })
    }
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it names.
    pub node: NodeId,
    /// Whatever the builder of the tree wants to remember; not written.
    pub mark: u32,
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Has names of others.
    Directory(BTreeMap<Name, Entry>),
    /// Has bytes.
    File(Content),
    /// Has a path.
    Symlink(Box<[u8]>),
    /// Stands for a driver.
    Device {
        /// Which kind of driver.
        kind: DeviceKind,
        /// Which driver.
        major: u32,
        /// Which of its devices.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A unix socket's name.
    Socket,
}

/// A file of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What every kind has.
    pub meta: Meta,
    /// What it is.
    pub kind: Kind,
}

/// A directory with all that is below it.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// Only a root.
    #[must_use]
    pub fn new(root: Meta) -> Self {
        Self { nodes: vec![Node { meta: root, kind: Kind::Directory(BTreeMap::new()) }] }
    }

    /// How many nodes were ever made; those that no entry names any more are among them.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is a root.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// To change what every kind has.
    pub fn meta_mut(&mut self, id: NodeId) -> &mut Meta {
        &mut self.nodes[id.index()].meta
    }

    /// The entries of a directory; nothing for what is none.
    #[must_use]
    pub fn entries(&self, id: NodeId) -> Option<&BTreeMap<Name, Entry>> {
        match &self.node(id).kind {
            Kind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    /// What a directory has by that name.
    #[must_use]
    pub fn get(&self, dir: NodeId, name: &Name) -> Option<Entry> {
        self.entries(dir)?.get(name).copied()
    }

    /// Puts something new into a directory. A new directory is empty, whatever entries the node has.
    ///
    /// # Errors
    /// When there is no such directory, something of that name in it, or a symbolic link's target is none.
    pub fn insert(&mut self, dir: NodeId, name: Name, mut node: Node, mark: u32) -> Result<NodeId, TreeError> {
        if let Kind::Directory(entries) = &mut node.kind {
            entries.clear();
        }
        if let Kind::Symlink(target) = &node.kind
            && !(1..=MAX_TARGET).contains(&target.len())
        {
            return Err(TreeError::Target);
        }
        let id = u32::try_from(self.nodes.len()).map(NodeId).map_err(|_| TreeError::Full)?;
        self.add(dir, name, Entry { node: id, mark })?;
        self.nodes.push(node);
        Ok(id)
    }

    /// Gives something another name.
    ///
    /// # Errors
    /// When it is a directory, or as [`Tree::insert`].
    pub fn link(&mut self, dir: NodeId, name: Name, entry: Entry) -> Result<(), TreeError> {
        if self.entries(entry.node).is_some() {
            return Err(TreeError::IsADirectory);
        }
        self.add(dir, name, entry)
    }

    /// Takes a name away, and with it everything that nothing else names; whether there was one.
    pub fn remove(&mut self, dir: NodeId, name: &Name) -> bool {
        match &mut self.nodes[dir.index()].kind {
            Kind::Directory(entries) => entries.remove(name).is_some(),
            _ => false,
        }
    }

    /// Changes the mark of an entry that is there.
    pub fn mark(&mut self, dir: NodeId, name: &Name, mark: u32) {
        if let Kind::Directory(entries) = &mut self.nodes[dir.index()].kind
            && let Some(entry) = entries.get_mut(name)
        {
            entry.mark = mark;
        }
    }

    /// Keeps the entries of a directory that the caller wants to.
    pub fn retain(&mut self, dir: NodeId, mut keep: impl FnMut(&Name, Entry) -> bool) {
        if let Kind::Directory(entries) = &mut self.nodes[dir.index()].kind {
            entries.retain(|name, entry| keep(name, *entry));
        }
    }

    /// A path that leads to the node, for a person to read.
    #[must_use]
    pub fn path(&self, id: NodeId) -> String {
        let mut found_in: BTreeMap<NodeId, (NodeId, &Name)> = BTreeMap::new();
        for (index, dir) in (0..).zip(&self.nodes) {
            if let Kind::Directory(entries) = &dir.kind {
                found_in.extend(entries.iter().map(|(name, entry)| (entry.node, (NodeId(index), name))));
            }
        }
        let mut names = Vec::new();
        let mut at = id;
        while let Some((dir, name)) = found_in.get(&at) {
            names.push(name.as_bytes().escape_ascii().to_string());
            at = *dir;
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }

    fn add(&mut self, dir: NodeId, name: Name, entry: Entry) -> Result<(), TreeError> {
        match &mut self.nodes[dir.index()].kind {
            Kind::Directory(entries) => match entries.entry(name) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(entry);
                    Ok(())
                }
                std::collections::btree_map::Entry::Occupied(_) => Err(TreeError::Exists),
            },
            _ => Err(TreeError::NotADirectory),
        }
    }
}
