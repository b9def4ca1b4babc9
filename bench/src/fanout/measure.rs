//! The measurement itself, on the host whose KVM runs the VMs.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use engine::{Child, ChildOptions, ForkSpec, Lifetime, MemoryUse, Results, fork};
use serde_json::{Value, json};
use session::ExecRequest;
use types::{Dirs, Tag};

/// Until all are ready; the emulated host is slow.
const FORK_LIMIT: Duration = Duration::from_secs(600);
const EVAL_LIMIT: Duration = Duration::from_secs(120);
const CODE: &str = "numpy.zeros(5).tolist()";
const ANSWER: &str = "[0.0, 0.0, 0.0, 0.0, 0.0]";
const OUTPUT_LIMIT: usize = 1 << 20;

/// Forks `n` children, asks each for an eval and an exec, and ends them.
pub(super) fn run(tag: &Tag, n: usize) -> Result<Value> {
    let dirs = Dirs::from_env()?;
    let spec = ForkSpec {
        tag: tag.clone(),
        children: vec![ChildOptions::default(); n],
        lifetime: Lifetime::Connection,
        results: Results::PerChild,
        limit: FORK_LIMIT,
        cancel: None,
    };
    engine::start_template(tag, &dirs)?;
    let begun = Instant::now();
    let forked = fork(&spec, &dirs)?;
    let ready_ms = ms(begun.elapsed());
    let mut failures: Vec<String> =
        forked.children.iter().filter_map(|child| Some(child.as_ref().err()?.to_string())).collect();
    let ready: Vec<&Child> = forked.children.iter().flatten().map(|ready| &ready.child).collect();
    let idle = memory(&ready)?;
    // Looking at the memory is not part of what is measured.
    let looked = Instant::now();
    let eval = ask_all(&ready, evaluate, &mut failures);
    let evaluated_ms = ready_ms + ms(looked.elapsed());
    let exec = ask_all(&ready, execute, &mut failures);
    let executed_ms = ready_ms + ms(looked.elapsed());
    let worked = memory(&ready)?;
    let timings = forked.timings;
    let us = |us: u64| Duration::from_micros(us).as_secs_f64() * 1e3;
    let ready_each = forked.children.iter().flatten().map(|ready| us(ready.ready_us)).collect();
    Ok(json!({
        "n": n,
        "all_ms": {
            "forked": us(timings.forked_us), "started": us(timings.started_us), "ready": ready_ms,
            "evaluated": evaluated_ms, "executed": executed_ms,
        },
        "ready": {"answered": ready.len(), "ms": percentiles(ready_each)},
        "eval": {"code": CODE, "answered": eval.len(), "ms": percentiles(eval)},
        "exec": {"argv": ["true"], "answered": exec.len(), "ms": percentiles(exec)},
        "private_kib": {"idle": percentiles(private(&idle)), "after_work": percentiles(private(&worked))},
        "failures": failures,
    }))
}

fn evaluate(child: &Child) -> Result<()> {
    let evaluation = child.eval(CODE, EVAL_LIMIT)?;
    if evaluation.value.as_deref() != Some(ANSWER) {
        bail!("{CODE} gave {:?}, {:?}", evaluation.value, evaluation.error);
    }
    Ok(())
}

fn execute(child: &Child) -> Result<()> {
    let request = ExecRequest { argv: vec!["true".into()], ..ExecRequest::default() };
    let output = child.connect()?.output(&request, &[], OUTPUT_LIMIT)?;
    ensure!(output.status.shell_code() == 0, "true ended with {:?}", output.status);
    Ok(())
}

/// Asks every child, as many at a time as there are CPUs: more would wait for each other, and that would be taken for
/// the time of an answer. How long each took.
fn ask_all(children: &[&Child], ask: fn(&Child) -> Result<()>, failures: &mut Vec<String>) -> Vec<f64> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(children.iter());
    let answers = Mutex::new((Vec::new(), Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..workers.min(children.len()) {
            scope.spawn(|| {
                while let Some(child) = next() {
                    let asked = Instant::now();
                    let answer = ask(child);
                    let took = ms(asked.elapsed());
                    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                    match answer {
                        Ok(()) => answers.0.push(took),
                        Err(error) => answers.1.push(format!("{}: {error:#}", child.id())),
                    }
                }
            });
        }
    });
    let (times, failed) = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.extend(failed);
    times
}

/// What each child's memory costs; one that is gone costs nothing and is told of elsewhere.
fn memory(children: &[&Child]) -> Result<Vec<MemoryUse>> {
    let uses = children.iter().map(|child| child.memory()).collect::<Result<Vec<_>, _>>()?;
    Ok(uses.into_iter().flatten().collect())
}

fn private(uses: &[MemoryUse]) -> Vec<f64> {
    let kib = |memory: &MemoryUse| f64::from(u32::try_from(memory.private_kib + memory.tables_kib).unwrap_or(u32::MAX));
    uses.iter().map(kib).collect()
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// By the nearest rank.
fn percentiles(mut values: Vec<f64>) -> Value {
    values.sort_unstable_by(f64::total_cmp);
    let rank = |percent: usize| values.get((values.len() * percent).div_ceil(100).saturating_sub(1));
    json!({"p50": rank(50), "p99": rank(99), "max": values.last()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_there() {
        let values = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentiles(values), json!({"p50": 100.0, "p99": 198.0, "max": 200.0}));
        assert_eq!(percentiles(vec![7.0]), json!({"p50": 7.0, "p99": 7.0, "max": 7.0}));
        assert_eq!(percentiles(Vec::new()), json!({"p50": null, "p99": null, "max": null}));
    }
}
