//! What is written down about a running machine, so that the next forkd finds it.
//!
//! ```text
//!            QEMU started             the agent said hello
//! (no file) ─────────────> Starting ──────────────────────> Ready ──> (no file)
//!                             └── its starter is gone: an orphan, to be killed
//! ```
//!
//! The file says what was; whether it still is, the process says. It may be damaged, old, or another's: nothing in it
//! is believed beyond that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::MachineError;
use crate::layout::Layout;
use crate::process::Identity;

/// The only format so far.
const FORMAT: u32 = 1;
/// Far more than any state needs.
const MAX_STATE: u64 = 64 << 10;

/// A machine that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateV1 {
    format: u32,
    pub(crate) phase: Phase,
    /// The QEMU process.
    pub(crate) process: Identity,
    /// The loopback port that leads to the agent.
    pub(crate) port: u16,
    pub(crate) parts: Parts,
    pub(crate) cpus: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) started_unix_s: u64,
    /// `uname -r` inside; empty while starting.
    pub(crate) kernel: String,
}

/// How far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Starting,
    Ready,
}

/// What a machine is made of. Two machines of equal parts are the same machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parts {
    /// Of the protocol this forkd speaks.
    pub(crate) generation: u16,
    /// Which root filesystem.
    pub(crate) root: String,
    /// Which kernel.
    pub(crate) kernel: String,
    /// The agent's digest.
    pub(crate) agent: String,
}

impl Parts {
    /// What differs, in words; `None` when nothing does.
    pub(crate) fn difference(&self, wanted: &Self) -> Option<&'static str> {
        let pairs = [
            (self.generation == wanted.generation, "another version of forkd"),
            (self.root == wanted.root, "another root filesystem"),
            (self.kernel == wanted.kernel, "another kernel"),
            (self.agent == wanted.agent, "another build of the agent"),
        ];
        pairs.into_iter().find_map(|(same, what)| (!same).then_some(what))
    }
}

impl StateV1 {
    pub(crate) fn starting(process: Identity, port: u16, parts: Parts, size: Size) -> Self {
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let Size { cpus, memory_bytes } = size;
        Self {
            format: FORMAT,
            phase: Phase::Starting,
            process,
            port,
            parts,
            cpus,
            memory_bytes,
            started_unix_s: started.as_secs(),
            kernel: String::new(),
        }
    }

    /// What is written down; `None` when nothing is.
    pub(crate) fn read(layout: &Layout) -> Result<Option<Self>, MachineError> {
        let path = layout.state();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MachineError::Io { doing: "read", path, source }),
        };
        let mut bytes = Vec::new();
        file.take(MAX_STATE).read_to_end(&mut bytes).map_err(MachineError::io("read", &path))?;
        match serde_json::from_slice::<Self>(&bytes) {
            Ok(state) if state.format == FORMAT => Ok(Some(state)),
            Ok(state) => {
                let why = format!("it is of format {}, this forkd reads {FORMAT}", state.format);
                Err(MachineError::DamagedState { path, why })
            }
            Err(error) => Err(MachineError::DamagedState { path, why: error.to_string() }),
        }
    }

    /// Replaces what is written down, at once and whole.
    pub(crate) fn write(&self, layout: &Layout) -> Result<(), MachineError> {
        let path = layout.state();
        let json = serde_json::to_vec_pretty(self).map_err(io::Error::from);
        json.and_then(|json| replace(&path, &json)).map_err(MachineError::io("write", &path))
    }
}

/// How large a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) cpus: u32,
    pub(crate) memory_bytes: u64,
}

/// Writes a file readable by its owner alone, so that it has its old content or its new one, never half of either.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut staged = tempfile::NamedTempFile::new_in(dir)?;
    staged.write_all(content)?;
    staged.persist(path)?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use proptest::prelude::*;
    use types::Dirs;

    use super::*;
    use crate::process::Process;

    pub(crate) fn layout() -> (tempfile::TempDir, Layout) {
        let home = tempfile::tempdir().unwrap();
        let layout = Layout::new(&Dirs::under(home.path()));
        layout.create_run().unwrap();
        (home, layout)
    }

    pub(crate) fn parts() -> Parts {
        Parts { generation: 1, root: "r".into(), kernel: "k".into(), agent: "a".into() }
    }

    pub(crate) fn state_of(pid: i32) -> StateV1 {
        let identity = Process::with_pid(pid).unwrap().unwrap().identity().clone();
        StateV1::starting(identity, 1, parts(), Size { cpus: 2, memory_bytes: 4 << 30 })
    }

    fn own_state() -> StateV1 {
        state_of(i32::try_from(std::process::id()).unwrap())
    }

    #[test]
    fn what_was_written_is_read() {
        let (_home, layout) = layout();
        assert_eq!(StateV1::read(&layout).unwrap(), None);
        let state = own_state();
        state.write(&layout).unwrap();
        assert_eq!(StateV1::read(&layout).unwrap(), Some(state));
    }

    #[test]
    fn damage_and_other_formats_are_told() {
        let (_home, layout) = layout();
        let text = serde_json::to_string(&StateV1 { format: 2, ..own_state() }).unwrap();
        for (content, word) in [("", "EOF"), ("{\"format\":1", "EOF"), ("[]", "invalid"), (&text, "format 2")] {
            fs::write(layout.state(), content).unwrap();
            let error = StateV1::read(&layout).unwrap_err();
            assert!(matches!(error, MachineError::DamagedState { .. }));
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn a_difference_is_named() {
        let other = Parts { agent: "b".into(), ..parts() };
        assert_eq!(parts().difference(&parts()), None);
        assert_eq!(parts().difference(&other), Some("another build of the agent"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (_home, layout) = layout();
            fs::write(layout.state(), bytes).unwrap();
            drop(StateV1::read(&layout));
        }
    }
}
