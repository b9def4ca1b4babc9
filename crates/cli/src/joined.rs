//! A command in a forked child, joined to our own streams.

use engine::Child;
use session::{ExecRequest, SessionError, Stdio};

use crate::interrupts::{Command, Interrupts};
use crate::stream::{self, Ended};

const SIGKILL: i32 = 9;

/// Runs it to its end. The first interrupt is the command's; the second ends it.
pub(crate) fn exec(child: &Child, request: &ExecRequest, interrupts: &Interrupts) -> anyhow::Result<Ended> {
    let exec = match child.exec(request) {
        Ok(exec) => exec,
        Err(error) => return stream::not_started(error).map_err(|error| explain(error, child)),
    };
    let control = exec.control();
    let stop = move || {
        if let Err(error) = control.signal(SIGKILL) {
            log::debug!("the command is over already: {error}");
        }
    };
    let has_terminal = matches!(request.stdio, Stdio::Tty(_));
    interrupts.about(Command { control: exec.control(), has_terminal, stop: Box::new(stop) });
    stream::join(exec, request.stdio, None).map_err(|error| explain(error, child))
}

/// A connection that broke says little; the host may know what ended the child, and otherwise its console says why.
pub(crate) fn explain(error: anyhow::Error, child: &Child) -> anyhow::Error {
    match error.downcast_ref() {
        Some(SessionError::Lost { .. } | SessionError::NotListening { .. } | SessionError::Unreachable { .. }) => {
            if let Some(death) = child.cause_of_death() {
                return death.into();
            }
            let id = child.id();
            error.context(format!("sandbox {id} went away; its console's last lines:\n{}", child.console_tail()))
        }
        _ => error,
    }
}
