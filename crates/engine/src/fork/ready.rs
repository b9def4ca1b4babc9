//! From a child whose vCPUs run to one that is ready: its agent has said hello and made it somebody of its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use proto::guest::AGENT_PORT;
use rustix::event::{EventfdFlags, eventfd};
use session::{Connection, RenewRequest, SessionError};

use super::error::{ChildError, ForkError};
use super::fanout::Fanout;
use super::{ChildOptions, clock, micros};
use crate::cancel::Cancel;
use crate::child::{Child, Death};
use crate::pool::workers;
use crate::random::{hex, random};

/// The pause after the first connection that broke, and the longest one. A guest that was just restored resets the
/// connections it remembers, and may take a new one for one of them.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long the first hello may take; doubled with every try, so that a lost one is given up and a slow one not.
const FIRST_HELLO: Duration = Duration::from_secs(2);

/// A child whose vCPUs run.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) index: usize,
    pub(super) child: Child,
}

/// A child that is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) renew_us: u64,
    pub(super) ready_us: u64,
}

/// What became of a job.
pub(super) type Finished = (usize, Result<Ready, ChildError>);

/// Rings when something is finished.
#[derive(Clone, Debug)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    fn ring(&self) {
        // Fails only when the counter is full, and then it is readable as it should be.
        if let Err(error) = rustix::io::write(&*self.0, &1_u64.to_ne_bytes()) {
            log::debug!("the bell rang too often: {error}");
        }
    }

    /// Makes it silent until it rings again.
    pub(super) fn answer(&self) {
        if let Err(error) = rustix::io::read(&*self.0, &mut [0_u8; 8]) {
            log::debug!("the bell was silent: {error}");
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Those who make children ready.
#[derive(Debug)]
pub(super) struct Crew<'a> {
    queue: Mutex<Receiver<Job>>,
    finished: Sender<Finished>,
    bell: Bell,
    options: &'a [ChildOptions],
    begun: Instant,
    until: Instant,
    over: Cancel,
}

impl<'a> Crew<'a> {
    pub(super) fn new(fanout: &Fanout<'a>, queue: Receiver<Job>, finished: Sender<Finished>) -> Self {
        Self {
            queue: Mutex::new(queue),
            finished,
            bell: fanout.bell.clone(),
            options: &fanout.spec.children,
            begun: fanout.begun,
            until: fanout.until,
            over: fanout.over.clone(),
        }
    }

    /// Starts the workers. Fewer than wanted is slower and no error; none is.
    pub(super) fn hire<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Result<(), ForkError> {
        for number in 0..self.options.len().min(workers()) {
            let worker = thread::Builder::new().name("fork-worker".into()).spawn_scoped(scope, || self.work());
            match worker {
                Ok(_) => {}
                Err(source) if number == 0 => return Err(ForkError::Io { action: "start a thread", source }),
                Err(error) => {
                    log::debug!("only {number} workers: {error}");
                    break;
                }
            }
        }
        Ok(())
    }

    /// Nobody begins another try.
    pub(super) fn dismiss(&self) {
        self.over.cancel();
    }

    fn work(&self) {
        loop {
            let job = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { index, child }) = job else { return };
            let result =
                if self.is_over() { Err(ChildError::Ended) } else { self.make_ready(&child, &self.options[index]) };
            if self.finished.send((index, result)).is_err() {
                return;
            }
            self.bell.ring();
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.over.wait(Instant::now()), Ok(true))
    }

    fn make_ready(&self, child: &Child, options: &ChildOptions) -> Result<Ready, ChildError> {
        let (mut pause, longest) = PAUSES;
        let mut patience = FIRST_HELLO;
        loop {
            let tried = self.try_once(child, options, patience);
            if let Err(Try::Failed(error)) = &tried {
                log::debug!("{} after {} us: {error}", child.id(), micros(self.begun));
            }
            match tried {
                Ok(renew_us) => return Ok(Ready { renew_us, ready_us: micros(self.begun) }),
                // Its socket was there when it said that it runs: nobody listens there any more.
                Err(Try::Failed(SessionError::Unreachable { .. })) => return Err(died(child)),
                Err(Try::Failed(SessionError::Lost { .. } | SessionError::NotListening { .. })) => {}
                Err(Try::Failed(SessionError::Timeout { .. })) => patience *= 2,
                Err(Try::Failed(source)) => return Err(ChildError::Agent { source }),
                Err(Try::Io(action, source)) => return Err(ChildError::Io { action, source }),
            }
            match self.over.wait((Instant::now() + pause).min(self.until)) {
                Ok(true) => return Err(ChildError::Ended),
                Ok(false) => pause = (pause * 2).min(longest),
                Err(source) => return Err(ChildError::Io { action: "wait", source }),
            }
        }
    }

    fn try_once(&self, child: &Child, options: &ChildOptions, patience: Duration) -> Result<u64, Try> {
        let stream = session::connect_vsock(&child.vsock(), AGENT_PORT).map_err(Try::Failed)?;
        let left = self.until.saturating_duration_since(Instant::now()).max(PAUSES.1);
        let mut connection = Connection::open(stream, None, patience.min(left)).map_err(Try::Failed)?;
        let request = renewal(child, options).map_err(|source| Try::Io("get random bytes", source))?;
        let asked = Instant::now();
        let took_us = connection.renew(&request).map_err(Try::Failed)?.took_us;
        let under_way = asked.elapsed().saturating_sub(Duration::from_micros(took_us));
        clock::adjust(&mut connection, under_way).map_err(Try::Failed)?;
        Ok(took_us)
    }
}

/// Why a try came to nothing.
enum Try {
    Failed(SessionError),
    Io(&'static str, io::Error),
}

/// What its process left, while its directory is there.
pub(super) fn died(child: &Child) -> ChildError {
    if let Some(Death::OutOfMemory { limit, .. }) = child.cause_of_death() {
        return ChildError::OutOfMemory { limit };
    }
    ChildError::Died { log: child.log_tail(), console: child.console_tail() }
}

/// What a child is told to be. Everything in it is new with every try.
fn renewal(child: &Child, options: &ChildOptions) -> io::Result<RenewRequest> {
    let checked = "an id of ours is letters, digits and hyphens";
    Ok(RenewRequest {
        sandbox_id: child.id().parse().expect(checked),
        hostname: child.id().parse().expect(checked),
        machine_id: machine_id()?.parse().expect("32 hexadecimal digits, not all of them zero"),
        generation: hex(&random::<16>()?).parse().expect("hexadecimal digits"),
        env: options.env.clone(),
        metadata: options.metadata.clone(),
        entropy: random::<64>()?.to_vec().try_into().expect("64 bytes are neither too few nor too many"),
        wall_clock_unix_ns: clock::unix_ns(Duration::ZERO),
    })
}

/// Random, in the form of a random UUID, so it is never all zeroes.
fn machine_id() -> io::Result<String> {
    let mut bytes = random::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(hex(&bytes))
}
