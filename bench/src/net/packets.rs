//! What the rules of a network cost a packet: bytes per second and round trips between a guest and its host.
//!
//! Two guests of one snapshot, in turn: one on its network as it is, one whose tap and veth have no rules, and lead to a
//! namespace that has none, as the host's would be without us. It is measured at sockets out here; the guests' ends are
//! Python, the same for both.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use engine::{Child, ChildOptions, Egress, ForkSpec, Lifetime, Namespaces, Networks, Results, fork_on, networks, plan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use session::ExecRequest;
use types::{Dirs, Tag};

use crate::spread::Spread;

const FORK_LIMIT: Duration = Duration::from_secs(300);
/// How long a guest may take to come, and anything it does.
const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 7000;
const ROUND_TRIPS: usize = 200;
const CHUNK: usize = 64 << 10;
/// Echoes, sends or takes, as the first word says; the last byte says that all has come.
const GUEST: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
what, left = sys.argv[3], int(sys.argv[4])
if what == 'echo':
    while (byte := s.recv(1)): s.sendall(byte)
elif what == 'send':
    chunk = bytes(65536)
    for _ in range(left // len(chunk)): s.sendall(chunk)
    s.recv(1)
else:
    while left > 0: left -= len(s.recv(65536))
    s.sendall(b'.')
";

/// Of one round.
#[derive(Debug)]
struct Round {
    round_trip_us: f64,
    out_mb_per_s: f64,
    in_mb_per_s: f64,
}

pub(super) fn run(tag: &Tag, rounds: usize, megabytes: usize) -> Result<Value> {
    let dirs = Dirs::from_env()?;
    let pool = Arc::new(networks(2)?);
    let given = || Ok(Arc::clone(&pool));
    let spec = ForkSpec {
        tag: tag.clone(),
        children: vec![ChildOptions::default(); 2],
        lifetime: Lifetime::Connection,
        results: Results::AllOrNothing,
        limit: FORK_LIMIT,
        cancel: None,
    };
    let asked = Networks { pool: &given, egress: Some(Egress::None), limits: None };
    let forked = fork_on(&spec, Some(&asked), &dirs)?;
    let children = forked.children.iter().map(|child| Ok(&child.as_ref().map_err(|error| anyhow!("{error}"))?.child));
    let [one, other] = children.collect::<Result<Vec<_>>>()?[..] else { bail!("two children were asked for") };
    let number = one.network()?.context("it has a network")?.number;
    one.set_network(&pool, Some(&format!("{}:{PORT}", number.host()).parse()?), None)?;
    let ours = End { child: one, at: number.host(), listener: TcpListener::bind((number.host(), PORT))? };
    let (bare, plain) = Bare::make(other)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        with.push(ours.measure(megabytes << 20)?);
        without.push(plain.measure(megabytes << 20)?);
        eprintln!("{round} of {rounds} rounds");
    }
    drop(bare);
    Ok(json!({ "rounds": rounds, "megabytes": megabytes, "network": told(&with), "tap_and_veth": told(&without) }))
}

fn told(rounds: &[Round]) -> Value {
    let spread = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of)).json();
    json!({
        "round_trip_us": spread(|round| round.round_trip_us),
        "out_mb_per_s": spread(|round| round.out_mb_per_s),
        "in_mb_per_s": spread(|round| round.in_mb_per_s),
    })
}

/// A namespace without rules, which ends with this.
struct Bare;

impl Bare {
    const NAME: &str = "bench-plain";

    /// Takes the rules of a child's network away, and leads its veth there.
    fn make(child: &Child) -> Result<(Self, End<'_>)> {
        let number = child.network()?.context("it has a network")?.number;
        let (link, at, beyond) =
            (number.host_link(), format!("{}/{}", number.host(), plan::PAIR_PREFIX), number.outside());
        let inside = format!("{}/{}", plan::GATEWAY, plan::INSIDE_PREFIX);
        ip(&["netns", "exec", &number.namespace(), "nft", "flush", "ruleset"])?;
        ip(&["netns", "add", Self::NAME])?;
        let made = Self;
        let there = |words: &[&str]| ip(&[&["-n", Self::NAME], words].concat());
        ip(&["link", "set", &link, "netns", Self::NAME])?;
        there(&["addr", "add", &at, "dev", &link])?;
        there(&["link", "set", &link, "up"])?;
        there(&["route", "add", &inside.replace(".1/", ".0/"), "via", &beyond.to_string()])?;
        let listener = Namespaces::default().enter(Self::NAME, || TcpListener::bind((number.host(), PORT)))?;
        Ok((made, End { child, at: number.host(), listener }))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", Self::NAME]) {
            eprintln!("bench: {error:#}");
        }
    }
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("ip, of iproute2")?;
    ensure!(output.status.success(), "ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A guest and where it reaches us.
struct End<'a> {
    child: &'a Child,
    at: Ipv4Addr,
    listener: TcpListener,
}

impl End<'_> {
    fn measure(&self, bytes: usize) -> Result<Round> {
        let median = self.with_guest("echo", 0, round_trip)?;
        let sent = self.with_guest("send", bytes, |stream| {
            let begun = Instant::now();
            take(stream, bytes)?;
            let took = begun.elapsed();
            stream.write_all(b".")?;
            Ok(took)
        })?;
        let taken = self.with_guest("take", bytes, |stream| {
            let (begun, chunk) = (Instant::now(), vec![0; CHUNK]);
            (0..bytes / CHUNK).try_for_each(|_| stream.write_all(&chunk))?;
            take(stream, 1)?;
            Ok(begun.elapsed())
        })?;
        let rate =
            |took: Duration| f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) * 1.024e-3 / took.as_secs_f64();
        Ok(Round { round_trip_us: median.as_secs_f64() * 1e6, out_mb_per_s: rate(sent), in_mb_per_s: rate(taken) })
    }

    /// Has the guest come and do that, while we do the rest.
    fn with_guest(
        &self,
        what: &str,
        bytes: usize,
        work: impl FnOnce(&mut TcpStream) -> Result<Duration>,
    ) -> Result<Duration> {
        let words = ["python3", "-c", GUEST, &self.at.to_string(), &PORT.to_string(), what, &bytes.to_string()];
        let timeout_ms = u64::try_from(PATIENCE.as_millis()).ok();
        let request = ExecRequest { argv: words.map(String::from).to_vec(), timeout_ms, ..ExecRequest::default() };
        let connection = self.child.connect()?;
        thread::scope(|scope| {
            let guest = scope.spawn(move || connection.output(&request, &[], CHUNK));
            let took = self.accept().and_then(|mut stream| work(&mut stream));
            let said = guest.join().expect("it does not panic")?;
            ensure!(said.status.shell_code() == 0, "the guest: {}", String::from_utf8_lossy(&said.stderr));
            took
        })
    }

    /// The guest's connection, if it comes in time.
    fn accept(&self) -> Result<TcpStream> {
        let limit = Timespec { tv_sec: i64::try_from(PATIENCE.as_secs())?, tv_nsec: 0 };
        let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
        ensure!(poll(&mut ready, Some(&limit))? == 1, "the guest does not come to {}", self.at);
        let (stream, _) = self.listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

/// The median of many.
fn round_trip(stream: &mut TcpStream) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        stream.write_all(b".")?;
        stream.read_exact(&mut [0])?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[ROUND_TRIPS / 2])
}

/// Reads so much.
fn take(stream: &mut TcpStream, bytes: usize) -> Result<()> {
    let taken = std::io::copy(&mut stream.take(bytes as u64), &mut std::io::sink())?;
    ensure!(taken == bytes as u64, "the guest sent {taken} bytes of {bytes}");
    Ok(())
}
