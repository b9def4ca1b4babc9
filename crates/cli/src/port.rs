//! `forkd port`: a server inside of a sandbox, on an address of ours.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Context;
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
    /// On which port its server listens
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Where to listen here [default: the same port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn port(args: &PortArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.client()?;
    let path = path(&["sandboxes", &args.id, "ports", &args.port.to_string()], &[]);
    let info: api::SandboxInfo = client.get(&client::path(&["sandboxes", &args.id], &[]))?;
    let at = args.listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, args.port).into());
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}; see --listen"))?;
    output::line(&format!("http://{} is port {} of {}", listener.local_addr()?, args.port, info.id))?;
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = stream.context("cannot listen any more")?;
        if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            eprintln!("forkd: {MAX_CONNECTIONS} connections are open; one more is turned away");
            continue;
        }
        let (client, path, open) = (client.clone(), path.clone(), Arc::clone(&open));
        thread::Builder::new().name("port".into()).spawn(move || {
            if let Err(error) = lead(&client, &path, &stream) {
                eprintln!("forkd: {error:#}");
            }
            open.fetch_sub(1, Ordering::Relaxed);
        })?;
    }
    Ok(ExitCode::SUCCESS)
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
