//! Network namespaces with a name, where every tool looks for them (`/run/netns`).
//!
//! A namespace is kept by its name alone, so it outlives whoever made it. Whether somebody still uses one is said by its
//! tap: a tap is there as long as its descriptor is open, first in the pool, then in the VMM. A namespace without one is
//! nobody's and may be removed by anybody; so while one is made, or gets a new tap, [`Directory::making`] is held, and
//! [`Directory::sweeping`] by whoever removes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;
use rustix::thread::LinkNameSpaceType;

use crate::plan::Number;
use crate::sys;

const LOCK: &str = ".forkd.lock";
const OWN: &str = "/proc/thread-self/ns/net";

/// Where namespaces have their names.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Default for Directory {
    fn default() -> Self {
        Self::at("/run/netns")
    }
}

impl Directory {
    /// Another than the usual one; tests have their own.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// While it is held nobody sweeps.
    pub(crate) fn making(&self) -> io::Result<File> {
        self.lock(FlockOperation::LockShared)
    }

    /// While it is held nobody makes.
    pub(crate) fn sweeping(&self) -> io::Result<File> {
        self.lock(FlockOperation::LockExclusive)
    }

    fn lock(&self, operation: FlockOperation) -> io::Result<File> {
        fs::create_dir_all(&self.path)?;
        // Nobody else may hold it: who does stops the making of networks.
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(self.path.join(LOCK))?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation))?;
        Ok(file)
    }

    /// The networks that have a name here, whoever they belong to.
    pub(crate) fn list(&self) -> io::Result<Vec<Number>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            numbers.extend(entry?.file_name().to_str().and_then(Number::of_namespace));
        }
        Ok(numbers)
    }

    fn name(&self, number: Number) -> PathBuf {
        self.path.join(number.namespace())
    }

    /// Makes the namespace of that number; `None` when there is one, which is how numbers are given out.
    pub(crate) fn make(&self, number: Number) -> io::Result<Option<Namespace>> {
        let path = self.name(number);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            file => drop(file?),
        }
        let made = on_a_thread(|| {
            sys::leave_network()?;
            rustix::mount::mount_bind(OWN, &path)?;
            File::open(&path)
        });
        if made.is_err() {
            self.remove(number)?;
        }
        Ok(Some(Namespace { fd: made? }))
    }

    /// The namespace that has that name.
    pub(crate) fn open(&self, number: Number) -> io::Result<Namespace> {
        Ok(Namespace { fd: File::open(self.name(number))? })
    }

    /// Whether the name still is that of this namespace: it may have been swept, and given to another.
    pub(crate) fn has(&self, number: Number, namespace: &Namespace) -> io::Result<bool> {
        let named = match fs::metadata(self.name(number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            named => named?,
        };
        let own = namespace.fd.metadata()?;
        Ok((named.dev(), named.ino()) == (own.dev(), own.ino()))
    }

    /// Takes the name away; the namespace goes when nobody uses it any more.
    pub(crate) fn remove(&self, number: Number) -> io::Result<()> {
        let path = self.name(number);
        match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
            // Whoever made it was killed before it was one.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        fs::remove_file(&path)
    }

    /// Does something in the namespace that has that name here, whoever made it.
    ///
    /// # Errors
    /// When there is none, or this process may not enter it; and whatever the work says.
    pub fn enter<T: Send>(&self, name: &str, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        if name.contains('/') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Namespace { fd: File::open(self.path.join(name))? }.inside(work)
    }

    /// Where the names are.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    fd: File,
}

impl Namespace {
    /// That of this thread.
    pub(crate) fn own() -> io::Result<Self> {
        Ok(Self { fd: File::open(OWN)? })
    }

    /// Does something inside, on a thread that is nowhere else and ends with it: what it opens stays inside.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            rustix::thread::move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".into()).spawn_scoped(scope, work)?;
        worker.join().unwrap_or_else(|_| Err(io::Error::other("a thread inside a network namespace panicked")))
    })
}
