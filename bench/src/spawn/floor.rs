//! The floor: `floor.c`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;
use types::GuestMemorySize;

use crate::program::Program;

/// The least there is. Kernels differ in which of two calls they are quicker with first; the quicker one counts.
pub(crate) const BARE: [&str; 2] = ["slot", "chips"];
/// The same with a PIT, the timer that every PC has and forkd's VMs do without.
pub(crate) const WITH_PIT: &str = "pit";

/// What a round took, in microseconds.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Round {
    /// Until the last VM's first exit.
    pub(crate) wall_us: f64,
    /// CPU time of everybody together.
    pub(crate) cpu_us: f64,
    /// The mean time of each stage.
    pub(crate) stages_us: BTreeMap<String, f64>,
}

/// The running program.
#[derive(Debug)]
pub(crate) struct Floor(Program);

impl Floor {
    /// Compiles it in `dir` and starts it.
    pub(crate) fn start(dir: &Path, memory: GuestMemorySize) -> Result<Self> {
        Program::start(dir, "floor", include_str!("../../floor.c"), memory).map(Self)
    }

    /// Runs a round of `count` VMs.
    pub(crate) fn round(&mut self, count: usize, kind: &str) -> Result<Round> {
        self.0.ask(&format!("{count} {kind}"))
    }
}
