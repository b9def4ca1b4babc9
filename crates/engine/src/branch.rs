//! A branch of a running sandbox: a template of what it is at one instant, and, in the background, a snapshot in the store.
//!
//! ```text
//! stage in the store -> Branch -> the sandbox runs on, the template serves forks      `branch`, milliseconds
//!                        parent written? -> Write, by a copy of the template -> commit      `Branch::keep`
//! ```
//!
//! From the first moment the tag is there, being written; forks of it come from the live template. Should whoever keeps it
//! be killed, the tag is gone with the staging directory, and the next branch or `forkd gc` ends the template.

mod keep;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use proto::control::{ControlError, ControlSocket, FromVmm, ToVmm};
use store::{Existing, Manifest, Origin, Parent, Snapshot, Staged, Status, Store, StoreError, Under};
use types::{Dirs, Tag, TagError};

use crate::cancel::Cancel;
use crate::cgroup::{CgroupError, Home};
use crate::child::{Child, Death};
use crate::hearing::{Waited, hear, hear_and_take};
use crate::nameless;
use crate::pidfd::Process;
use crate::random::{hex, random};
use crate::template::{Made, Place, Template, TemplateError, adopt, stop_template_of, sweep_templates, tops};

pub use keep::Kept;

/// How long a sandbox may take to branch. What it really takes are milliseconds; a busy host takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// What to branch.
#[derive(Debug)]
pub struct BranchSpec {
    /// The sandbox.
    pub child: Child,
    /// What the branch shall be called.
    pub tag: Tag,
    /// How much of it is stored.
    pub extent: Extent,
}

/// How much of a branch is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// What differs from the snapshot that the sandbox was forked from.
    #[default]
    Diff,
    /// All of it.
    Full,
}

impl Extent {
    /// What is stored lies on the parent's layers, or on what lies under all of them. A chain that has no room for another
    /// link begins anew.
    fn under(self, parent: &Manifest) -> Under {
        match self {
            Self::Diff if parent.has_room() => Under::LayersOf(Box::new(parent.clone())),
            Self::Diff | Self::Full => Under::ImagesOf(Box::new(parent.clone())),
        }
    }
}

/// Why there is no branch. The sandbox runs on, if it ran.
#[derive(Debug, thiserror::Error)]
pub enum BranchError {
    /// The store cannot take it, or not take it any more.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// There is nothing to branch.
    #[error("sandbox {id} does not run any more")]
    Gone {
        /// Which.
        id: String,
    },
    /// It died, and the host knows of what.
    #[error(transparent)]
    Died(#[from] Death),
    /// What it was forked from is not in the store any more.
    #[error("sandbox {id} was forked from `{tag}`, which was removed or replaced since; {}", advice(*known))]
    Orphan {
        /// Which sandbox.
        id: String,
        /// Its snapshot.
        tag: Tag,
        /// Enough is known of that to store all of the sandbox.
        known: bool,
    },
    /// The snapshot it builds on was never written.
    #[error("`{tag}`, on which it builds, could not be written: {reason}")]
    Parent {
        /// Which snapshot.
        tag: Tag,
        /// Why.
        reason: String,
    },
    /// The VMM could not do it.
    #[error("sandbox {id} could not be branched: {message}")]
    Failed {
        /// Which.
        id: String,
        /// The VMM's words.
        message: String,
    },
    /// What it says is the branch is not, or is over.
    #[error("process {pid}, which sandbox {id} says is its branch, is no child of its process")]
    NotIts {
        /// Which.
        id: String,
        /// Which process.
        pid: i32,
    },
    /// It took too long.
    #[error("sandbox {id} did not branch within {} s", LIMIT.as_secs())]
    Slow {
        /// Which.
        id: String,
    },
    /// The template could not be written down.
    #[error("the branch could not be written: {message}")]
    Write {
        /// The VMM's words.
        message: String,
    },
    /// Whoever wrote it was killed.
    #[error("the process that wrote the branch died; the template's last words:\n{log}")]
    WriterDied {
        /// The template's log.
        log: String,
    },
    /// What is made of a sandbox with limits has no group to go to.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// It was called off.
    #[error("interrupted while the branch was being written; nothing is left of it")]
    Cancelled,
    /// The VMM could not be spoken to.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The system says no.
    #[error("cannot {action}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

const fn advice(known: bool) -> &'static str {
    if known { "store all of it with --full" } else { "what was never stored cannot be built on" }
}

/// What a sandbox was forked from.
#[derive(Debug)]
enum Below {
    /// It is in the store.
    Stored(Snapshot),
    /// It is not any more, and this is what the sandbox knows of it.
    Gone(Box<Manifest>),
}

impl Below {
    fn manifest(&self) -> &Manifest {
        match self {
            Self::Stored(snapshot) => snapshot.manifest(),
            Self::Gone(manifest) => manifest,
        }
    }
}

/// A branch that can be forked, and is not stored yet. Dropped, it is gone, its template included.
#[derive(Debug)]
pub struct Branch {
    tag: Tag,
    parent: Parent,
    /// What the parent is, if that was written already.
    below: Option<Below>,
    extent: Extent,
    pause_us: u64,
    /// What the sandbox may connect to: so may what is made of the branch.
    egress: Option<Box<str>>,
    staged: Option<Staged>,
    template: Template,
    /// Its template is nobody's concern any more.
    kept: bool,
    dirs: Dirs,
}

/// Branches a sandbox. When this returns, it runs on and the branch can be forked.
///
/// # Errors
/// When the tag is taken, the sandbox is gone, or its VMM cannot do it.
pub fn branch(spec: BranchSpec, dirs: &Dirs) -> Result<Branch, BranchError> {
    let BranchSpec { child, tag, extent } = spec;
    let store = Store::new(dirs);
    let parent = Parent { tag: child.tag().clone(), id: child.snapshot().to_owned() };
    let id = || child.id().to_owned();
    let below = match store.status(&parent.tag) {
        Ok(Status::Ready(snapshot)) if snapshot.manifest().id == parent.id => Some(Below::Stored(snapshot)),
        Ok(Status::Writing(intent)) if intent.id == parent.id => None,
        Ok(_) | Err(StoreError::Unknown { .. }) => match (extent, child.base()) {
            (Extent::Full, Some(base)) => Some(Below::Gone(Box::new(base.clone()))),
            (_, base) => return Err(BranchError::Orphan { id: id(), tag: parent.tag, known: base.is_some() }),
        },
        Err(error) => return Err(error.into()),
    };
    // Said at once where it can be: from then on nobody removes what it lies on.
    let under = below.as_ref().map_or(Under::Later, |below| extent.under(below.manifest()));
    let network = child.network().map_err(|source| BranchError::Io { action: "read a sandbox's network", source })?;
    let egress: Option<Box<str>> = network.map(|network| network.egress.to_string().into());
    let origin = Origin { parent: Some(parent.clone()), branched_from: Some(id()), egress: egress.clone(), under };
    let staged = store.stage(&tag, Existing::Keep, origin)?;
    let place = Place::new(dirs, &tag);
    let (template, pause_us) = adopt(&place, staged.id(), |listener, log| ask(&child, &place, listener, log, dirs))?;
    // Only branches leave templates that nobody keeps, so it is for branches to end them; the sandbox runs on already.
    if let Err(error) = sweep_templates(dirs) {
        log::warn!("templates that nobody keeps may still run: {error}");
    }
    let dirs = dirs.clone();
    Ok(Branch { tag, parent, below, extent, pause_us, egress, staged: Some(staged), template, kept: false, dirs })
}

/// Has the sandbox branch; the template, and for how long the guest did not run.
fn ask(child: &Child, place: &Place, listener: &OwnedFd, log: &File, dirs: &Dirs) -> Result<(Made, u64), BranchError> {
    let id = || child.id().to_owned();
    let failed = |action| move |source| BranchError::Io { action, source };
    let gone = || child.cause_of_death().map_or_else(|| BranchError::Gone { id: id() }, BranchError::Died);
    let Some((control, sandbox)) = child.call().map_err(failed("call the sandbox"))? else { return Err(gone()) };
    let home = child.has_group().then(Home::find).transpose()?;
    let until = Instant::now() + LIMIT;
    let Some(written) = show_tops(child, &control, until)? else { return Err(gone()) };
    // What the guest writes from then on goes there; what it wrote before is the template's, too, and only read.
    let all = tops(dirs)?;
    let made = written.iter().map(|top| Ok((nameless::make(&all)?, nameless::reopen(top)?)));
    let made = made.collect::<io::Result<Vec<_>>>().map_err(failed("make a file for what the guest writes"))?;
    let files = made.iter().flat_map(|(fresh, present)| [&fresh.written, &fresh.read, present]);
    let first = [listener.as_fd(), log.as_fd()].into_iter();
    let fds: Vec<_> = first.chain(files.map(AsFd::as_fd)).collect();
    control.send(&ToVmm::Branch, &fds)?;
    match hear(&control, until, None)? {
        Waited::Event(FromVmm::Branched { pid, pause_us }) => {
            // Held from here on: what the number means later may be somebody else.
            let looked = failed("look at the branch");
            match Process::open_child_of(sandbox.pid(), pid).map_err(looked)? {
                Some(process) => {
                    // What is made of the sandbox is not held to its limits, nor ended with it.
                    home.map_or(Ok(()), |home| home.take_in(&process))?;
                    Ok((Made { process, tops: child.tops(), uid: child.uid() }, pause_us))
                }
                None if Process::is_anothers(sandbox.pid(), pid).map_err(looked)? => {
                    Err(BranchError::NotIts { id: id(), pid })
                }
                None => Err(place.died().into()),
            }
        }
        Waited::Event(FromVmm::BranchFailed { message }) => Err(BranchError::Failed { id: id(), message }),
        Waited::TimedOut => Err(BranchError::Slow { id: id() }),
        Waited::Event(_) | Waited::Gone | Waited::Cancelled => Err(gone()),
    }
}

/// The files that the sandbox writes to; `None` when it is gone. What it shows is at least files: nothing happens when
/// such are opened.
fn show_tops(child: &Child, control: &ControlSocket, until: Instant) -> Result<Option<Vec<File>>, BranchError> {
    let id = || child.id().to_owned();
    control.send(&ToVmm::ShowTops, &[])?;
    match hear_and_take(control, until, None)? {
        (Waited::Event(FromVmm::Tops), shown) => {
            let shown: Vec<File> = shown.into_iter().map(File::from).collect();
            let are_files = shown.iter().all(|file| file.metadata().is_ok_and(|found| found.is_file()));
            if are_files && shown.len() == usize::from(child.tops()) {
                return Ok(Some(shown));
            }
            Err(BranchError::Failed { id: id(), message: "what it shows is not what it writes to".into() })
        }
        (Waited::Event(FromVmm::BranchFailed { message }), _) => Err(BranchError::Failed { id: id(), message }),
        (Waited::TimedOut, _) => Err(BranchError::Slow { id: id() }),
        (Waited::Event(_) | Waited::Gone | Waited::Cancelled, _) => Ok(None),
    }
}

impl Branch {
    /// What it is called.
    #[must_use]
    pub const fn tag(&self) -> &Tag {
        &self.tag
    }

    /// For how long the sandbox did not run.
    #[must_use]
    pub const fn pause_us(&self) -> u64 {
        self.pause_us
    }

    /// Waits until it is in the store, and so outlives its template.
    ///
    /// # Errors
    /// When it could not be written; why is then also left in the store, under its tag. Its template is ended.
    pub fn keep(mut self, cancel: Option<&Cancel>) -> Result<Kept, BranchError> {
        let mut staged = self.staged.take().expect("it is only taken here");
        let error = match keep::write(&mut self, &mut staged, cancel) {
            Ok(written) => {
                let snapshot = staged.commit_or_tell(written.described)?;
                self.kept = true;
                return Ok(Kept { snapshot, memory_bytes: written.memory_bytes, disk_bytes: written.disk_bytes });
            }
            Err(error) => error,
        };
        // Before the tag is free: whoever takes it next has a template of its own there.
        self.end();
        if !matches!(error, BranchError::Cancelled)
            && let Err(left) = staged.fail(&error.to_string())
        {
            log::warn!("nothing says in the store why `{}` failed: {left}", self.tag);
        }
        Err(error)
    }

    /// Ends the template.
    fn end(&mut self) {
        self.kept = true;
        if let Err(error) = stop_template_of(&self.tag, &self.template.snapshot, &self.dirs) {
            log::warn!("the template of `{}` may still run: {error}", self.tag);
        }
    }
}

/// What is not in the store must not be forked.
impl Drop for Branch {
    fn drop(&mut self) {
        if !self.kept {
            self.end();
        }
    }
}

/// A tag for a branch that nobody named.
///
/// # Errors
/// When the host has no random numbers.
pub fn default_tag(child: &Child) -> Result<Tag, BranchError> {
    let failed = |source| BranchError::Io { action: "draw a random number", source };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = format!("branch-{}-{now}-{}", child.id(), hex(&random::<2>().map_err(failed)?));
    text.parse().map_err(|error: TagError| failed(io::Error::other(error)))
}

#[cfg(test)]
mod tests;
