//! Processes that live on without clients.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A process to be started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartProcess {
    /// The program and its arguments; no shell is involved.
    #[schema(min_items = 1)]
    pub args: Vec<String>,
    /// It is killed after so many seconds; it may run for ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<f64>,
    /// All that it reads, as text; it has ten minutes to read it, and then its input is over. When neither this nor `stdin_base64` is said, its input stays open for
    /// `POST .../stdin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// All that it reads, in base64; instead of `stdin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Added to its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where it starts; the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Give it a terminal of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TtySize {
    /// Lines.
    #[schema(minimum = 1)]
    pub rows: u16,
    /// Characters of a line.
    #[schema(minimum = 1)]
    pub cols: u16,
}

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessInfo {
    /// Its name in the paths; none is given twice in a sandbox.
    pub id: String,
    /// The program and its arguments.
    pub args: Vec<String>,
    /// Where it was started; the user's home when null.
    pub cwd: Option<String>,
    /// Who it runs as; root when null.
    pub user: Option<String>,
    /// When it was started, in seconds since 1970.
    pub started_at_unix: f64,
    /// Whether it runs.
    pub status: ProcessStatus,
    /// Its exit code, or the negative number of the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// It was killed because its time was up.
    pub timed_out: bool,
    /// Its terminal, if it has one.
    pub tty: Option<TtySize>,
    /// Its number in the guest; also its process group.
    pub pid: i32,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProcessStatus {
    /// It does.
    Running,
    /// It ended, and is still known.
    Exited,
}

/// The event `skipped` of a process's output: so much was written that is kept no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Skipped {
    /// How much.
    pub bytes: u64,
}

/// A signal to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendSignal {
    /// Its number, or its name as `kill` knows it.
    pub signal: Signal,
}

/// A signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Signal {
    /// By its number.
    Number(i32),
    /// By its name, with or without `SIG`.
    Name(String),
}

/// The names of the signals, each at its number less one.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

impl Signal {
    /// Its number on Linux; `None` when there is no such signal.
    #[must_use]
    pub fn number(&self) -> Option<i32> {
        match self {
            Self::Number(number) => (1..=64).contains(number).then_some(*number),
            Self::Name(name) => {
                let name = name.to_ascii_uppercase();
                let name = name.strip_prefix("SIG").unwrap_or(&name);
                let place = NAMES.iter().position(|known| *known == name)?;
                i32::try_from(place + 1).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_number_or_a_name() {
        let number = |text: &str| serde_json::from_str::<SendSignal>(text).unwrap().signal.number();
        assert_eq!(number(r#"{"signal":15}"#), Some(15));
        assert_eq!(number(r#"{"signal":"TERM"}"#), Some(15));
        assert_eq!(number(r#"{"signal":"sigkill"}"#), Some(9));
        assert_eq!(number(r#"{"signal":"SYS"}"#), Some(31));
        for none in [r#"{"signal":0}"#, r#"{"signal":65}"#, r#"{"signal":"DANCE"}"#, r#"{"signal":"SIG"}"#] {
            assert_eq!(number(none), None, "{none}");
        }
    }

    #[test]
    fn a_process_needs_no_more_than_its_words() {
        let asked: StartProcess = serde_json::from_str(r#"{"args":["sleep","9"],"stream":true}"#).unwrap();
        assert_eq!((asked.timeout_secs, asked.tty), (None, None));
        let asked: StartProcess = serde_json::from_str(r#"{"args":["sh"],"tty":{"rows":24,"cols":80}}"#).unwrap();
        assert_eq!(asked.tty, Some(TtySize { rows: 24, cols: 80 }));
    }
}
