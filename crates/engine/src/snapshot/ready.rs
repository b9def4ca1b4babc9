//! When a warm-up is over: a command succeeds, somebody listens, a server answers, or what was started has said so.
//!
//! Ports are tried from here through the agent, so a guest needs neither a network nor a program for it.

use std::io::{self, Read as _, Write as _};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use session::{Attached, AttachedEvent, DialTarget, ExitStatus, SessionError, Transport};

use super::warm::{WarmError, Warming, shown};
use crate::cancel::Cancel;
use crate::said::Said;

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a server may take for one answer; then it is asked again.
const ANSWER: Duration = Duration::from_secs(10);
/// The first line of an answer is not longer.
const MAX_STATUS_LINE: u64 = 1024;

/// What has to be so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyCheck {
    /// A shell line that succeeds.
    Command(String),
    /// Somebody listens on a TCP port of the guest's.
    Tcp(u16),
    /// A server answers with 200.
    Http {
        /// On which port.
        port: u16,
        /// What it is asked for.
        path: String,
    },
    /// What was started has written a line that contains this.
    Line(String),
}

/// One that waits.
pub(super) struct Waiting<'a> {
    pub(super) warming: Warming<'a>,
    /// The process that was started, if one was.
    pub(super) started: Option<u64>,
}

/// How a try went.
enum Tried {
    Ready,
    /// Not yet, and what was said about it.
    NotYet(String),
}

impl Waiting<'_> {
    pub(super) fn wait(&self, check: &ReadyCheck) -> Result<(), WarmError> {
        let waiting_for = match check {
            ReadyCheck::Command(line) => format!("`{line}` does not succeed"),
            ReadyCheck::Tcp(port) => format!("nobody listens on port {port}"),
            ReadyCheck::Http { port, path } => format!("port {port} does not answer {path} with 200"),
            ReadyCheck::Line(text) => format!("no line with `{text}` was written"),
        };
        self.warming.stage.note(&format!("waiting: {waiting_for}"));
        if let (ReadyCheck::Line(text), Some(id)) = (check, self.started) {
            return self.wait_for_line(id, text, waiting_for);
        }
        loop {
            let said = match self.attempt(check)? {
                Tried::Ready => return Ok(()),
                Tried::NotYet(said) => said,
            };
            self.expect_alive()?;
            let pause = (Instant::now() + PAUSE).min(self.warming.until);
            // Called off: the caller knows, and what is said here does not matter.
            if matches!(Cancel::first(&[self.warming.cancel], pause), Ok(Some(_)))
                || Instant::now() >= self.warming.until
            {
                let said = if said.is_empty() { self.output()? } else { said };
                return Err(self.warming.slow(waiting_for, said));
            }
        }
    }

    fn attempt(&self, check: &ReadyCheck) -> Result<Tried, WarmError> {
        match check {
            ReadyCheck::Command(line) => {
                let output = self.warming.run(&[line])?;
                let succeeded = output.status.shell_code() == 0 && !output.timed_out;
                Ok(if succeeded { Tried::Ready } else { Tried::NotYet(shown(&output)) })
            }
            ReadyCheck::Tcp(port) => {
                Ok(self.dial(*port)?.map_or_else(|| Tried::NotYet(String::new()), |_| Tried::Ready))
            }
            ReadyCheck::Http { port, path } => Ok(match self.dial(*port)? {
                Some(server) => match ask(&server, path) {
                    Ok(line) if is_ok(&line) => Tried::Ready,
                    Ok(line) => Tried::NotYet(format!("it answered: {line}")),
                    Err(error) => Tried::NotYet(format!("it did not answer: {error}")),
                },
                None => Tried::NotYet(String::new()),
            }),
            // Nothing was started that could say it.
            ReadyCheck::Line(_) => Ok(Tried::NotYet(String::new())),
        }
    }

    fn dial(&self, port: u16) -> Result<Option<Transport>, WarmError> {
        let to = DialTarget::Tcp { address: None, port };
        match self.warming.vm.connect().and_then(|connection| connection.dial(&to)) {
            Ok(server) => Ok(Some(server)),
            Err(SessionError::Refused { .. }) => Ok(None),
            Err(source) => Err(self.warming.gone(source)),
        }
    }

    /// A server that has ended never gets ready.
    fn expect_alive(&self) -> Result<(), WarmError> {
        let Some(id) = self.started else { return Ok(()) };
        let shown = self.warming.vm.connect().and_then(|mut connection| connection.show_process(id));
        match shown.map_err(|source| self.warming.gone(source))?.status {
            Some(status) => Err(WarmError::Ended { code: status.shell_code(), said: self.output()? }),
            None => Ok(()),
        }
    }

    /// The last lines of what was started.
    fn output(&self) -> Result<String, WarmError> {
        let Some(id) = self.started else { return Ok(String::new()) };
        let attached = self.attach(id)?;
        let (told, lines) = mpsc::channel();
        let stop = attached.stopper();
        thread::scope(|scope| {
            scope.spawn(move || follow(attached, &told));
            let mut said = Said::default();
            // What is kept comes at once.
            while let Ok(Heard::Piece(bytes)) = lines.recv_timeout(PAUSE) {
                said.hear(&bytes, |_| ());
            }
            stop();
            Ok(said.tail())
        })
    }

    fn attach(&self, id: u64) -> Result<Attached, WarmError> {
        let attached = self.warming.vm.connect().and_then(|connection| connection.attach(id));
        attached.map_err(|source| self.warming.gone(source))
    }

    fn wait_for_line(&self, id: u64, text: &str, waiting_for: String) -> Result<(), WarmError> {
        let attached = self.attach(id)?;
        let (told, heard) = mpsc::channel();
        let stop = attached.stopper();
        thread::scope(|scope| {
            scope.spawn(move || follow(attached, &told));
            let waited = self.hear_line(&heard, text, waiting_for);
            stop();
            waited
        })
    }

    fn hear_line(&self, heard: &Receiver<Heard>, text: &str, waiting_for: String) -> Result<(), WarmError> {
        let mut said = Said::default();
        loop {
            let mut found = false;
            match heard.recv_timeout(PAUSE) {
                Ok(Heard::Piece(bytes)) => said.hear(&bytes, |line| found |= line.contains(text)),
                Ok(Heard::Ended(status)) => {
                    said.end(|line| found |= line.contains(text));
                    if !found {
                        return Err(WarmError::Ended { code: status.shell_code(), said: said.tail() });
                    }
                }
                Ok(Heard::Gone(source)) => return Err(self.warming.gone(source)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if found {
                return Ok(());
            }
            let called_off = matches!(Cancel::first(&[self.warming.cancel], Instant::now()), Ok(Some(_)));
            if called_off || Instant::now() >= self.warming.until {
                return Err(self.warming.slow(waiting_for, said.tail()));
            }
        }
    }
}

/// What comes of a process that is followed.
enum Heard {
    Piece(Vec<u8>),
    Ended(ExitStatus),
    Gone(SessionError),
}

/// Until it ends, or nobody listens.
fn follow(mut attached: Attached, told: &Sender<Heard>) {
    loop {
        let heard = match attached.next_event() {
            Ok(AttachedEvent::Stdout(bytes) | AttachedEvent::Stderr(bytes)) => Heard::Piece(bytes),
            Ok(AttachedEvent::Skipped { .. }) => continue,
            Ok(AttachedEvent::Exited { status, .. }) => Heard::Ended(status),
            Err(error) => Heard::Gone(error),
        };
        let over = !matches!(heard, Heard::Piece(_));
        if told.send(heard).is_err() || over {
            return;
        }
    }
}

/// The first line of what a server answers.
fn ask(server: &Transport, path: &str) -> io::Result<String> {
    server.set_read_timeout(Some(ANSWER))?;
    let mut stream = server;
    // At once: a server may answer, and close, as soon as it has read the first line.
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: forkd\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < usize::try_from(MAX_STATUS_LINE).unwrap_or_default()
        && stream.read(&mut byte)? == 1
        && byte != *b"\n"
    {
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line);
    Ok(line.chars().filter(|c| !c.is_control()).collect())
}

fn is_ok(status_line: &str) -> bool {
    let mut words = status_line.split(' ');
    words.next().is_some_and(|version| version.starts_with("HTTP/")) && words.next() == Some("200")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_200_is_ready() {
        assert!(is_ok("HTTP/1.1 200 OK") && is_ok("HTTP/1.0 200"));
        for other in ["", "HTTP/1.1 204 No Content", "HTTP/1.1 503", "200", "SSH-2.0-OpenSSH 200"] {
            assert!(!is_ok(other), "{other}");
        }
    }

    #[test]
    fn a_server_is_asked_for_the_path_and_its_first_line_is_read() {
        let (server, client) = UnixStream::pair().unwrap();
        let answering = thread::spawn(move || {
            let mut request = [0; 32];
            let len = (&server).read(&mut request).unwrap();
            (&server).write_all(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n").unwrap();
            String::from_utf8_lossy(&request[..len]).into_owned()
        });
        assert_eq!(ask(&Transport::from(client), "/health").unwrap(), "HTTP/1.1 200 OK");
        assert!(answering.join().unwrap().starts_with("GET /health HTTP/1.1\r\n"));
        let (server, client) = UnixStream::pair().unwrap();
        drop(server);
        ask(&Transport::from(client), "/").unwrap_err();
    }
}
