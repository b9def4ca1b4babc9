//! The daemon that a verb asks: the one that is named, else this computer's own, which is started when it does not run.
//!
//! Its own listens on a unix socket only. It outlives whoever started it, and sandboxes outlive it. Where VMs run in the
//! emulated host, it is there that they are asked for; that is `forkd serve`'s business, not the verbs'.

use std::fs::{File, OpenOptions};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use client::{Client, Endpoint};
use rustix::fs::FlockOperation;
use types::Dirs;

use crate::progress;

/// How long it may take to listen; an emulated host has to boot first, and may have to be built.
const PATIENCE: Duration = Duration::from_secs(900);
/// How often it is started again when it ended at once.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// A log that is longer begins anew with the next daemon.
const MAX_LOG: u64 = 1 << 20;
/// How much of its log is shown when it does not start.
const LAST_LINES: usize = 10;

/// Which daemon.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The daemon to ask [default: this computer's own, started when it is needed]
    #[arg(long, value_name = "URL", env = "FORKD_URL")]
    daemon_url: Option<Endpoint>,
    /// The token that it wants
    #[arg(long, value_name = "TOKEN", env = "FORKD_TOKEN", hide_env_values = true)]
    daemon_token: Option<String>,
}

impl DaemonArgs {
    /// One that can be asked.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let token = self.daemon_token.clone().filter(|token| !token.is_empty());
        let endpoint = match &self.daemon_url {
            Some(endpoint) => endpoint.clone(),
            None => own(&Dirs::from_env()?)?,
        };
        Ok(Client::new(endpoint, token))
    }
}

/// This computer's own, running.
fn own(dirs: &Dirs) -> anyhow::Result<Endpoint> {
    let socket = dirs.run.join("forkd.sock");
    let endpoint = Endpoint::Unix(std::path::absolute(&socket)?);
    if UnixStream::connect(&socket).is_ok() {
        return Ok(endpoint);
    }
    let _stage = progress::reporter(false).stage("Starting the daemon", None);
    std::fs::create_dir_all(&dirs.run).with_context(|| format!("cannot make {}", dirs.run.display()))?;
    let (log, lock) = (dirs.run.join("daemon.log"), dirs.run.join("daemon.lock"));
    let mut daemon = start(&log)?;
    let (until, mut tries) = (Instant::now() + PATIENCE, TRIES);
    while UnixStream::connect(&socket).is_err() {
        // Another one may have been quicker; then ours has ended, and that one is about to listen. Whoever looks at the lock
        // holds it for an instant, in which no daemon can start; hence another try.
        let ended = daemon.try_wait()?.is_some() && !is_held(&lock);
        if (ended && tries == 0) || Instant::now() > until {
            bail!("the daemon does not start; the end of {}:\n{}", log.display(), tail(&log));
        }
        if ended {
            tries -= 1;
            daemon = start(&log)?;
        }
        thread::sleep(PAUSE);
    }
    Ok(endpoint)
}

/// In a group of its own: what interrupts us is not meant for it.
fn start(log: &Path) -> anyhow::Result<Child> {
    // Several may start one at once: none takes away what another one's says.
    let file = OpenOptions::new().create(true).append(true).open(log);
    let file = file.with_context(|| format!("cannot write {}", log.display()))?;
    if file.metadata().is_ok_and(|meta| meta.len() > MAX_LOG) {
        file.set_len(0).with_context(|| format!("cannot write {}", log.display()))?;
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", "--socket-only"]).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    for setting in ["FORKD_BIND", "FORKD_SOCKET", "FORKD_TOKEN_FILE", "FORKD_TLS_CERT", "FORKD_TLS_KEY"] {
        command.env_remove(setting);
    }
    command.env("RUST_LOG", "info").process_group(0).spawn().context("cannot start the daemon")
}

/// Whether a daemon is at work, be it that it does not listen yet.
fn is_held(lock: &Path) -> bool {
    File::open(lock).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::AGAIN)
    })
}

fn tail(log: &Path) -> String {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}
