//! Commands and code in a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::processes::TtySize;

/// How long a command or code may take when nobody says.
#[must_use]
pub const fn default_timeout_secs() -> Option<f64> {
    Some(30.0)
}

/// A command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the interface and stands by itself")]
pub struct ExecRequest {
    /// The program and its arguments; no shell is involved.
    pub args: Vec<String>,
    /// It is killed after so many seconds; null lets it run for a day, and as a stream for as long as it takes.
    #[serde(default = "default_timeout_secs")]
    pub timeout_secs: Option<f64>,
    /// What it reads, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// What it reads, in base64; instead of `stdin`.
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
    /// Answer with a stream of events instead of one object.
    #[serde(default)]
    pub stream: bool,
    /// Run what the container image that the sandbox is made of has as ENTRYPOINT and CMD; `args` is empty then.
    #[serde(default)]
    pub image_command: bool,
    /// Keep its input open for `POST .../exec/{session}/stdin`; needs `stream`, and no other input.
    #[serde(default)]
    pub open_stdin: bool,
    /// Give it a terminal of this size; needs `open_stdin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
}

/// How a command ended, and what it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the interface and stands by itself")]
pub struct ExecResult {
    /// What it wrote to standard output, at most 8 MiB; what is no UTF-8 is replaced.
    pub stdout: String,
    /// What it wrote to standard error, in the same way.
    pub stderr: String,
    /// Its exit code; the negative number of the signal that ended it; 126 or 127 if it could not be started.
    pub exit_code: i32,
    /// It was killed because its time was up.
    pub timed_out: bool,
    /// There was more on standard output.
    pub stdout_truncated: bool,
    /// There was more on standard error.
    pub stderr_truncated: bool,
}

/// The event `started` of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Started {
    /// Its number in the guest.
    pub process_id: String,
    /// A command's name in `.../exec/{session}/...` for as long as the stream goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// The events `stdout` and `stderr` of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Chunk {
    /// What was written.
    pub data: String,
    /// How it is written down.
    pub encoding: Encoding,
}

/// How bytes are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As they are.
    Utf8,
    /// They are no text.
    Base64,
}

/// The event `exit` of a stream, its last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exit {
    /// As in [`ExecResult`].
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// It was killed because its time was up.
    pub timed_out: bool,
}

/// Code for the warm interpreter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EvalRequest {
    /// An expression, or statements; a last expression gives the result. What it leaves, the next eval finds.
    pub code: String,
    /// It is interrupted after so many seconds.
    #[serde(default = "default_timeout_secs")]
    pub timeout_secs: Option<f64>,
}

/// What came of code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalResult {
    /// The last expression as the interpreter shows it, unless that was nothing.
    pub result: Option<String>,
    /// The same as JSON, of interpreters that have it.
    pub result_json: Option<String>,
    /// Why there is none.
    pub error: Option<String>,
    /// What was shown in richer forms than text, in its order: plots and tables of a Jupyter kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<EvalOutput>,
    /// Where it failed.
    pub traceback: Option<String>,
    /// What was written to standard output meanwhile.
    pub stdout: String,
    /// What was written to standard error.
    pub stderr: String,
    /// 0, or 1 if there is an error.
    pub exit_code: i32,
    /// What became of what earlier code left; absent when it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<Loss>,
    /// Something of the above was too long, and is not all there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// One thing that code showed, in all forms it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalOutput {
    /// What it is.
    pub kind: EvalOutputKind,
    /// Its forms by media type, such as `image/png` or `text/html`; base64 where a form is not text.
    pub data: BTreeMap<String, String>,
}

/// What was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EvalOutputKind {
    /// The value of the code.
    Result,
    /// Something the code showed while it ran.
    Display,
}

/// What became of an interpreter's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// It was gone before: this code ran in a new interpreter.
    Restarted,
    /// It ended with this code; the next will run in a new one.
    Lost,
}

/// The guest's agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pong {
    /// Always true.
    pub pong: bool,
    /// What a guest with a warm interpreter has, or `not-installed`; `unknown` when it is too busy to say.
    pub numpy_version: String,
    /// What the warm interpreter speaks.
    pub agent_lang: String,
    /// Of the agent, in the guest.
    pub pid: u32,
    /// What was warmed up is warm.
    pub warmup_ready: bool,
    /// The agent's version.
    pub agent: String,
    /// The guest's kernel.
    pub kernel: String,
    /// From the question to the answer.
    pub round_trip_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_published_clients_send_is_understood() {
        let request: ExecRequest = serde_json::from_str(r#"{"args":["id"],"timeout_secs":5,"new":1}"#).unwrap();
        assert_eq!((request.timeout_secs, request.stream), (Some(5.0), false));
        let request: ExecRequest = serde_json::from_str(r#"{"args":[]}"#).unwrap();
        assert_eq!(request.timeout_secs, Some(30.0));
        let request: ExecRequest = serde_json::from_str(r#"{"args":[],"timeout_secs":null}"#).unwrap();
        assert_eq!(request.timeout_secs, None);
    }

    #[test]
    fn an_eval_says_null_where_clients_look() {
        let text = serde_json::to_string(&EvalResult::default()).unwrap();
        assert!(text.starts_with(r#"{"result":null,"result_json":null,"error":null,"#), "{text}");
    }
}
