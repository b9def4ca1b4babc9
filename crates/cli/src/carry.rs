//! Files of this host for a forkd in the emulated one: what it reads or writes crosses as its standard streams.

use std::io::{Read, Write};
use std::thread;

use anyhow::Context;
use rustix::stdio::{stderr, stdout};
use session::{Event, Exec, ExitStatus, Stdio};

use crate::interrupts::Interrupts;
use crate::output::{Raw, reader_left};
use crate::remote::{Remote, explain};
use crate::stream::feed;

/// Runs forkd inside and writes what it writes; returns how it ended.
pub(crate) fn out(
    remote: &Remote,
    words: Vec<String>,
    to: &mut dyn Write,
    interrupts: &Interrupts,
) -> anyhow::Result<ExitStatus> {
    let exec = remote.begin(&remote.request(words, Stdio::Output), interrupts)?;
    watch(exec, to)
}

/// Runs forkd inside and lets it read what is read here; returns how it ended.
pub(crate) fn in_to(
    remote: &Remote,
    words: Vec<String>,
    from: impl Read + Send + 'static,
    interrupts: &Interrupts,
) -> anyhow::Result<ExitStatus> {
    let exec = remote.begin(&remote.request(words, Stdio::Pipes), interrupts)?;
    let writer = exec.stdin();
    // Not joined: it may sit in a read that never ends. It goes with us.
    thread::Builder::new().name("stdin".into()).spawn(move || feed(from, writer)).context("cannot start a thread")?;
    watch(exec, &mut Raw(stdout()))
}

fn watch(mut exec: Exec, to: &mut dyn Write) -> anyhow::Result<ExitStatus> {
    loop {
        match exec.next_event().map_err(|error| explain(error.into()))? {
            Event::Stdout(bytes) => to.write_all(&bytes).context("cannot write what comes from the emulated host")?,
            Event::Stderr(bytes) => match Raw(stderr()).write_all(&bytes) {
                Err(error) if !reader_left(&error) => return Err(error).context("cannot write to standard error"),
                _ => {}
            },
            Event::Exited { status, .. } => return Ok(status),
        }
    }
}
