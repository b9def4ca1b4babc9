//! What `forkd run` is told, and how it tells another forkd the same.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use session::{ExecRequest, Stdio};
use types::{GuestMemorySize, VcpuCount};

use crate::remote::InsideParts;
use crate::seconds;

const EXAMPLES: &str = "\
Examples:
  forkd run -- uname -a
  forkd run --vcpus 4 --memory 2G -- nproc
  forkd run --recipe python-numpy -- python3 -c 'import numpy; print(numpy.__version__)'
  tar c src | forkd run --timeout 60 -- sh -c 'tar x && make -C src test'
  forkd run -t -- bash

Exit code: the command's own; 128 and the signal's number if a signal ended it;
124 if its time was up; 126 or 127 if it could not be started; 1 if there was no VM.";

/// Boots a VM, runs a command in it and throws the VM away
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Writes where the time went, as JSON, to a file or to standard error (-)
    #[arg(long, value_name = "FILE")]
    pub(super) timings: Option<PathBuf>,
    /// Shows no progress and no notices
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
    // Their headings would go on to whatever comes after them.
    #[command(flatten)]
    pub(super) guest: GuestArgs,
    #[command(flatten)]
    pub(super) process: ProcessArgs,
}

/// What the VM is made of.
#[derive(Debug, Args)]
#[command(next_help_heading = "The VM")]
pub(crate) struct GuestArgs {
    /// The recipe of its file system: a name, or the path of a recipe.toml
    #[arg(long, value_name = "NAME", default_value = "debian")]
    pub(crate) recipe: String,
    /// A raw ext4 image to use instead of a recipe's; it is never written to
    #[arg(long, value_name = "FILE", conflicts_with = "recipe")]
    pub(crate) image: Option<PathBuf>,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = VcpuCount::DEFAULT)]
    pub(crate) vcpus: VcpuCount,
    /// Memory, such as 512M or 4G
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub(crate) memory: GuestMemorySize,
    /// A kernel (bzImage or vmlinux) to use instead of the one found or fetched
    #[arg(long, value_name = "FILE", env = "FORKD_KERNEL")]
    pub(crate) kernel: Option<PathBuf>,
    /// An initramfs to use as it is
    #[arg(long, value_name = "FILE", hide = true, requires = "kernel")]
    pub(crate) initramfs: Option<PathBuf>,
    /// Words to add to the guest kernel's command line
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
    /// Gives it a network: it and the host reach each other
    #[arg(long)]
    pub(crate) net: bool,
    /// How long it may take until its agent answers
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds::parse)]
    pub(crate) boot_timeout: Duration,
}

/// How the command is run.
#[derive(Debug, Args)]
#[command(next_help_heading = "The command")]
pub(crate) struct ProcessArgs {
    /// Sets an environment variable; repeatable
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub(crate) env: Vec<(String, String)>,
    /// The user, and group, to run it as: NAME, UID, NAME:GROUP or UID:GID
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// The directory to run it in; the user's home unless given
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,
    /// Kills it after so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds::parse)]
    pub(crate) timeout: Option<Duration>,
    /// Gives it a terminal; needs one on standard input and output
    #[arg(long, short)]
    pub(crate) tty: bool,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE".into()),
    }
}

impl RunArgs {
    /// What the agent is asked for.
    pub(super) fn request(&self, stdio: Stdio) -> ExecRequest {
        let process = &self.process;
        let mut env: std::collections::BTreeMap<_, _> = process.env.iter().cloned().collect();
        if let (Stdio::Tty(_), Ok(term)) = (stdio, std::env::var("TERM")) {
            env.entry("TERM".into()).or_insert(term);
        }
        ExecRequest {
            argv: self.command.clone(),
            env,
            cwd: process.cwd.clone(),
            user: process.user.clone(),
            timeout_ms: process.timeout.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)),
            stdio,
        }
    }

    /// The same run for a forkd inside the emulated host, where the parts are.
    pub(super) fn inside(&self, parts: &InsideParts, timings: Option<&str>) -> Vec<String> {
        let (guest, process) = (&self.guest, &self.process);
        let mut args = vec![String::from("run"), "--quiet".into()];
        let mut option = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        option("image", parts.image.clone());
        option("kernel", parts.kernel.clone());
        option("initramfs", parts.initramfs.clone());
        option("vcpus", guest.vcpus.to_string());
        option("memory", format!("{}M", guest.memory.mib()));
        option("boot-timeout", guest.boot_timeout.as_secs_f64().to_string());
        guest.append.iter().for_each(|words| option("append", words.clone()));
        process.env.iter().for_each(|(name, value)| option("env", format!("{name}={value}")));
        process.user.iter().for_each(|user| option("user", user.clone()));
        process.cwd.iter().for_each(|cwd| option("cwd", cwd.clone()));
        process.timeout.iter().for_each(|limit| option("timeout", limit.as_secs_f64().to_string()));
        timings.iter().for_each(|file| option("timings", (*file).into()));
        args.extend(guest.net.then(|| "--net".into()));
        args.extend(process.tty.then(|| "--tty".into()));
        args.push("--".into());
        args.extend(self.command.iter().cloned());
        args
    }
}

#[cfg(test)]
mod tests;
