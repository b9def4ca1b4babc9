//! Cold boot to the first exec: from the call of `forkd run` until `true` has ended in the guest.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use crate::forkd::{Place, doctor, has_kvm, host, timed_run};

#[derive(Debug, clap::Args)]
pub(crate) struct BootArgs {
    /// How often
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Which root file system
    #[arg(long, default_value = "debian")]
    recipe: String,
    /// How many vCPUs
    #[arg(long, default_value = "1")]
    vcpus: String,
}

/// One row per place where VMs can run here; the first run, which builds what is missing, is not counted.
pub(crate) fn run(args: &BootArgs) -> Result<()> {
    let doctor = doctor()?;
    let mut rows = Vec::new();
    if has_kvm(&doctor) {
        rows.push(row(Place::Local, args)?);
    } else {
        rows.push(json!({"place": "local", "unusable": kvm_detail(&doctor)}));
    }
    rows.push(row(Place::Machine, args)?);
    let report = json!({"bench": "boot", "recipe": args.recipe, "vcpus": args.vcpus, "host": host(), "rows": rows});
    println!("{report:#}");
    Ok(())
}

fn kvm_detail(doctor: &Value) -> Value {
    let checks = doctor["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
    checks.iter().find(|check| check["name"] == "kvm").map_or(Value::Null, |check| check["detail"].clone())
}

fn row(place: Place, args: &BootArgs) -> Result<Value> {
    let words = ["--recipe", &args.recipe, "--vcpus", &args.vcpus, "--", "true"];
    timed_run(Some(place), &words)?;
    let mut stages: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..args.runs.max(1) {
        for (stage, ms) in timed_run(Some(place), &words)? {
            stages.entry(stage).or_default().push(ms);
        }
    }
    let summary: BTreeMap<String, Value> = stages
        .into_iter()
        .map(|(stage, mut values)| {
            values.sort_unstable_by(f64::total_cmp);
            (stage, json!({"min": values[0], "median": values[values.len() / 2], "max": values[values.len() - 1]}))
        })
        .collect();
    Ok(
        json!({"place": place.name(), "emulated": place == Place::Machine, "runs": args.runs.max(1), "stages_ms": summary}),
    )
}
