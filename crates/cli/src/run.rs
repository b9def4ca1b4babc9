//! `forkd run`: a VM for one command.

mod args;
mod forked;
mod local;

use std::process::ExitCode;

use anyhow::Context;
pub(crate) use args::{GuestArgs, Image, ProcessArgs, RunArgs, parse_variable};
use engine::place::{Place, place};
use session::Stdio;
use types::Dirs;
use types::progress::Progress;

use crate::interrupts::Interrupts;
use crate::parts::Parts;
use crate::remote::Remote;
use crate::stream::{self, Ended};
use crate::timings::Timings;
use crate::{progress, remote};

/// All that a run needs besides its arguments.
struct Run<'a> {
    args: &'a RunArgs,
    dirs: Dirs,
    progress: Box<dyn Progress>,
    stdio: Stdio,
    timings: Timings,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.tag.is_some() || args.network.is_empty(),
        "--egress and limits of the network are for --tag; with --net a VM and the host reach each other, and nobody else"
    );
    args.flags.tell(args.quiet);
    let dirs = Dirs::from_env()?;
    let stdio = stream::stdio(args.process.tty)?;
    let mut run = Run { args, dirs, progress: progress::reporter(args.quiet), stdio, timings: Timings::start() };
    let code = match &args.tag {
        Some(tag) => run.forked(tag)?,
        None => run.booted()?,
    };
    if let Some(to) = &args.timings {
        run.timings.lap("end_us");
        run.timings.write(to)?;
    }
    Ok(code)
}

impl Run<'_> {
    /// A VM of its own, which leaves nothing behind: nobody else has to know it, so no daemon is asked.
    fn booted(&mut self) -> anyhow::Result<ExitCode> {
        let place = place(&self.dirs)?;
        self.timings.lap("place_us");
        match place {
            Place::Local => self.local(),
            Place::Machine { why } => self.in_machine(&why),
        }
    }

    /// Everything is built here, at native speed; a forkd inside the emulated host does the rest.
    fn in_machine(&mut self, why: &str) -> anyhow::Result<ExitCode> {
        if !self.args.quiet {
            remote::notice(why);
        }
        self.timings.set("place", "machine");
        let parts = Parts::find(&self.args.guest, &self.dirs, &*self.progress)?;
        self.timings.lap("parts_us");
        let remote = Remote::start(&self.dirs, &*self.progress)?;
        self.timings.lap("machine_us");
        let inside = remote.push_parts(&parts, &*self.progress)?;
        self.timings.lap("push_us");
        let inside = parts.complete_inside(inside, &self.dirs, &*self.progress)?;
        let timings_file = self.args.timings.as_ref().map(|_| remote::scratch_file("timings"));
        let request = remote.request(self.args.inside(&inside, timings_file.as_deref()), self.stdio);
        let interrupts = Interrupts::catch()?;
        let waiting = self.progress.stage("Booting and running in the emulated host", None);
        let ended = remote.run(&request, &interrupts, Some(waiting))?;
        self.timings.lap("run_us");
        if let Some(file) = timings_file {
            let text = remote.take_file(&file)?;
            let inner: serde_json::Value = serde_json::from_str(&text).context("the timings inside are not JSON")?;
            self.timings.set("inside", inner);
        }
        Ok(interrupts.fatal().map_or_else(|| ended.exit_code(), |signal| self.stopped_by(signal)))
    }

    /// A signal to us ended it all.
    fn stopped_by(&self, signal: i32) -> ExitCode {
        if !self.args.quiet {
            eprintln!("forkd: interrupted by signal {signal}; the VM is gone");
        }
        stream::killed_by(signal)
    }

    fn tell(&self, ended: Ended) -> ExitCode {
        if let (Ended::TimedOut, Some(limit)) = (ended, self.args.process.timeout) {
            eprintln!("forkd: the command did not end within {} s and was killed", limit.as_secs_f64());
        }
        ended.exit_code()
    }
}
