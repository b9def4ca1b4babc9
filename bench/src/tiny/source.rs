//! One child that writes its memory, told to begin by its power button, and branched while it does.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use proto::control::{ChildSpec, ControlSocket, FromVmm, Lifetime, ToVmm};

use super::freeze::{hear, reopen};
use super::guest::RESTORED;
use super::process::Process;
use super::template::{Template, connect, listen};
use super::wait::{Deadline, named_pipe};
use super::writer::{MARK, Report, Reports};

/// Until it has written all its pages once, and for everything else it is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often in all it may tell: the console of a VM is bounded.
const MOST_REPORTS: usize = 40_000;
const PIPE_BYTES: usize = 1 << 20;

/// A child, alive; ended when dropped.
#[derive(Debug)]
pub struct Source {
    #[expect(dead_code, reason = "ended when dropped")]
    process: Process,
    control: ControlSocket,
    console: File,
    reports: Reports,
    told: usize,
    dir: PathBuf,
    has_net: bool,
    tops: u8,
}

/// How a branch went.
#[derive(Debug)]
pub struct Branch {
    /// The template it is.
    pub template: Template,
    /// For how long the VMM says that the source stood still, in microseconds.
    pub pause_us: u64,
}

impl Source {
    /// Spawns one in `dir`, which is made, and waits until it has found itself restored.
    ///
    /// # Errors
    /// When it does not come to life.
    pub fn spawn(template: &Template, dir: &Path) -> Result<Self> {
        fs::create_dir(dir)?;
        let console = named_pipe(&dir.join("console.log"))?;
        // Nobody listens while a branch is written down, and the guest must not wait for that.
        rustix::pipe::fcntl_setpipe_size(&console, PIPE_BYTES)?;
        let asked = template.connect()?;
        let (id, uid) = ("source".into(), template.uid_of(0));
        let child = ChildSpec { id, lifetime: Lifetime::Detached, disk_limit: None, uid, own_cores: false };
        let outfit = template.outfit(dir)?.into_fds();
        let fds: Vec<_> = outfit.iter().map(AsFd::as_fd).collect();
        asked.send(&ToVmm::Spawn { children: vec![child], descriptors: template.kinds() }, &fds)?;
        drop(outfit);
        let mut process = None;
        let mut started = false;
        while process.is_none() || !started {
            match hear(&asked, "the source's start")? {
                FromVmm::Forked { children } => {
                    process = children.first().map(|child| Process::open(child.pid)).transpose()?;
                }
                FromVmm::Started { .. } => started = true,
                other => bail!("the source did not start: {other:?}"),
            }
        }
        hear_restored(&console)?;
        let control = connect(&dir.join("control.sock"))?;
        let process = process.context("the source has no process")?;
        let reports = Reports::default();
        let (has_net, tops) = (template.has_net, template.tops());
        Ok(Self { process, control, console, reports, told: 0, dir: dir.into(), has_net, tops })
    }

    /// Lets it write, and waits until it has written all its pages.
    ///
    /// # Errors
    /// When it does not.
    pub fn work(&mut self) -> Result<()> {
        self.control.send(&ToVmm::PowerButton, &[])?;
        let deadline = Deadline::after(PATIENCE);
        loop {
            deadline.wait("the source's writing of all its pages", &[self.console.as_fd()])?;
            if self.read()?.iter().any(|report| report.passes > 1) {
                return Ok(());
            }
        }
    }

    /// Listens for so long, and to the end of what the guest is saying. Each report comes with when it was heard.
    ///
    /// # Errors
    /// When nothing is said.
    pub fn listen(&mut self, time: Duration) -> Result<Vec<(Instant, Report)>> {
        let begun = Instant::now();
        let mut heard = Vec::new();
        while begun.elapsed() < time {
            Deadline::after(PATIENCE).wait("a word of the source", &[self.console.as_fd()])?;
            let now = Instant::now();
            heard.extend(self.read()?.into_iter().map(|report| (now, report)));
        }
        Ok(heard)
    }

    fn read(&mut self) -> Result<Vec<Report>> {
        let reports = self.reports.read(&self.console)?;
        self.told += reports.len();
        ensure!(self.told < MOST_REPORTS, "the guest has stood still too often for its console");
        Ok(reports)
    }

    /// Branches it; the template's files go into `dir`, which must exist.
    ///
    /// # Errors
    /// When there is no branch.
    pub fn branch(&self, dir: &Path) -> Result<Branch> {
        let listener = listen(dir)?;
        let log = File::create(dir.join("template.log"))?;
        self.control.send(&ToVmm::ShowTops, &[])?;
        let Some((FromVmm::Tops, present)) = self.control.recv()? else { bail!("no tops are shown; {}", self.log()) };
        ensure!(present.len() == usize::from(self.tops), "{} tops are shown, of {}", present.len(), self.tops);
        let mut files = Vec::new();
        for present in present {
            let fresh = tempfile::tempfile_in(dir)?;
            let read = reopen(&fresh)?;
            files.extend([fresh, read, reopen(&File::from(present))?]);
        }
        let fds: Vec<_> = [listener.as_fd(), log.as_fd()].into_iter().chain(files.iter().map(AsFd::as_fd)).collect();
        self.control.send(&ToVmm::Branch, &fds)?;
        match hear(&self.control, "the branch")? {
            FromVmm::Branched { pid, pause_us } => {
                Ok(Branch { template: Template::of_branch(pid, dir, self.has_net, self.tops)?, pause_us })
            }
            other => bail!("there is no branch: {other:?}; {}", self.log()),
        }
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("vmm.log")).unwrap_or_else(|error| format!("its log: {error}"))
    }
}

/// Waits for the word. Before it may come the rest of a report, if the branch it comes from was taken in the middle.
fn hear_restored(console: &File) -> Result<()> {
    let mut word = [MARK];
    for _ in 0..=Report::LEN {
        Deadline::after(PATIENCE).wait("the source's first word", &[console.as_fd()])?;
        let mut console = console;
        console.read_exact(&mut word)?;
        if word[0] & MARK == 0 {
            break;
        }
    }
    ensure!(word == [RESTORED], "the source said {word:?} first");
    Ok(())
}
