//! A run in a fork of a snapshot, by way of the daemon.

use std::process::ExitCode;

use api::ForkSnapshot;
use types::Tag;

use super::Run;
use crate::attached::fork;
use crate::interrupts::Interrupts;
use crate::joined;

/// How long the sandbox may take to be ready.
const LIMIT_SECS: f64 = 120.0;

impl Run<'_> {
    /// The sandbox's life hangs on ours: whatever ends us ends it.
    pub(super) fn forked(&mut self, tag: &Tag) -> anyhow::Result<ExitCode> {
        let client = self.args.daemon.client()?;
        self.timings.lap("daemon_us");
        let interrupts = Interrupts::catch()?;
        let stage = self.progress.stage("Forking a VM", None);
        let (egress, network_limits) = (self.args.network.policy(), self.args.network.limits());
        let timeout_secs = Some(LIMIT_SECS);
        let one = ForkSnapshot { n: 1, timeout_secs, egress, network_limits, ..ForkSnapshot::default() };
        let Some(forked) = fork(&client, tag, one, &interrupts)? else {
            return Ok(interrupts.fatal().map_or(ExitCode::FAILURE, |signal| self.stopped_by(signal)));
        };
        drop(stage);
        self.timings.lap("fork_us");
        let ended = joined::exec(&client, forked.only()?, &self.args.asked(self.stdio), &interrupts);
        self.timings.lap("command_us");
        let killed = forked.end(&client);
        if let Some(signal) = interrupts.fatal() {
            return Ok(self.stopped_by(signal));
        }
        let ended = ended?;
        killed?;
        Ok(self.tell(ended))
    }
}
