//! The bodies as tests: each is fed made-up bytes for a moment, and for some seconds where `CI` is set.
//!
//! What fails is made as small as it can be, and shown with the seed that it came from. `FORKD_FUZZ_SEED` has a run begin
//! with that one.

use std::env;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

const SEED: &str = "FORKD_FUZZ_SEED";
/// How many scripts come of a seed.
const SCRIPTS: u32 = 64;
/// How long one may be.
const MAX_BYTES: usize = 800;
const IN_CI: Duration = Duration::from_secs(4);

/// Feeds a body until its time is over, and at least once.
pub(crate) fn try_for_a_while(body: fn(&[u8])) {
    let time = if env::var_os("CI").is_some() { IN_CI } else { Duration::ZERO };
    let until = Instant::now() + time;
    let mut seed = first_seed();
    loop {
        try_with(seed, body);
        if Instant::now() >= until {
            return;
        }
        seed = seed.wrapping_add(1);
    }
}

fn first_seed() -> u64 {
    let asked = env::var(SEED).ok().map(|seed| seed.parse().expect("a seed is a number"));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    asked.unwrap_or_else(|| u64::try_from(now().as_nanos() & u128::from(u64::MAX)).expect("64 bits"))
}

fn try_with(seed: u64, body: fn(&[u8])) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(SCRIPTS) };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let tried = runner.run(&prop::collection::vec(any::<u8>(), 0..MAX_BYTES), |bytes| {
        body(&bytes);
        Ok(())
    });
    if let Err(error) = tried {
        panic!("{SEED}={seed} fails: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_told_with_its_seed_and_fails_again() {
        let bad: fn(&[u8]) = |bytes| assert!(bytes.len() < 9, "too long");
        let told = |seed| {
            let failed = std::panic::catch_unwind(|| try_with(seed, bad)).unwrap_err();
            failed.downcast::<String>().unwrap()
        };
        assert!(told(7).contains("FORKD_FUZZ_SEED=7 fails") && told(7).contains("too long"), "{}", told(7));
        assert_eq!(told(7), told(7));
    }
}
