//! What is written down about a running template.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use proto::control::VmUid;
use serde::{Deserialize, Serialize};

use crate::pidfd::{Process, begun_at};

const FILE: &str = "template.json";

/// A template that was just made, by whoever.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) process: Process,
    pub(crate) tops: u8,
    pub(crate) uid: Option<VmUid>,
}

/// Which snapshot a template holds, and which process it is. The socket does not say the latter: it was made to listen
/// by whoever started the template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordV1 {
    pub(super) snapshot: String,
    pub(super) pid: i32,
    begun: u64,
    /// How many tops each child needs.
    pub(super) tops: u8,
    /// As whom it runs, if that is not who started it: then its children are of the same user.
    pub(super) uid: Option<VmUid>,
}

impl RecordV1 {
    /// `None` when it is over.
    pub(super) fn of(snapshot: &str, made: &Made) -> io::Result<Option<Self>> {
        let Made { process, tops, uid } = made;
        let pid = process.pid();
        let Some(begun) = begun_at(pid)? else { return Ok(None) };
        let record = Self { snapshot: snapshot.into(), pid, begun, tops: *tops, uid: *uid };
        // As long as it lives the number is its own, and so is what was read under it.
        Ok((!process.wait(Instant::now())?).then_some(record))
    }

    /// `None` as well when it cannot be understood: then the template counts as half started.
    pub(super) fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()
    }

    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        let staged = dir.join("template.json.new");
        fs::write(&staged, serde_json::to_vec(self)?)?;
        fs::rename(&staged, dir.join(FILE))
    }

    /// The process, if it is still the one that was meant.
    pub(super) fn process(&self) -> io::Result<Option<Process>> {
        Process::open_begun(self.pid, self.begun)
    }
}
