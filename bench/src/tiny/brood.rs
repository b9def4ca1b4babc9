//! Children of one request, and when each of them was born, set up and heard of.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::slice::Chunks;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use proto::control::{ChildSpec, ControlSocket, FromVmm, Lifetime, ToVmm};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};

use super::guest::RESTORED;
use super::template::Template;
use super::wait::{Deadline, count_of, named_pipe};

/// Until all of them have said their first word, however many.
const PATIENCE: Duration = Duration::from_secs(120);
/// As many as fit in a message.
const BATCH: usize = 100;

/// When things happened, in microseconds after the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    /// The system's monotonic clock at the request, in microseconds.
    pub asked_at_us: f64,
    /// The last child said that its vCPUs run.
    pub started_us: f64,
    /// The last child's guest left for the first time.
    pub exited_us: f64,
    /// The mean of that time over the children.
    pub mean_exited_us: f64,
}

/// Children, all of them alive and past their first exit. They end with this, sooner or later.
#[derive(Debug)]
pub struct Brood {
    #[expect(dead_code, reason = "the children end with it")]
    connection: ControlSocket,
    dir: PathBuf,
    /// Their processes.
    pub pids: Vec<i32>,
    /// How long it took.
    pub timing: Timing,
}

impl Brood {
    /// Asks for `count` children in a new directory and waits for the first exit of each. With a network card there must
    /// be a tap for each.
    ///
    /// # Errors
    /// When one of them does not come to life.
    pub fn spawn(template: &Template, dir: &Path, count: usize, taps: &[OwnedFd]) -> Result<Self> {
        ensure!(!template.has_net || taps.len() == count, "{count} children need as many taps, not {}", taps.len());
        fs::create_dir(dir)?;
        let console = named_pipe(&dir.join("console"))?;
        let children = (0..count).map(|number| child(dir, number)).collect::<Result<Vec<_>>>()?;
        let connection = template.connect()?;
        let taps: Vec<BorrowedFd<'_>> = taps.iter().map(AsFd::as_fd).collect();
        let requests = Requests { connection: &connection, children: children.chunks(BATCH), taps: taps.chunks(BATCH) };
        let mut watch = Watch::new(count, requests);
        watch.run(&console)?;
        let Watch { pids, timing, .. } = watch;
        Ok(Self { connection, dir: dir.into(), pids, timing })
    }

    /// What a child has logged.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log_of(&self, number: usize) -> Result<String> {
        Ok(fs::read_to_string(self.dir.join(format!("c{number}/vmm.log")))?)
    }

    /// Kills them, and waits until they are gone.
    ///
    /// # Errors
    /// When one of them stays.
    pub fn end(self) -> Result<()> {
        // One that cannot be opened is gone already.
        let open = |pid: &i32| pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok();
        let processes: Vec<OwnedFd> = self.pids.iter().filter_map(open).collect();
        for process in &processes {
            pidfd_send_signal(process, Signal::KILL)?;
        }
        let deadline = Deadline::after(PATIENCE);
        for process in &processes {
            deadline.wait("a child's end", &[process.as_fd()])?;
        }
        fs::remove_dir_all(&self.dir)?;
        Ok(())
    }
}

fn child(dir: &Path, number: usize) -> Result<ChildSpec> {
    let id = format!("c{number}");
    let home = dir.join(&id);
    fs::create_dir(&home)?;
    // One pipe under as many names as there are children, so that all are heard at one place.
    fs::hard_link(dir.join("console"), home.join("console.log"))?;
    Ok(ChildSpec { id, dir: home, lifetime: Lifetime::Connection })
}

/// The messages that ask for children.
struct Requests<'a> {
    connection: &'a ControlSocket,
    children: Chunks<'a, ChildSpec>,
    taps: Chunks<'a, BorrowedFd<'a>>,
}

impl Requests<'_> {
    fn send_next(&mut self) -> Result<()> {
        if let Some(batch) = self.children.next() {
            let request = ToVmm::Spawn { children: batch.to_vec() };
            self.connection.send(&request, self.taps.next().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// What is heard of the children until all have been.
struct Watch<'a> {
    requests: Requests<'a>,
    asked: Instant,
    count: usize,
    started: usize,
    exited: usize,
    pids: Vec<i32>,
    timing: Timing,
}

impl<'a> Watch<'a> {
    fn new(count: usize, requests: Requests<'a>) -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let asked_at_us = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0));
        let timing = Timing { asked_at_us: us(asked_at_us), ..Timing::default() };
        Self { requests, asked: Instant::now(), count, started: 0, exited: 0, pids: Vec::with_capacity(count), timing }
    }

    fn run(&mut self, console: &File) -> Result<()> {
        let deadline = Deadline::after(PATIENCE);
        let connection = self.requests.connection;
        // One request is always under way while another is obeyed, and no more: what comes back is read meanwhile.
        self.requests.send_next()?;
        self.requests.send_next()?;
        while self.started < self.count || self.exited < self.count || self.pids.len() < self.count {
            let ready = deadline.wait("the first exit of each child", &[connection.as_fd(), console.as_fd()])?;
            if ready[1] {
                let heard = count_of(RESTORED, console)?;
                self.timing.exited_us = us(self.asked.elapsed());
                self.timing.mean_exited_us += self.timing.exited_us * share(heard, self.count);
                self.exited += heard;
            }
            if ready[0] {
                let (event, _) = connection.recv()?.context("the template went away")?;
                self.hear(event)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, event: FromVmm) -> Result<()> {
        match event {
            FromVmm::Forked { children } => {
                self.pids.extend(children.iter().map(|child| child.pid));
                self.requests.send_next()?;
            }
            FromVmm::Started { .. } => {
                self.started += 1;
                self.timing.started_us = us(self.asked.elapsed());
            }
            other => bail!("a child did not start: {other:?}"),
        }
        Ok(())
    }
}

fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[expect(clippy::cast_precision_loss, reason = "there are a few thousand children at most")]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
