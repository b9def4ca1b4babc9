//! `forkd port`: a server inside of a sandbox, on an address of ours.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Context;
use api::{SandboxInfo, SnapshotInfo};
use clap::Args;
use client::{Client, Dialled, path};

use crate::daemon::DaemonArgs;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  forkd port sb-6919d1a0-5e884898 8080                          http://127.0.0.1:8080 is its port 8080
  forkd port sb-6919d1a0-5e884898 5432 --listen 127.0.0.1:0     a port that is free here; it is said which
  curl -H \"Authorization: Bearer $FORKD_TOKEN\" $FORKD_URL/v1/sandboxes/sb-6919d1a0-5e884898/ports/8080/index.html

The sandbox needs no network for it, and its server may listen on loopback only. Until Ctrl-C.";

/// The most connections at a time, which is what the daemon lets one sandbox have.
const MAX_CONNECTIONS: usize = 256;

/// Leads an address of this host to a server inside of a sandbox
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PortArgs {
    /// Which sandbox
    #[arg(value_name = "ID")]
    id: String,
    /// On which port its server listens [default: those that its snapshot's recipe names]
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Where to listen here [default: the same port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "port")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn port(args: &PortArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.client()?;
    let info: SandboxInfo = client.get(&path(&["sandboxes", &args.id], &[]))?;
    let ports = args.port.map_or_else(|| known(&client, &info), |port| Ok(vec![port]))?;
    let mut listeners = Vec::new();
    for port in ports {
        let at = args.listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, port).into());
        let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}; see --listen"))?;
        output::line(&format!("http://{} is port {port} of {}", listener.local_addr()?, info.id))?;
        listeners.push((listener, path(&["sandboxes", &args.id, "ports", &port.to_string()], &[])));
    }
    let open = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        let serving = listeners.iter().map(|(listener, path)| scope.spawn(|| serve(listener, &client, path, &open)));
        let serving: Vec<_> = serving.collect();
        serving.into_iter().try_for_each(|one| one.join().expect("it does not panic"))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The ports that something listens on in what the sandbox is made of.
fn known(client: &Client, sandbox: &SandboxInfo) -> anyhow::Result<Vec<u16>> {
    let snapshots: Vec<SnapshotInfo> = client.get(&path(&["snapshots"], &[]))?;
    let of_it = snapshots.into_iter().find(|one| one.tag == sandbox.snapshot_tag);
    let ports = of_it.map(|snapshot| snapshot.ports).unwrap_or_default();
    anyhow::ensure!(!ports.is_empty(), "the snapshot of {} names no ports; say which one is meant", sandbox.id);
    Ok(ports)
}

/// Leads everybody who comes by that path of the daemon's, until we end.
pub(crate) fn serve(
    listener: &TcpListener,
    client: &Client,
    path: &str,
    open: &Arc<AtomicUsize>,
) -> anyhow::Result<()> {
    for stream in listener.incoming() {
        let stream = stream.context("cannot listen any more")?;
        if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            eprintln!("forkd: {MAX_CONNECTIONS} connections are open; one more is turned away");
            continue;
        }
        let (client, path, open) = (client.clone(), path.to_owned(), Arc::clone(open));
        thread::Builder::new().name("port".into()).spawn(move || {
            if let Err(error) = lead(&client, &path, &stream) {
                eprintln!("forkd: {error:#}");
            }
            open.fetch_sub(1, Ordering::Relaxed);
        })?;
    }
    Ok(())
}

/// Carries bytes both ways until both sides have ended.
fn lead(client: &Client, path: &str, stream: &TcpStream) -> anyhow::Result<()> {
    let sandbox = client.dial(path)?;
    thread::scope(|scope| {
        scope.spawn(|| carry(&mut &sandbox, &mut &*stream, || stream.shutdown(Shutdown::Write)));
        carry(&mut &*stream, &mut &sandbox, || Dialled::end(&sandbox));
    });
    Ok(())
}

/// A side that is gone needs no more; the other is told that there is no more.
fn carry(from: &mut impl io::Read, to: &mut impl io::Write, end: impl FnOnce() -> io::Result<()>) {
    for outcome in [io::copy(from, to).map(drop), end()] {
        if let Err(error) = outcome {
            log::debug!("{error}");
        }
    }
}
