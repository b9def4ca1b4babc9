//! Guests that take all they can get, what stops each of them, and how their neighbours answer meanwhile.
//!
//! One offender after the other, each a fresh child with limits on a network of its own, beside a neighbour that answers
//! commands all the time. An offender counts as stopped when the host says which limit it hit.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine::{
    Child, ChildOptions, Egress, ForkSpec, Forked, Lifetime, Limits, NetworkLimits, Networks, Pool, Results, fork_on,
};
use session::ExecRequest;
use types::{Dirs, Tag};

/// Until a child is ready; the emulated host is slow.
const FORK_LIMIT: Duration = Duration::from_secs(120);
/// How long an offender may take to hit its limit.
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// How long it has before its neighbour is looked at.
const LEAD: Duration = Duration::from_millis(500);
/// The host's ports that it floods: as many connections as it likes need more than one.
const PORTS: (u16, u16) = (7000, 7019);
const MAX_OUTPUT: usize = 64 << 10;

/// What is held against it: a quarter of a CPU, and little of everything else.
const MEMORY_MIB: u64 = 64;
const CPU_MILLIS: u64 = 250;
const DISK_MIB: u64 = 32;
const PACKETS_PER_SECOND: u32 = 200;
const CONNECTIONS: u32 = 128;

/// Somebody who takes all there is of something.
#[derive(Clone, Copy, Debug)]
pub struct Offence {
    /// What it is called.
    pub name: &'static str,
    /// What the guest's shell runs; `$HOST` is an address of the host's.
    script: &'static str,
    /// What stops it.
    pub limit: Limit,
}

/// What somebody can be stopped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Its share of the CPU, or its memory, whatever comes first.
    Cpu,
    /// Its memory.
    Memory,
    /// Its disk.
    Disk,
    /// Its packets or connections.
    Network,
}

/// All of them. The guest is Debian without anything: a shell, and Perl's smallest part.
pub const OFFENCES: [Offence; 6] = [
    Offence { name: "fork bomb", script: "bomb() { bomb & bomb & wait; }; bomb", limit: Limit::Cpu },
    Offence { name: "CPU spinner", script: "while :; do :; done", limit: Limit::Cpu },
    Offence { name: "memory hog", script: "tail /dev/zero", limit: Limit::Memory },
    Offence { name: "disk filler", script: "dd if=/dev/zero of=/root/filler bs=1M; sync", limit: Limit::Disk },
    Offence {
        name: "packet flood",
        script: r#"perl -MSocket -e '
            socket(my $s, PF_INET, SOCK_DGRAM, 0);
            my $to = sockaddr_in(7000, inet_aton($ENV{HOST}));
            while (1) { send($s, "x", 0, $to) }'"#,
        limit: Limit::Network,
    },
    Offence {
        name: "100 000 connections",
        script: r#"ulimit -n 110000; perl -MSocket -e '
            my @open;
            for my $n (1 .. 100000) {
                socket(my $s, PF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0) or last;
                connect($s, sockaddr_in(7000 + $n % 20, inet_aton($ENV{HOST})));
                push @open, $s;
            }
            sleep'"#,
        limit: Limit::Network,
    },
];

/// How a neighbour answered, in milliseconds, the quickest first.
#[derive(Clone, Debug)]
pub struct Answers(Vec<f64>);

impl Answers {
    /// By the nearest rank.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(rank).copied().unwrap_or(f64::NAN)
    }
}

/// What came of one offence.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Who it was.
    pub offence: Offence,
    /// How its neighbour answered before and meanwhile.
    pub before: Answers,
    /// The same, meanwhile.
    pub during: Answers,
    /// How long it took until the host said that it had hit its limit.
    pub stopped_after: Duration,
}

/// Where it happens.
#[derive(Debug)]
pub struct Street<'a> {
    /// The snapshot, which has a network card.
    pub tag: &'a Tag,
    /// Where the VMs are.
    pub dirs: &'a Dirs,
    /// Networks for them.
    pub pool: &'a Arc<Pool>,
    /// How often a neighbour is asked each time.
    pub samples: usize,
}

impl Street<'_> {
    /// Has all of them misbehave, one after the other.
    ///
    /// # Errors
    /// When a neighbour does not answer, or somebody is not stopped.
    pub fn try_all(&self) -> Result<Vec<Trial>> {
        let (_alive, neighbour) = self.fork(Limits::default(), None)?;
        // Whoever asks first pays for what is not warm yet.
        self.ask(&neighbour)?;
        OFFENCES.iter().map(|offence| self.one(&neighbour, *offence).context(offence.name)).collect()
    }

    fn one(&self, neighbour: &Child, offence: Offence) -> Result<Trial> {
        let before = self.ask(neighbour)?;
        let limits = Limits {
            memory: Some(MEMORY_MIB.try_into()?),
            cpu: Some(CPU_MILLIS.try_into()?),
            disk: Some(DISK_MIB.try_into()?),
            ..Limits::default()
        };
        let network = NetworkLimits {
            packets_per_second: NonZeroU32::new(PACKETS_PER_SECOND),
            connections: NonZeroU32::new(CONNECTIONS).context("a limit")?,
            ..NetworkLimits::default()
        };
        let (_alive, offender) = self.fork(limits, Some(network))?;
        let host = offender.network()?.context("it has a network")?.number.host();
        offender.set_network(self.pool, Some(&reach(host)?), None)?;
        let begun = Instant::now();
        let request = ExecRequest {
            argv: ["sh", "-c", offence.script].map(String::from).to_vec(),
            env: [("HOST".to_owned(), host.to_string())].into(),
            ..ExecRequest::default()
        };
        // It goes with the offender.
        let _running = offender.connect()?.exec(&request)?;
        std::thread::sleep(LEAD);
        let during = self.ask(neighbour)?;
        while !self.is_stopped(&offender, offence.limit)? {
            if begun.elapsed() > STOP_LIMIT {
                bail!("it is not stopped: {:?}", offender.hits()?);
            }
            std::thread::sleep(LEAD);
        }
        Ok(Trial { offence, before, during, stopped_after: begun.elapsed() })
    }

    /// What the host says of it.
    fn is_stopped(&self, offender: &Child, limit: Limit) -> Result<bool> {
        let hits = offender.hits()?;
        Ok(match limit {
            Limit::Cpu => hits.throttled || hits.oom_killed,
            Limit::Memory => hits.oom_killed,
            Limit::Disk => hits.disk_full,
            Limit::Network => offender.managed_network(self.pool)?.report()?.limited.packets > 0,
        })
    }

    /// A child that ends with what comes beside it.
    fn fork(&self, limits: Limits, network: Option<NetworkLimits>) -> Result<(Forked, Child)> {
        let spec = ForkSpec {
            tag: self.tag.clone(),
            children: vec![ChildOptions { limits, ..ChildOptions::default() }],
            lifetime: Lifetime::Connection,
            results: Results::AllOrNothing,
            limit: FORK_LIMIT,
            cancel: None,
        };
        let given = || Ok(Arc::clone(self.pool));
        let networks = Networks { pool: &given, egress: Some(Egress::None), limits: network };
        let forked = fork_on(&spec, Some(&networks), self.dirs)?;
        let child = forked.children.first().and_then(|child| child.as_ref().ok()).map(|ready| ready.child.clone());
        Ok((forked, child.context("a child")?))
    }

    fn ask(&self, neighbour: &Child) -> Result<Answers> {
        let request = ExecRequest { argv: vec!["true".into()], ..ExecRequest::default() };
        let mut times = Vec::new();
        for _ in 0..self.samples {
            let begun = Instant::now();
            neighbour.connect()?.output(&request, &[], MAX_OUTPUT).context("the neighbour does not answer")?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(Answers(times))
    }
}

/// The host's end of an uplink, which nobody reaches who does not name it.
fn reach(host: Ipv4Addr) -> Result<Egress> {
    let (first, last) = PORTS;
    Ok(format!("{host}:{first}-{last},udp:{host}:{first}-{last}").parse()?)
}
