//! What the daemon adds to what it does.
//!
//! Its VMs have the native guest in them where this host's KVM runs it; otherwise they are stand-ins: processes that the
//! engine forks, renews and runs commands in as it does with VMs. In each round both take turns: a spawn by the engine
//! itself, then one over HTTP; the same with a command. Then many clients ask at once.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::home::{Home, TAG, Vms};
use engine::{ChildOptions, ForkSpec, Lifetime, Results};
use serde_json::{Value, json};
use session::ExecRequest;

use crate::forkd::{host, place};
use crate::spread::{Spread, rounded};

/// What the daemon may add to a spawn of one.
const OVERHEAD_GOAL_US: f64 = 1000.0;
const PATIENCE: Duration = Duration::from_secs(60);
const MAX_OUTPUT: usize = 4096;

#[derive(Debug, clap::Args)]
pub(crate) struct ApiArgs {
    /// How many spawns and commands of each kind
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// How many clients ask at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    clients: Vec<usize>,
    /// How many requests all of them make
    #[arg(long, default_value_t = 4000)]
    requests: usize,
    /// Where the VMs' files go
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Uses processes without a guest, also where VMs could run
    #[arg(long)]
    stand_ins: bool,
}

/// Both sides of a round, in microseconds.
#[derive(Debug, Default)]
struct Sides {
    engine: Vec<f64>,
    daemon: Vec<f64>,
}

impl Sides {
    /// What the daemon adds, of the median and of the least.
    fn overhead(&self) -> Spread {
        let (engine, daemon) = (Spread::of(self.engine.iter().copied()), Spread::of(self.daemon.iter().copied()));
        Spread { min: daemon.min - engine.min, median: daemon.median - engine.median }
    }

    fn json(&self) -> Value {
        json!({
            "engine_us": Spread::of(self.engine.iter().copied()).json(),
            "daemon_us": Spread::of(self.daemon.iter().copied()).json(),
            "overhead_us": self.overhead().json(),
        })
    }
}

pub(crate) fn run(args: &ApiArgs) -> Result<()> {
    ensure!(
        args.rounds > 0 && args.clients.iter().all(|count| *count > 0),
        "nothing is measured by no round or client"
    );
    let vms = vms(args)?;
    let home = Home::new(&place(args.dir.as_deref()), vms)?;
    let (spawns, commands) = (spawns(&home, args.rounds)?, commands(&home, args.rounds)?);
    let asked = args.clients.iter().map(|count| ask(&home, *count, args.requests)).collect::<Result<Vec<_>>>()?;
    let overhead = spawns.overhead().median;
    eprintln!("the daemon adds {overhead:.0} us to a spawn of one, {:.0} us to a command", commands.overhead().median);
    let report = json!({
        "bench": "api",
        "vms": match vms {
            Vms::Native => "VMs with the native guest",
            Vms::StandIns => "stand-ins without a guest",
        },
        "host": host(),
        "rounds": args.rounds,
        "spawn_of_one": spawns.json(),
        "command": commands.json(),
        "requests": asked,
        "goals": { "spawn_overhead_us": {
            "found": rounded(overhead), "limit": OVERHEAD_GOAL_US, "met": overhead <= OVERHEAD_GOAL_US,
        } },
    });
    println!("{report:#}");
    Ok(())
}

/// Real ones, unless somebody wants others or none can run.
fn vms(args: &ApiArgs) -> Result<Vms> {
    if args.stand_ins {
        return Ok(Vms::StandIns);
    }
    Ok(match guest::try_here()? {
        Ok(()) => {
            eprintln!("with VMs that have the native guest");
            Vms::Native
        }
        Err(why) => {
            eprintln!("with stand-ins for VMs, because {why}");
            Vms::StandIns
        }
    })
}

fn micros(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

/// Spawns of one, until it has answered.
fn spawns(home: &Home, rounds: usize) -> Result<Sides> {
    let spec = ForkSpec {
        tag: TAG.parse()?,
        children: vec![ChildOptions::default()],
        lifetime: Lifetime::Detached,
        results: Results::AllOrNothing,
        limit: PATIENCE,
        cancel: None,
    };
    let mut sides = Sides::default();
    // The first round is not counted: the daemon starts the template then, and only it knows a stand-in.
    for round in 0..=rounds {
        let begun = Instant::now();
        let made = home.post("/v1/sandboxes", &json!({ "snapshot_tag": TAG }))?;
        let daemon_us = micros(begun);
        home.delete(made[0]["id"].as_str().context("an id")?)?;
        let begun = Instant::now();
        let forked = engine::fork(&spec, &home.dirs)?;
        let engine_us = micros(begun);
        let child = forked.children.into_iter().next().context("a child")??.child;
        engine::kill(&child)?;
        if round > 0 {
            sides.engine.push(engine_us);
            sides.daemon.push(daemon_us);
        }
    }
    Ok(sides)
}

/// Commands that say a word.
fn commands(home: &Home, rounds: usize) -> Result<Sides> {
    let made = home.post("/v1/sandboxes", &json!({ "snapshot_tag": TAG }))?;
    let id = made[0]["id"].as_str().context("an id")?;
    let child = engine::open(id, &home.dirs)?;
    let argv = vec!["echo".to_owned(), "word".to_owned()];
    let request = ExecRequest { argv: argv.clone(), ..ExecRequest::default() };
    let mut sides = Sides::default();
    for round in 0..=rounds {
        let begun = Instant::now();
        let output = child.connect()?.output(&request, &[], MAX_OUTPUT)?;
        let engine_us = micros(begun);
        ensure!(output.stdout == b"word\n", "{output:?}");
        let begun = Instant::now();
        let ran = home.post(&format!("/v1/sandboxes/{id}/exec"), &json!({ "args": argv }))?;
        let daemon_us = micros(begun);
        ensure!(ran["stdout"] == "word\n", "{ran}");
        if round > 0 {
            sides.engine.push(engine_us);
            sides.daemon.push(daemon_us);
        }
    }
    home.delete(id)?;
    Ok(sides)
}

/// So many clients that ask for a sandbox again and again.
fn ask(home: &Home, clients: usize, requests: usize) -> Result<Value> {
    let made = home.post("/v1/sandboxes", &json!({ "snapshot_tag": TAG }))?;
    let id = made[0]["id"].as_str().context("an id")?;
    let (path, each) = (format!("/v1/sandboxes/{id}"), requests.div_ceil(clients));
    let begun = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    let agent = Home::agent();
                    let one = |_| {
                        let begun = Instant::now();
                        home.get(&agent, &path).map(|()| micros(begun))
                    };
                    (0..each).map(one).collect::<Result<Vec<f64>>>()
                })
            })
            .collect();
        let done = workers.into_iter().map(|worker| worker.join().expect("a client does not panic"));
        done.collect::<Result<Vec<_>>>()
    })?;
    let took = begun.elapsed().as_secs_f64();
    home.delete(id)?;
    let mut latencies: Vec<f64> = latencies.concat();
    latencies.sort_unstable_by(f64::total_cmp);
    let at = |part: usize| latencies.get(latencies.len() * part / 100).copied().map(rounded);
    let count = f64::from(u32::try_from(latencies.len())?);
    Ok(json!({
        "clients": clients, "requests": latencies.len(), "per_second": rounded(count / took),
        "p50_us": at(50), "p99_us": at(99),
    }))
}
