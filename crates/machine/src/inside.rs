//! Small scripts of our own that run in the machine, none of which may hang the caller: if neither side has done
//! anything for a while, the connection is cut and the script ends with it.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use proto::guest::MAX_CHUNK;
use session::{Event, Exec, ExecRequest, ExitStatus, SessionError, StdinWriter, Stdio};

use crate::{Machine, MachineError};

/// How long nothing may happen.
const STALL: Duration = Duration::from_secs(120);
/// How long the agent may take to say hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(60);
/// How much a script of ours may say on either stream.
const MAX_SAID: usize = 64 << 10;

/// What is fed to a script: called for the next bytes until it gives none. An error keeps the script from its end.
pub(crate) type Feed<'a> = &'a mut (dyn FnMut(&mut [u8]) -> Result<usize, MachineError> + Send);

impl Machine {
    /// Runs a shell script with arguments and returns what it printed.
    pub(crate) fn script(&self, doing: &'static str, script: &str, args: &[String]) -> Result<String, MachineError> {
        self.fed_script(doing, script, args, &mut |_| Ok(0))
    }

    /// Like `script`, with input. If the input fails, the script is killed rather than shown a false end.
    pub(crate) fn fed_script(
        &self,
        doing: &'static str,
        script: &str,
        args: &[String],
        feed: Feed<'_>,
    ) -> Result<String, MachineError> {
        let fixed = ["sh", "-c", script, "sh"].map(String::from);
        let argv = fixed.into_iter().chain(args.iter().cloned()).collect();
        let request = ExecRequest { argv, stdio: Stdio::Pipes, ..ExecRequest::default() };
        let (connection, stream) = self.connect_within(HELLO_PATIENCE)?;
        let mut exec = connection.exec(&request)?;
        let stdin = exec.stdin();
        let (alive, quiet) = sync_channel(1);
        let cut = &stream;
        let Said { stdout, stderr, status } = thread::scope(|scope| {
            let watcher = spawn(scope, "machine-stall", move || cut_when_quiet(&quiet, cut))?;
            let feeder_alive = alive.clone();
            let feeder = spawn(scope, "machine-feed", move || pour(feed, stdin, &feeder_alive, cut))?;
            let said = listen(&mut exec, &alive);
            drop(alive);
            // A thread that panicked has said so by itself; all that is left is not to go on as if nothing were.
            let panicked = |_| Err(MachineError::process("feed a script")(io::ErrorKind::BrokenPipe.into()));
            feeder.join().unwrap_or_else(panicked)?;
            match watcher.join() {
                Ok(true) => Err(SessionError::Timeout { waited: STALL }.into()),
                _ => said,
            }
        })?;
        if status == ExitStatus::Code(0) {
            Ok(stdout)
        } else {
            Err(MachineError::Inside { doing, status, said: stderr })
        }
    }
}

struct Said {
    stdout: String,
    stderr: String,
    status: ExitStatus,
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<thread::ScopedJoinHandle<'scope, T>, MachineError> {
    let thread = thread::Builder::new().name(name.into());
    thread.spawn_scoped(scope, work).map_err(MachineError::process("start a thread"))
}

/// Ends when everybody who could report is gone; true when it had to cut.
fn cut_when_quiet(quiet: &Receiver<()>, stream: &TcpStream) -> bool {
    loop {
        match quiet.recv_timeout(STALL) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                hang_up(stream);
                return true;
            }
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

fn hang_up(stream: &TcpStream) {
    if let Err(error) = stream.shutdown(Shutdown::Both) {
        log::debug!("the connection was gone before it was cut: {error}");
    }
}

/// A full channel already says that something happened.
fn report(alive: &SyncSender<()>) {
    alive.try_send(()).ok();
}

/// Our own failure is returned, after the script was cut off. The script's is not: it need not read to the end, and
/// its exit status says more.
fn pour(feed: Feed<'_>, mut stdin: StdinWriter, alive: &SyncSender<()>, cut: &TcpStream) -> Result<(), MachineError> {
    let mut chunk = vec![0; MAX_CHUNK];
    loop {
        match feed(&mut chunk) {
            Ok(0) => break,
            Ok(count) if stdin.write_all(&chunk[..count]).is_err() => return Ok(()),
            Ok(_) => report(alive),
            Err(error) => {
                hang_up(cut);
                return Err(error);
            }
        }
    }
    drop(stdin.close());
    Ok(())
}

fn listen(exec: &mut Exec, alive: &SyncSender<()>) -> Result<Said, MachineError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let keep = |kept: &mut Vec<u8>, bytes: &[u8]| {
        let room = MAX_SAID.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    };
    loop {
        match exec.next_event()? {
            Event::Stdout(bytes) => keep(&mut stdout, &bytes),
            Event::Stderr(bytes) => keep(&mut stderr, &bytes),
            Event::Exited { status, .. } => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes.trim_ascii_end()).into_owned();
                return Ok(Said { stdout: text(&stdout), stderr: text(&stderr), status });
            }
        }
        report(alive);
    }
}
