//! Code for an interpreter that stays.
//!
//! ```text
//! client                                agent
//!   Eval{code, timeout_ms}       ->
//!                                <-     stdout bytes, stderr bytes     (all of it, when the code has ended)
//!                                <-     Shown{output, mime, text}      (from generation 3 on; any number)
//!                                <-     Evaluated{value, error, ...}   (or Error: nothing was run)
//! ```
//!
//! There is one interpreter in a guest, with one namespace: what one eval leaves in it, the next one finds. Evals take
//! turns. An interpreter that ended is started again, with its modules and without its state, by the next eval.

use std::fmt;

use serde::{Deserialize, Serialize};
use types::{Interpreter, Modules};

use super::ExitStatus;

/// The most of each of stdout and stderr that one eval returns.
pub const MAX_EVAL_OUTPUT: usize = 1 << 20;
/// The generation whose clients are told what code shows.
pub const SHOWN_SINCE: u16 = 3;
/// The most of what is shown that one eval returns, as [`Shown::cost`] counts it.
pub const MAX_SHOWN: usize = 8 << 20;
/// The longest time limit of an eval or a warm-up, in milliseconds; longer ones mean this.
pub const MAX_EVAL_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1000;

/// Starts the interpreter, if it does not run, and imports modules. Answered when they are imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmRequest {
    /// What to start.
    pub program: Interpreter,
    /// What to import, in this order; each is then known by its name to the code that is evaluated.
    #[serde(default)]
    pub modules: Modules,
    /// How long that may take.
    pub timeout_ms: u64,
}

/// The interpreter is warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warmed {
    /// Its process id in the guest.
    pub pid: i32,
    /// How long it took.
    pub took_us: u64,
}

/// Code to run in the warm interpreter. Its length is bounded by that of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalRequest {
    /// An expression, or statements; a last expression gives the value.
    pub code: String,
    /// After this long the code is interrupted and, if that does not help, the interpreter is killed. Waiting for the
    /// code of others is bounded by it as well.
    pub timeout_ms: u64,
}

/// How code ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evaluated {
    /// The `repr` of the last expression, unless that was `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Why there is no value; not an exception means that the code was cut short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<EvalError>,
    /// The value, a traceback, stdout or stderr was longer than what is returned.
    #[serde(default)]
    pub truncated: bool,
    /// What this means for the state that evals share.
    pub interpreter: InterpreterState,
}

/// A piece of something that code shows, or of its value, in one of its forms: plots and tables as Jupyter has them, or
/// a value as JSON. Pieces of the same form of the same output come one after another and are put together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Which of the outputs of this code, counted from 0.
    pub output: u32,
    /// What it is.
    pub kind: ShownKind,
    /// Its form, as a media type.
    pub mime: String,
    /// The piece; base64 where the form is not text.
    pub text: String,
}

impl Shown {
    /// How much of [`MAX_SHOWN`] it takes: its text, and what whoever keeps it needs besides.
    #[must_use]
    pub const fn cost(&self) -> usize {
        self.mime.len() + self.text.len() + 256
    }
}

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShownKind {
    /// The value of the code.
    Result,
    /// Something the code showed while it ran.
    Display,
}

/// What became of the state that evals share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterpreterState {
    /// It is there.
    Alive,
    /// The interpreter had ended before: this code ran in a new one, without what was in the old one.
    Restarted,
    /// The interpreter ended with this code; the next will run in a new one.
    Lost,
}

/// Why code has no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EvalError {
    /// It raised an exception; so does `sys.exit()`.
    Exception(Exception),
    /// Its time was up.
    Timeout {
        /// Where it was, if it could be interrupted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceback: Option<String>,
    },
    /// The interpreter ended.
    Died {
        /// How.
        status: ExitStatus,
    },
}

/// An exception, as the interpreter describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// Its class.
    #[serde(rename = "type")]
    pub class: String,
    /// What it says.
    pub message: String,
    /// Where it was raised, with its class and message at the end.
    pub traceback: String,
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exception(Exception { class, message, .. }) if message.is_empty() => f.write_str(class),
            Self::Exception(Exception { class, message, .. }) => write!(f, "{class}: {message}"),
            Self::Timeout { .. } => f.write_str("the code did not end in time"),
            Self::Died { status: ExitStatus::Code(code) } => write!(f, "the interpreter exited with code {code}"),
            Self::Died { status: ExitStatus::Signal(signal) } => {
                write!(f, "the interpreter was ended by signal {signal}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_a_person_would_say_it() {
        let raised = |class: &str, message: &str| {
            EvalError::Exception(Exception { class: class.into(), message: message.into(), traceback: String::new() })
        };
        assert_eq!(raised("KeyError", "'x'").to_string(), "KeyError: 'x'");
        assert_eq!(raised("KeyboardInterrupt", "").to_string(), "KeyboardInterrupt");
        let died = EvalError::Died { status: ExitStatus::Signal(11) };
        assert_eq!(died.to_string(), "the interpreter was ended by signal 11");
    }
}
