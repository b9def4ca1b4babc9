//! Neighbours of guests that take all they can get: how they answer, and what stops the others.
//!
//! It is measured where VMs run ([`Site`]); numbers of the emulated host are never numbers of hardware.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Result, ensure};
use bench::noisy::{Answers, Street, Trial};
use engine::networks;
use serde_json::{Value, json};
use types::{Dirs, Tag};

use crate::forkd::host;
use crate::site::Site;
use crate::spread::rounded;

/// What the snapshot is called for as long as it is there.
const OWN_TAG: &str = "bench-neighbours";
/// A neighbour's p99 is at most so many times what it was.
const GOAL: f64 = 2.0;
/// One for a neighbour, one for an offender, and one that is being made ready.
const NETWORKS: usize = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct NeighboursArgs {
    /// How often a neighbour is asked before and during each offence
    #[arg(long, default_value_t = 100)]
    samples: usize,
    /// Measures right here, and prints only that
    #[arg(long, hide = true)]
    here: bool,
}

pub(crate) fn run(args: &NeighboursArgs) -> Result<()> {
    ensure!(args.samples > 0, "nothing is measured by no sample");
    let tag: Tag = OWN_TAG.parse()?;
    if args.here {
        let pool = Arc::new(networks(NETWORKS)?);
        let dirs = Dirs::from_env()?;
        let listen = &TcpListener::bind::<SocketAddr>;
        let trials = Street { tag: &tag, dirs: &dirs, pool: &pool, listen, samples: args.samples }.try_all()?;
        println!("{}", json!(trials.iter().map(told).collect::<Vec<_>>()));
        return Ok(());
    }
    let site = Site::find()?;
    let words = ["neighbours", "--here", "--samples", &args.samples.to_string()];
    let trials: Vec<Value> =
        site.with_snapshot(&tag, &["--recipe", "debian", "--egress", "none"], || site.ask(&words))?;
    let worst = trials.iter().filter_map(|trial| trial["times_p99"].as_f64()).max_by(f64::total_cmp);
    let report = json!({
        "bench": "neighbours", "kvm": site.kvm(), "host": host(), "samples": args.samples, "trials": trials,
        "goals": { "times_p99": { "found": worst, "limit": GOAL, "met": worst.map(|worst| worst <= GOAL) } },
    });
    println!("{report:#}");
    Ok(())
}

fn told(trial: &Trial) -> Value {
    let times = |percent| rounded(trial.during.percentile(percent) / trial.before.percentile(percent));
    let answers =
        |answers: &Answers| json!({ "p50": rounded(answers.percentile(50)), "p99": rounded(answers.percentile(99)) });
    json!({
        "offence": trial.offence.name,
        "stopped_by": format!("{:?}", trial.offence.limit).to_lowercase(),
        "stopped_after_ms": rounded(trial.stopped_after.as_secs_f64() * 1e3),
        "exec_ms": { "before": answers(&trial.before), "during": answers(&trial.during) },
        "times_p50": times(50),
        "times_p99": times(99),
    })
}
