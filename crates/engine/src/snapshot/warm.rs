//! What a VM does before it is frozen, so that its children need not.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use session::{ErrorCode, ExecRequest, Output, SessionError, WarmRequest};
use types::progress::Stage;
use types::{Interpreter, Modules};

use super::ready::{ReadyCheck, Waiting};
use crate::cancel::Cancel;
use crate::said::Said;
use crate::vm::Vm;

/// How much a check or a failed command may say.
pub(super) const MAX_OUTPUT: usize = 1 << 20;
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
    /// A shell line that is run to its end.
    pub command: Option<String>,
    /// A program and its arguments that is started after that and stays.
    pub start: Option<Vec<String>>,
    /// What has to be so before the VM is frozen.
    pub ready: Option<ReadyCheck>,
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
    /// What was to be started could not be.
    #[error("what the warm-up was to start could not be started: {source}")]
    Start {
        /// What the agent says.
        source: SessionError,
    },
    /// What was started is over.
    #[error("what the warm-up started ended with exit code {code} before it was ready; it said:\n{said}")]
    Ended {
        /// Its exit code.
        code: i32,
        /// The end of what it wrote.
        said: String,
    },
    /// It took too long.
    #[error(
        "the warm-up was not over within {} s: {waiting_for}; the recipe's warm.timeout_secs or --boot-wait-secs sets the \
         limit{}",
        limit.as_secs_f32(), last(said)
    )]
    Slow {
        /// The limit.
        limit: Duration,
        /// What was waited for.
        waiting_for: String,
        /// What the command, the check or what was started said last.
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
    if said.is_empty() { String::new() } else { format!("; the last lines:\n{said}") }
}

/// A VM that is warmed up, and for how long.
#[derive(Clone, Copy)]
pub(super) struct Warming<'a> {
    pub(super) vm: &'a Vm,
    pub(super) limit: Duration,
    pub(super) until: Instant,
    pub(super) cancel: Option<&'a Cancel>,
    pub(super) stage: &'a dyn Stage,
}

impl Warming<'_> {
    /// Does all of it.
    pub(super) fn warm(self, warm_up: &WarmUp) -> Result<(), WarmError> {
        if let Some(program) = warm_up.interpreter {
            self.stage.note(program.program());
            let timeout_ms = millis_left(self.until);
            let request = WarmRequest { program, modules: warm_up.modules.clone(), timeout_ms };
            let warmed = self.vm.connect().and_then(|mut connection| connection.warm(&request));
            warmed.map_err(|source| WarmError::Interpreter { source })?;
        }
        if let Some(command) = &warm_up.command {
            self.stage.note(command);
            let output = self.run(&[COMMAND, "sh", command])?;
            if output.timed_out {
                return Err(self.slow(format!("`{command}` did not end"), shown(&output)));
            }
            if output.status.shell_code() != 0 {
                return Err(WarmError::Command { code: output.status.shell_code(), said: shown(&output) });
            }
        }
        let started = warm_up.start.as_ref().map(|argv| self.start(argv)).transpose()?;
        match &warm_up.ready {
            Some(check) => Waiting { warming: self, started }.wait(check),
            None => Ok(()),
        }
    }

    /// Starts what stays, and says by which number it is known.
    fn start(&self, argv: &[String]) -> Result<u64, WarmError> {
        self.stage.note(&argv.join(" "));
        let request = ExecRequest { argv: argv.to_vec(), ..ExecRequest::default() };
        let started = self.vm.connect().and_then(|mut connection| connection.start_process(&request));
        started.map(|process| process.id).map_err(|source| WarmError::Start { source })
    }

    /// `sh -c` with these words, until the time is up.
    pub(super) fn run(&self, words: &[&str]) -> Result<Output, WarmError> {
        let argv = ["sh", "-c"].iter().chain(words).map(ToString::to_string).collect();
        let request = ExecRequest { argv, timeout_ms: Some(millis_left(self.until)), ..ExecRequest::default() };
        let output = self.vm.connect().and_then(|connection| connection.output(&request, &[], MAX_OUTPUT));
        output.map_err(|source| self.gone(source))
    }

    pub(super) fn gone(&self, source: SessionError) -> WarmError {
        WarmError::Guest { source, console: self.vm.console_tail() }
    }

    pub(super) fn slow(&self, waiting_for: String, said: String) -> WarmError {
        WarmError::Slow { limit: self.limit, waiting_for, said }
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

/// At least one: a limit of nothing would mean none.
fn millis_left(until: Instant) -> u64 {
    u64::try_from(until.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The end of what a process said, fit for a terminal.
pub(super) fn shown(output: &Output) -> String {
    let mut said = Said::default();
    for stream in [&output.stdout, &output.stderr] {
        said.hear(stream, |_| ());
        said.end(|_| ());
    }
    said.tail()
}

#[cfg(test)]
mod tests {
    use session::ExitStatus;

    use super::*;

    #[test]
    fn what_is_shown_is_the_end_and_harmless() {
        let stdout = format!("{}\n\x1b[31mred\n", "x".repeat(9000)).into_bytes();
        let output = Output { status: ExitStatus::Code(1), timed_out: false, stdout, stderr: b"why\n".to_vec() };
        let text = shown(&output);
        assert!(text.ends_with("red\nwhy") && text.len() <= 2000 && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn a_warm_up_crosses_as_json() {
        let text =
            r#"{"interpreter":"python3","modules":["numpy"],"command":null,"start":["serve"],"ready":{"tcp":80}}"#;
        let warm_up: WarmUp = serde_json::from_str(text).unwrap();
        assert_eq!(warm_up.interpreter, Some(Interpreter::Python3));
        assert_eq!(warm_up.ready, Some(ReadyCheck::Tcp(80)));
        assert_eq!(serde_json::from_str::<WarmUp>(&serde_json::to_string(&warm_up).unwrap()).unwrap(), warm_up);
        serde_json::from_str::<WarmUp>(r#"{"interpreter":"python3","modules":["a b"]}"#).unwrap_err();
    }
}
