//! What is done in a child from outside: its files, its processes, whoever listens in it; and a child that stands still.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use engine::{ChildStatus, KillError, kill};
use proto::guest::{DialTarget, ErrorCode, ExecRequest, ExitStatus, FileKind, ListFiles, ReadFile, Stdio, WriteFile};
use session::{AttachedEvent, ProcessInfo, SessionError, Transport};
use sha2::{Digest, Sha256};
use types::Tag;

use crate::Test;
use crate::branch::{one, take};
use crate::fork::{Children, Parent, Py};
use crate::host::{Host, Sh, shell};

pub(crate) const TESTS: &[Test] = &[
    ("inhabit::sixteen_mib_go_in_and_come_out", sixteen_mib_go_in_and_come_out),
    ("inhabit::a_process_outlives_clients_and_branches", a_process_outlives_clients_and_branches),
    ("inhabit::a_server_in_the_guest_is_reached", a_server_in_the_guest_is_reached),
    ("inhabit::a_paused_child_stands_still", a_paused_child_stands_still),
];

const FILE_BYTES: usize = 16 << 20;
/// A paused child that is asked must not keep anybody waiting.
const AT_ONCE: Duration = Duration::from_secs(2);
/// The counter empties its file before it writes to it.
const COUNT: &str = "until grep . /run/count; do :; done";

fn sixteen_mib_go_in_and_come_out(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Warm, 1)?;
    let child = &children[0];
    let bytes: Vec<u8> =
        (0_u32..).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).take(FILE_BYTES).collect();
    let path: proto::guest::GuestPath = "/srv/a/b/file".parse()?;
    let request = WriteFile { path: path.clone(), mode: Some(0o640), parents: true, user: None };
    let mut writer = child.write_file(&request)?;
    writer.write_all(&bytes)?;
    let info = writer.finish()?;
    ensure!((info.size, info.mode) == (FILE_BYTES as u64, 0o640), "{info:?}");
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(child.sh("sha256sum < /srv/a/b/file")?.starts_with(&digest), "another digest in the guest");
    let mut read = Vec::new();
    child.read_file(&ReadFile { path: path.clone(), offset: 0, length: None, user: None })?.read_to_end(&mut read)?;
    ensure!(read == bytes, "{} bytes came back, changed", read.len());
    let list = child.list_files(&ListFiles { path: "/srv".parse()?, depth: 9, user: None })?;
    let mut listed =
        list.map(|info| Ok((info.as_ref().map(|info| info.kind).ok(), info?.path))).collect::<Result<Vec<_>>>()?;
    listed.sort_by(|one, two| one.1.cmp(&two.1));
    let dir = |path: &str| (Some(FileKind::Dir), path.to_owned());
    ensure!(listed == [dir("/srv/a"), dir("/srv/a/b"), (Some(FileKind::File), path.to_string())], "{listed:?}");
    let theirs = child.read_file(&ReadFile { path, offset: 0, length: None, user: Some("nobody".into()) });
    let refused = matches!(&theirs, Err(SessionError::Refused { code: ErrorCode::PermissionDenied, .. }));
    ensure!(refused, "nobody reads {theirs:?}");
    Ok(())
}

fn a_process_outlives_clients_and_branches(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Warm, 1)?;
    let source = &children[0];
    let counter =
        ExecRequest { stdio: Stdio::Pipes, ..shell("n=0; while read word; do n=$((n+1)); echo $n $word; done") };
    let started = source.start_process(&counter)?;
    feed(source, started.id, "first\n", false)?;
    wait_for(source, started.id, "1 first\n")?;
    let tag: Tag = "e2e-inhabit".parse()?;
    let branch = take(source, &tag, &host.dirs)?;
    feed(source, started.id, "here\n", true)?;
    let branched = one(&tag, &host.dirs)?;
    let there: Vec<ProcessInfo> = branched[0].processes()?;
    ensure!(there == [started.clone()], "the branch has {there:?}");
    feed(&branched[0], started.id, "there\n", true)?;
    for (child, second) in [(source, "2 here\n"), (&branched[0], "2 there\n")] {
        ensure!(wait_for(child, started.id, second)? == format!("1 first\n{second}"));
        let ended = || child.show_process(started.id).is_ok_and(|info| info.status == Some(ExitStatus::Code(0)));
        crate::world::wait_until("its end", Duration::from_secs(30), ended)?;
        child.forget_process(started.id)?;
        ensure!(child.processes()?.is_empty());
    }
    drop(branch);
    Ok(())
}

fn feed(child: &engine::Child, id: u64, text: &str, close: bool) -> Result<()> {
    let mut writer = child.feed(id, close)?;
    writer.write_all(text.as_bytes())?;
    Ok(writer.finish()?)
}

/// Follows until the text has come; all that came so far.
fn wait_for(child: &engine::Child, id: u64, text: &str) -> Result<String> {
    let mut attached = child.attach(id)?;
    let mut seen = String::new();
    while !seen.ends_with(text) {
        match attached.next_event()? {
            AttachedEvent::Stdout(bytes) => seen += std::str::from_utf8(&bytes)?,
            other => anyhow::bail!("{other:?} after `{seen}`"),
        }
    }
    Ok(seen)
}

fn a_server_in_the_guest_is_reached(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Warm, 1)?;
    let child = &children[0];
    let port = child.py("import socket, threading\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        def answer():\n\
        \x20   peer, _ = server.accept()\n\
        \x20   heard = b''.join(iter(lambda: peer.recv(65536), b''))\n\
        \x20   peer.sendall(heard[::-1]); peer.close()\n\
        threading.Thread(target=answer, daemon=True).start()\n\
        server.getsockname()[1]")?;
    let mut stream = match child.dial(&DialTarget::Tcp { address: None, port: port.parse()? })? {
        Transport::Unix(stream) => stream,
        Transport::Tcp(_) => anyhow::bail!("a VM is reached by a unix socket"),
    };
    let said: Vec<u8> = (0_u32..1 << 18).flat_map(u32::to_le_bytes).collect();
    stream.write_all(&said)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard)?;
    heard.reverse();
    ensure!(heard == said, "{} bytes came back", heard.len());
    let nobody = child.dial(&DialTarget::Tcp { address: None, port: 9 });
    let refused = matches!(&nobody, Err(SessionError::Refused { code: ErrorCode::ConnectionRefused, .. }));
    ensure!(refused, "{nobody:?}");
    Ok(())
}

fn a_paused_child_stands_still(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Warm, 1)?;
    let child = &children[0];
    child.start_process(&shell("i=0; while :; do i=$((i+1)); echo $i > /run/count; done"))?;
    child.py("mark = 'paused'")?;
    child.pause()?;
    child.pause().context("again")?;
    ensure!(child.status()? == ChildStatus::Paused);
    let asked = Instant::now();
    let refused = child.exec(&shell("true"));
    ensure!(matches!(&refused, Err(SessionError::Paused { .. })), "{refused:?}");
    ensure!(matches!(child.ping(), Err(SessionError::Paused { .. })));
    ensure!(asked.elapsed() < AT_ONCE, "it took {:?}", asked.elapsed());
    // A branch of it runs, and knows what was known at that instant.
    let tag: Tag = "e2e-paused".parse()?;
    let branch = take(child, &tag, &host.dirs)?;
    ensure!(child.status()? == ChildStatus::Paused, "a branch woke it up");
    let branched = one(&tag, &host.dirs)?;
    let kept: u64 = branched[0].sh(COUNT)?.parse()?;
    ensure!(branched[0].status()? == ChildStatus::Running && branched[0].py("mark")? == "'paused'");
    child.resume()?;
    child.resume().context("again")?;
    ensure!(child.status()? == ChildStatus::Running);
    ensure!(child.py("mark")? == "'paused'");
    let later: u64 = child.sh(COUNT)?.parse()?;
    ensure!(later > 0 && kept > 0, "{kept} in the branch, {later} in the source");
    child.pause()?;
    kill(child).map_err(|error: KillError| error)?;
    ensure!(child.status().is_err() || child.status()? == ChildStatus::Gone);
    drop(branch);
    Ok(())
}
