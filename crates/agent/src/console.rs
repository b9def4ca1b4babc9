//! What the agent has to say goes to the console, where the VMM keeps it.

use std::fmt::Display;
use std::io::Write;

/// Says one line.
pub(crate) fn say(line: impl Display) {
    // One write, so that lines of several threads do not mix. A console that takes nothing has no second one behind it.
    drop(std::io::stderr().write_all(format!("forkd-agent: {line}\n").as_bytes()));
}
