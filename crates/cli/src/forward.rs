//! Verbs on what forkd keeps, where that is kept in the emulated host: the same words, said to the forkd inside.

use std::process::ExitCode;

use anyhow::Context;
use engine::place::{Place, place};
use machine::Status;
use session::Stdio;
use types::Dirs;

use crate::interrupts::Interrupts;
use crate::remote::Remote;
pub(crate) use crate::remote::notice;
use crate::{progress, stream};

/// What a verb needs of the emulated host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// What it keeps: when nothing of it was made yet, there is nothing.
    Kept,
    /// To make something in it.
    Made,
}

/// How a verb is passed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forward {
    pub(crate) need: Need,
    pub(crate) stdio: Stdio,
    /// What a person reads while nothing else is to be seen.
    pub(crate) doing: Option<&'static str>,
}

impl Forward {
    /// A verb that only prints.
    pub(crate) const fn printing(need: Need) -> Self {
        Self { need, stdio: Stdio::Output, doing: None }
    }

    /// Has the forkd inside do what this one was asked for; `None` when it is to be done here, be it because there is
    /// nothing inside to do it to.
    pub(crate) fn away(self, dirs: &Dirs) -> anyhow::Result<Option<ExitCode>> {
        let Place::Machine { why } = place(dirs)? else { return Ok(None) };
        let there = match self.need {
            Need::Kept => machine::status(dirs)? != Status::Absent,
            Need::Made => true,
        };
        if !there {
            return Ok(None);
        }
        if self.need == Need::Made {
            notice(&why);
        }
        let progress = progress::reporter(false);
        let remote = Remote::start(dirs, &*progress)?;
        let interrupts = Interrupts::catch()?;
        let waiting = self.doing.map(|doing| progress.stage(doing, None));
        let ended = remote.run(&remote.request(own_words()?, self.stdio), &interrupts, waiting)?;
        Ok(Some(interrupts.fatal().map_or_else(|| ended.exit_code(), stream::killed_by)))
    }
}

/// What this forkd was called with.
fn own_words() -> anyhow::Result<Vec<String>> {
    let words = std::env::args_os().skip(1).map(|word| word.into_string().ok());
    words.collect::<Option<_>>().context("an argument is not UTF-8")
}
