//! What a VM does before it is frozen, so that its children need not.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use session::{ErrorCode, ExecRequest, Output, SessionError, WarmRequest};
use types::{Interpreter, Modules};

use crate::cancel::Cancel;
use crate::vm::Vm;

/// The pause between two ready checks.
const PAUSE: Duration = Duration::from_millis(100);
/// How much a check or a failed command may say.
const MAX_OUTPUT: usize = 1 << 20;
/// How much of that is worth showing.
const MAX_SHOWN: usize = 2000;
/// Runs the command with its output in a file: what it leaves running must not hold our connection, and what it said is
/// there when it fails. A container image may say that commands do not run as root.
const COMMAND: &str = r#"
log=/run/forkd/warm-up.log
{ mkdir -p /run/forkd && : >"$log"; } 2>/dev/null || log=/tmp/forkd-warm-up.log
/bin/sh -c "$1" >"$log" 2>&1 </dev/null
code=$?
[ "$code" = 0 ] || tail -c 2000 "$log"
exit "$code"
"#;

/// What a VM does before it is frozen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmUp {
    /// The interpreter to keep warm.
    pub interpreter: Option<Interpreter>,
    /// What it imports.
    #[serde(default)]
    pub modules: Modules,
    /// A shell line that is run once.
    pub command: Option<String>,
    /// A shell line that is run until it succeeds.
    pub ready: Option<String>,
}

/// Why it is not warm.
#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    /// The interpreter could not be started, or a module not imported.
    #[error("the interpreter could not be warmed up: {source}")]
    Interpreter {
        /// What the agent says.
        source: SessionError,
    },
    /// The command failed.
    #[error("the warm-up command ended with exit code {code}; it said:\n{said}")]
    Command {
        /// Its exit code.
        code: i32,
        /// The end of what it wrote.
        said: String,
    },
    /// It took too long.
    #[error("the warm-up was not over within {} s{}; --boot-wait-secs sets the limit", limit.as_secs_f32(), last(said))]
    Slow {
        /// The limit.
        limit: Duration,
        /// What the ready check said last.
        said: String,
    },
    /// The guest cannot be asked.
    #[error("the guest went away while it was warming up: {source}; its console's last lines:\n{console}")]
    Guest {
        /// What the connection says.
        source: SessionError,
        /// The console's last lines.
        console: String,
    },
}

fn last(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" (the ready check said: {said})") }
}

/// Does all of it.
pub(super) fn warm(
    vm: &Vm,
    warm_up: &WarmUp,
    limit: Duration,
    until: Instant,
    cancel: Option<&Cancel>,
) -> Result<(), WarmError> {
    if let Some(program) = warm_up.interpreter {
        let request = WarmRequest { program, modules: warm_up.modules.clone(), timeout_ms: millis_left(until) };
        let warmed = vm.connect().and_then(|mut connection| connection.warm(&request));
        warmed.map_err(|source| WarmError::Interpreter { source })?;
    }
    if let Some(command) = &warm_up.command {
        let output = run(vm, &[COMMAND, "sh", command], until)?;
        if output.timed_out {
            return Err(WarmError::Slow { limit, said: String::new() });
        }
        if output.status.shell_code() != 0 {
            return Err(WarmError::Command { code: output.status.shell_code(), said: shown(&output) });
        }
    }
    warm_up.ready.as_ref().map_or(Ok(()), |check| wait_until_ready(vm, check, limit, until, cancel))
}

fn wait_until_ready(
    vm: &Vm,
    check: &str,
    limit: Duration,
    until: Instant,
    cancel: Option<&Cancel>,
) -> Result<(), WarmError> {
    loop {
        let output = run(vm, &[check], until)?;
        if output.status.shell_code() == 0 && !output.timed_out {
            return Ok(());
        }
        let pause = (Instant::now() + PAUSE).min(until);
        // Called off: the caller knows, and what is said here does not matter.
        if matches!(Cancel::first(&[cancel], pause), Ok(Some(_))) || Instant::now() >= until {
            return Err(WarmError::Slow { limit, said: shown(&output) });
        }
    }
}

/// Has the guest write everything to its disk. What one without the program has not written is in its memory, which is
/// taken at the same instant.
pub(super) fn sync(vm: &Vm, limit: Duration) -> Result<(), SessionError> {
    let timeout_ms = u64::try_from(limit.as_millis()).ok();
    let request = ExecRequest { argv: vec!["sync".into()], timeout_ms, ..ExecRequest::default() };
    let output = match vm.connect()?.output(&request, &[], MAX_OUTPUT) {
        Err(SessionError::Refused { code: ErrorCode::NotFound, .. }) => return Ok(()),
        output => output?,
    };
    if output.status.shell_code() == 0 && !output.timed_out {
        return Ok(());
    }
    let message = format!("sync ended with {:?}: {}", output.status, shown(&output));
    Err(SessionError::Refused { code: ErrorCode::Failed, message })
}

/// `sh -c` with these words, until the time is up.
fn run(vm: &Vm, words: &[&str], until: Instant) -> Result<Output, WarmError> {
    let argv = ["sh", "-c"].iter().chain(words).map(ToString::to_string).collect();
    let request = ExecRequest { argv, timeout_ms: Some(millis_left(until)), ..ExecRequest::default() };
    let output = vm.connect().and_then(|connection| connection.output(&request, &[], MAX_OUTPUT));
    output.map_err(|source| WarmError::Guest { source, console: vm.console_tail() })
}

/// At least one: a limit of nothing would mean none.
fn millis_left(until: Instant) -> u64 {
    u64::try_from(until.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The end of what a process said, fit for a terminal.
fn shown(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&all);
    let text: String = text.chars().filter(|c| *c == '\n' || !c.is_control()).collect();
    let skip = text.chars().count().saturating_sub(MAX_SHOWN);
    text.chars().skip(skip).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use session::ExitStatus;

    use super::*;

    #[test]
    fn what_is_shown_is_the_end_and_harmless() {
        let stdout = format!("{}\x1b[31mred\n", "x".repeat(9000)).into_bytes();
        let output = Output { status: ExitStatus::Code(1), timed_out: false, stdout, stderr: b"why\n".to_vec() };
        let text = shown(&output);
        assert!(text.ends_with("red\nwhy") && text.len() <= MAX_SHOWN && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn a_warm_up_crosses_as_json() {
        let text = r#"{"interpreter":"python3","modules":["numpy"],"command":null,"ready":"true"}"#;
        let warm_up: WarmUp = serde_json::from_str(text).unwrap();
        assert_eq!(warm_up.interpreter, Some(Interpreter::Python3));
        assert_eq!(serde_json::from_str::<WarmUp>(&serde_json::to_string(&warm_up).unwrap()).unwrap(), warm_up);
        serde_json::from_str::<WarmUp>(r#"{"interpreter":"python3","modules":["a b"]}"#).unwrap_err();
    }
}
