//! From a live template to a snapshot in the store, while everybody goes on.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use proto::control::{self, ControlSocket, FromVmm, LayerCount, ToVmm, WriteSpec};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use store::{Described, Manifest, Snapshot, Staged, Status, Store};

use super::{Below, Branch, BranchError};
use crate::cancel::Cancel;
use crate::console;
use crate::hearing::{Waited, hear};
use crate::pidfd::Process;
use crate::{page_map, written};

/// How long the template may take to fork the writer.
const FORK_LIMIT: Duration = Duration::from_secs(60);
/// How long a writer that is done may take to end; it has much memory to give back.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// How long the snapshot below may take to be written: all of its memory, to a disk that may be slow.
const PARENT_LIMIT: Duration = Duration::from_secs(3600);
/// Between two looks at it.
const PARENT_PAUSE: Duration = Duration::from_millis(20);

/// A branch that is in the store.
#[derive(Debug)]
pub struct Kept {
    /// It.
    pub snapshot: Snapshot,
    /// Bytes of memory that were written.
    pub memory_bytes: u64,
    /// Bytes of disks that were written.
    pub disk_bytes: u64,
}

/// What was written, beside the files.
pub(super) struct Written {
    pub(super) described: Described,
    pub(super) memory_bytes: u64,
    pub(super) disk_bytes: u64,
}

/// Writes the branch into the files of its place in the store. A writer that is killed is nobody's fault here, a host that
/// is short of memory kills those first that have much of it; so another one is given a try.
pub(super) fn write(branch: &mut Branch, staged: &mut Staged, cancel: Option<&Cancel>) -> Result<Written, BranchError> {
    let below = match branch.below.take() {
        Some(below) => below,
        None => {
            let below = parent(branch, cancel)?;
            staged.lay(branch.extent.under(below.manifest()))?;
            Below::Stored(below)
        }
    };
    match write_over(&below, branch, staged, cancel) {
        Err(BranchError::WriterDied { log }) => {
            log::warn!("the process that wrote `{}` died, another one writes it: {log}", branch.tag);
            staged.empty()?;
            write_over(&below, branch, staged, cancel)
        }
        written => written,
    }
}

fn write_over(
    below: &Below,
    branch: &Branch,
    staged: &Staged,
    cancel: Option<&Cancel>,
) -> Result<Written, BranchError> {
    let lower = match below {
        Below::Stored(below) if staged.lies_on_memory() => below.memory_files()?,
        Below::Stored(_) | Below::Gone(_) => Vec::new(),
    };
    let extent = match u8::try_from(lower.len()).ok().and_then(LayerCount::new) {
        Some(memory_layers) => control::Extent::Diff { memory_layers },
        None => control::Extent::Full,
    };
    let mut files = vec![staged.state()?, staged.memory()?];
    for disk in 0..staged.disk_count() {
        files.push(staged.layer(disk)?);
    }
    let own = files.len();
    files.extend(lower);
    let (memory_bytes, disk_bytes) = have_written(branch, extent, &files, cancel)?;
    files.truncate(own);
    written::close(files).map_err(|error| BranchError::Write { message: error.to_string() })?;
    Ok(Written { described: describe(below.manifest(), branch), memory_bytes, disk_bytes })
}

/// The snapshot that the branch builds on, once that is written.
fn parent(branch: &Branch, cancel: Option<&Cancel>) -> Result<Snapshot, BranchError> {
    let (tag, id) = (&branch.parent.tag, &branch.parent.id);
    let failed = |reason: String| BranchError::Parent { tag: tag.clone(), reason };
    let (store, until) = (Store::new(&branch.dirs), Instant::now() + PARENT_LIMIT);
    loop {
        match store.status(tag) {
            Ok(Status::Ready(snapshot)) if snapshot.manifest().id == *id => return Ok(snapshot),
            Ok(Status::Writing(intent)) if intent.id == *id && Instant::now() < until => {}
            Ok(Status::Writing(_)) => {
                return Err(failed(format!("it is not ready after {} s", PARENT_LIMIT.as_secs())));
            }
            Ok(Status::Failed(failure)) => return Err(failed(failure.reason)),
            Ok(Status::Ready(_)) => return Err(failed("another snapshot has its tag now".into())),
            Err(error) => return Err(failed(error.to_string())),
        }
        let called_off = Cancel::first(&[cancel], Instant::now() + PARENT_PAUSE);
        if called_off.map_err(|source| BranchError::Io { action: "wait", source })?.is_some() {
            return Err(BranchError::Cancelled);
        }
    }
}

fn have_written(
    branch: &Branch,
    extent: control::Extent,
    files: &[File],
    cancel: Option<&Cancel>,
) -> Result<(u64, u64), BranchError> {
    let control = branch.template.another_connection()?;
    let failed = |source| BranchError::Io { action: "look at the template's memory", source };
    let page_map = page_map::open(branch.template.process.pid()).map_err(failed)?;
    // As long as it lives the number is its own; the page map of nobody else is handed to it.
    if branch.template.process.wait(Instant::now()).map_err(failed)? {
        return Err(BranchError::WriterDied { log: console::tail(&branch.template.place.log()) });
    }
    let fds: Vec<_> = std::iter::once(&page_map).chain(files).map(AsFd::as_fd).collect();
    control.send(&ToVmm::Write(WriteSpec { id: branch.tag.to_string(), extent }), &fds)?;
    let died = || BranchError::WriterDied { log: console::tail(&branch.template.place.log()) };
    let failed = |source| BranchError::Io { action: "watch the process that writes", source };
    let mut done = None;
    let writer = loop {
        match hear(&control, Instant::now() + FORK_LIMIT, None)? {
            Waited::Event(FromVmm::Forked { children }) => break children.first().ok_or_else(died)?.pid,
            // The writer may be quicker to speak than the template.
            Waited::Event(FromVmm::Written { memory_bytes, disk_bytes }) if done.is_none() => {
                done = Some((memory_bytes, disk_bytes));
            }
            Waited::Event(FromVmm::WriteFailed { message }) => return Err(BranchError::Write { message }),
            Waited::Event(_) | Waited::Gone | Waited::TimedOut | Waited::Cancelled => return Err(died()),
        }
    };
    // One that is over already has said what it had to say.
    let writer = branch.template.child(writer).map_err(failed)?;
    if let Some(done) = done {
        return end(writer.as_ref()).map(|()| done).map_err(failed);
    }
    let called_off = !wait(&control, writer.as_ref(), cancel).map_err(failed)?;
    if called_off {
        if let Some(writer) = writer {
            writer.kill().map_err(failed)?;
        }
        return Err(BranchError::Cancelled);
    }
    match hear(&control, Instant::now(), None)? {
        Waited::Event(FromVmm::Written { memory_bytes, disk_bytes }) => {
            end(writer.as_ref()).map(|()| (memory_bytes, disk_bytes)).map_err(failed)
        }
        Waited::Event(FromVmm::WriteFailed { message }) => Err(BranchError::Write { message }),
        Waited::Event(_) | Waited::Gone | Waited::TimedOut | Waited::Cancelled => Err(died()),
    }
}

/// Waits until a writer that is done is over, and has let go of its files.
fn end(writer: Option<&Process>) -> io::Result<()> {
    let Some(writer) = writer else { return Ok(()) };
    if !writer.wait(Instant::now() + END_PATIENCE)? {
        writer.kill()?;
        writer.wait(Instant::now() + END_PATIENCE)?;
    }
    Ok(())
}

/// Waits for what the writer says, or for its end; false when it is called off. There is no time limit: as long as it
/// lives, it writes. The template holds the same connection, so the end of that tells nothing.
fn wait(control: &ControlSocket, writer: Option<&Process>, cancel: Option<&Cancel>) -> io::Result<bool> {
    let Some(writer) = writer else { return Ok(true) };
    loop {
        let mut fds = vec![PollFd::new(control, PollFlags::IN), PollFd::new(writer, PollFlags::IN)];
        fds.extend(cancel.map(|cancel| PollFd::new(cancel, PollFlags::IN)));
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => return Ok(fds[..2].iter().any(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn describe(parent: &Manifest, branch: &Branch) -> Described {
    Described {
        recipe: parent.recipe.clone(),
        kernel: parent.kernel.clone(),
        agent: parent.agent.clone(),
        vcpus: parent.vcpus,
        memory: parent.memory,
        network: parent.network,
        egress: branch.egress.clone(),
        interpreter: parent.interpreter,
        ports: parent.ports.clone(),
        pause_us: Some(branch.pause_us),
    }
}
