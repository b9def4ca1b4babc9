//! One running interpreter: two sockets to talk to it, two pipes to hear what its code writes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use proto::guest::{Exception, ExecRequest, ExitStatus, MAX_SHOWN, Shown};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use types::{Interpreter, ModuleName};

use super::capture::Capture;
use super::program::Script;
use crate::children::Child;
use crate::launch::{LaunchError, Launcher};
use crate::peer::{Peer, PeerError, time_left};

/// The longest answer: with the words around it, it still fits into a reply.
const MAX_ANSWER: usize = 240 << 10;
/// How long code may take to end once it was interrupted.
const GRACE: Duration = Duration::from_secs(1);
/// How long the kernel may take to remove a killed process.
const REMOVAL: Duration = Duration::from_secs(2);

/// A running interpreter. Whoever drops it leaves it running; see [`Process::end`].
pub(crate) struct Process {
    child: Child,
    work: Peer,
    pub(crate) capture: Capture,
}

/// The way to an interpreter whose code is running.
pub(crate) struct Control {
    child: Child,
    peer: Peer,
    asked: u64,
}

/// What an interpreter is told to do.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work<'a> {
    Modules(&'a [ModuleName]),
    Code(&'a str),
}

/// What it answers.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) value: Option<String>,
    pub(crate) error: Option<Exception>,
    pub(crate) truncated: bool,
    /// What it said before.
    #[serde(skip)]
    pub(crate) shown: Vec<Shown>,
}

/// What it says while it works, and at the end.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Said {
    Show { show: Shown },
    Answer(Answer),
}

/// What is shown, as much of it as is returned.
#[derive(Default)]
struct Shelf {
    pieces: Vec<Shown>,
    cost: usize,
    truncated: bool,
}

impl Shelf {
    fn put(&mut self, piece: Shown) {
        let cost = self.cost + piece.cost();
        // From the first piece on that does not fit, so that nothing has a hole in it.
        self.truncated |= cost > MAX_SHOWN;
        if !self.truncated {
            self.cost = cost;
            self.pieces.push(piece);
        }
    }

    fn complete(self, answer: Answer) -> Answer {
        Answer { truncated: answer.truncated || self.truncated, shown: self.pieces, ..answer }
    }
}

/// How work ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// With an answer.
    Answered(Answer),
    /// It was interrupted when its time was up; the answer says where it was.
    Interrupted(Answer),
    /// It did not heed the interrupt.
    Stuck,
    /// The interpreter ended, or what it says makes no sense.
    Gone,
}

#[derive(Serialize)]
struct RenewMessage<'a> {
    id: u64,
    env: &'a BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RenewAnswer {
    id: u64,
    error: Option<String>,
}

/// Why an interpreter was not renewed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("the interpreter said: {0}")]
    Failed(String),
    #[error("the interpreter did not answer: {0}")]
    Peer(#[from] PeerError),
}

/// Why there is no answer.
enum Silence {
    Late,
    Gone,
}

impl From<PeerError> for Silence {
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::Late => Self::Late,
            PeerError::Gone | PeerError::Codec(_) => Self::Gone,
        }
    }
}

impl Process {
    /// Starts an interpreter; returns before it is up.
    pub(crate) fn start(launcher: &Launcher, program: Interpreter) -> Result<(Self, Control), LaunchError> {
        let script = Script::of(program)?;
        let ((work, their_work), (control, their_control)) = (pair()?, pair()?);
        let keep = script.descriptors([their_work.as_fd(), their_control.as_fd()]);
        let renewed = launcher.renewed();
        let argv = script.argv(&keep, &renewed.keys().map(String::as_str).collect::<Vec<_>>());
        let (child, ours) = launcher.launch(&ExecRequest { argv, ..ExecRequest::default() }, &keep)?;
        let (Some(stdout), Some(stderr)) = (ours.stdout, ours.stderr) else {
            return Err(io::Error::other("a process was started without its pipes").into());
        };
        let capture = Capture::new([stdout, stderr])?;
        let control = Control { child: child.clone(), peer: Peer::new(control)?, asked: 0 };
        Ok((Self { child, work: Peer::new(work)?, capture }, control))
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.child.pid()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.child.status().is_none()
    }

    /// Has it do something for at most so long. After [`Outcome::Stuck`] and [`Outcome::Gone`] only `end` is left.
    pub(crate) fn perform(&mut self, work: &Work<'_>, patience: Duration) -> Outcome {
        let until = Instant::now() + patience;
        let mut shelf = Shelf::default();
        let answer = self.work.send(work, until).map_err(Silence::from).and_then(|()| self.answer(until, &mut shelf));
        match answer {
            Ok(answer) => Outcome::Answered(shelf.complete(answer)),
            Err(Silence::Gone) => Outcome::Gone,
            Err(Silence::Late) => self.interrupt(shelf),
        }
    }

    /// Kills it and what it started; how it ended.
    pub(crate) fn end(self) -> ExitStatus {
        self.child.kill();
        self.child.wait_until(Instant::now() + REMOVAL).unwrap_or(ExitStatus::Signal(libc::SIGKILL))
    }

    fn interrupt(&mut self, mut shelf: Shelf) -> Outcome {
        self.child.interrupt();
        match self.answer(Instant::now() + GRACE, &mut shelf) {
            Ok(answer) => Outcome::Interrupted(shelf.complete(answer)),
            Err(Silence::Gone) => Outcome::Gone,
            Err(Silence::Late) => Outcome::Stuck,
        }
    }

    fn answer(&mut self, until: Instant, shelf: &mut Shelf) -> Result<Answer, Silence> {
        loop {
            while let Some(frame) = self.work.buffered()? {
                let fits = frame.payload.len() <= MAX_ANSWER;
                match frame.message().ok().filter(|_| fits).ok_or(Silence::Gone)? {
                    Said::Show { show } => shelf.put(show),
                    Said::Answer(answer) => return Ok(answer),
                }
            }
            // A process that code forked may hold the socket open; only the child's end tells of the child's end.
            let ended = self.child.ended_fd();
            let mut fds = [PollFd::new(&self.work, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&time_left(until))) {
                Ok(0) => return Err(Silence::Late),
                // One that never stops showing things is late, too.
                Ok(_) if !shelf.pieces.is_empty() && Instant::now() >= until => return Err(Silence::Late),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return Err(Silence::Gone),
            }
            let [spoke, over] = [&fds[0], &fds[1]].map(|fd| !fd.revents().is_empty());
            if spoke {
                self.work.take_in()?;
            } else if over {
                return Err(Silence::Gone);
            }
        }
    }
}

impl Control {
    pub(crate) fn is_alive(&self) -> bool {
        self.child.status().is_none()
    }

    /// Has it take over an environment and seed its generators, whatever its code is doing.
    pub(crate) fn renew(&mut self, env: &BTreeMap<String, String>, until: Instant) -> Result<(), ControlError> {
        self.asked += 1;
        self.peer.send(&RenewMessage { id: self.asked, env }, until)?;
        loop {
            let frame = self.peer.next_frame(Some(until))?;
            let answer: RenewAnswer = frame.message().map_err(PeerError::from)?;
            // An earlier one that came too late is of no use any more.
            if answer.id == self.asked {
                return answer.error.map_or(Ok(()), |error| Err(ControlError::Failed(error)));
            }
        }
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use proto::guest::ShownKind;

    use super::*;

    #[test]
    fn what_is_shown_ends_where_it_becomes_too_much() {
        let piece =
            |length| Shown { output: 0, kind: ShownKind::Display, mime: "text/html".into(), text: "x".repeat(length) };
        let mut shelf = Shelf::default();
        for length in [MAX_SHOWN / 2, MAX_SHOWN / 3, MAX_SHOWN / 3, 1] {
            shelf.put(piece(length));
        }
        let answer = Answer { value: None, error: None, truncated: false, shown: Vec::new() };
        let answer = shelf.complete(answer);
        assert_eq!((answer.shown.len(), answer.truncated), (2, true), "what came after the cut was kept");
    }
}
