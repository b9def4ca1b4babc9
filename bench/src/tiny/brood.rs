//! Children of one request, and when each of them was born, set up and heard of.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use proto::control::{CONSOLE, ChildDescriptor, ChildSpec, ControlSocket, FromVmm, Lifetime, MAX_FDS, Outfit, ToVmm};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};

use super::guest::RESTORED;
use super::template::Template;
use super::wait::{Deadline, count_of, named_pipe};

/// Until all of them have said their first word, however many.
const PATIENCE: Duration = Duration::from_secs(120);
/// Children of a message; fewer, if the descriptors of so many do not fit beside it.
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
    #[expect(dead_code, reason = "the children end with them")]
    connections: Vec<ControlSocket>,
    dir: PathBuf,
    /// Their processes.
    pub pids: Vec<i32>,
    /// How long it took.
    pub timing: Timing,
}

impl Brood {
    /// Asks for `count` children in a new directory and waits for the first exit of each. With a network card there must
    /// be a tap for each. What each child is handed is made when the clock runs already: it is a part of its making.
    ///
    /// # Errors
    /// When one of them does not come to life.
    pub fn spawn(template: &Template, dir: &Path, count: usize, taps: &[OwnedFd]) -> Result<Self> {
        ensure!(!template.has_net || taps.len() == count, "{count} children need as many taps, not {}", taps.len());
        fs::create_dir(dir)?;
        let console = named_pipe(&dir.join("console"))?;
        let children = (0..count).map(|number| child(template, dir, number)).collect::<Result<Vec<_>>>()?;
        let of_message = MAX_FDS / (template.kinds().len() + usize::from(template.has_net));
        let batch = BATCH.min(of_message);
        let connections = children.chunks(batch).map(|_| template.connect()).collect::<Result<Vec<_>>>()?;
        let mut watch = Watch::new(count);
        for (number, (connection, children)) in connections.iter().zip(children.chunks(batch)).enumerate() {
            ask(template, connection, dir, children, taps.get(number * batch..).unwrap_or_default())?;
        }
        watch.run(&connections, &console).with_context(|| complaints(dir, count))?;
        let Watch { pids, timing, .. } = watch;
        Ok(Self { connections, dir: dir.into(), pids, timing })
    }

    /// What a child has logged.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log_of(&self, number: usize) -> Result<String> {
        Ok(fs::read_to_string(log_path(&self.dir, number))?)
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

fn child(template: &Template, dir: &Path, number: usize) -> Result<ChildSpec> {
    let id = format!("c{number}");
    let home = dir.join(&id);
    fs::create_dir(&home)?;
    // One pipe under as many names as there are children, so that all are heard at one place.
    fs::hard_link(dir.join("console"), home.join(CONSOLE))?;
    Ok(ChildSpec {
        id,
        lifetime: Lifetime::Connection,
        disk_limit: None,
        uid: template.uid_of(number),
        own_cores: false,
    })
}

/// Each message goes by a connection of its own: what comes back by one is bounded.
fn ask(
    template: &Template,
    connection: &ControlSocket,
    dir: &Path,
    children: &[ChildSpec],
    taps: &[OwnedFd],
) -> Result<()> {
    let outfits = children.iter().map(|child| template.outfit(&dir.join(&child.id))).collect::<Result<Vec<_>>>()?;
    let mut descriptors = template.kinds();
    descriptors.extend(template.has_net.then_some(ChildDescriptor::Tap));
    let outfits: Vec<Vec<OwnedFd>> = outfits.into_iter().map(Outfit::into_fds).collect();
    let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
    for (number, outfit) in outfits.iter().enumerate() {
        fds.extend(outfit.iter().chain(taps.get(number)).map(AsFd::as_fd));
    }
    connection.send(&ToVmm::Spawn { children: children.to_vec(), descriptors }, &fds)?;
    Ok(())
}

fn log_path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("c{number}/vmm.log"))
}

/// What the first child that logged anything has logged.
fn complaints(dir: &Path, count: usize) -> String {
    let logs = (0..count).filter_map(|number| fs::read_to_string(log_path(dir, number)).ok());
    logs.into_iter().find(|log| !log.is_empty()).unwrap_or_else(|| "no child has logged anything".into())
}

/// What is heard of the children until all have been.
struct Watch {
    asked: Instant,
    count: usize,
    started: usize,
    exited: usize,
    pids: Vec<i32>,
    timing: Timing,
}

impl Watch {
    fn new(count: usize) -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let asked_at_us = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0));
        let timing = Timing { asked_at_us: us(asked_at_us), ..Timing::default() };
        Self { asked: Instant::now(), count, started: 0, exited: 0, pids: Vec::with_capacity(count), timing }
    }

    fn run(&mut self, connections: &[ControlSocket], console: &File) -> Result<()> {
        let deadline = Deadline::after(PATIENCE);
        let fds: Vec<BorrowedFd<'_>> =
            std::iter::once(console.as_fd()).chain(connections.iter().map(AsFd::as_fd)).collect();
        while self.started < self.count || self.exited < self.count || self.pids.len() < self.count {
            let ready = deadline.wait("the first exit of each child", &fds)?;
            if ready[0] {
                let heard = count_of(RESTORED, console)?;
                self.timing.exited_us = us(self.asked.elapsed());
                self.timing.mean_exited_us += self.timing.exited_us * share(heard, self.count);
                self.exited += heard;
            }
            for (connection, _) in connections.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                let (event, _) = connection.recv()?.context("the template went away")?;
                self.hear(event)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, event: FromVmm) -> Result<()> {
        match event {
            FromVmm::Forked { children } => self.pids.extend(children.iter().map(|child| child.pid)),
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
