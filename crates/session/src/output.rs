//! The common case: run it, feed it, keep what it says.

use std::io::Write;
use std::thread;

use proto::guest::{ExecRequest, ExitStatus, Stdio};

use crate::{Connection, Event, Exec, SessionError};

/// What a process left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// The agent killed it because its time was up.
    pub timed_out: bool,
    /// All it wrote to standard output.
    pub stdout: Vec<u8>,
    /// All it wrote to standard error.
    pub stderr: Vec<u8>,
}

impl Connection {
    /// Runs a process to its end, with `stdin` as its input, and keeps at most `limit_bytes` of output. Input for a
    /// request without a way to give it makes that a request with pipes.
    ///
    /// # Errors
    /// As [`Connection::exec`] and [`Exec::next_event`]; [`SessionError::TooMuchOutput`] beyond the limit, in which
    /// case the process is killed.
    pub fn output(self, request: &ExecRequest, stdin: &[u8], limit_bytes: usize) -> Result<Output, SessionError> {
        let mut request = request.clone();
        if request.stdio == Stdio::Output && !stdin.is_empty() {
            request.stdio = Stdio::Pipes;
        }
        let mut exec = self.exec(&request)?;
        if request.stdio == Stdio::Output {
            return collect(&mut exec, limit_bytes);
        }
        let mut writer = exec.stdin();
        thread::scope(|scope| {
            let feeder = move || {
                // A process need not read its input to the end; the session says how it ended.
                if writer.write_all(stdin).is_ok() {
                    drop(writer.close());
                }
            };
            let feeder = thread::Builder::new().name("stdin".into()).spawn_scoped(scope, feeder);
            feeder.map_err(|source| SessionError::Lost { source })?;
            collect(&mut exec, limit_bytes)
        })
    }
}

/// On any error the session is hung up before this returns, so that a feeder waiting for credit wakes up.
fn collect(exec: &mut Exec, limit_bytes: usize) -> Result<Output, SessionError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        let (kept, bytes) = match exec.next_event()? {
            Event::Stdout(bytes) => (&mut stdout, bytes),
            Event::Stderr(bytes) => (&mut stderr, bytes),
            Event::Exited { status, timed_out } => return Ok(Output { status, timed_out, stdout, stderr }),
        };
        kept.extend_from_slice(&bytes);
        if stdout.len() + stderr.len() > limit_bytes {
            exec.hang_up();
            return Err(SessionError::TooMuchOutput { limit_bytes });
        }
    }
}
