//! What is written down about a running template.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::pidfd::{Process, begun_at};

const FILE: &str = "template.json";

/// Which snapshot a template holds, and which process it is. The socket does not say the latter: it was made to listen
/// by whoever started the template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordV1 {
    pub(super) snapshot: String,
    pub(super) pid: i32,
    begun: u64,
}

impl RecordV1 {
    pub(super) fn of(snapshot: &str, pid: i32) -> io::Result<Option<Self>> {
        Ok(begun_at(pid)?.map(|begun| Self { snapshot: snapshot.into(), pid, begun }))
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
