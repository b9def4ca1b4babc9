//! Small scripts of our own that run in the machine, none of which may hang the caller: if one says nothing for a
//! while, the connection is cut and the script ends with it.

use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use session::{Event, Exec, ExecRequest, ExitStatus, SessionError};

use crate::console::presentable;
use crate::{Machine, MachineError};

/// How long nothing may happen.
const STALL: Duration = Duration::from_secs(120);
/// How long the agent may take to say hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(60);
/// How much a script of ours may say on either stream.
const MAX_SAID: usize = 64 << 10;

impl Machine {
    /// Runs a shell script with arguments and returns what it printed.
    pub(crate) fn script(&self, doing: &'static str, script: &str, args: &[String]) -> Result<String, MachineError> {
        self.script_heard(doing, script, args, &mut |_| ())
    }

    /// Like `script`; `heard` gets what it writes to standard error as it comes.
    pub(crate) fn script_heard(
        &self,
        doing: &'static str,
        script: &str,
        args: &[String],
        heard: &mut dyn FnMut(&[u8]),
    ) -> Result<String, MachineError> {
        let fixed = ["sh", "-c", script, "sh"].map(String::from);
        let argv = fixed.into_iter().chain(args.iter().cloned()).collect();
        let (connection, stream) = self.connect_within(HELLO_PATIENCE)?;
        let mut exec = connection.exec(&ExecRequest { argv, ..ExecRequest::default() })?;
        let (alive, quiet) = sync_channel(1);
        let said = thread::scope(|scope| {
            let watcher = thread::Builder::new().name("machine-stall".into());
            let watcher = watcher.spawn_scoped(scope, move || cut_when_quiet(&quiet, &stream));
            let watcher = watcher.map_err(MachineError::process("start a thread"))?;
            let said = listen(&mut exec, &alive, heard);
            drop(alive);
            match watcher.join() {
                Ok(true) => Err(SessionError::Timeout { waited: STALL }.into()),
                _ => said,
            }
        })?;
        match said.status {
            ExitStatus::Code(0) => Ok(said.stdout),
            status => Err(MachineError::Inside { doing, status, said: said.stderr }),
        }
    }
}

struct Said {
    stdout: String,
    stderr: String,
    status: ExitStatus,
}

/// Ends when the one who reports is gone; true when it had to cut.
fn cut_when_quiet(quiet: &Receiver<()>, stream: &TcpStream) -> bool {
    loop {
        match quiet.recv_timeout(STALL) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {
                if let Err(error) = stream.shutdown(Shutdown::Both) {
                    log::debug!("the connection was gone before it was cut: {error}");
                }
                return true;
            }
        }
    }
}

fn listen(exec: &mut Exec, alive: &SyncSender<()>, heard: &mut dyn FnMut(&[u8])) -> Result<Said, MachineError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let keep = |kept: &mut Vec<u8>, bytes: &[u8]| {
        let room = MAX_SAID.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    };
    loop {
        match exec.next_event()? {
            Event::Stdout(bytes) => keep(&mut stdout, &bytes),
            Event::Stderr(bytes) => {
                keep(&mut stderr, &bytes);
                heard(&bytes);
            }
            Event::Exited { status, .. } => {
                let stdout = String::from_utf8_lossy(stdout.trim_ascii_end()).into_owned();
                return Ok(Said { stdout, stderr: presentable(&stderr), status });
            }
        }
        // A full channel already says that something happened.
        alive.try_send(()).ok();
    }
}
