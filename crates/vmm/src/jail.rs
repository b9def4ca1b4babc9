//! What a VMM process gives up before it looks at anything a guest or a snapshot says.
//!
//! ```text
//! forkd-vmm template   open /dev/kvm ─ leave the host ─ keep two capabilities ─ no new ones ─ Landlock ─ filter ─ serve
//!       └ its child    ─ be somebody: own uid, no capability ─ make the VM ─ filter of each vCPU's thread ─ run
//! forkd-vmm vm         open what the VM is made of ─ leave the host ─ be somebody ─ ... ─ filter ─ load the kernel ─ run
//! ```
//!
//! What a process has is inherited by its copies and can never be had back, so a template goes through all that costs
//! time once, and a child only becomes a user of its own. A branch is a copy of such a child: it can become nobody else,
//! and VMs that are forked from it while it is not stored are of the same user.
//!
//! | layer | what it takes away |
//! |---|---|
//! | nothing is opened | every file, socket and device a child has was handed to it, and none of them is a directory |
//! | empty root | a mount namespace with one empty directory that nobody can write to; no network, no shared IPC |
//! | own uid, no capability | signals, `ptrace` and files of other VMs, of the host and of its users |
//! | no new privileges | whatever a program or a namespace could give back |
//! | Landlock | all files, sockets and TCP ports, whatever root they are found by; where the kernel has it |
//! | filter | every system call that the kind of thread does not need (see [`tables`]) |
//! | resource limits | core dumps, processes, locked memory, descriptors, timers |
//!
//! Only root can leave the host and be another user. A VMM that root started applies every layer or does not run; one
//! that somebody else started applies those that need no privilege, and `forkd doctor` says which are missing.

mod filter;
mod kvm;
mod root;
mod tables;
#[cfg(test)]
mod tests;

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use proto::control::VmUid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, CoreSchedulingScope};
use serde::Serialize;

pub(crate) use filter::{FilterError, Kind, confine};

/// As much as this program knows of Landlock; a kernel that knows less applies what it knows.
const LANDLOCK: ABI = ABI::V6;
/// Threads and processes of one user: those of a branch that is not stored are of the same one.
const MAX_TASKS: u64 = 4096;
/// Timers and waiting signals of one user. A VM has a timer for each vCPU while it is being parked; a template, which is
/// root, must not use up root's.
const MAX_TIMERS: u64 = 1024;
/// The vsock's connections, and what a batch of children is given.
const MAX_DESCRIPTORS: u64 = 8192;

/// Whom nobody takes for somebody.
const NOBODY: u32 = 65534;

/// Why a process may not go on: it would be free to do what it must not.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JailError {
    /// A step that only root can take.
    #[error(
        "the jail's {layer} cannot be had: {source}; root in a container needs CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID and \
         CAP_SETPCAP for it, a user who is not root runs without"
    )]
    Privilege {
        /// Which.
        layer: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A step that anybody can take.
    #[error("the jail's {layer} cannot be had: {source}")]
    Layer {
        /// Which.
        layer: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Landlock.
    #[error("the jail's Landlock rules cannot be had: {0}")]
    Landlock(#[from] RulesetError),
    /// The filters.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A VM that would run as root.
    #[error("a VM does not run as root, and the request names no other user")]
    Root,
}

fn privilege(layer: &'static str) -> impl Fn(rustix::io::Errno) -> JailError {
    move |errno| JailError::Privilege { layer, source: errno.into() }
}

fn layer(layer: &'static str) -> impl Fn(rustix::io::Errno) -> JailError {
    move |errno| JailError::Layer { layer, source: errno.into() }
}

/// Confines a process that will be a template: its copies can still become users of their own, if root started it.
pub(crate) fn enter_as_template() -> Result<(), JailError> {
    enter(|| keep_only(CapabilitySet::SETUID | CapabilitySet::SETGID)).map(drop)
}

/// Confines a process that is to be a VM, with everything opened and nothing looked into.
pub(crate) fn enter_as_vm(uid: Option<VmUid>) -> Result<(), JailError> {
    enter(|| settle_as(uid)).map(drop)
}

/// What confines VMs here.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// They are users of their own, in an empty root.
    own_user: bool,
    /// The kernel has Landlock, all of it that is known here.
    landlock: Landlock,
    /// Why they cannot be confined.
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Landlock {
    Full,
    Partial,
    None,
}

/// Confines this process as a VM's would be, and says what came of it.
pub(crate) fn try_out() -> Report {
    let own_user = is_root();
    let entered = enter(|| settle_as(VmUid::new(NOBODY)));
    let (landlock, error) = match entered {
        Ok(RulesetStatus::FullyEnforced) => (Landlock::Full, None),
        Ok(RulesetStatus::PartiallyEnforced) => (Landlock::Partial, None),
        Ok(RulesetStatus::NotEnforced) => (Landlock::None, None),
        Err(error) => (Landlock::None, Some(error.to_string())),
    };
    Report { own_user, landlock, error }
}

/// The same without its strongest layer, to see the others hold.
#[cfg(test)]
pub(crate) fn enter_but_for_the_filter(uid: Option<VmUid>) -> Result<(), JailError> {
    give_up(|| settle_as(uid)).map(drop)
}

fn settle_as(uid: Option<VmUid>) -> Result<(), JailError> {
    keep_only(CapabilitySet::SETUID | CapabilitySet::SETGID)?;
    become_user(uid)
}

fn enter(as_root: impl FnOnce() -> Result<(), JailError>) -> Result<RulesetStatus, JailError> {
    let landlock = give_up(as_root)?;
    filter::prepare()?;
    confine(Kind::Main)?;
    Ok(landlock)
}

/// All but the filter.
fn give_up(as_root: impl FnOnce() -> Result<(), JailError>) -> Result<RulesetStatus, JailError> {
    limit_resources()?;
    if is_root() {
        root::leave_the_host()?;
        as_root()?;
    }
    rustix::thread::set_no_new_privs(true).map_err(layer("promise of no new privileges"))?;
    deny_files()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What a child of a template does of its own.
pub(crate) fn settle_as_child(uid: Option<VmUid>, own_cores: bool) -> Result<(), JailError> {
    become_user(uid)?;
    if own_cores { keep_cores() } else { Ok(()) }
}

/// Has the system run nothing else on the other threads of a core while one of this process runs there. What is forked
/// from it later shares that until it asks for its own.
fn keep_cores() -> Result<(), JailError> {
    let scope = CoreSchedulingScope::ThreadGroup;
    match rustix::thread::create_core_scheduling_cookie(rustix::process::getpid(), scope) {
        // There are no other threads.
        Ok(()) | Err(rustix::io::Errno::NODEV) => Ok(()),
        Err(errno) => Err(layer("cores of its own")(errno)),
    }
}

/// Becomes a user of one's own, without groups or capabilities, whom nobody but root can look into. Without a uid one
/// stays who one is, unless that is root.
fn become_user(uid: Option<VmUid>) -> Result<(), JailError> {
    let Some(uid) = uid else { return if is_root() { Err(JailError::Root) } else { Ok(()) } };
    let (user, group) = (rustix::process::Uid::from_raw(uid.get()), rustix::process::Gid::from_raw(uid.get()));
    rustix::thread::set_thread_groups(&[]).map_err(privilege("user of its own"))?;
    rustix::thread::set_thread_res_gid(group, group, group).map_err(privilege("user of its own"))?;
    // With root's uid its capabilities go, too, and the process can no longer be dumped or traced by its own user.
    rustix::thread::set_thread_res_uid(user, user, user).map_err(privilege("user of its own"))
}

/// Gives up all capabilities but these, and all that a program could bring back.
fn keep_only(kept: CapabilitySet) -> Result<(), JailError> {
    let failed = privilege("want of capabilities");
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // One that this kernel does not know.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed)
}

fn limit_resources() -> Result<(), JailError> {
    let limits = [
        (Resource::Core, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Nproc, MAX_TASKS),
        (Resource::Nofile, MAX_DESCRIPTORS),
        (Resource::Sigpending, MAX_TIMERS),
    ];
    for (resource, most) in limits {
        // Never more than there was; of descriptors as many as that, for a usual limit is lower.
        let most = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).map_err(layer("resource limits"))?;
    }
    Ok(())
}

/// Denies all files and TCP ports that are not open yet, and signals and abstract sockets to whoever is not confined by
/// the same call.
fn deny_files() -> Result<RulesetStatus, JailError> {
    let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let rules = rules.handle_access(AccessFs::from_all(LANDLOCK))?.handle_access(AccessNet::from_all(LANDLOCK))?;
    let applied = rules.scope(Scope::from_all(LANDLOCK))?.create()?.restrict_self()?;
    if applied.ruleset == RulesetStatus::NotEnforced {
        log::info!("this kernel has no Landlock");
    }
    Ok(applied.ruleset)
}
