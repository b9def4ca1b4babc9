//! Where the time of a spawn goes. Logged once, for whoever asks with `RUST_LOG=debug`; `bench spawn` reads it.

use std::fmt::{self, Write};

use rustix::time::{ClockId, clock_gettime};

/// A stopwatch that names its laps, if anybody wants to know.
#[derive(Debug)]
pub(crate) struct Stages {
    wanted: bool,
    begun_us: i64,
    last_us: i64,
    laps: String,
}

impl Stages {
    /// Starts.
    pub(crate) fn start() -> Self {
        Self::for_who(log::log_enabled!(log::Level::Debug))
    }

    fn for_who(wanted: bool) -> Self {
        let now = now_us();
        Self { wanted, begun_us: now, last_us: now, laps: String::new() }
    }

    /// What was done since the lap before.
    pub(crate) fn done(&mut self, what: &'static str) {
        if !self.wanted {
            return;
        }
        let now = now_us();
        write!(self.laps, ", {what} {}", now - self.last_us).expect("a string takes everything");
        self.last_us = now;
    }

    /// Since the start.
    pub(crate) fn total_us(&self) -> u64 {
        u64::try_from(now_us() - self.begun_us).unwrap_or(0)
    }
}

/// The system's monotonic clock at the start, then the laps, all in microseconds.
impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stages: begun {}{}", self.begun_us, self.laps)
    }
}

fn now_us() -> i64 {
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
        let sum = one.parse::<i64>().unwrap() + another.parse::<i64>().unwrap();
        assert_eq!(sum, stages.last_us - stages.begun_us, "{text}");
    }

    #[test]
    fn nobody_is_told_who_did_not_ask() {
        let mut stages = Stages::for_who(false);
        stages.done("one thing");
        assert_eq!(stages.to_string(), format!("stages: begun {}", stages.begun_us));
    }
}
