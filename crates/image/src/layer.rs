//! Files that lie over an image: an archive that depends on nothing but their names, contents and who may run them.
//!
//! Owners, modes and times of this computer say nothing about a guest, so they are what the recipe says, or usual. What
//! is in a directory is found without following a link: neither one that was there, nor one that comes while it is read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, statat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

/// More files belong into an image.
const MAX_ENTRIES: usize = 1 << 17;
/// As deep as paths go.
const MAX_DEPTH: usize = 128;
const DIRECTORY: u32 = 0o755;
const EXECUTABLE: u32 = 0o755;
const PLAIN: u32 = 0o644;

/// Files that cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// Something cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A link on the way.
    #[error("{} leads through a symbolic link, and those are not followed; name what it leads to", path.display())]
    Link {
        /// Where.
        path: PathBuf,
    },
    /// Neither a file, a directory nor a link.
    #[error("{} is neither a file, a directory nor a link, and cannot be copied", path.display())]
    Kind {
        /// What.
        path: PathBuf,
    },
    /// Too much.
    #[error("{} has more than {MAX_ENTRIES} files, or is more than {MAX_DEPTH} deep", path.display())]
    TooMany {
        /// What was to be copied.
        path: PathBuf,
    },
    /// The archive cannot be written.
    #[error("cannot write what is copied into the image")]
    Write {
        /// Why.
        source: io::Error,
    },
}

/// How files look in the guest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// The mode of files, for all of them.
    pub(crate) mode: Option<u16>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Look {
    /// It is not root's, as what is made by the way is.
    const fn is_owned(self) -> bool {
        self.uid != 0 || self.gid != 0
    }
}

/// An archive that is being written.
pub(crate) struct Layer<W: Write> {
    archive: Builder<W>,
}

impl<W: Write> Layer<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { archive: Builder::new(out) }
    }

    /// Its end is written, and what it was written to handed back.
    pub(crate) fn finish(self) -> Result<W, LayerError> {
        self.archive.into_inner().map_err(written)
    }

    /// A file at a place of the guest's.
    pub(crate) fn file(
        &mut self,
        to: &str,
        look: Look,
        executable: bool,
        len: u64,
        contents: impl Read,
    ) -> Result<(), LayerError> {
        let usual = if executable { EXECUTABLE } else { PLAIN };
        let mut header = header(EntryType::Regular, look.mode.map_or(usual, u32::from), look);
        header.set_size(len);
        // The archive has room for so many bytes, whatever became of the file meanwhile.
        let exactly = Exactly { contents, left: len };
        self.archive.append_data(&mut header, inside(to), exactly).map_err(written)
    }

    /// A directory.
    pub(crate) fn directory(&mut self, to: &str, look: Look) -> Result<(), LayerError> {
        let mut header = header(EntryType::Directory, DIRECTORY, look);
        self.archive.append_data(&mut header, inside(to), io::empty()).map_err(written)
    }

    fn link(&mut self, to: &str, look: Look, target: &Path) -> Result<(), LayerError> {
        let mut header = header(EntryType::Symlink, 0o777, look);
        self.archive.append_link(&mut header, inside(to), target).map_err(written)
    }

    /// What `from` names in the directory, with all that is in it.
    pub(crate) fn copy(&mut self, dir: &Path, from: &str, to: &str, look: Look) -> Result<(), LayerError> {
        let path = dir.join(from);
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let root = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(read(dir))?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = match openat2(&root, from, flags, Mode::empty(), beneath) {
            Err(Errno::LOOP | Errno::XDEV) => return Err(LayerError::Link { path }),
            opened => opened.map_err(read(&path))?,
        };
        self.opened(opened, &path, to, look)
    }

    /// All that is in a directory of ours, below a place of the guest's.
    pub(crate) fn tree(&mut self, dir: &Path, to: &str) -> Result<(), LayerError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, flags, Mode::empty()).map_err(read(dir))?;
        self.opened(opened, dir, to, Look::default())
    }

    fn opened(&mut self, fd: OwnedFd, path: &Path, to: &str, look: Look) -> Result<(), LayerError> {
        let meta = rustix::fs::fstat(&fd).map_err(read(path))?;
        match FileType::from_raw_mode(meta.st_mode) {
            FileType::RegularFile => self.plain(File::from(fd), path, to, look),
            FileType::Directory => self.walk(fd, path, to, look),
            _ => Err(LayerError::Kind { path: path.into() }),
        }
    }

    fn plain(&mut self, file: File, path: &Path, to: &str, look: Look) -> Result<(), LayerError> {
        let meta = rustix::fs::fstat(&file).map_err(read(path))?;
        let len = u64::try_from(meta.st_size).unwrap_or(0);
        let file = Named { file, path };
        self.file(to, look, meta.st_mode & 0o100 != 0, len, file)
    }

    /// Without recursion, and in an order that the file system does not choose.
    fn walk(&mut self, dir: OwnedFd, path: &Path, to: &str, look: Look) -> Result<(), LayerError> {
        let mut waiting = vec![(dir, path.to_owned(), to.to_owned(), 0)];
        let mut count = 0;
        while let Some((dir, path, to, depth)) = waiting.pop() {
            let names = names(&dir, &path)?;
            // What is put into a directory makes it, unless it is there.
            if names.is_empty() || look.is_owned() {
                self.directory(&to, look)?;
            }
            count += names.len();
            if count > MAX_ENTRIES || depth > MAX_DEPTH {
                return Err(LayerError::TooMany { path });
            }
            let mut below = Vec::new();
            for name in names {
                let (inside, to) = (path.join(&name), format!("{to}/{name}"));
                let meta = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(read(&inside))?;
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let open = || openat(&dir, &name, flags, Mode::empty()).map_err(read(&inside));
                match FileType::from_raw_mode(meta.st_mode) {
                    FileType::RegularFile => self.plain(File::from(open()?), &inside, &to, look)?,
                    FileType::Directory => below.push((open()?, inside, to, depth + 1)),
                    FileType::Symlink => {
                        let target = readlinkat(&dir, &name, Vec::new()).map_err(read(&inside))?;
                        let target = std::ffi::OsStr::from_bytes(target.as_bytes());
                        self.link(&to, look, Path::new(target))?;
                    }
                    _ => return Err(LayerError::Kind { path: inside }),
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }
}

/// What is in a directory, sorted.
fn names(dir: &OwnedFd, path: &Path) -> Result<Vec<String>, LayerError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir.as_fd()).map_err(read(path))? {
        let entry = entry.map_err(read(path))?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            let name = std::str::from_utf8(name).map_err(|_| {
                let name = path.join(std::ffi::OsStr::from_bytes(name));
                LayerError::Read {
                    path: name,
                    source: io::Error::new(io::ErrorKind::InvalidInput, "its name is no text"),
                }
            })?;
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn header(kind: EntryType, mode: u32, look: Look) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(look.uid.into());
    header.set_gid(look.gid.into());
    header.set_mtime(0);
    header.set_size(0);
    header
}

/// A guest's path as archives have it.
fn inside(to: &str) -> &str {
    to.trim_start_matches('/')
}

fn read<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> LayerError {
    let path = path.to_owned();
    move |source| LayerError::Read { path, source: source.into() }
}

/// What cannot be read comes through the archive as well, and says which file it was.
fn written(error: io::Error) -> LayerError {
    match error.downcast::<LayerError>() {
        Ok(error) => error,
        Err(source) => LayerError::Write { source },
    }
}

/// A file whose errors say which it is.
struct Named<'a> {
    file: File,
    path: &'a Path,
}

impl Read for Named<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer).map_err(|source| io::Error::other(LayerError::Read { path: self.path.into(), source }))
    }
}

/// So many bytes and not one more or less; a file that became shorter is an error.
struct Exactly<R> {
    contents: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let len = self.contents.read(&mut buffer[..room])?;
        if len == 0 && room > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file became shorter while it was copied"));
        }
        self.left -= len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests;
