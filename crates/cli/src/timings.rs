//! Where the time of a run went, as JSON for whoever measures.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use serde_json::{Map, Value};

/// Stages as they end.
#[derive(Debug)]
pub(crate) struct Timings {
    started: Instant,
    last: Instant,
    stages: Map<String, Value>,
}

impl Timings {
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self { started: now, last: now, stages: Map::new() }
    }

    /// The stage that began when the one before ended is over.
    pub(crate) fn lap(&mut self, stage: &str) {
        let now = Instant::now();
        self.set(stage, micros(self.last, now));
        self.last = now;
    }

    /// Something measured elsewhere.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.stages.insert(name.to_owned(), value.into());
    }

    /// Writes them where asked: a file, or standard error for `-`.
    pub(crate) fn write(mut self, to: &PathBuf) -> anyhow::Result<()> {
        let now = Instant::now();
        self.set("total_us", micros(self.started, now));
        let text = Value::Object(self.stages).to_string();
        if to.as_os_str() == "-" {
            eprintln!("{text}");
            return Ok(());
        }
        fs::write(to, text + "\n").with_context(|| format!("cannot write the timings to {}", to.display()))
    }
}

fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_micros()).unwrap_or(u64::MAX)
}
