//! Guests that take all they can get, what stops each of them, and how their neighbours answer meanwhile.
//!
//! One offender after the other, each a fresh child on a network of its own, beside a neighbour that answers commands all
//! the time. All of them have the same share of the CPU; what else an offender is held to is only what it offends
//! against, so whatever stops it can be nothing else. It counts as stopped when the host says that it hit that limit, and
//! as held when it got no more than that. One that is ended for it is let loose again for as long as its neighbour is asked.

mod offence;
mod offender;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use engine::{
    Child, ChildOptions, Egress, ForkSpec, Forked, Lifetime, Limits, NetworkLimits, Networks, Pool, Results, fork_on,
};
use session::ExecRequest;
use types::{Dirs, Tag};

pub use offence::{Limit, OFFENCES, Offence};
use offence::{PORTS, reach};
use offender::{Offender, cpu_time};

/// Until a child is ready; the emulated host is slow.
const FORK_LIMIT: Duration = Duration::from_secs(120);
/// How long an offender may take to hit its limit.
const STOP_LIMIT: Duration = Duration::from_secs(120);
const MAX_OUTPUT: usize = 64 << 10;

/// How a neighbour answered, in milliseconds, the quickest first.
#[derive(Clone, Debug)]
pub struct Answers(Vec<f64>);

impl Answers {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_unstable_by(f64::total_cmp);
        Self(times)
    }

    /// All of these.
    pub fn together<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        Self::of(all.flat_map(|answers| &answers.0).copied().collect())
    }

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
    /// How its neighbour answered before.
    pub before: Answers,
    /// The same, meanwhile.
    pub during: Answers,
    /// How long it took until the host said that it had hit its limit.
    pub stopped_after: Duration,
}

/// Where it happens.
pub struct Street<'a> {
    /// The snapshot, which has a network card.
    pub tag: &'a Tag,
    /// Where the VMs are.
    pub dirs: &'a Dirs,
    /// Networks for them.
    pub pool: &'a Arc<Pool>,
    /// Listens on the host that the networks lead to.
    pub listen: &'a dyn Fn(SocketAddr) -> io::Result<TcpListener>,
    /// How often a neighbour is asked each time.
    pub samples: usize,
}

impl fmt::Debug for Street<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Street").field("tag", self.tag).field("samples", &self.samples).finish_non_exhaustive()
    }
}

impl Street<'_> {
    /// Has all of them misbehave, one after the other.
    ///
    /// # Errors
    /// When a neighbour does not answer, or somebody is not stopped, or gets more than it may.
    pub fn try_all(&self) -> Result<Vec<Trial>> {
        let (_alive, neighbour) = self.fork(Limits::default(), None)?;
        // Whoever asks first pays for what is not warm yet.
        ask(&neighbour)?;
        OFFENCES.iter().map(|offence| self.one(&neighbour, *offence).context(offence.name)).collect()
    }

    fn one(&self, neighbour: &Child, offence: Offence) -> Result<Trial> {
        let before = (0..self.samples).map(|_| ask(neighbour)).collect::<Result<_>>()?;
        let mut offender = self.let_loose(offence)?;
        let (begun, mut stopped_after, mut during) = (offender.since, None, Vec::new());
        while during.len() < self.samples || stopped_after.is_none() {
            let lives = offender.child.is_alive()?;
            if stopped_after.is_none() && offender.is_stopped(self.pool)? {
                stopped_after = Some(begun.elapsed());
            }
            ensure!(stopped_after.is_some() || begun.elapsed() < STOP_LIMIT, "it is not stopped: {offender:?}");
            if !lives {
                ensure!(offender.is_stopped(self.pool)?, "it ended by itself: {}", offender.child.console_tail());
                offender = self.let_loose(offence)?;
            }
            during.push(ask(neighbour)?);
        }
        offender.is_held(self.pool)?;
        let stopped_after = stopped_after.unwrap_or_default();
        Ok(Trial { offence, before: Answers::of(before), during: Answers::of(during), stopped_after })
    }

    fn let_loose(&self, offence: Offence) -> Result<Offender> {
        let (limits, network) = offence.limit.held()?;
        let (alive, child) = self.fork(limits, Some(network))?;
        let host = child.network()?.context("it has a network")?.number.host();
        child.set_network(self.pool, Some(&reach(host)?), None)?;
        let doors = PORTS.map(|port| (self.listen)((host, port).into())).into_iter().collect::<io::Result<_>>()?;
        let request = ExecRequest {
            argv: ["sh", "-c", offence.script].map(String::from).to_vec(),
            env: [("HOST".to_owned(), host.to_string())].into(),
            ..ExecRequest::default()
        };
        let (since, cpu_then) = (Instant::now(), cpu_time(&child)?);
        // It goes with the offender.
        drop(child.start_process(&request)?);
        Ok(Offender { child, limit: offence.limit, doors, since, cpu_then, _alive: alive })
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
}

/// How long a neighbour takes to run a command, in milliseconds.
fn ask(neighbour: &Child) -> Result<f64> {
    let request = ExecRequest { argv: vec!["true".into()], ..ExecRequest::default() };
    let begun = Instant::now();
    neighbour.connect()?.output(&request, &[], MAX_OUTPUT).context("the neighbour does not answer")?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
