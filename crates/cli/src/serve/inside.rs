//! The daemon in the emulated host, which the doors out here lead to.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use daemon::{Door, Inside, ServeArgs};
use machine::Machine;
use rustix::stdio::stderr;
use session::{DialTarget, Event, Exec, ExecControl, ExecRequest, Stdio, Transport};
use types::Dirs;

use super::builder;
use crate::errors::chain;
use crate::output::Raw;
use crate::progress;
use crate::remote::{self, Remote};

/// Where it listens inside; nobody else does anything there.
const PORT: u16 = 8889;
/// How long it may take to listen: it looks at all sandboxes first.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);
/// The longest line that is waited for.
const MAX_LINE: usize = 64 << 10;
const SIGHUP: i32 = 1;
const SIGTERM: i32 = 15;

/// It runs for as long as we do.
#[derive(Debug)]
pub(super) struct InsideDaemon {
    machine: Machine,
    control: ExecControl,
    ended: Mutex<Receiver<Result<(), String>>>,
}

impl InsideDaemon {
    /// Starts the machine if it does not run, and a daemon in it, with what matters inside of the settings out here.
    pub(super) fn start(args: &ServeArgs, token: Option<&str>, dirs: &Dirs) -> anyhow::Result<Self> {
        let remote = Remote::start(dirs, &*progress::reporter(false))?;
        let machine = remote.machine().clone();
        let mut words = vec!["serve".to_owned(), format!("--bind=127.0.0.1:{PORT}")];
        words.push(format!("--branch-concurrency={}", args.branch_concurrency));
        words.push(format!("--networks={}", args.networks));
        words.push(format!("--drain-secs={}", args.drain_secs));
        words.extend(args.core_scheduling.then(|| "--core-scheduling".to_owned()));
        words.extend(args.idle_secs.map(|secs| format!("--idle-secs={secs}")));
        if let Some(token) = token {
            bring_token(&machine, token)?;
            words.push(format!("--token-file={}", token_file()));
        }
        // What it writes down is written down here: its log is standard error, so nothing else comes that way.
        words.push("--audit-log=/dev/stdout".to_owned());
        words.push(format!("--builder-socket={}", builder::socket()));
        let audit_log = args.audit_log.clone().unwrap_or_else(|| dirs.data.join("audit.log"));
        // Tried now, so that it is said now if it cannot be.
        append(&audit_log, b"").with_context(|| format!("cannot write {}", audit_log.display()))?;
        let mut request = remote.request(words, Stdio::Output);
        // Where it listens inside is nobody's business, unless somebody wants to know everything.
        request.env.entry("RUST_LOG".into()).or_insert_with(|| "warn".into());
        let exec = machine.exec(&request)?;
        let (control, (say, ended)) = (exec.control(), channel());
        spawn("inside", move || pass_on(exec, &audit_log, &say))?;
        let inside = Self { machine, control, ended: Mutex::new(ended) };
        inside.listens()?;
        builder::stand_by(remote, dirs)?;
        Ok(inside)
    }

    fn listens(&self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.ended.lock().unwrap_or_else(PoisonError::into_inner).try_recv() {
                Ok(ended) => bail!("the daemon inside ended: {}", ended.err().unwrap_or_default()),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
            match self.dial(Door::Local) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(error).context("the daemon inside does not listen"),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

impl Inside for InsideDaemon {
    fn dial(&self, door: Door) -> io::Result<Transport> {
        let to = match door {
            Door::Network => DialTarget::Tcp { address: None, port: PORT },
            Door::Local => {
                DialTarget::Unix { path: remote::inside("run/forkd.sock").parse().map_err(io::Error::other)? }
            }
        };
        let connection = self.machine.connect().map_err(io::Error::other)?;
        connection.dial(&to).map_err(io::Error::other)
    }

    fn reload(&self, token: Option<&str>) -> io::Result<()> {
        token.map(|token| bring_token(&self.machine, token)).transpose().map_err(io::Error::other)?;
        self.control.signal(SIGHUP).map_err(io::Error::other)
    }

    fn stop(&self) -> io::Result<()> {
        self.control.signal(SIGTERM).map_err(io::Error::other)
    }

    fn wait(&self) -> Result<(), String> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.recv().unwrap_or_else(|_| Err("nothing is known of its end".into()))
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    // Not joined: it goes with us.
    thread::Builder::new().name(name.into()).spawn(work).context("cannot start a thread")?;
    Ok(())
}

fn token_file() -> String {
    remote::inside("run/token")
}

/// Nobody but root is inside, and the file is only root's all the same.
fn bring_token(machine: &Machine, token: &str) -> anyhow::Result<()> {
    let script = r#"umask 077; mkdir -p "${1%/*}"; cat > "$1.new" && mv -f "$1.new" "$1""#;
    let argv = ["sh", "-c", script, "sh", &token_file()].map(String::from).to_vec();
    let request = ExecRequest { argv, stdio: Stdio::Pipes, ..ExecRequest::default() };
    let output = machine.output(&request, token.as_bytes(), 4096)?;
    if output.status.shell_code() != 0 {
        bail!("the token cannot be kept in the emulated host: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Writes down what it writes down and shows what it says, to its end, and says how it ended.
fn pass_on(mut exec: Exec, audit_log: &Path, say: &Sender<Result<(), String>>) {
    let mut lines = Lines::default();
    let ended = loop {
        match exec.next_event() {
            Ok(Event::Stdout(bytes)) => write_down(audit_log, &lines.take(bytes)),
            Ok(Event::Stderr(bytes)) => {
                if let Err(error) = Raw(stderr()).write_all(&bytes) {
                    log::debug!("what the daemon inside says is lost: {error}");
                }
            }
            Ok(Event::Exited { status, .. }) => {
                let code = status.shell_code();
                break if code == 0 { Ok(()) } else { Err(format!("its exit code was {code}")) };
            }
            Err(error) => break Err(chain(&remote::explain(error.into()))),
        }
    };
    write_down(audit_log, &lines.open);
    if say.send(ended).is_err() {
        log::debug!("nobody waits for the daemon inside");
    }
}

/// Text that comes in pieces.
#[derive(Debug, Default)]
struct Lines {
    /// The beginning of a line that is still to come.
    open: Vec<u8>,
}

impl Lines {
    /// The lines that are whole by now, so that whoever moves the file away tears none.
    fn take(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.open);
        all.extend(bytes);
        let end = all.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        if end > 0 || all.len() < MAX_LINE {
            self.open = all.split_off(end);
        }
        all
    }
}

fn write_down(to: &Path, lines: &[u8]) {
    if !lines.is_empty()
        && let Err(error) = append(to, lines)
    {
        log::error!("{} bytes are missing in the audit log: {error}", lines.len());
    }
}

/// Opened each time: whoever rotates logs moves the file away.
fn append(to: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = to.parent() {
        std::fs::create_dir_all(dir)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(to)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_written_down() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(b"{\"a\":".to_vec()), b"");
        assert_eq!(lines.take(b"1}\n{\"b\"".to_vec()), b"{\"a\":1}\n");
        assert_eq!(lines.take(b":2}\n".to_vec()), b"{\"b\":2}\n");
        assert!(lines.open.is_empty());
        assert_eq!(lines.take(vec![b'x'; MAX_LINE]).len(), MAX_LINE, "what is no line is not kept");
    }
}
