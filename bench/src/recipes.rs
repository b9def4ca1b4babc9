//! The recipes: how long each takes to build, how soon a fork of it gives its first answer, and how long the same service
//! takes to give it when it is started cold in that very VM.
//!
//! Disks are built here, with what the cache has: an empty `FORKD_HOME` gives the time from nothing. Forks are measured
//! where VMs run ([`Site`]); numbers of the emulated host are never numbers of hardware.

mod measure;
mod services;

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::forkd::{binary, host};
use crate::site::Site;
use crate::spread::rounded;

use self::services::{SERVICES, Service};

#[derive(Debug, clap::Args)]
pub(crate) struct RecipesArgs {
    /// These recipes, instead of all
    names: Vec<String>,
    /// How many forks of each are measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measures right here, and prints only that
    #[arg(long, hide = true)]
    here: bool,
}

pub(crate) fn run(args: &RecipesArgs) -> Result<()> {
    ensure!(args.rounds > 0, "nothing is measured in no round");
    let asked = |service: &&Service| args.names.is_empty() || args.names.iter().any(|name| name == service.recipe);
    let services: Vec<&Service> = SERVICES.iter().filter(asked).collect();
    ensure!(!services.is_empty(), "none of {:?} is a recipe that is measured", args.names);
    if args.here {
        let measured = services.iter().map(|service| measure::run(service, args.rounds)).collect::<Result<Vec<_>>>()?;
        println!("{}", json!(measured));
        return Ok(());
    }
    let site = Site::find()?;
    let measured = services.iter().map(|service| one(&site, service, args.rounds)).collect::<Result<Vec<_>>>()?;
    let report = json!({ "bench": "recipes", "kvm": site.kvm(), "host": host(), "rounds": args.rounds,
        "recipes": measured });
    println!("{report:#}");
    Ok(())
}

fn one(site: &Site, service: &Service, rounds: usize) -> Result<Value> {
    eprintln!("bench: {}", service.recipe);
    let begun = Instant::now();
    let status =
        Command::new(binary()?).args(["recipe", "build", service.recipe]).stdout(std::io::stderr()).status()?;
    ensure!(status.success(), "forkd recipe build {} ended with {status}", service.recipe);
    let build_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    site.with_snapshot(&service.tag()?, &["--recipe", service.recipe], || {
        let snapshot_s = begun.elapsed().as_secs_f64();
        let words = ["recipes", "--here", "--rounds", &rounds.to_string(), service.recipe];
        let [measured]: [Value; 1] = site.ask(&words)?;
        Ok(json!({ "recipe": service.recipe, "build_s": rounded(build_s), "snapshot_s": rounded(snapshot_s),
            "first_answer_ms": measured["warm"], "cold_ms": measured["cold"], "times": measured["times"] }))
    })
}
