//! A forked child, as anybody finds it: by its directory, whoever made it.
//!
//! ```text
//! run/vms/<id>/vm.json         who it is; written before the child exists and never again
//!              control.sock    its process listens here; who listens is who it is
//!              vsock.sock      the way to its agent
//!              console.log, vmm.log
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use proto::control::ControlSocket;
use serde::{Deserialize, Serialize};
use types::{Dirs, Tag};

use crate::memory::{MemoryUse, memory_of};
use crate::pidfd::Process;
use crate::vmdir::{CHILD_PREFIX, all_vms, is_held};
use crate::{caller, console};

const RECORD: &str = "vm.json";
/// More than any record of ours holds.
const MAX_RECORD: u64 = 16 << 10;

/// What is written down about a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordV1 {
    pub(crate) id: String,
    pub(crate) tag: Tag,
    pub(crate) created_unix_ms: u64,
}

/// A forked child. It lives by itself: dropping this does nothing to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    record: RecordV1,
    path: PathBuf,
}

impl Child {
    pub(crate) const fn new(record: RecordV1, path: PathBuf) -> Self {
        Self { record, path }
    }

    /// All that live, oldest first. Changes nothing.
    pub(crate) fn all(dirs: &Dirs) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(all_vms(&dirs.run)) {
            Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let named = entries.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with(CHILD_PREFIX));
        let mut children = Vec::new();
        for entry in named {
            match Self::read(entry.path()) {
                Ok(Some(child)) => children.push(child),
                Ok(None) => {}
                Err(error) => log::warn!("{} tells nothing: {error}", entry.path().display()),
            }
        }
        children.sort_by(|one, two| {
            (one.record.created_unix_ms, &one.record.id).cmp(&(two.record.created_unix_ms, &two.record.id))
        });
        Ok(children)
    }

    /// The child that has this directory; `None` when it is dead.
    fn read(path: PathBuf) -> io::Result<Option<Self>> {
        if !is_held(&path)? {
            return Ok(None);
        }
        let file = match File::open(path.join(RECORD)) {
            Ok(file) => file,
            // Just being made, or just removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(MAX_RECORD).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let record: RecordV1 = serde_json::from_slice(&bytes)?;
        // A directory under another name is one that is being removed.
        let own_name = path.file_name().is_some_and(|name| name.to_str() == Some(record.id.as_str()));
        Ok(own_name.then(|| Self::new(record, path)))
    }

    pub(crate) fn write_record(&self) -> io::Result<()> {
        fs::write(self.path.join(RECORD), serde_json::to_vec(&self.record)?)
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// The snapshot it was forked from.
    #[must_use]
    pub const fn tag(&self) -> &Tag {
        &self.record.tag
    }

    /// When it was made, in milliseconds since 1970.
    #[must_use]
    pub const fn created_unix_ms(&self) -> u64 {
        self.record.created_unix_ms
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The host's end of its vsock device.
    #[must_use]
    pub fn vsock(&self) -> PathBuf {
        self.path.join("vsock.sock")
    }

    /// The serial console's last lines, fit for a terminal.
    #[must_use]
    pub fn console_tail(&self) -> String {
        console::tail(&self.path.join("console.log"))
    }

    /// The last lines its VMM logged, fit for a terminal.
    #[must_use]
    pub fn log_tail(&self) -> String {
        console::tail(&self.path.join("vmm.log"))
    }

    /// Whether it lives.
    ///
    /// # Errors
    /// When its directory cannot be looked at.
    pub fn is_alive(&self) -> io::Result<bool> {
        is_held(&self.path)
    }

    /// Its process; `None` when it has none yet or any more.
    ///
    /// # Errors
    /// When its socket cannot be called.
    pub fn pid(&self) -> io::Result<Option<i32>> {
        Ok(self.call()?.map(|(_, process)| process.pid()))
    }

    /// What its memory costs now; `None` when it has no process.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn memory(&self) -> io::Result<Option<MemoryUse>> {
        self.pid()?.map(memory_of).transpose()
    }

    /// A connection to its VMM, and the process that is at the other end.
    pub(crate) fn call(&self) -> io::Result<Option<(ControlSocket, Process)>> {
        let Some(caller) = caller::call(&self.path.join("control.sock"))? else { return Ok(None) };
        Ok(Process::of_listener(&caller)?.map(|process| (caller, process)))
    }
}
