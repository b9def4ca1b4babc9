//! What is not left behind when somebody interrupts us.

use std::path::Path;
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// Removes a file, if it is still there, before a signal does what it does.
pub(crate) fn remove_when(path: &Path) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).context("cannot take over signals")?;
    let path = path.to_owned();
    let wait = move || {
        for signal in signals.forever() {
            if let Err(error) = std::fs::remove_file(&path) {
                log::debug!("{} is not removed: {error}", path.display());
            }
            if let Err(error) = signal_hook::low_level::emulate_default_handler(signal) {
                log::warn!("signal {signal} has no effect: {error}");
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}
