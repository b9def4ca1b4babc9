//! A command in a sandbox, joined to our own streams by way of the daemon.
//!
//! What it says comes as one stream of events, and it ends with that. What it reads, signals and the size of its terminal go
//! beside it, by the name that the stream gave it.

use std::io;
use std::thread;

use anyhow::{Context, anyhow, bail};
use api::{Chunk, Encoding, ErrorBody, ExecRequest, Exit, SendSignal, Signal, Started};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Event, path};
use rustix::stdio::{stderr, stdout};
use serde::de::DeserializeOwned;
use session::TtySize;

use crate::interrupts::{Command, Interrupts};
use crate::stream::{Ended, Written, shell_byte, write};
use crate::terminal::RawMode;

const SIGKILL: i32 = 9;

/// Runs it to its end. The first interrupt is the command's; the second ends it.
pub(crate) fn exec(client: &Client, id: &str, request: &ExecRequest, interrupts: &Interrupts) -> anyhow::Result<Ended> {
    let request = ExecRequest { stream: true, ..request.clone() };
    let mut events = client.events(&path(&["sandboxes", id, "exec"], &[]), Some(&request))?;
    let (mut raw, mut started) = (None, false);
    for event in &mut events {
        let event = event?;
        let written = match event.name.as_str() {
            "started" => {
                let session = read::<Started>(&event)?.session.context("the daemon does not name the command")?;
                raw = request
                    .tty
                    .map(|_| RawMode::enter())
                    .transpose()
                    .context("cannot switch the terminal to raw mode")?;
                let command = Remote { client: client.clone(), id: id.into(), session };
                command.joined(&request, interrupts)?;
                started = true;
                Written::All
            }
            "stdout" => write(stdout(), &bytes(&event)?, "standard output")?,
            // Why it could not be started is not the command's to say.
            "stderr" if !started => write(stderr(), &[b"forkd: ", &*bytes(&event)?].concat(), "standard error")?,
            "stderr" => write(stderr(), &bytes(&event)?, "standard error")?,
            "exit" => {
                let exit: Exit = read(&event)?;
                drop(raw);
                return Ok(ended(&exit));
            }
            "error" => bail!("{}", read::<ErrorBody>(&event)?.error),
            _ => Written::All,
        };
        if matches!(written, Written::ReaderLeft) {
            return Ok(Ended::ReaderLeft);
        }
    }
    Err(anyhow!("the daemon went away while the command ran"))
}

fn ended(exit: &Exit) -> Ended {
    match exit.signal {
        _ if exit.timed_out => Ended::TimedOut,
        Some(signal) => Ended::Code(shell_byte(128 + signal)),
        None => Ended::Code(shell_byte(exit.exit_code)),
    }
}

fn read<T: DeserializeOwned>(event: &Event) -> anyhow::Result<T> {
    serde_json::from_str(&event.data).with_context(|| format!("the daemon said something else about {}", event.name))
}

fn bytes(event: &Event) -> anyhow::Result<Vec<u8>> {
    let Chunk { data, encoding } = read(event)?;
    match encoding {
        Encoding::Utf8 => Ok(data.into_bytes()),
        Encoding::Base64 => STANDARD.decode(data).context("the daemon said something else"),
    }
}

/// A command, as other requests reach it.
#[derive(Clone, Debug)]
struct Remote {
    client: Client,
    id: String,
    session: String,
}

impl Remote {
    fn path(&self, what: &str, query: &[(&str, &str)]) -> String {
        path(&["sandboxes", &self.id, "exec", &self.session, what], query)
    }

    /// Its input is ours, and signals to us are about it.
    fn joined(self, request: &ExecRequest, interrupts: &Interrupts) -> anyhow::Result<()> {
        if request.open_stdin {
            let command = self.clone();
            // Not joined: it may sit in a read that never ends. It goes with us.
            thread::Builder::new()
                .name("stdin".into())
                .spawn(move || command.feed())
                .context("cannot start a thread")?;
        }
        let [pass_on, resize, stop] = [self.clone(), self.clone(), self];
        interrupts.about(Command {
            has_terminal: request.tty.is_some(),
            signal: Box::new(move |signal| pass_on.clone().later(move |command| command.signal(signal))),
            resize: Box::new(move |size| resize.clone().later(move |command| command.resize(size))),
            stop: Box::new(move || stop.clone().later(|command| command.signal(SIGKILL))),
        });
        Ok(())
    }

    fn feed(&self) {
        // A process that ends without reading its input is no error.
        if let Err(error) = self.client.pour(&self.path("stdin", &[("close", "true")]), io::stdin()) {
            log::debug!("the rest of the input was not taken: {error}");
        }
    }

    fn signal(&self, signal: i32) -> Result<(), client::ClientError> {
        self.client.tell(&self.path("signal", &[]), &SendSignal { signal: Signal::Number(signal) })
    }

    fn resize(&self, TtySize { rows, cols }: TtySize) -> Result<(), client::ClientError> {
        self.client.tell(&self.path("resize", &[]), &api::TtySize { rows, cols })
    }

    /// On a thread of its own: who handles signals must be there for the next.
    fn later(self, work: impl FnOnce(&Self) -> Result<(), client::ClientError> + Send + 'static) {
        let sent = thread::Builder::new().name("signal".into()).spawn(move || {
            // A command that has just ended needs no signal.
            if let Err(error) = work(&self) {
                log::debug!("a signal was not passed on: {error}");
            }
        });
        if let Err(error) = sent {
            log::warn!("a signal is not passed on: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_as_it_would_in_a_shell() {
        let exit = |exit_code, signal, timed_out| ended(&Exit { exit_code, signal, timed_out });
        assert_eq!(exit(7, None, false), Ended::Code(7));
        assert_eq!(exit(-9, Some(9), false), Ended::Code(137));
        assert_eq!(exit(-9, Some(9), true), Ended::TimedOut);
        assert_eq!(exit(256 + 7, None, false), Ended::Code(7));
    }

    #[test]
    fn what_is_no_text_comes_as_it_was() {
        let event = |data: &str| Event { name: "stdout".into(), data: data.into() };
        assert_eq!(bytes(&event(r#"{"data":"aé","encoding":"utf8"}"#)).unwrap(), "aé".as_bytes());
        assert_eq!(bytes(&event(r#"{"data":"/2E=","encoding":"base64"}"#)).unwrap(), [0xff, b'a']);
        bytes(&event(r#"{"data":"%","encoding":"base64"}"#)).unwrap_err();
        bytes(&event("x")).unwrap_err();
    }
}
