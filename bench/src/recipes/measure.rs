//! The measurement itself, on the host whose KVM runs the VMs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use engine::{Child, ChildOptions, ForkSpec, Lifetime, Results, fork};
use serde_json::{Value, json};
use session::ExecRequest;
use types::Dirs;

use super::services::{Question, Service};
use crate::spread::{Spread, rounded};

/// For anything that is asked; the emulated host is slow.
const LIMIT: Duration = Duration::from_secs(600);
const OUTPUT_LIMIT: usize = 1 << 20;

/// Forks one child after the other, asks each, and then has it start the same cold.
pub(super) fn run(service: &Service, rounds: usize) -> Result<Value> {
    let dirs = Dirs::from_env()?;
    engine::start_template(&service.tag()?, &dirs)?;
    let times = (0..rounds).map(|_| one(service, &dirs)).collect::<Result<Vec<_>>>().context(service.recipe)?;
    let warm = Spread::of(times.iter().map(|(warm, _)| *warm));
    let cold = Spread::of(times.iter().map(|(_, cold)| *cold));
    Ok(json!({ "warm": warm.json(), "cold": cold.json(), "times": rounded(cold.over(warm).median) }))
}

/// Milliseconds from the wish for a child to its answer, and from the start of the service to the same answer.
fn one(service: &Service, dirs: &Dirs) -> Result<(f64, f64)> {
    let spec = ForkSpec {
        tag: service.tag()?,
        children: vec![ChildOptions::default()],
        lifetime: Lifetime::Connection,
        results: Results::AllOrNothing,
        limit: LIMIT,
        cancel: None,
    };
    let begun = Instant::now();
    let forked = fork(&spec, dirs)?;
    let child = &forked.children.first().context("a child")?.as_ref().ok().context("a child that lives")?.child;
    let answer = match service.question {
        Question::Eval(code) => {
            let evaluation = child.eval(code, LIMIT)?;
            evaluation.value.with_context(|| format!("{code} gave {:?}", evaluation.error))?
        }
        Question::Exec(script) => sh(child, script)?,
    };
    let warm = ms(begun);
    ensure!(answer == service.answer, "what is warm says {answer:?}");
    if let Some(end) = service.end {
        sh(child, end)?;
    }
    let begun = Instant::now();
    let answer = sh(child, service.cold)?;
    let cold = ms(begun);
    ensure!(answer == service.answer, "what was cold says {answer:?}");
    Ok((warm, cold))
}

fn sh(child: &Child, script: &str) -> Result<String> {
    let request = ExecRequest { argv: ["sh", "-c", script].map(String::from).to_vec(), ..ExecRequest::default() };
    let output = child.connect()?.output(&request, &[], OUTPUT_LIMIT)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.shell_code() == 0, "{script}: {:?}: {}", output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}
