//! `forkd unpack`: a snapshot from one file.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use engine::place::{Place, place};
use engine::{Existing, Store};
use pack::{Installed, UnpackSpec, unpack as read_pack};
use types::progress::{Progress, Stage};
use types::{Dirs, Tag};

use crate::interrupts::Interrupts;
use crate::remote::Remote;
use crate::{carry, forward, output, progress, stream};

const EXAMPLES: &str = "\
Examples:
  forkd unpack pyagent.forkd-snapshot.tar.zst
  forkd unpack pyagent.forkd-snapshot.tar.zst --tag mine
  ssh other forkd pack --tag pyagent -o - | forkd unpack -

A pack may come from anybody: whether it can be used here is known before anything is written, everything in it is \
checked, and what is refused changes nothing. Running what is in it is another matter; it runs in a VM.";

/// Takes a snapshot from a file that `forkd pack` wrote
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct UnpackArgs {
    /// The file; `-` is standard input
    #[arg(value_name = "FILE")]
    path: PathBuf,
    #[command(flatten)]
    how: HowArgs,
}

/// How it is unpacked.
#[derive(Clone, Debug, Args)]
pub(crate) struct HowArgs {
    /// What the snapshot shall be called here; those it descends from keep their names, or become TAG-1, TAG-2 and so on
    /// where others have them
    #[arg(long, value_name = "TAG")]
    tag: Option<Tag>,
    /// Takes the place of other snapshots that have the name of one in the pack
    #[arg(long)]
    force: bool,
    /// Shows no progress and no notices
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

impl HowArgs {
    fn spec(&self) -> UnpackSpec {
        let existing = if self.force { Existing::Replace } else { Existing::Keep };
        UnpackSpec { tag: self.tag.clone(), existing, spared: Vec::new() }
    }

    /// The same, for a forkd inside.
    fn words(&self) -> Vec<String> {
        let mut words = ["unpack", "-", "--quiet"].map(String::from).to_vec();
        words.extend(self.tag.iter().flat_map(|tag| ["--tag".to_owned(), tag.to_string()]));
        words.extend(self.force.then(|| "--force".to_owned()));
        words
    }

    /// Reads the pack to wherever snapshots are kept, and tells of it. `false`: a forkd inside could not, and has said
    /// why.
    pub(crate) fn read(
        &self,
        from: File,
        dirs: &Dirs,
        progress: &dyn Progress,
        interrupts: &Interrupts,
    ) -> anyhow::Result<bool> {
        if let Place::Machine { why } = place(dirs)? {
            if !self.quiet {
                forward::notice(&why);
            }
            let remote = Remote::start(dirs, progress)?;
            let total = from.metadata().ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
            let stage = progress.stage("Unpacking in the emulated host", total);
            let from = Watched { from, done: 0, stage };
            return Ok(carry::in_to(&remote, self.words(), from, interrupts)?.shell_code() == 0);
        }
        let cancelled = || interrupts.fatal().is_some();
        let installed = read_pack(&Store::new(dirs), from, &self.spec(), progress, &cancelled)?;
        installed.iter().try_for_each(|link| output::line(&told(link)))?;
        Ok(true)
    }
}

fn told(Installed { tag, is_new }: &Installed) -> String {
    if *is_new { format!("✓ {tag}") } else { format!("✓ {tag} was here already") }
}

pub(crate) fn unpack(args: &UnpackArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let from = if args.path.as_os_str() == "-" {
        if io::stdin().is_terminal() {
            bail!("a pack does not come from a terminal; name a file, or use a pipe");
        }
        File::from(rustix::io::dup(rustix::stdio::stdin()).context("cannot read standard input")?)
    } else {
        File::open(&args.path).with_context(|| format!("cannot read {}", args.path.display()))?
    };
    let progress = progress::reporter(args.how.quiet);
    let interrupts = Interrupts::catch()?;
    let done = args.how.read(from, &dirs, &*progress, &interrupts);
    finished(&interrupts, done)
}

/// Somebody's signal is the reason for whatever came of it.
pub(crate) fn finished(interrupts: &Interrupts, done: anyhow::Result<bool>) -> anyhow::Result<ExitCode> {
    match (interrupts.fatal(), done) {
        (Some(signal), _) => Ok(stream::killed_by(signal)),
        (None, done) => done.map(|is_done| if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
    }
}

/// A file whose reading is shown.
struct Watched {
    from: File,
    done: u64,
    stage: Box<dyn Stage>,
}

impl Read for Watched {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(to)?;
        self.done += count as u64;
        self.stage.advance(self.done);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        unpack: UnpackArgs,
    }

    #[test]
    fn the_forkd_inside_is_asked_for_the_same() {
        let parse = |words: &[String]| Line::try_parse_from(words).unwrap().unpack;
        for words in [&["unpack", "f"][..], &["unpack", "f", "--tag", "mine", "--force"]] {
            let outside = parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
            let inside = parse(&outside.how.words());
            assert_eq!(inside.how.spec(), outside.how.spec());
            assert!(inside.how.quiet && inside.path.as_os_str() == "-");
        }
    }
}
