//! Flags of published command lines that need no asking for here. Each is taken, and answered with a line that says why it
//! does nothing; what would change what a sandbox is, and is not offered, is refused.

use std::path::PathBuf;

use clap::Args;

/// Those of `snapshot`, `from-image` and `run`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct BuildFlags {
    #[arg(long, hide = true)]
    rw: bool,
    #[arg(long, hide = true)]
    keep_workdir: bool,
    #[arg(long, hide = true, value_name = "DEVICE")]
    tap: Option<String>,
    #[arg(long, hide = true, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[arg(long, hide = true, value_name = "HOST:GUEST[:ro]", value_parser = no_volume)]
    volume: Vec<String>,
}

fn no_volume(_: &str) -> Result<String, &'static str> {
    Err("volumes are not offered; [[copy]] in a recipe puts files on the disk, `forkd cp` brings them into a sandbox")
}

impl BuildFlags {
    /// Says which of them do nothing.
    pub(crate) fn tell(&self, quiet: bool) {
        tell_all(&self.notes(), quiet);
    }

    fn notes(&self) -> Vec<&'static str> {
        let all = [
            (self.rw, "--rw needs no saying: what a guest writes goes to a disk layer of its own"),
            (self.keep_workdir, KEEP_WORKDIR),
            (self.tap.is_some(), "--tap is not used: with --egress each sandbox has a network of its own"),
            (self.cache.is_some(), "--cache is not used: images are kept below XDG_CACHE_HOME, or FORKD_HOME"),
        ];
        given(&all)
    }
}

const KEEP_WORKDIR: &str = "--keep-workdir is not used: there is no such directory; `forkd logs ID` shows a console";

/// Those of `fork` and `spawn`.
#[derive(Clone, Copy, Debug, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line and stands by itself")]
pub(crate) struct ForkFlags {
    #[arg(long, hide = true)]
    pub(crate) live_fork: bool,
    #[arg(long, hide = true)]
    pub(crate) prewarm: bool,
    #[arg(long, hide = true)]
    pub(crate) per_child_netns: bool,
    #[arg(long, hide = true)]
    keep_workdir: bool,
    #[arg(long, hide = true)]
    hugepages: bool,
}

impl ForkFlags {
    /// Says which of them do nothing.
    ///
    /// # Errors
    /// When one of them is not offered.
    pub(crate) fn tell(self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.hugepages,
            "--hugepages is not offered: sandboxes share their snapshot's memory in pages of 4 KiB; fork without it"
        );
        tell_all(&self.notes(), false);
        Ok(())
    }

    fn notes(self) -> Vec<&'static str> {
        let all = [
            (self.live_fork, "--live-fork needs no saying: every sandbox can be branched while it runs"),
            (self.prewarm, "--prewarm needs no saying: sandboxes are forked from a template that is warm"),
            (self.per_child_netns, "--per-child-netns needs no saying: a sandbox that has a network has its own"),
            (self.keep_workdir, KEEP_WORKDIR),
        ];
        given(&all)
    }
}

fn given(all: &[(bool, &'static str)]) -> Vec<&'static str> {
    all.iter().filter_map(|(is_given, note)| is_given.then_some(*note)).collect()
}

fn tell_all(notes: &[&str], quiet: bool) {
    if !quiet {
        notes.iter().for_each(|note| eprintln!("forkd: {note}"));
    }
}

#[cfg(test)]
mod tests;
