//! Ctrl-C and its relatives.
//!
//! ```text
//!                    boot                  command runs
//! SIGINT, first      called off            passed on to the command
//! SIGINT, again                            the VM is stopped
//! SIGTERM, HUP, QUIT called off            the VM is stopped
//! SIGWINCH                                 passed on to a command with a terminal
//! ```
//!
//! Whoever sends another fatal signal while we are cleaning up gets the default action; the VMM then ends by itself. So
//! does everybody when cleaning up takes too long: an emulated host that hangs answers nobody.

use std::os::raw::c_int;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use engine::Cancel;
use session::{Exec, Stdio, TtySize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;

use crate::terminal;

/// Longer than a VM needs to be ended, also in an emulated host that is busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often is looked whether a signal came while somebody else works for us.
const LOOK: Duration = Duration::from_millis(50);

/// Whom signals reach, from when it is made until the process ends.
#[derive(Clone, Debug)]
pub(crate) struct Interrupts {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    cancel: Cancel,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What runs, once something does.
    command: Option<Command>,
    /// A SIGINT was passed on to it.
    passed_on: bool,
    /// The signal that ended it all.
    fatal: Option<c_int>,
}

/// A command under way, how to reach it, and how to end it for good. None of these may take long.
pub(crate) struct Command {
    pub(crate) has_terminal: bool,
    pub(crate) signal: Box<dyn Fn(c_int) + Send>,
    pub(crate) resize: Box<dyn Fn(TtySize) + Send>,
    pub(crate) stop: Box<dyn Fn() + Send>,
}

impl Command {
    /// One that an agent runs for us.
    pub(crate) fn of(exec: &Exec, stdio: Stdio, stop: Box<dyn Fn() + Send>) -> Self {
        let (to_signal, to_resize) = (exec.control(), exec.control());
        Self {
            has_terminal: matches!(stdio, Stdio::Tty(_)),
            signal: Box::new(move |signal| report(to_signal.signal(signal))),
            resize: Box::new(move |size| report(to_resize.resize(size))),
            stop,
        }
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Command").field("has_terminal", &self.has_terminal).finish_non_exhaustive()
    }
}

impl Interrupts {
    /// Takes the signals over.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let cancel = Cancel::new().context("cannot make an event descriptor")?;
        let shared = Arc::new(Shared { cancel, state: Mutex::default() });
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH]).context("cannot take over signals")?;
        let handler = Arc::clone(&shared);
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || signals.forever().for_each(|signal| handler.handle(signal)))
            .context("cannot start a thread")?;
        Ok(Self { shared })
    }

    /// Calls off what waits before there is a command.
    pub(crate) fn cancel(&self) -> Cancel {
        self.shared.cancel.clone()
    }

    /// From now on signals are about this command. One that came before is not lost.
    pub(crate) fn about(&self, command: Command) {
        let mut state = self.shared.lock();
        if state.fatal.is_some() {
            (command.stop)();
        }
        state.command = Some(command);
    }

    /// What somebody else does for us, who stops when we leave; `None` when a signal came first.
    pub(crate) fn unless<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<Option<T>> {
        let (done, waiting) = channel();
        // Not joined: it goes with us.
        let worker = thread::Builder::new().name("asking".into());
        worker.spawn(move || drop(done.send(work()))).context("cannot start a thread")?;
        loop {
            match waiting.recv_timeout(LOOK) {
                Ok(result) => return Ok(Some(result)),
                Err(RecvTimeoutError::Timeout) if self.fatal().is_none() => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("it failed in an unforeseen way"),
            }
        }
    }

    /// The signal that ended it all, if one did.
    pub(crate) fn fatal(&self) -> Option<c_int> {
        self.shared.lock().fatal
    }
}

impl Shared {
    /// The state is whole at every step, also after a panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, signal: c_int) {
        let mut state = self.lock();
        match (state.take(signal), &state.command) {
            (Action::Nothing, _) | (Action::PassOn | Action::Resize, None) => {}
            (Action::PassOn, Some(command)) => (command.signal)(signal),
            (Action::Resize, Some(command)) => (command.resize)(terminal::size()),
            (Action::Stop, _) => {
                self.cancel.cancel();
                if let Some(command) = &state.command {
                    (command.stop)();
                }
                die_after(PATIENCE, signal);
            }
            (Action::Die, _) => die(signal),
        }
    }
}

fn die(signal: c_int) {
    if let Err(error) = signal_hook::low_level::emulate_default_handler(signal) {
        log::warn!("signal {signal} has no effect: {error}");
    }
}

/// The thread is never waited for: a process that has cleaned up in time ends with it.
fn die_after(patience: Duration, signal: c_int) {
    let last_resort = thread::Builder::new().name("patience".into()).spawn(move || {
        thread::sleep(patience);
        die(signal);
    });
    if let Err(error) = last_resort {
        log::warn!("cleaning up may take for ever: {error}");
    }
}

/// A command that has just ended needs no signal.
fn report(sent: Result<(), session::SessionError>) {
    if let Err(error) = sent {
        log::debug!("a signal was not passed on: {error}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Nothing,
    PassOn,
    Resize,
    Stop,
    Die,
}

impl State {
    /// What a signal means now.
    fn take(&mut self, signal: c_int) -> Action {
        match (signal, &self.command) {
            (SIGWINCH, Some(command)) if command.has_terminal => Action::Resize,
            (SIGWINCH, _) => Action::Nothing,
            (SIGINT, Some(_)) if !self.passed_on && self.fatal.is_none() => {
                self.passed_on = true;
                Action::PassOn
            }
            _ if self.fatal.is_some() => Action::Die,
            _ => {
                self.fatal = Some(signal);
                Action::Stop
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_a_command_runs_the_first_signal_calls_off_and_the_second_kills() {
        let mut state = State::default();
        assert!(matches!(state.take(SIGWINCH), Action::Nothing));
        assert!(matches!(state.take(SIGINT), Action::Stop));
        assert_eq!(state.fatal, Some(SIGINT));
        assert!(matches!(state.take(SIGTERM), Action::Die));
        assert_eq!(state.fatal, Some(SIGINT), "the first one counts");
    }

    #[test]
    fn the_first_interrupt_is_the_commands_and_the_second_ends_it() {
        let nothing = || Box::new(|| {});
        let command =
            Command { has_terminal: true, signal: Box::new(|_| {}), resize: Box::new(|_| {}), stop: nothing() };
        let mut state = State { command: Some(command), ..State::default() };
        assert!(matches!(state.take(SIGWINCH), Action::Resize));
        assert!(matches!(state.take(SIGINT), Action::PassOn));
        assert!(matches!(state.take(SIGINT), Action::Stop));
        assert!(matches!(state.take(SIGINT), Action::Die));
    }
}
