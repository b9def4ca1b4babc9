//! A directory of this computer as an image: its files as they are, with owners, times, attributes and holes.
//!
//! Links are copied and never followed, and what is mounted below is left out. Files are read twice, and have to be the same
//! both times: what the image is called says what is in it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ext4::{Content, DeviceKind, Entry, Kind, Meta, Name, NameError, Node, NodeId, Piece, Time, Tree, TreeError};
use rustix::fs::{OFlags, SeekFrom, lgetxattr, llistxattr, major, minor, seek};
use rustix::io::Errno;

use crate::digest::Digest;
use crate::flatten::Limits;

/// Attributes of others say something about this computer.
const KEPT: &[&[u8]] = &[b"user.", b"security.capability", b"system.posix_acl_"];
/// What the kernel allows for all names, and for a value.
const MAX_XATTR: usize = 1 << 16;
const BUFFER: usize = 1 << 17;

/// A directory that could not become an image.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Something could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file was changed meanwhile.
    #[error("{} changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// There is too much in it.
    #[error("there are more than {limit} files below {}", path.display())]
    TooMany {
        /// The directory.
        path: PathBuf,
        /// How many we take.
        limit: u64,
    },
    /// A name that is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file that a tree cannot have.
    #[error("{}", path.display())]
    Node {
        /// The file.
        path: PathBuf,
        /// Why.
        source: TreeError,
    },
}

/// The files of a directory.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) tree: Tree,
    pub(crate) contents: Vec<FileContent>,
}

/// A file with something in it.
#[derive(Debug)]
pub(crate) struct FileContent {
    pub(crate) node: NodeId,
    path: PathBuf,
    /// Of its pieces, when the directory was looked at: whoever reads it again gets the same, or an error.
    digest: Digest,
}

impl FileContent {
    fn new(node: NodeId, path: PathBuf, tree: &Tree) -> Result<Self, DirectoryError> {
        let digest = pieces(&path, tree.node(node), |_, _| Ok(()))?;
        Ok(Self { node, path, digest })
    }

    /// Hands out the bytes of its pieces.
    pub(crate) fn each_piece(
        &self,
        tree: &Tree,
        take: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), DirectoryError> {
        let digest = pieces(&self.path, tree.node(self.node), take)?;
        if digest == self.digest { Ok(()) } else { Err(DirectoryError::Changed { path: self.path.clone() }) }
    }
}

impl Files {
    pub(crate) fn open(root: &Path) -> Result<Self, DirectoryError> {
        let found = fs::metadata(root).map_err(read(root))?;
        let mut files = Self { tree: Tree::new(meta(root, &found)?), contents: Vec::new() };
        let limit = Limits::default().entries;
        let mut linked = HashMap::new();
        let mut waiting = vec![(NodeId::ROOT, root.to_owned())];
        while let Some((dir, path)) = waiting.pop() {
            for entry in fs::read_dir(&path).map_err(read(&path))? {
                let name = entry.map_err(read(&path))?.file_name();
                let path = path.join(&name);
                let name = Name::new(name.as_bytes())?;
                let meta = path.symlink_metadata().map_err(read(&path))?;
                if files.tree.len() as u64 >= limit {
                    return Err(DirectoryError::TooMany { path: root.into(), limit });
                }
                let failed = |source| DirectoryError::Node { path: path.clone(), source };
                if let Some(node) = linked.get(&(meta.dev(), meta.ino())).filter(|_| meta.nlink() > 1 && !meta.is_dir())
                {
                    files.tree.link(dir, name, Entry { node: *node, mark: 0 }).map_err(failed)?;
                    continue;
                }
                let node = files.tree.insert(dir, name, node(&path, &meta)?, 0).map_err(failed)?;
                linked.insert((meta.dev(), meta.ino()), node);
                if meta.is_dir() && meta.dev() == found.dev() {
                    waiting.push((node, path));
                } else if meta.is_file() {
                    files.contents.push(FileContent::new(node, path, &files.tree)?);
                }
            }
        }
        Ok(files)
    }

    /// Of everything that will be written.
    pub(crate) fn digest(&self) -> Digest {
        let mut hasher = Digest::of(b"").hasher();
        let contents: BTreeMap<NodeId, &Digest> =
            self.contents.iter().map(|content| (content.node, &content.digest)).collect();
        let mut numbers: HashMap<NodeId, usize> = HashMap::new();
        let mut waiting = vec![NodeId::ROOT];
        while let Some(id) = waiting.pop() {
            let number = numbers.len();
            let (node, new) = (self.tree.node(id), !numbers.contains_key(&id));
            hasher.update(&numbers.entry(id).or_insert(number).to_le_bytes());
            if !new {
                continue;
            }
            // Every field is of fixed length or in quotes, so one cannot be taken for another.
            let (kind, entries) = match &node.kind {
                Kind::Directory(entries) => (format!("{:?}", entries.keys()), Some(entries)),
                kind => (format!("{kind:?}"), None),
            };
            hasher.update(format!("{:?}{kind}", node.meta).as_bytes());
            if let Some(digest) = contents.get(&id) {
                hasher.update(digest.to_string().as_bytes());
            }
            waiting.extend(entries.into_iter().flat_map(BTreeMap::values).map(|entry| entry.node));
        }
        hasher.finish()
    }
}

/// Hands out the bytes of a file's pieces, and says what all of them are called.
fn pieces(
    path: &Path,
    node: &Node,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<Digest, DirectoryError> {
    let mut hasher = Digest::of(b"").hasher();
    let Kind::File(content) = &node.kind else { return Ok(hasher.finish()) };
    let file = File::options().read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path);
    let file = file.map_err(read(path))?;
    let mut buffer = vec![0; BUFFER];
    for piece in &content.pieces {
        let mut at = piece.at;
        while at < piece.at + piece.len {
            let len = usize::try_from(piece.at + piece.len - at).unwrap_or(BUFFER).min(BUFFER);
            match file.read_at(&mut buffer[..len], at) {
                Ok(0) => return Err(DirectoryError::Changed { path: path.into() }),
                Ok(len) => {
                    hasher.update(&buffer[..len]);
                    take(at, &buffer[..len]).map_err(read(path))?;
                    at += len as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read(path)(error)),
            }
        }
    }
    Ok(hasher.finish())
}

fn node(path: &Path, found: &Metadata) -> Result<Node, DirectoryError> {
    let kind = found.file_type();
    let device = |kind| Kind::Device { kind, major: major(found.rdev()), minor: minor(found.rdev()) };
    let kind = if kind.is_dir() {
        Kind::Directory(BTreeMap::new())
    } else if kind.is_symlink() {
        let target = fs::read_link(path).map_err(read(path))?;
        Kind::Symlink(target.into_os_string().into_vec().into())
    } else if kind.is_char_device() {
        device(DeviceKind::Character)
    } else if kind.is_block_device() {
        device(DeviceKind::Block)
    } else if kind.is_fifo() {
        Kind::Fifo
    } else if kind.is_socket() {
        Kind::Socket
    } else {
        Kind::File(content(path, found.len())?)
    };
    Ok(Node { meta: meta(path, found)?, kind })
}

/// Where a file has bytes.
fn content(path: &Path, len: u64) -> Result<Content, DirectoryError> {
    let failed = |error: Errno| read(path)(error.into());
    let file = File::options().read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path);
    let file = file.map_err(read(path))?;
    let mut pieces = Vec::new();
    let mut end = 0;
    while end < len {
        let at = match seek(&file, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => break,
            at => at.map_err(failed)?.min(len),
        };
        end = seek(&file, SeekFrom::Hole(at)).map_err(failed)?.min(len);
        if end <= at {
            break;
        }
        pieces.push(Piece { at, len: end - at });
    }
    Ok(Content { len, pieces })
}

fn meta(path: &Path, found: &Metadata) -> Result<Meta, DirectoryError> {
    let mtime = Time { secs: found.mtime(), nanos: u32::try_from(found.mtime_nsec()).unwrap_or(0) };
    let mode = u16::try_from(found.mode() & 0o7777).unwrap_or(0);
    Ok(Meta { mode, uid: found.uid(), gid: found.gid(), mtime, xattrs: xattrs(path)? })
}

type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

fn xattrs(path: &Path) -> Result<Xattrs, DirectoryError> {
    let failed = |error: Errno| read(path)(error.into());
    let mut names = vec![0; MAX_XATTR];
    let len = match llistxattr(path, &mut names[..]) {
        Err(Errno::NOTSUP) => return Ok(BTreeMap::new()),
        len => len.map_err(failed)?,
    };
    let mut xattrs = BTreeMap::new();
    let names = names[..len].split(|byte| *byte == 0);
    for name in names.filter(|name| KEPT.iter().any(|kept| name.starts_with(kept))) {
        let mut value = vec![0; MAX_XATTR];
        let text = CString::new(name).expect("names end where a NUL is");
        let len = lgetxattr(path, &text, &mut value[..]).map_err(failed)?;
        xattrs.insert(name.into(), value[..len].into());
    }
    Ok(xattrs)
}

fn read(path: &Path) -> impl FnOnce(io::Error) -> DirectoryError + use<> {
    let path = path.to_owned();
    move |source| DirectoryError::Read { path, source }
}
