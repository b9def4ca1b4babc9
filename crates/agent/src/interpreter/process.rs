//! One running interpreter: two sockets to talk to it, two pipes to hear what its code writes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proto::guest::{Exception, ExecRequest, ExitStatus};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use types::{Interpreter, ModuleName};

use super::capture::Capture;
use crate::children::Child;
use crate::launch::{LaunchError, Launcher};
use crate::peer::{Peer, PeerError, time_left};

/// What the interpreter runs first; read from a descriptor, so that `ps` shows one short line.
const SCRIPT: &str = include_str!("warm.py");
const BOOTSTRAP: &str = "import sys; exec(compile(open(int(sys.argv.pop(1))).read(), '<forkd>', 'exec'), {})";
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
        let script = script()?;
        let ((work, their_work), (control, their_control)) = (pair()?, pair()?);
        let keep = [script.as_fd(), their_work.as_fd(), their_control.as_fd()];
        let (child, ours) = launcher.launch(&request(program, &keep, &launcher.renewed()), &keep)?;
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
        match self.work.send(work, until).map_err(Silence::from).and_then(|()| self.answer(until)) {
            Ok(answer) => Outcome::Answered(answer),
            Err(Silence::Gone) => Outcome::Gone,
            Err(Silence::Late) => self.interrupt(),
        }
    }

    /// Kills it and what it started; how it ended.
    pub(crate) fn end(self) -> ExitStatus {
        self.child.kill();
        self.child.wait_until(Instant::now() + REMOVAL).unwrap_or(ExitStatus::Signal(libc::SIGKILL))
    }

    fn interrupt(&mut self) -> Outcome {
        self.child.interrupt();
        match self.answer(Instant::now() + GRACE) {
            Ok(answer) => Outcome::Interrupted(answer),
            Err(Silence::Gone) => Outcome::Gone,
            Err(Silence::Late) => Outcome::Stuck,
        }
    }

    fn answer(&mut self, until: Instant) -> Result<Answer, Silence> {
        loop {
            if let Some(frame) = self.work.buffered()? {
                let fits = frame.payload.len() <= MAX_ANSWER;
                return frame.message().ok().filter(|_| fits).ok_or(Silence::Gone);
            }
            // A process that code forked may hold the socket open; only the child's end tells of the child's end.
            let ended = self.child.ended_fd();
            let mut fds = [PollFd::new(&self.work, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&time_left(until))) {
                Ok(0) => return Err(Silence::Late),
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

fn request(program: Interpreter, keep: &[BorrowedFd<'_>], renewed: &BTreeMap<String, String>) -> ExecRequest {
    let fixed = [program.program(), "-c", BOOTSTRAP].map(String::from);
    let descriptors = keep.iter().map(|fd| fd.as_raw_fd().to_string());
    let names: Vec<_> = renewed.keys().map(String::as_str).collect();
    ExecRequest { argv: fixed.into_iter().chain(descriptors).chain([names.join(",")]).collect(), ..Default::default() }
}

fn script() -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("forkd-warm", MemfdFlags::CLOEXEC)?);
    file.write_all(SCRIPT.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
