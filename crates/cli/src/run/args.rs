//! What `forkd run` is told, and how it tells another forkd the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use image::PackageName;
use session::{ExecRequest, Stdio, TtySize};
use types::{GuestMemorySize, Tag, VcpuCount};

use crate::daemon::DaemonArgs;
use crate::egress::EgressArgs;
use crate::published::BuildFlags;
use crate::remote::InsideParts;
use crate::seconds;

const EXAMPLES: &str = "\
Examples:
  forkd run -- uname -a
  forkd run --vcpus 4 --memory 2G -- nproc
  forkd run --recipe python-numpy -- python3 -c 'import numpy; print(numpy.__version__)'
  forkd run --image python:3.12-slim --extra git -- git --version
  tar c src | forkd run --timeout 60 -- sh -c 'tar x && make -C src test'
  forkd run -t -- bash
  forkd run --tag pyagent -- python3 -c 'print(6 * 7)'

Exit code: the command's own; 128 and the signal's number if a signal ended it;
124 if its time was up; 126 or 127 if it could not be started; 1 if there was no VM.";

/// What a snapshot has decided already.
const NOT_OF_A_SNAPSHOT: [&str; 10] =
    ["recipe", "image", "extra", "vcpus", "memory", "kernel", "initramfs", "append", "net", "boot_timeout"];

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
    /// Forks a snapshot instead of booting: the VM is there at once and warm
    #[arg(long, value_name = "TAG", conflicts_with_all = NOT_OF_A_SNAPSHOT)]
    pub(super) tag: Option<Tag>,
    /// Gives it a network: it and the host reach each other
    #[arg(long)]
    pub(super) net: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
    // Their headings would go on to whatever comes after them.
    #[command(flatten)]
    pub(super) guest: GuestArgs,
    #[command(flatten)]
    pub(super) process: ProcessArgs,
    #[command(flatten)]
    pub(super) network: EgressArgs,
    #[command(flatten)]
    pub(super) flags: BuildFlags,
    #[command(flatten)]
    pub(super) daemon: DaemonArgs,
}

/// What the VM is made of.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "The VM")]
pub(crate) struct GuestArgs {
    /// The recipe of its file system: a name, or the path of a recipe.toml [default: debian]
    #[arg(long, value_name = "NAME")]
    pub(crate) recipe: Option<String>,
    /// Instead of the recipe's disk, that of a container image, as `forkd from-image --help` lists the ways to say it; or
    /// a file that is the disk (raw ext4), which is never written to
    #[arg(long, alias = "rootfs", value_name = "SOURCE|FILE")]
    pub(crate) image: Option<String>,
    /// A Debian package to install into a container image that is made of Debian; repeatable
    #[arg(long, value_name = "PKG", requires = "image")]
    pub(crate) extra: Vec<PackageName>,
    /// Virtual CPUs [default: what the recipe says, or 1]
    #[arg(long, value_name = "N")]
    pub(crate) vcpus: Option<VcpuCount>,
    /// Memory, such as 512M or 4G [default: what the recipe says, or 512M]
    #[arg(long, alias = "mem-size-mib", value_name = "SIZE")]
    pub(crate) memory: Option<GuestMemorySize>,
    /// A kernel (bzImage or vmlinux) to use instead of the one found or fetched [env: FORKD_KERNEL]
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,
    /// An initramfs to use as it is
    #[arg(long, value_name = "FILE", hide = true, requires = "kernel")]
    pub(crate) initramfs: Option<PathBuf>,
    /// Words to add to the guest kernel's command line
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
    /// How long it may take until its agent answers
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds::parse)]
    pub(crate) boot_timeout: Duration,
}

/// What `--image` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// A file that is a disk.
    Disk(PathBuf),
    /// What becomes one: a container image, or a recipe.
    Source(String),
}

impl Image {
    /// A file that is there is meant, and what can be nothing but one.
    fn meant(text: &str) -> Self {
        let path = Path::new(text);
        let extension = path.extension().and_then(|extension| extension.to_str());
        let has_place = path.is_absolute() || text.starts_with("./") || text.starts_with("../");
        match extension {
            Some("toml") => Self::Source(text.into()),
            Some("ext4" | "img" | "raw" | "squashfs") => Self::Disk(path.into()),
            _ if has_place || (path.exists() && !path.is_dir()) => Self::Disk(path.into()),
            _ => Self::Source(text.into()),
        }
    }
}

impl GuestArgs {
    /// How long a guest may take to boot when nobody says.
    const BOOT_LIMIT: Duration = Duration::from_secs(120);

    /// Of which nothing is said.
    pub(crate) const fn plain() -> Self {
        Self {
            recipe: None,
            image: None,
            extra: Vec::new(),
            vcpus: None,
            memory: None,
            kernel: None,
            initramfs: None,
            append: None,
            boot_timeout: Self::BOOT_LIMIT,
        }
    }

    /// That of a recipe, by its name, of which nothing else is said.
    pub(crate) fn of_recipe(name: String) -> Self {
        Self { recipe: Some(name), ..Self::plain() }
    }

    /// What the disk is, unless it is the recipe's.
    pub(crate) fn image(&self) -> Option<Image> {
        self.image.as_deref().map(Image::meant)
    }

    /// The kernel that is named, here or for all commands. The variable is no flag: it is in nobody's way.
    pub(crate) fn kernel(&self) -> Option<PathBuf> {
        let named = || std::env::var_os("FORKD_KERNEL").filter(|path| !path.is_empty()).map(PathBuf::from);
        self.kernel.clone().or_else(named)
    }
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
    #[arg(long, alias = "timeout-secs", value_name = "SECONDS", value_parser = seconds::parse)]
    pub(crate) timeout: Option<Duration>,
    /// Gives it a terminal; needs one on standard input and output
    #[arg(long, short)]
    pub(crate) tty: bool,
}

pub(crate) fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE".into()),
    }
}

impl ProcessArgs {
    fn variables(&self, stdio: Stdio) -> BTreeMap<String, String> {
        let mut env: BTreeMap<_, _> = self.env.iter().cloned().collect();
        if let (Stdio::Tty(_), Ok(term)) = (stdio, std::env::var("TERM")) {
            env.entry("TERM".into()).or_insert(term);
        }
        env
    }

    /// What the daemon is asked for.
    pub(crate) fn asked(&self, command: &[String], stdio: Stdio) -> api::ExecRequest {
        api::ExecRequest {
            args: command.to_vec(),
            timeout_secs: self.timeout.map(|limit| limit.as_secs_f64()),
            stdin: None,
            stdin_base64: None,
            env: self.variables(stdio),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            stream: true,
            image_command: command.is_empty(),
            open_stdin: stdio != Stdio::Output,
            tty: match stdio {
                Stdio::Tty(TtySize { rows, cols }) => Some(api::TtySize { rows, cols }),
                Stdio::Output | Stdio::Pipes => None,
            },
        }
    }

    /// What the agent is asked for.
    pub(crate) fn request(&self, command: &[String], stdio: Stdio) -> ExecRequest {
        ExecRequest {
            argv: command.to_vec(),
            env: self.variables(stdio),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            timeout_ms: self.timeout.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)),
            stdio,
        }
    }
}

impl RunArgs {
    pub(super) fn asked(&self, stdio: Stdio) -> api::ExecRequest {
        self.process.asked(&self.command, stdio)
    }

    pub(super) fn request(&self, stdio: Stdio) -> ExecRequest {
        self.process.request(&self.command, stdio)
    }

    /// The same run for a forkd inside the emulated host, where the parts are.
    pub(super) fn inside(&self, parts: &InsideParts, timings: Option<&str>) -> Vec<String> {
        let process = &self.process;
        let mut args = vec![String::from("run"), "--quiet".into()];
        args.extend(parts.options(&self.guest));
        let mut option = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        process.env.iter().for_each(|(name, value)| option("env", format!("{name}={value}")));
        process.user.iter().for_each(|user| option("user", user.clone()));
        process.cwd.iter().for_each(|cwd| option("cwd", cwd.clone()));
        process.timeout.iter().for_each(|limit| option("timeout", limit.as_secs_f64().to_string()));
        timings.iter().for_each(|file| option("timings", (*file).into()));
        args.extend(self.net.then(|| "--net".into()));
        args.extend(process.tty.then(|| "--tty".into()));
        args.push("--".into());
        args.extend(self.command.iter().cloned());
        args
    }
}

#[cfg(test)]
mod tests;
