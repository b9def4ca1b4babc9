//! A run in a fork of a snapshot.

use std::process::ExitCode;
use std::time::Duration;

use engine::{ChildOptions, ForkSpec, Lifetime, Results, fork};
use types::Tag;

use super::Run;
use crate::interrupts::Interrupts;
use crate::joined;

/// How long the child may take to be ready.
const LIMIT: Duration = Duration::from_secs(120);

impl Run<'_> {
    /// The child's life hangs on ours: whatever ends us ends it.
    pub(super) fn forked(&mut self, tag: &Tag) -> anyhow::Result<ExitCode> {
        self.timings.set("place", "local");
        let interrupts = Interrupts::catch()?;
        let spec = ForkSpec {
            tag: tag.clone(),
            children: vec![ChildOptions::default()],
            lifetime: Lifetime::Connection,
            results: Results::AllOrNothing,
            limit: LIMIT,
            cancel: Some(interrupts.cancel()),
        };
        let stage = self.progress.stage("Forking a VM", None);
        let forked = match fork(&spec, &self.dirs) {
            Ok(forked) => forked,
            Err(error) => {
                return interrupts.fatal().map_or_else(|| Err(error.into()), |signal| Ok(self.stopped_by(signal)));
            }
        };
        drop(stage);
        self.timings.lap("fork_us");
        let Some(Ok(ready)) = forked.children.first() else { anyhow::bail!("there is no child") };
        let ended = joined::exec(&ready.child, &self.args.request(self.stdio), &interrupts);
        self.timings.lap("command_us");
        let killed = engine::kill(&ready.child);
        if let Some(signal) = interrupts.fatal() {
            return Ok(self.stopped_by(signal));
        }
        let ended = ended?;
        killed?;
        Ok(self.tell(ended))
    }
}
