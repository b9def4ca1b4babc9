//! Where the time of a spawn, or of a branch, goes. Logged once, for whoever asks with `RUST_LOG=debug`; the benchmarks
//! read it.

use std::fmt::{self, Write};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// A stopwatch that names its laps, if anybody wants to know.
#[derive(Debug)]
pub(crate) struct Stages {
    begun: Instant,
    last: Instant,
    laps: Option<String>,
}

impl Stages {
    /// Starts.
    pub(crate) fn start() -> Self {
        Self::for_who(log::log_enabled!(log::Level::Debug))
    }

    fn for_who(wanted: bool) -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, laps: wanted.then(|| format!("begun {}", monotonic_us())) }
    }

    /// What was done since the lap before.
    pub(crate) fn done(&mut self, what: &'static str) {
        let Some(laps) = &mut self.laps else { return };
        let now = Instant::now();
        write!(laps, ", {what} {}", (now - self.last).as_micros()).expect("a string takes everything");
        self.last = now;
    }

    /// Since the start.
    pub(crate) fn total_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// The system's monotonic clock at the start, then the laps, all in microseconds.
impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stages: {}", self.laps.as_deref().unwrap_or("nobody asked"))
    }
}

fn monotonic_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_are_named_in_order_and_add_up() {
        let mut stages = Stages::for_who(true);
        stages.done("one thing");
        stages.done("another");
        let text = stages.to_string();
        let (one, another) = text.split_once(", one thing ").unwrap().1.split_once(", another ").unwrap();
        let sum = one.parse::<u128>().unwrap() + another.parse::<u128>().unwrap();
        let all = (stages.last - stages.begun).as_micros();
        assert!((all.saturating_sub(1)..=all).contains(&sum), "{text}, in all {all}");
    }

    #[test]
    fn nobody_is_told_who_did_not_ask() {
        let mut stages = Stages::for_who(false);
        stages.done("one thing");
        assert_eq!(stages.to_string(), "stages: nobody asked");
    }
}
