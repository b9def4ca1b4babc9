//! What a sandbox notices of being branched: a pause, and nothing else.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use session::Event;
use types::Tag;

use super::{one, take};
use crate::Test;
use crate::finding::ensure_always;
use crate::fork::{Children, Parent, Py};
use crate::host::{Host, OUTPUT_LIMIT, shell};

pub(crate) const TESTS: &[Test] = &[("branch::the_source_goes_on", the_source_goes_on)];

const BRANCHES: usize = 5;
const LINES: usize = 4000;
/// How far the source's wall clock may be off: it was set by the host, and a pause must not move it.
const CLOCK_ERROR: Duration = Duration::from_millis(200);

fn the_source_goes_on(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Warm, 1)?;
    let source = &children[0];
    source.py("import socket, threading, time, numpy\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        client = socket.create_connection(server.getsockname())\n\
        peer, _ = server.accept()\n\
        began = time.monotonic(), time.time()\n\
        value = numpy.arange(100)")?;
    let counting = format!("i=0; while [ $i -lt {LINES} ]; do echo $i; i=$((i+1)); done");
    let mut exec = source.exec(&shell(&counting))?;
    let mut said = Vec::new();
    for number in 0..BRANCHES {
        // Some of it is always under way when the branch is taken.
        let enough = said.len() + 1;
        read(&mut exec, &mut said, enough)?;
        let tag: Tag = format!("e2e-source-{number}").parse()?;
        let branch = take(source, &tag, &host.dirs)?;
        let branched = one(&tag, &host.dirs)?;
        let sum = branched[0].py("int(value.sum())")?;
        ensure_always!(sum == (4950 + number).to_string(), "the branch is of another instant: {sum}");
        ensure!(branched[0].py("client.send(b'x'), peer.recv(1)")? == "(1, b'x')", "its own connections are broken");
        source.py("value[0] += 1")?;
        ensure!(source.py("client.send(b'y'), peer.recv(1)")? == "(1, b'y')", "the source's connections are broken");
        drop(branch);
    }
    read(&mut exec, &mut said, usize::MAX)?;
    let expected: String = (0..LINES).map(|line| format!("{line}\n")).collect();
    ensure_always!(said == expected.as_bytes(), "of {} bytes {} came", expected.len(), said.len());
    let drift: f64 = source.py("abs((time.time() - began[1]) - (time.monotonic() - began[0]))")?.parse()?;
    ensure!(drift < CLOCK_ERROR.as_secs_f64(), "the clocks drifted apart by {drift} s");
    let before = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let told: f64 = source.py("time.time()")?.parse()?;
    let after = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let error = CLOCK_ERROR.as_secs_f64();
    ensure!(told > before - error && told < after + error, "between {before} and {after} its clock says {told}");
    Ok(())
}

/// Reads until there is so much, or all of it.
fn read(exec: &mut session::Exec, said: &mut Vec<u8>, enough: usize) -> Result<()> {
    while said.len() < enough && said.len() < OUTPUT_LIMIT {
        match exec.next_event().context("the stream broke")? {
            Event::Stdout(bytes) => said.extend(bytes),
            Event::Stderr(bytes) => anyhow::bail!("{}", String::from_utf8_lossy(&bytes)),
            Event::Exited { status, .. } => {
                ensure!(status.shell_code() == 0 && enough == usize::MAX, "it ended with {status:?}");
                return Ok(());
            }
        }
    }
    Ok(())
}
