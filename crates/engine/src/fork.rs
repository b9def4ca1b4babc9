//! n children from one template, each somebody of its own before it counts as ready.
//!
//! ```text
//! store -> template -> directories -> Spawn, 100 a message -> Forked, Started, Started, ...
//!                                                                      \-> connect -> hello -> renew -> ready
//! ```
//!
//! One thread listens to the template, its children and the clock; as soon as a child's vCPUs run, one of a bounded
//! number of others makes it ready. A child that dies is noticed when it does: before its vCPUs run by its process,
//! after that by its connection.
//!
//! Each message goes by a connection of its own: a child whose life hangs on the connection by which it was asked for
//! listens to it too, and must find nothing there but its end.

mod clock;
mod error;
mod fanout;
mod ready;
mod slot;
mod source;

use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use net::Egress;
use proto::control::{ChildDescriptor, ControlSocket, Lifetime};
use session::{Metadata, Variables};
use store::{Manifest, Parent, Status, Store};
use types::{Dirs, Tag};

use crate::admission::admit;
use crate::cancel::Cancel;
use crate::cgroup::{Groups, Limits};
use crate::child::{Child, MAX_BASE};
use crate::childdir::{ChildDir, Wanted};
use crate::cores::Cores;
use crate::network::{Granted, Networks};
use crate::template::{Template, template_of_status, tops};
use crate::{limits, uids};

pub use error::{ChildError, ForkError};
use fanout::Fanout;
use slot::Slot;

/// The most children of one request: more than a host of ours can hold, and a bound on what a request can ask for.
pub const MAX_CHILDREN: usize = 4096;

/// What to fork.
#[derive(Debug)]
pub struct ForkSpec {
    /// From which snapshot.
    pub tag: Tag,
    /// The children, each with what it is told.
    pub children: Vec<ChildOptions>,
    /// What ends them: [`Lifetime::Connection`] is the [`Forked`] being dropped.
    pub lifetime: Lifetime,
    /// What a failed child means for the others.
    pub results: Results,
    /// From the start until all are ready.
    pub limit: Duration,
    /// Calls it off.
    pub cancel: Option<Cancel>,
}

/// What one child is told.
#[derive(Clone, Debug, Default)]
pub struct ChildOptions {
    /// In the environment of whatever runs in it.
    pub env: Variables,
    /// For whoever wants to read it.
    pub metadata: Metadata,
    /// Written down beside it on the host: who has to know it, should he be gone before he could say so.
    pub owner: Option<String>,
    /// What it may use at most.
    pub limits: Limits,
    /// With whom it shares cores of the CPU. What cannot be had here fails the child; see [`Cores::check`].
    pub cores: Cores,
}

/// What a failed child means for the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Results {
    /// They are ended too.
    #[default]
    AllOrNothing,
    /// Nothing.
    PerChild,
}

/// What came of it.
#[derive(Debug)]
pub struct Forked {
    /// In the order they were asked for.
    pub children: Vec<Result<ForkedChild, ChildError>>,
    /// Where the time went.
    pub timings: ForkTimings,
    /// Children whose life hangs on a connection live as long as these.
    _connections: Vec<ControlSocket>,
}

/// A child that is ready.
#[derive(Debug)]
pub struct ForkedChild {
    /// The child.
    pub child: Child,
    /// Its process.
    pub pid: i32,
    /// Its VMM's own work: from its first instant until its vCPUs ran.
    pub setup_us: u64,
    /// The agent's work of making it somebody of its own.
    pub renew_us: u64,
    /// From the call until it had said that it is ready.
    pub ready_us: u64,
}

/// Where the time of a fork went: each is counted from the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForkTimings {
    /// A template was there.
    pub template_us: u64,
    /// The directories were made, and the control groups if there are limits.
    pub directories_us: u64,
    /// The last process was forked.
    pub forked_us: u64,
    /// The last child's vCPUs ran, and its sockets were up.
    pub started_us: u64,
    /// The last child was ready.
    pub ready_us: u64,
}

/// Forks children that have no network, and waits until they are ready.
///
/// # Errors
/// When there is no template; in a fork of all or nothing also when one child fails, of which then nothing is left.
pub fn fork(spec: &ForkSpec, dirs: &Dirs) -> Result<Forked, ForkError> {
    fork_on(spec, None, dirs)
}

/// Forks children, each on a network of its own if the snapshot has a network card, and waits until they are ready.
///
/// # Errors
/// As [`fork`], and when the snapshot and the networks do not go together.
pub fn fork_on(spec: &ForkSpec, networks: Option<&Networks<'_>>, dirs: &Dirs) -> Result<Forked, ForkError> {
    let begun = Instant::now();
    if spec.children.is_empty() || spec.children.len() > MAX_CHILDREN {
        return Err(ForkError::Count { asked: spec.children.len() });
    }
    limits::raise_descriptors().map_err(|source| ForkError::Io { action: "raise the limit of open files", source })?;
    let status = Store::new(dirs).status(&spec.tag)?;
    let networks = match (has_network(&status), networks) {
        (true, None) => return Err(ForkError::Network { tag: spec.tag.clone() }),
        (false, Some(networks)) if networks.are_meant() => {
            return Err(ForkError::NoNetwork { tag: spec.tag.clone() });
        }
        (needed, networks) => networks.filter(|_| needed),
    };
    let usual = networks.map(|_| usual_egress(&spec.tag, &status)).transpose()?.flatten();
    // Before anything is started: a limit that cannot be held is an error.
    let groups = groups(&spec.children, dirs)?;
    let base = known(&status);
    let template = template_of_status(&spec.tag, status, dirs, begun + spec.limit, spec.cancel.as_ref())?;
    let granted = match networks {
        Some(networks) => networks.grant(spec.children.len(), usual)?,
        None => Vec::new(),
    };
    fork_from(template, base.as_ref(), groups.as_ref(), granted, spec, dirs, begun)
}

/// What is to be known of a snapshot when it is gone. One that is being written has nothing to tell yet.
fn known(status: &Status) -> Option<Manifest> {
    let Status::Ready(snapshot) = status else { return None };
    let known = snapshot.manifest().without_layers()?;
    serde_json::to_vec(&known).is_ok_and(|text| text.len() <= MAX_BASE).then_some(known)
}

/// Whether the guest has a network card. A branch has one if its sandbox has, also while it is being written.
fn has_network(status: &Status) -> bool {
    match status {
        Status::Ready(snapshot) => snapshot.manifest().network,
        Status::Writing(intent) => intent.egress.is_some(),
        Status::Failed(_) => false,
    }
}

/// Where children of that snapshot may connect to, if nobody says otherwise.
fn usual_egress(tag: &Tag, status: &Status) -> Result<Option<Egress>, ForkError> {
    let text = match status {
        Status::Ready(snapshot) => snapshot.manifest().egress.as_deref(),
        Status::Writing(intent) => intent.egress.as_deref(),
        Status::Failed(_) => None,
    };
    text.map(str::parse).transpose().map_err(|source| ForkError::Egress { tag: tag.clone(), source })
}

fn fork_from(
    template: Template,
    base: Option<&Manifest>,
    groups: Option<&Groups>,
    granted: Vec<Granted>,
    spec: &ForkSpec,
    dirs: &Dirs,
    begun: Instant,
) -> Result<Forked, ForkError> {
    let mut timings = ForkTimings { template_us: micros(begun), ..ForkTimings::default() };
    let parent = Parent { tag: spec.tag.clone(), id: template.snapshot.clone() };
    let base = base.filter(|base| base.id == parent.id);
    let slots = slots(&template, &parent, base, groups, granted, spec, dirs)?;
    // With the groups of all that are asked for at this moment: whoever else looks sees these, too.
    admit(spec.children.iter().filter(|child| child.limits.memory.is_none()).count())?;
    timings.directories_us = micros(begun);
    let mut fanout = Fanout::new(spec, template, slots, begun, timings)?;
    let outcome = work(&mut fanout);
    fanout.conclude(outcome)
}

/// Makes what each child has of its own: a directory, a user, a control group, a network, and what it is handed of them.
fn slots(
    template: &Template,
    parent: &Parent,
    base: Option<&Manifest>,
    groups: Option<&Groups>,
    granted: Vec<Granted>,
    spec: &ForkSpec,
    dirs: &Dirs,
) -> Result<Vec<Slot>, ForkError> {
    // What is forked from a branch that only lives in memory is of its user.
    let mut claims = match template.uid {
        None => uids::claim(spec.children.len())?,
        Some(_) => Vec::new(),
    };
    let user = |number: usize| template.uid.or_else(|| claims.get(number).map(|claim| claim.uid));
    let wanted = spec.children.iter().enumerate().map(|(number, child)| Wanted {
        limits: child.limits,
        has_group: groups.is_some(),
        owner: child.owner.as_deref(),
        uid: user(number),
        tops: template.tops,
        base,
    });
    let wanted: Vec<_> = wanted.collect();
    let made = ChildDir::create_many(&dirs.run, parent, &wanted)?;
    let (tops, mut granted, mut claims) = (tops(dirs)?, granted.into_iter(), claims.drain(..));
    let slots = made.into_iter().map(|dir| {
        let failed = |source| ForkError::Io { action: "make a child's files", source };
        let mut outfit = dir.outfit(&tops).map_err(failed)?;
        if let Some(granted) = granted.next() {
            outfit.add(ChildDescriptor::Tap, settle(granted, &dir)?);
        }
        if let Some(groups) = groups {
            outfit.add(ChildDescriptor::Cgroup, groups.make(dir.child().id(), dir.child().limits())?);
        }
        if let Some(claim) = claims.next() {
            outfit.add(ChildDescriptor::Claim, claim.fd);
        }
        Ok(Slot::new(dir, outfit))
    });
    slots.collect()
}

/// Where the children's groups are made, if any of them needs one; then all of them get one.
fn groups(children: &[ChildOptions], dirs: &Dirs) -> Result<Option<Groups>, ForkError> {
    if !children.iter().any(|child| child.limits.need_group()) {
        return Ok(None);
    }
    let limits: Vec<Limits> = children.iter().map(|child| child.limits).collect();
    let directories = [tops(dirs)?, dirs.data.clone()];
    Ok(Some(Groups::prepare(&limits, &directories)?))
}

/// Writes a child's network down before the child exists.
fn settle(granted: Granted, dir: &ChildDir) -> Result<OwnedFd, ForkError> {
    granted.note(dir.path()).map_err(|source| ForkError::Io { action: "write down a child's network", source })?;
    Ok(granted.tap)
}

/// Runs the fan-out with its workers; when this returns, none of them is left.
fn work(fanout: &mut Fanout<'_>) -> Result<(), ForkError> {
    let (jobs, queue) = channel();
    let (results, finished) = channel();
    let crew = ready::Crew::new(fanout, queue, results);
    std::thread::scope(|scope| {
        let outcome = fanout.ask().and_then(|()| crew.hire(scope)).and_then(|()| fanout.listen(&jobs, &finished));
        // Before the workers are waited for: those in the middle of something notice that it is over.
        fanout.end_the_lost(&outcome);
        crew.dismiss();
        drop(jobs);
        outcome
    })
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
