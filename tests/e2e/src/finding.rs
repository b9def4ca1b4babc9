//! Failures that nobody but forkd can be blamed for. An emulation that is not flawless has guests die or hang; it does not
//! have them live on with the memory of another instant. What is found so is found, though it may not be found again: it
//! is a race that was lost, and a test that is tried again would hide it.

/// What was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Finding(pub(crate) String);

/// What a line on standard error begins with that tells of one.
const FOUND: &str = "found:";

/// Whether a test failed with one.
pub(crate) fn is_one(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Finding>().is_some()
}

/// Says so at once: who runs the tests hears of it even if the host dies before they end.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
pub(crate) fn tell(name: &str, error: &anyhow::Error) {
    eprintln!("{FOUND} {name}: {error:#}");
}

/// Whether one was told of in what a run of tests said.
pub(crate) fn was_told(said: &[u8]) -> bool {
    said.split(|byte| *byte == b'\n').any(|line| line.starts_with(FOUND.as_bytes()))
}

/// As `ensure!`, of what no host makes false.
macro_rules! ensure_always {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err($crate::finding::Finding(format!($($words)+)).into());
        }
    };
}

pub(crate) use ensure_always;
