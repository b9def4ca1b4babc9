//! `forkd completions` and `forkd man`: what shells and `man` know of forkd, made of its command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  forkd completions bash > /etc/bash_completion.d/forkd
  forkd completions zsh > ~/.zfunc/_forkd";

/// Prints what a shell needs to complete forkd's words
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    shell: Shell,
}

/// Writes manual pages, one for each command
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory to write them to, such as /usr/local/share/man/man1
    dir: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "forkd", &mut text);
    output::line(String::from_utf8(text)?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs, command: Command) -> anyhow::Result<ExitCode> {
    let failed = || format!("cannot write manual pages to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(failed)?;
    clap_mangen::generate_to(command, &args.dir).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
