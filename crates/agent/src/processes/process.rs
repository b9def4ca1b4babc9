//! One process, its output and its end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proto::codec::Channel;
use proto::guest::{ExecRequest, ExitStatus, MAX_CHUNK, MAX_KEPT_OUTPUT, ProcessInfo, Stdio, TtySize};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use super::ProcessError;
use super::kept::{Kept, Piece};
use crate::children::Child;
use crate::console::say;
use crate::launch::{LaunchError, Launcher};
use crate::peer::time_left;
use crate::stdio;

/// Its thread only moves bytes.
const STACK: usize = 128 << 10;
/// More of its arguments are not shown.
const MAX_SHOWN: usize = 16 << 10;

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: u64,
    child: Child,
    /// What never changes of it.
    about: ProcessInfo,
    terminal: Option<OwnedFd>,
    stdin: Mutex<Input>,
    state: Mutex<State>,
}

/// Its input, as others see it.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// It was started without.
    None,
    /// A pipe, or a terminal.
    Open(Arc<OwnedFd>),
    Closed,
}

#[derive(Debug)]
struct State {
    kept: Kept,
    tty: Option<TtySize>,
    over: Option<(ExitStatus, bool)>,
    /// Told of each change.
    watchers: Vec<Arc<OwnedFd>>,
}

/// What a client that attached finds.
pub(super) enum Next {
    Piece(Piece),
    Over { status: ExitStatus, timed_out: bool },
    Nothing,
}

impl Process {
    /// Starts it, and the thread that takes its output.
    pub(super) fn start(id: u64, launcher: &Launcher, request: &ExecRequest) -> Result<Arc<Self>, ProcessError> {
        let (child, ours) = launcher.launch(request, &[])?;
        let tty = match request.stdio {
            Stdio::Tty(size) => Some(size),
            Stdio::Output | Stdio::Pipes => None,
        };
        let state = State { kept: Kept::new(MAX_KEPT_OUTPUT), tty, over: None, watchers: Vec::new() };
        let process = Arc::new(Self {
            id,
            about: about(id, child.pid(), request),
            child,
            terminal: ours.terminal,
            stdin: Mutex::new(ours.stdin.map_or(Input::None, |fd| Input::Open(Arc::new(fd)))),
            state: Mutex::new(state),
        });
        let outputs = [(Channel::Stdout, ours.stdout), (Channel::Stderr, ours.stderr)];
        let deadline = request.timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        let attended = Arc::clone(&process);
        let attend = move || attended.attend(outputs, deadline);
        if let Err(source) = thread::Builder::new().name("process".into()).stack_size(STACK).spawn(attend) {
            process.kill();
            return Err(LaunchError::from(source).into());
        }
        Ok(process)
    }

    /// What is known of it now.
    pub(super) fn info(&self) -> ProcessInfo {
        let state = self.state();
        let (status, timed_out) = state.over.map_or((None, false), |(status, timed_out)| (Some(status), timed_out));
        ProcessInfo { tty: state.tty, status, timed_out, ..self.about.clone() }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().over.is_some()
    }

    /// Kills its group, if it runs.
    pub(super) fn kill(&self) {
        self.child.kill();
    }

    /// Sends a signal to its group.
    pub(super) fn signal(&self, signal: i32) -> Result<(), ProcessError> {
        if !(1..=64).contains(&signal) {
            return Err(ProcessError::NoSignal { signal });
        }
        match self.child.signal_group(signal) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ProcessError::Ended { id: self.id }),
            Err(source) => Err(ProcessError::System { id: self.id, source }),
        }
    }

    /// Tells its terminal a new size.
    pub(super) fn resize(&self, size: TtySize) -> Result<(), ProcessError> {
        let terminal = self.terminal.as_ref().ok_or(ProcessError::NoTerminal { id: self.id })?;
        stdio::resize(terminal, size).map_err(|source| ProcessError::System { id: self.id, source })?;
        self.state().tty = Some(size);
        Ok(())
    }

    /// Its input.
    pub(super) fn input(&self) -> Input {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It gets no more; a pipe's reader sees the end when nobody is writing to it any more.
    pub(super) fn close_input(&self) {
        let mut input = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*input, Input::Open(_)) {
            *input = Input::Closed;
        }
    }

    pub(super) const fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    pub(super) const fn child(&self) -> &Child {
        &self.child
    }

    /// What comes at a place of its output.
    pub(super) fn next(&self, place: u64) -> Next {
        let state = self.state();
        match (state.kept.at(place), state.over) {
            (Some(piece), _) => Next::Piece(piece),
            (None, Some((status, timed_out))) => Next::Over { status, timed_out },
            (None, None) => Next::Nothing,
        }
    }

    /// A descriptor that becomes readable with each change, until it is given back.
    pub(super) fn watch(&self) -> io::Result<Arc<OwnedFd>> {
        let fd = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        self.state().watchers.push(Arc::clone(&fd));
        Ok(fd)
    }

    /// Gives a descriptor of [`Self::watch`] back.
    pub(super) fn unwatch(&self, fd: &Arc<OwnedFd>) {
        self.state().watchers.retain(|watcher| !Arc::ptr_eq(watcher, fd));
    }

    /// The state is whole between any two statements.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes output until the process has ended, and then what it left in its pipes.
    fn attend(&self, outputs: [(Channel, Option<OwnedFd>); 2], mut deadline: Option<Instant>) {
        let mut outputs = outputs;
        let (mut scratch, mut timed_out) = (vec![0; MAX_CHUNK], false);
        let status = loop {
            if let Some(status) = self.child.status() {
                break status;
            }
            let ready = match self.wait(&outputs, deadline) {
                Ok(ready) => ready,
                Err(errno) => {
                    say(format_args!("process {}: its output is lost: {errno}", self.id));
                    outputs = outputs.map(|(channel, _)| (channel, None));
                    [false; 2]
                }
            };
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                deadline = None;
                timed_out = self.child.kill();
            }
            for (output, ready) in outputs.iter_mut().zip(ready) {
                if ready {
                    self.take(output, &mut scratch);
                }
            }
        };
        for output in &mut outputs {
            let mut left = output.1.as_ref().map_or(0, stdio::capacity);
            while left > 0 {
                match self.take(output, &mut scratch) {
                    0 => break,
                    count => left = left.saturating_sub(count),
                }
            }
        }
        self.close_input();
        self.change(|state| state.over = Some((status, timed_out)));
    }

    /// Waits for output, the end or the deadline; which outputs are ready.
    fn wait(&self, outputs: &[(Channel, Option<OwnedFd>); 2], until: Option<Instant>) -> Result<[bool; 2], Errno> {
        let ended = self.child.ended_fd();
        let mut fds = vec![PollFd::new(&ended, PollFlags::IN)];
        fds.extend(outputs.iter().filter_map(|(_, fd)| Some(PollFd::new(fd.as_ref()?, PollFlags::IN))));
        match rustix::event::poll(&mut fds, until.map(time_left).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut ready = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        Ok(outputs.each_ref().map(|(_, fd)| fd.is_some() && ready.next().unwrap_or(false)))
    }

    /// Reads an output once; how much it was. At its end it is closed.
    fn take(&self, (channel, output): &mut (Channel, Option<OwnedFd>), scratch: &mut [u8]) -> usize {
        let Some(fd) = output else { return 0 };
        match rustix::io::read(fd, &mut *scratch) {
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Ok(0) | Err(_) => {
                *output = None;
                0
            }
            Ok(count) => {
                self.change(|state| state.kept.push(*channel, &scratch[..count]));
                count
            }
        }
    }

    /// Changes the state and tells all who watch.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        for watcher in &state.watchers {
            match rustix::io::write(watcher, &1_u64.to_ne_bytes()) {
                // It was told so often already that it is readable.
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(errno) => say(format_args!("process {}: a client was not told: {errno}", self.id)),
            }
        }
    }
}

fn about(id: u64, pid: i32, request: &ExecRequest) -> ProcessInfo {
    let mut shown = 0;
    let short = |argument: &&String| {
        shown += argument.len();
        shown <= MAX_SHOWN
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ProcessInfo {
        id,
        pid,
        argv: request.argv.iter().take_while(short).cloned().collect(),
        cwd: request.cwd.clone(),
        user: request.user.clone(),
        started_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        tty: None,
        status: None,
        timed_out: false,
    }
}
