//! The interpreter that stays warm, and the code it is given.
//!
//! ```text
//! absent ── warm, eval ──> running <── restart with its modules ── lost
//!                             └── it ends, or does not heed an interrupt ──^
//! ```
//!
//! One process, one namespace; whoever has the turn may use it, everybody else waits no longer than the time they gave.
//! A renewal does not wait for a turn: it has a way of its own into the process. The interpreter runs strangers' code and
//! is believed nothing: whatever it does costs the one who waits for it his time, and nobody else anything.

mod capture;
mod process;
mod program;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proto::guest::{
    ErrorCode, EvalError, EvalRequest, Evaluated, ExitStatus, InterpreterState, MAX_EVAL_TIMEOUT_MS, Shown,
    WarmRequest, Warmed,
};
use types::{Interpreter, ModuleError, ModuleName};

use crate::launch::{LaunchError, Launcher};
use capture::Captured;
pub(crate) use process::ControlError;
use process::{Control, Outcome, Process, Work};

/// How long a lost interpreter may take to come back with its modules; in an emulated machine it can take a while.
const RESTART_PATIENCE: Duration = Duration::from_secs(60);

/// How much of what an interpreter says before it ends is told.
const LAST_WORDS: usize = 2 << 10;

/// Why code was not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WarmError {
    #[error("nothing was run: {0}")]
    Launch(#[from] LaunchError),
    #[error("nothing was run: the interpreter was busy with other code for {} ms", waited.as_millis())]
    Busy { waited: Duration },
    #[error(transparent)]
    Module(#[from] ModuleError),
    #[error("{traceback}")]
    Import { traceback: String },
    #[error("the interpreter was not ready within {} ms", waited.as_millis())]
    Late { waited: Duration },
    #[error("{}; it said: {said}", EvalError::Died { status: *status })]
    Died { status: ExitStatus, said: String },
}

impl WarmError {
    pub(crate) const fn code(&self) -> ErrorCode {
        match self {
            Self::Launch(error) => error.code(),
            Self::Busy { .. } | Self::Late { .. } => ErrorCode::Timeout,
            Self::Module(_) => ErrorCode::BadArgument,
            Self::Import { .. } => ErrorCode::ImportFailed,
            Self::Died { .. } => ErrorCode::Failed,
        }
    }
}

/// What code came to.
pub(crate) struct Evaluation {
    pub(crate) evaluated: Evaluated,
    /// Standard output and standard error.
    pub(crate) output: [Vec<u8>; 2],
    pub(crate) shown: Vec<Shown>,
}

/// The one interpreter of this agent.
pub(crate) struct WarmInterpreter {
    launcher: Arc<Launcher>,
    /// Empty while somebody has the turn.
    seat: Mutex<Option<Seat>>,
    freed: Condvar,
    /// Held while a process is started, so that no renewal can miss one.
    control: Mutex<Option<Control>>,
}

/// What the one who has the turn works with.
struct Seat {
    program: Interpreter,
    modules: Vec<ModuleName>,
    process: Option<Process>,
    /// There was one before, and its state is gone; nobody was told yet.
    lost: bool,
}

impl WarmInterpreter {
    pub(crate) fn new(launcher: Arc<Launcher>) -> Self {
        let seat = Seat { program: Interpreter::Python3, modules: Vec::new(), process: None, lost: false };
        Self { launcher, seat: Mutex::new(Some(seat)), freed: Condvar::new(), control: Mutex::default() }
    }

    /// Starts the interpreter if it does not run, and has it import modules.
    pub(crate) fn warm(&self, request: &WarmRequest) -> Result<Warmed, WarmError> {
        let (begun, patience) = (Instant::now(), limit(request.timeout_ms));
        let (interpreter, modules) = (request.program, request.modules.as_slice());
        if let Some(module) = modules.iter().find(|module| !interpreter.accepts(module)) {
            return Err(ModuleError::Foreign { interpreter, module: module.clone() }.into());
        }
        let mut turn = self.take_turn(patience)?;
        let seat = turn.seat();
        seat.become_one(interpreter);
        seat.revive(self)?;
        seat.import(modules, patience)?;
        for module in modules {
            if !seat.modules.contains(module) {
                seat.modules.push(module.clone());
            }
        }
        let pid = seat.process.as_ref().map_or(0, Process::pid);
        Ok(Warmed { pid, took_us: begun.elapsed().as_micros().try_into().unwrap_or(u64::MAX) })
    }

    /// Runs code, in an interpreter that is started for it if none runs.
    pub(crate) fn evaluate(&self, request: &EvalRequest) -> Result<Evaluation, WarmError> {
        let patience = limit(request.timeout_ms);
        let mut turn = self.take_turn(patience)?;
        turn.seat().evaluate(self, &request.code, patience)
    }

    /// Whether there is one now.
    pub(crate) fn runs(&self) -> bool {
        self.control().as_ref().is_some_and(Control::is_alive)
    }

    /// Gives a running interpreter its own environment and randomness. One that is started later has both. It answers at
    /// once unless C code keeps all of it busy.
    pub(crate) fn renew(&self, env: &BTreeMap<String, String>, patience: Duration) -> Result<(), ControlError> {
        let mut control = self.control();
        let Some(running) = control.as_mut().filter(|control| control.is_alive()) else { return Ok(()) };
        match running.renew(env, Instant::now() + patience) {
            // It ended meanwhile, and took what should have been renewed with it.
            Err(_) if !running.is_alive() => Ok(()),
            renewed => renewed,
        }
    }

    fn start(&self, program: Interpreter) -> Result<Process, LaunchError> {
        let mut current = self.control();
        let (process, control) = Process::start(&self.launcher, program)?;
        *current = Some(control);
        Ok(process)
    }

    fn control(&self) -> MutexGuard<'_, Option<Control>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_turn(&self, patience: Duration) -> Result<Turn<'_>, WarmError> {
        let seat = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(seat, patience, |seat| seat.is_none());
        let seat = waited.unwrap_or_else(PoisonError::into_inner).0.take();
        Ok(Turn { owner: self, seat: Some(seat.ok_or(WarmError::Busy { waited: patience })?) })
    }
}

/// The right to use the interpreter; given back when dropped.
struct Turn<'a> {
    owner: &'a WarmInterpreter,
    seat: Option<Seat>,
}

impl Turn<'_> {
    const fn seat(&mut self) -> &mut Seat {
        self.seat.as_mut().expect("the seat leaves only when the turn is dropped")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.owner.seat.lock().unwrap_or_else(PoisonError::into_inner) = self.seat.take();
        self.owner.freed.notify_one();
    }
}

impl Seat {
    /// Lets go of an interpreter of another kind, which nobody can ask any more.
    fn become_one(&mut self, program: Interpreter) {
        if self.program != program {
            self.discard();
            *self = Self { program, modules: Vec::new(), process: None, lost: false };
        }
    }

    /// Makes sure that there is a living process, with its modules.
    fn revive(&mut self, owner: &WarmInterpreter) -> Result<(), WarmError> {
        if self.process.as_ref().is_some_and(Process::is_alive) {
            return Ok(());
        }
        self.discard();
        self.process = Some(owner.start(self.program)?);
        let modules = self.modules.clone();
        self.import(&modules, RESTART_PATIENCE)
    }

    fn import(&mut self, modules: &[ModuleName], patience: Duration) -> Result<(), WarmError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        process.capture.begin();
        let outcome = process.perform(&Work::Modules(modules), patience);
        let Captured { bytes: [_, said], .. } = process.capture.finish();
        match outcome {
            Outcome::Answered(answer) => match answer.error {
                Some(error) => Err(WarmError::Import { traceback: error.traceback }),
                None => Ok(()),
            },
            Outcome::Interrupted(_) => Err(WarmError::Late { waited: patience }),
            Outcome::Stuck => {
                self.discard();
                Err(WarmError::Late { waited: patience })
            }
            Outcome::Gone => Err(WarmError::Died { status: self.discard(), said: last_words(&said) }),
        }
    }

    fn evaluate(&mut self, owner: &WarmInterpreter, code: &str, patience: Duration) -> Result<Evaluation, WarmError> {
        self.revive(owner)?;
        let process = self.process.as_mut().expect("it was revived");
        let state = if std::mem::take(&mut self.lost) { InterpreterState::Restarted } else { InterpreterState::Alive };
        process.capture.begin();
        let outcome = process.perform(&Work::Code(code), patience);
        let Captured { bytes: output, truncated: cut } = process.capture.finish();
        let mut evaluated = Evaluated { value: None, error: None, truncated: cut, interpreter: state };
        let mut shown = Vec::new();
        match outcome {
            Outcome::Answered(answer) => {
                evaluated.value = answer.value;
                evaluated.error = answer.error.map(EvalError::Exception);
                evaluated.truncated |= answer.truncated;
                shown = answer.shown;
            }
            Outcome::Interrupted(answer) => {
                let traceback = answer.error.map(|error| error.traceback);
                evaluated.error = Some(EvalError::Timeout { traceback });
                evaluated.truncated |= answer.truncated;
                shown = answer.shown;
            }
            Outcome::Stuck => {
                self.discard();
                evaluated.error = Some(EvalError::Timeout { traceback: None });
                evaluated.interpreter = InterpreterState::Lost;
            }
            Outcome::Gone => {
                evaluated.error = Some(EvalError::Died { status: self.discard() });
                evaluated.interpreter = InterpreterState::Lost;
            }
        }
        Ok(Evaluation { evaluated, output, shown })
    }

    /// Ends the process; how it ended. One that was never there counts as killed.
    fn discard(&mut self) -> ExitStatus {
        self.process.take().map_or(ExitStatus::Signal(libc::SIGKILL), |process| {
            self.lost = true;
            process.end()
        })
    }
}

/// The end of what a process said.
fn last_words(said: &[u8]) -> String {
    let start = said.len().saturating_sub(LAST_WORDS);
    String::from_utf8_lossy(&said[start..]).trim().to_owned()
}

fn limit(timeout_ms: u64) -> Duration {
    Duration::from_millis(timeout_ms.min(MAX_EVAL_TIMEOUT_MS))
}
