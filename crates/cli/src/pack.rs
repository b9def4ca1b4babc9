//! `forkd pack`: a snapshot in one file.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use engine::Store;
use engine::place::{Place, place};
use pack::{PackSpec, Packed, pack as write_pack};
use types::progress::Progress;
use types::{Dirs, Tag};

use crate::interrupts::Interrupts;
use crate::output::Raw;
use crate::remote::Remote;
use crate::table::bytes;
use crate::{carry, forward, output, progress, stream};

const EXAMPLES: &str = "\
Examples:
  forkd pack --tag pyagent
  forkd pack --tag pyagent -o - | ssh other forkd unpack -
  forkd pack --tag pyagent --description 'Python with numpy, warm' -o /srv/pyagent.tar.zst

The pack holds the snapshot, what it descends from, and the disk image: nothing else is needed on the other host but a \
CPU of the same maker that can do as much.";

/// Writes a snapshot and all it is made of into one file, for another host
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PackArgs {
    #[command(flatten)]
    what: WhatArgs,
    /// Where to; `-` is standard output [default: ./TAG.forkd-snapshot.tar.zst]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Shows no progress and no notices
    #[arg(long, short)]
    quiet: bool,
}

/// What is packed.
#[derive(Clone, Debug, Args)]
pub(crate) struct WhatArgs {
    /// Which snapshot
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Tag,
    /// A word on it, for who unpacks it
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// What it was built from, for who unpacks it [default: its recipe]
    #[arg(long, value_name = "TEXT")]
    base_image: Option<String>,
}

impl WhatArgs {
    fn spec(&self) -> PackSpec {
        PackSpec { tag: self.tag.clone(), description: self.description.clone(), base_image: self.base_image.clone() }
    }

    /// The same, for a forkd inside.
    fn words(&self) -> Vec<String> {
        let mut words = ["pack", "--quiet", "--out", "-", "--tag", self.tag.as_str()].map(String::from).to_vec();
        let options = [("--description", &self.description), ("--base-image", &self.base_image)];
        words.extend(options.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?))));
        words
    }

    /// Writes the pack, wherever the snapshot is kept. `None`: a forkd inside could not, and has said why.
    pub(crate) fn write(
        &self,
        to: &mut impl Write,
        dirs: &Dirs,
        progress: &dyn Progress,
        interrupts: &Interrupts,
    ) -> anyhow::Result<Option<u64>> {
        let cancelled = || interrupts.fatal().is_some();
        if let Place::Machine { .. } = place(dirs)? {
            let remote = Remote::start(dirs, progress)?;
            let stage = progress.stage("Packing in the emulated host", None);
            let mut to = Counted { to, bytes: 0 };
            let status = carry::out(&remote, self.words(), &mut to, interrupts)?;
            drop(stage);
            return Ok((status.shell_code() == 0).then_some(to.bytes));
        }
        let Packed { bytes, .. } = write_pack(&Store::new(dirs), &self.spec(), to, progress, &cancelled)?;
        Ok(Some(bytes))
    }
}

pub(crate) fn pack(args: &PackArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(args.quiet);
    if let (Place::Machine { why }, false) = (place(&dirs)?, args.quiet) {
        forward::notice(&why);
    }
    let interrupts = Interrupts::catch()?;
    let default = || format!("./{}.forkd-snapshot.tar.zst", args.what.tag).into();
    let out = args.out.clone().unwrap_or_else(default);
    let written = if out.as_os_str() == "-" {
        if io::stdout().is_terminal() {
            bail!("a pack is not to be read on a terminal; use -o FILE, or a pipe");
        }
        args.what
            .write(&mut Raw(rustix::stdio::stdout()), &dirs, &*progress, &interrupts)
            .map(|written| written.is_some())
    } else {
        to_file(args, &out, &dirs, &*progress, &interrupts)
    };
    match (interrupts.fatal(), written) {
        (Some(signal), _) => Ok(stream::killed_by(signal)),
        (None, written) => written.map(|is_done| if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
    }
}

/// Whatever ends it early, the file is the old one or none.
fn to_file(
    args: &PackArgs,
    out: &Path,
    dirs: &Dirs,
    progress: &dyn Progress,
    interrupts: &Interrupts,
) -> anyhow::Result<bool> {
    let dir = out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = || format!("cannot write {}", out.display());
    let mut file = tempfile::Builder::new()
        .prefix(".forkd-pack-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(dir)
        .with_context(failed)?;
    let Some(written) = args.what.write(file.as_file_mut(), dirs, progress, interrupts)? else { return Ok(false) };
    file.as_file().sync_all().with_context(failed)?;
    file.persist(out).map_err(|error| error.error).with_context(failed)?;
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(failed)?;
    output::line(&format!("✓ {}: {}", out.display(), bytes(written)))?;
    Ok(true)
}

struct Counted<'w, W> {
    to: &'w mut W,
    bytes: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        pack: PackArgs,
    }

    #[test]
    fn the_forkd_inside_is_asked_for_the_same() {
        let parse = |words: &[String]| Line::try_parse_from(words).unwrap().pack;
        let outside =
            parse(&["pack", "--tag", "pyagent", "--description=-x y", "--base-image=z", "-o", "f"].map(String::from));
        let inside = parse(&outside.what.words());
        assert_eq!(inside.what.spec(), outside.what.spec());
        assert!(inside.quiet && inside.out.is_some_and(|out| out.as_os_str() == "-"));
    }
}
