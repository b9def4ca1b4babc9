//! This computer's own daemon, which listens on a unix socket only.
//!
//! ```text
//! nobody listens                 one is started; it ends by itself when nobody needs it any more
//! one that ends by itself, and
//! is of an older build           is ended and replaced, unless somebody else is using it, or a branch is being written,
//!                                which would be lost; sandboxes go on without it
//! one that ends by itself        makes way for one that somebody starts
//! one that somebody started      is asked, whatever its version; a person is told when that is another one
//! ```
//!
//! It outlives whoever started it, and sandboxes outlive it. Where VMs run in the emulated host, it is there that they are
//! asked for; that is `forkd serve`'s business, not the verbs'.

use std::fs::{self, File, OpenOptions};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use api::{DaemonInfo, SnapshotStatus};
use client::{Client, ClientError, Endpoint, path};
use engine::place::{Place, place};
use machine::Machine;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use types::Dirs;

use crate::progress;
use crate::remote::{self, Remote};

/// How long it may take to listen, and to end: what is under way has half a minute.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long a client that has just ended may take to be gone.
const LEAVING: Duration = Duration::from_secs(3);
/// How often it is started again when it ended at once.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// How long one that was started by itself stays without a client and a sandbox.
const IDLE_SECS: u32 = 600;
/// A log that is longer begins anew with the next daemon.
const MAX_LOG: u64 = 1 << 20;
/// How much of its log is shown when it does not start.
const LAST_LINES: usize = 10;

/// It, running or not.
#[derive(Debug)]
pub(crate) struct Own {
    dirs: Dirs,
    socket: PathBuf,
    lock: PathBuf,
    client: Client,
    quiet: bool,
}

/// What one that runs says of itself; one of another version may say nothing.
pub(super) type Told = Option<DaemonInfo>;

impl Own {
    pub(crate) fn new(dirs: &Dirs) -> anyhow::Result<Self> {
        let socket = std::path::absolute(dirs.run.join("forkd.sock"))?;
        let client = Client::new(Endpoint::Unix(socket.clone()), None);
        Ok(Self { lock: dirs.run.join("daemon.lock"), dirs: dirs.clone(), socket, client, quiet: false })
    }

    /// Where it listens.
    pub(super) const fn endpoint(&self) -> &Endpoint {
        self.client.endpoint()
    }

    /// Whether one runs that somebody started, or of which nothing is known.
    pub(super) fn is_served(&self) -> anyhow::Result<bool> {
        Ok(self.look()?.is_some_and(|told| told.is_none_or(|info| info.idle_secs.is_none())))
    }

    /// Whether nothing is said about what is done to have it run.
    pub(crate) const fn quiet(mut self, quiet: bool) -> Self {
        self.quiet = quiet;
        self
    }

    /// Running, started if need be.
    pub(crate) fn client(self) -> anyhow::Result<Client> {
        if !self.serves()? {
            if let Place::Machine { why } = place(&self.dirs)? {
                if !self.quiet {
                    remote::notice(&why);
                }
                // Shown to who waits for it: the daemon would do it without a word.
                Remote::start(&self.dirs, &*progress::reporter(self.quiet))?;
            }
            self.start()?;
        }
        Ok(self.client)
    }

    /// The same; `None` where the emulated host would have to be started, because nothing runs then.
    pub(crate) fn running(self) -> anyhow::Result<Option<Client>> {
        let nothing_runs = !self.serves()?
            && matches!(place(&self.dirs)?, Place::Machine { .. })
            && Machine::find(&self.dirs)?.is_none();
        if nothing_runs { Ok(None) } else { self.client().map(Some) }
    }

    /// The same; `None` where the emulated host was never made, because nothing is kept then.
    pub(crate) fn keeping(self) -> anyhow::Result<Option<Client>> {
        let nothing_is_kept = !self.serves()?
            && matches!(place(&self.dirs)?, Place::Machine { .. })
            && machine::status(&self.dirs)? == machine::Status::Absent;
        if nothing_is_kept { Ok(None) } else { self.client().map(Some) }
    }

    /// Ends one that started by itself, for one that shall stay. One that somebody started or uses is left, and in its way.
    pub(crate) fn make_way(&self) -> anyhow::Result<()> {
        let until = Instant::now() + LEAVING;
        while let Some(Some(info)) = self.look()?
            && info.idle_secs.is_some()
        {
            let is_writing = self.is_writing()?;
            if info.clients == 0 && !is_writing {
                self.stop()?;
                eprintln!("forkd: the daemon that had started by itself made way for this one; sandboxes go on");
                return Ok(());
            }
            if is_writing {
                bail!(
                    "the daemon that started by itself writes a branch; try again when `forkd images` calls it ready"
                );
            }
            if Instant::now() > until {
                bail!("the daemon that started by itself has {} clients; `forkd daemon stop` ends it", info.clients);
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Whether one runs that can be used. One of an older build is ended here, if that disturbs nobody.
    fn serves(&self) -> anyhow::Result<bool> {
        let Some(told) = self.look()? else { return Ok(false) };
        let Some(info) = told else { return Ok(true) };
        let ours = env!("CARGO_PKG_VERSION");
        if info.idle_secs.is_none() {
            if info.version != ours {
                eprintln!("forkd: the daemon here is version {}, and this is {ours}; restart it", info.version);
            }
            return Ok(true);
        }
        // It touches its lock when it starts.
        let started_before_us = changed(&self.lock)? < changed(Path::new("/proc/self/exe"))?;
        if info.clients > 0 || !is_older(&info.version, ours, started_before_us) || self.is_writing()? {
            return Ok(true);
        }
        self.stop()?;
        eprintln!("forkd: the daemon of an older build ({}) was replaced; sandboxes go on", info.version);
        Ok(false)
    }

    /// Whether it writes a branch that somebody was promised: without it that would come to nothing.
    fn is_writing(&self) -> anyhow::Result<bool> {
        // One of another version may say more of them than we know, or less.
        let all: Vec<Value> = match self.client.get(&path(&["snapshots"], &[])) {
            // It has just ended.
            Err(ClientError::Unreachable { .. } | ClientError::Broken { .. }) => return Ok(false),
            answer => answer?,
        };
        Ok(all.iter().any(|one| one["status"] == SnapshotStatus::Writing.as_str()))
    }

    /// What the one that runs says, if one does.
    pub(super) fn look(&self) -> anyhow::Result<Option<Told>> {
        match self.client.get(&path(&["daemon"], &[])) {
            Ok(info) => Ok(Some(Some(info))),
            Err(ClientError::Refused { .. } | ClientError::Strange { .. }) => Ok(Some(None)),
            // Nobody is there, or it has just ended.
            Err(ClientError::Unreachable { .. } | ClientError::Broken { .. }) => Ok(None),
        }
    }

    /// The process that listens.
    pub(super) fn process(&self) -> anyhow::Result<Pid> {
        let stream = UnixStream::connect(&self.socket).context("cannot reach the daemon")?;
        Ok(rustix::net::sockopt::socket_peercred(&stream).context("cannot tell whose the socket is")?.pid)
    }

    /// Has it end, and waits until it has.
    pub(super) fn stop(&self) -> anyhow::Result<()> {
        let _stage = progress::reporter(self.quiet).stage("Ending the daemon", None);
        let pid = self.process()?;
        kill_process(pid, Signal::TERM).context("cannot end the daemon")?;
        let until = Instant::now() + PATIENCE;
        while is_held(&self.lock) {
            if Instant::now() > until {
                bail!("the daemon (process {}) was told to end and does not", pid.as_raw_nonzero());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn start(&self) -> anyhow::Result<()> {
        let _stage = progress::reporter(self.quiet).stage("Starting the daemon", None);
        let run = &self.dirs.run;
        fs::create_dir_all(run).with_context(|| format!("cannot make {}", run.display()))?;
        let log = run.join("daemon.log");
        let mut daemon = spawn(&log)?;
        let (until, mut tries) = (Instant::now() + PATIENCE, TRIES);
        while self.look()?.is_none() {
            // Another one may have been quicker; then ours has ended, and that one is about to listen. Whoever looks at the
            // lock holds it for an instant, in which no daemon can start; hence another try.
            let ended = daemon.try_wait()?.is_some() && !is_held(&self.lock);
            if (ended && tries == 0) || Instant::now() > until {
                bail!("the daemon does not start; the end of {}:\n{}", log.display(), tail(&log));
            }
            if ended {
                tries -= 1;
                daemon = spawn(&log)?;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

fn changed(file: &Path) -> anyhow::Result<SystemTime> {
    fs::metadata(file).and_then(|meta| meta.modified()).with_context(|| format!("cannot look at {}", file.display()))
}

/// Versions decide, and among programs of one version whether ours was built after it was started.
fn is_older(its: &str, ours: &str, started_before_us: bool) -> bool {
    let numbers =
        |text: &str| text.split(['.', '-', '+']).map_while(|part| part.parse::<u64>().ok()).collect::<Vec<_>>();
    let (its, ours) = (numbers(its), numbers(ours));
    its < ours || (its == ours && started_before_us)
}

/// In a group of its own: what interrupts us is not meant for it.
fn spawn(log: &Path) -> anyhow::Result<Child> {
    // Several may start one at once: none takes away what another one's says.
    let file = OpenOptions::new().create(true).append(true).open(log);
    let file = file.with_context(|| format!("cannot write {}", log.display()))?;
    if file.metadata().is_ok_and(|meta| meta.len() > MAX_LOG) {
        file.set_len(0).with_context(|| format!("cannot write {}", log.display()))?;
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", "--socket-only", "--idle-secs", &IDLE_SECS.to_string()]);
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    for setting in ["FORKD_BIND", "FORKD_SOCKET", "FORKD_TOKEN_FILE", "FORKD_TLS_CERT", "FORKD_TLS_KEY"] {
        command.env_remove(setting);
    }
    command.env("RUST_LOG", "info").process_group(0).spawn().context("cannot start the daemon")
}

/// Whether a daemon is at work, be it that it does not listen yet or any more.
fn is_held(lock: &Path) -> bool {
    File::open(lock).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::AGAIN)
    })
}

fn tail(log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_older_is_told_by_its_version_and_then_by_its_build() {
        assert!(is_older("0.9.10", "0.10.0", false));
        assert!(!is_older("0.10.0", "0.9.10", true), "a newer one is not replaced");
        assert!(is_older("1.0.0", "1.0.0", true));
        assert!(!is_older("1.0.0", "1.0.0", false));
    }

    /// A daemon of long ago that ends by itself, and says this of its snapshots.
    fn stand_in(dirs: &Dirs, snapshots: &'static str) -> Own {
        fs::create_dir_all(&dirs.run).unwrap();
        let own = Own::new(dirs).unwrap();
        File::create(&own.lock).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let listener = UnixListener::bind(&own.socket).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
                let is_asked = lines.next().unwrap().contains("/v1/snapshots");
                lines.find(String::is_empty);
                let info = r#"{"version":"0.0.1","started_at_unix":1,"idle_secs":600,"sandboxes":0,"clients":0}"#;
                let body = if is_asked { snapshots } else { info };
                let length = body.len();
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n";
                write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
            }
        });
        own
    }

    #[test]
    fn one_that_writes_a_branch_is_left_to_write_it() {
        let dir = tempfile::tempdir().unwrap();
        let own =
            stand_in(&Dirs::under(dir.path()), r#"[{"tag":"a","status":"ready"},{"tag":"b","status":"writing"}]"#);
        assert!(own.serves().unwrap(), "it is older, and asked all the same");
        assert!(own.make_way().unwrap_err().to_string().contains("writes a branch"));
        let idle = tempfile::tempdir().unwrap();
        let own = stand_in(&Dirs::under(idle.path()), r#"[{"tag":"a","status":"ready"}]"#);
        assert!(!own.is_writing().unwrap());
        assert!(!own.is_served().unwrap(), "nobody started it");
    }
}
