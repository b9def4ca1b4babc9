//! `forkd snapshot --from-sandbox`: a snapshot of a sandbox that runs on.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio as Piped};

use anyhow::Context;
use clap::Args;
use engine::{Branch, BranchSpec, Child, Extent, Kept, Store, branch, default_tag, find};
use serde::{Deserialize, Serialize};
use session::Stdio;
use types::{Dirs, Tag};

use crate::forward::{Forward, Need};
use crate::interrupts::Interrupts;
use crate::table::bytes;
use crate::{output, progress, stream};

/// What is asked about a branch.
#[derive(Clone, Debug, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line and stands by itself")]
pub(crate) struct BranchArgs {
    /// Takes a sandbox as it is now, instead of booting a VM; it runs on after a pause of milliseconds
    #[arg(long, value_name = "ID", conflicts_with_all = ["force", "recipe", "kernel", "initramfs", "image"])]
    pub(crate) from_sandbox: Option<String>,
    /// Stores what differs from the snapshot the sandbox was forked from (this is what is done unless you say --full)
    #[arg(long, requires = "from_sandbox")]
    diff: bool,
    /// The same: every branch is taken while the sandbox runs
    #[arg(long, requires = "from_sandbox", conflicts_with = "diff")]
    live: bool,
    /// Stores all of it, so that it needs no other snapshot
    #[arg(long, requires = "from_sandbox", conflicts_with_all = ["diff", "live"])]
    full: bool,
    /// Returns when the sandbox runs on; the snapshot can be forked at once and is written in the background
    #[arg(long, requires = "from_sandbox")]
    no_wait: bool,
    /// Prints JSON
    #[arg(long, requires = "from_sandbox")]
    json: bool,
    /// Says on standard output when the sandbox runs on, and nothing else; for a forkd that does not wait
    #[arg(long, requires = "from_sandbox", hide = true)]
    announce: bool,
}

/// What is told of a branch, in the words of the published interface.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Told {
    tag: Tag,
    dir: String,
    branched_from: String,
    status: String,
    pause_ms: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disk_bytes: Option<u64>,
}

impl Told {
    fn writing(branch: &Branch, child: &Child, dirs: &Dirs) -> Self {
        Self {
            tag: branch.tag().clone(),
            dir: Store::new(dirs).path(branch.tag()).display().to_string(),
            branched_from: child.id().to_owned(),
            status: "writing".into(),
            pause_ms: milliseconds(branch.pause_us()),
            memory_bytes: None,
            disk_bytes: None,
        }
    }

    fn ready(self, kept: &Kept) -> Self {
        let (memory_bytes, disk_bytes) = (Some(kept.memory_bytes), Some(kept.disk_bytes));
        Self { status: "ready".into(), memory_bytes, disk_bytes, ..self }
    }

    fn text(&self) -> String {
        let Self { tag, dir, branched_from, status, pause_ms, .. } = self;
        let mut text = format!("tag: {tag}\ndir: {dir}\nbranched_from: {branched_from}\nstatus: {status}");
        text += &format!("\npause_ms: {pause_ms:.3}");
        if let (Some(memory), Some(disk)) = (self.memory_bytes, self.disk_bytes) {
            text += &format!("\nstored: {} of memory, {} of disk", bytes(memory), bytes(disk));
        }
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "a pause is far below the point where this matters")]
fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

impl BranchArgs {
    /// Branches the sandbox with this id.
    pub(crate) fn run(&self, id: &str, tag: Option<&Tag>) -> anyhow::Result<ExitCode> {
        let dirs = Dirs::from_env()?;
        let away = Forward { need: Need::Running, stdio: Stdio::Output, doing: Some("Branching in the emulated host") };
        if let Some(code) = away.away(&dirs)? {
            return Ok(code);
        }
        let child = find(id, &dirs)?;
        let tag = tag.map_or_else(|| default_tag(&child), |tag| Ok(tag.clone()))?;
        if self.no_wait {
            return self.in_background(&child, &tag);
        }
        if self.announce {
            return self.announced(&child, tag, &dirs);
        }
        let interrupts = Interrupts::catch()?;
        let spec = BranchSpec { child: child.clone(), tag, extent: self.extent() };
        let branch = branch(spec, &dirs)?;
        let told = Told::writing(&branch, &child, &dirs);
        let stage = progress::reporter(false).stage("Writing the branch", None);
        let kept = branch.keep(Some(&interrupts.cancel()));
        drop(stage);
        match (kept, interrupts.fatal()) {
            (Ok(kept), _) => {
                self.tell(&told.ready(&kept))?;
                Ok(ExitCode::SUCCESS)
            }
            (Err(_), Some(signal)) => Ok(stream::killed_by(signal)),
            (Err(error), None) => Err(error.into()),
        }
    }

    const fn extent(&self) -> Extent {
        if self.full { Extent::Full } else { Extent::Diff }
    }

    fn tell(&self, told: &Told) -> anyhow::Result<()> {
        let text = if self.json { serde_json::to_string(told)? } else { told.text() };
        output::line(&text)
    }

    /// Another forkd branches and writes; this one leaves as soon as the sandbox runs on.
    fn in_background(&self, child: &Child, tag: &Tag) -> anyhow::Result<ExitCode> {
        let forkd = std::env::current_exe().context("cannot find forkd itself")?;
        let mut command = Command::new(forkd);
        command.args(["snapshot", "--announce", "--from-sandbox", child.id(), "--tag", tag.as_str()]);
        command.args(self.full.then_some("--full"));
        // What it has to say until then it says itself.
        command.stdin(Piped::null()).stdout(Piped::piped());
        let mut started = command.spawn().context("cannot start another forkd")?;
        let mut line = String::new();
        BufReader::new(started.stdout.take().context("its output")?).read_line(&mut line)?;
        if line.is_empty() {
            let ended = started.wait()?;
            return Ok(ended.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from));
        }
        self.tell(&serde_json::from_str(&line).context("another forkd said something else")?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// That other forkd. When it says that the sandbox runs on it has let go of standard error, and then of standard output:
    /// nobody listens to it any more, and what becomes of the snapshot is in the store.
    fn announced(&self, child: &Child, tag: Tag, dirs: &Dirs) -> anyhow::Result<ExitCode> {
        rustix::process::setsid().context("cannot leave the terminal")?;
        let branch = branch(BranchSpec { child: child.clone(), tag, extent: self.extent() }, dirs)?;
        let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stderr(&nowhere)?;
        output::line(&serde_json::to_string(&Told::writing(&branch, child, dirs))?)?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        branch.keep(None)?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_the_published_clients_read() {
        let told = Told {
            tag: "b".parse().unwrap(),
            dir: "/d/b".into(),
            branched_from: "sb-1".into(),
            status: "ready".into(),
            pause_ms: 1.5,
            memory_bytes: Some(8192),
            disk_bytes: Some(0),
        };
        let text = told.text();
        assert!(text.starts_with("tag: b\ndir: /d/b\nbranched_from: sb-1\nstatus: ready\npause_ms: 1.500\n"), "{text}");
        let json = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<Told>(&json).unwrap(), told);
    }
}
