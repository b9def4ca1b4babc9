//! A forked child, as anybody finds it: by its directory, whoever made it.
//!
//! ```text
//! run/vms/<id>/vm.json         who it is; written before the child exists and never again
//!              control.sock    its process listens here; who listens is who it is
//!              vsock.sock      the way to its agent
//!              state           what it says of itself, and the lock that says that it lives
//!              console.log, vmm.log
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use proto::control::{CONSOLE, CONTROL, Condition, ControlSocket, LOG, STATE, VSOCK, Violation, VmUid};
use serde::{Deserialize, Serialize};
use store::Manifest;
use types::{Dirs, Tag};

use crate::cgroup::{self, Hits, Limits, MemoryLimit};
use crate::memory::{MemoryUse, memory_of};
use crate::pidfd::Process;
use crate::vmdir::{CHILD_PREFIX, all_vms, is_held};
use crate::{caller, console};

const RECORD: &str = "vm.json";
/// More than any record of ours holds.
const MAX_RECORD: u64 = 16 << 10;
/// What is known of a snapshot and needs more room than this is not written down for each child.
pub(crate) const MAX_BASE: usize = 8 << 10;

/// What is written down about a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordV1 {
    pub(crate) id: String,
    pub(crate) tag: Tag,
    /// The id of the snapshot that had the tag.
    pub(crate) snapshot: String,
    pub(crate) created_unix_ms: u64,
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub(crate) limits: Limits,
    /// Whether it has a control group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_group: bool,
    /// Who has to know it, if anybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// As whom its process runs, if as somebody else than who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<VmUid>,
    /// How many of its disks it writes to.
    #[serde(default)]
    pub(crate) tops: u8,
    /// What is known of its snapshot without the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<Box<Manifest>>,
}

/// What ended a child, where the host knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Death {
    /// It needed more memory than it may have.
    #[error("sandbox {id} ran out of its memory limit of {limit} and was ended")]
    OutOfMemory {
        /// Which child.
        id: String,
        /// What it may have.
        limit: MemoryLimit,
    },
    /// Its VMM wanted something of the host that it may not have.
    #[error(
        "the VMM of sandbox {id} made system call {call} in a thread of kind `{thread}`, which may not make it, and was \
         ended; either its guest took it over or forkd forgot that it needs it"
    )]
    Forbidden {
        /// Which child.
        id: String,
        /// Which kind of thread.
        thread: String,
        /// The call's number on x86-64.
        call: u32,
    },
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
        Self::those(dirs, true)
    }

    /// All that are dead and have not been swept yet, oldest first. Changes nothing.
    pub(crate) fn dead(dirs: &Dirs) -> io::Result<Vec<Self>> {
        Self::those(dirs, false)
    }

    fn those(dirs: &Dirs, alive: bool) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(all_vms(&dirs.run)) {
            Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let named = entries.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with(CHILD_PREFIX));
        let mut children = Vec::new();
        for entry in named {
            match Self::read(entry.path(), alive) {
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

    /// The child with exactly this id, and whether it lives. An id is a name of ours or nobody's: it never leads elsewhere.
    pub(crate) fn named(id: &str, dirs: &Dirs) -> io::Result<Option<(Self, bool)>> {
        let is_ours = id.starts_with(CHILD_PREFIX) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !is_ours {
            return Ok(None);
        }
        let path = all_vms(&dirs.run).join(id);
        let alive = is_held(&path)?;
        Ok(Self::read(path, alive)?.map(|child| (child, alive)))
    }

    /// The child that has this directory, if it is of these.
    fn read(path: PathBuf, alive: bool) -> io::Result<Option<Self>> {
        if is_held(&path)? != alive {
            return Ok(None);
        }
        let Some(record) = Self::read_record(&path)? else { return Ok(None) };
        // A directory under another name is one that is being removed.
        let own_name = path.file_name().is_some_and(|name| name.to_str() == Some(record.id.as_str()));
        Ok(own_name.then(|| Self::new(record, path)))
    }

    /// Who has this directory, or had it.
    pub(crate) fn read_record(path: &Path) -> io::Result<Option<RecordV1>> {
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
        Ok(serde_json::from_slice(&bytes)?)
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

    /// The id of that snapshot: the tag may have come to mean another one.
    pub(crate) fn snapshot(&self) -> &str {
        &self.record.snapshot
    }

    /// When it was made, in milliseconds since 1970.
    #[must_use]
    pub const fn created_unix_ms(&self) -> u64 {
        self.record.created_unix_ms
    }

    /// Who has to know it, if whoever made it said so.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.record.owner.as_deref()
    }

    /// What it may use at most.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.record.limits
    }

    /// What ended it, if the host knows; whoever loses a connection to it asks here. It is known until what the dead left
    /// is swept.
    #[must_use]
    pub fn cause_of_death(&self) -> Option<Death> {
        let condition = self.condition().unwrap_or_else(|error| {
            log::warn!("what {} said of itself cannot be read: {error}", self.id());
            Condition::default()
        });
        if let Some(Violation { thread, call }) = condition.violation {
            return Some(Death::Forbidden { id: self.id().into(), thread, call });
        }
        let limit = self.record.limits.memory?;
        let hits = self.hits().unwrap_or_else(|error| {
            log::warn!("whether {} ran out of memory cannot be found out: {error}", self.id());
            Hits::default()
        });
        hits.oom_killed.then(|| Death::OutOfMemory { id: self.id().into(), limit })
    }

    /// Which of its limits it has hit. It is known until what the dead left is swept.
    ///
    /// # Errors
    /// When its group cannot be looked at.
    pub fn hits(&self) -> io::Result<Hits> {
        let hits = if self.record.has_group { cgroup::hits(self.id())? } else { Hits::default() };
        Ok(Hits { disk_full: self.record.limits.disk.is_some() && self.condition()?.disk_full, ..hits })
    }

    /// What its VMM says of itself.
    pub(crate) fn condition(&self) -> io::Result<Condition> {
        match File::open(self.path.join(STATE)) {
            Ok(state) => Condition::read(&state),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Condition::default()),
            Err(error) => Err(error),
        }
    }

    /// As whom its process runs, if as somebody else than who made it.
    pub(crate) const fn uid(&self) -> Option<VmUid> {
        self.record.uid
    }

    /// How many of its disks it writes to.
    pub(crate) const fn tops(&self) -> u8 {
        self.record.tops
    }

    /// What is known of its snapshot, without its layers, though that be gone.
    pub(crate) fn base(&self) -> Option<&Manifest> {
        self.record.base.as_deref()
    }

    /// Whether it has a control group.
    pub(crate) const fn has_group(&self) -> bool {
        self.record.has_group
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The host's end of its vsock device.
    #[must_use]
    pub fn vsock(&self) -> PathBuf {
        self.path.join(VSOCK)
    }

    /// The serial console's last lines, fit for a terminal.
    #[must_use]
    pub fn console_tail(&self) -> String {
        console::tail(&self.path.join(CONSOLE))
    }

    /// The last lines its VMM logged, fit for a terminal.
    #[must_use]
    pub fn log_tail(&self) -> String {
        console::tail(&self.path.join(LOG))
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
        let Some(caller) = caller::call(&self.path.join(CONTROL))? else { return Ok(None) };
        Ok(Process::of_listener(&caller, self.uid())?.map(|process| (caller, process)))
    }
}
