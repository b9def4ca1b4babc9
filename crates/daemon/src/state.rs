//! What all routes share.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::{Code, EventKind, SandboxStatus};
use axum::http::StatusCode;
use engine::{Child, Cores, Death, FindError, Hits};
use tokio::sync::{Semaphore, watch};
use types::Dirs;

use crate::audit::Audit;
use crate::auth::Auth;
use crate::budget::Budget;
use crate::busy::Busy;
use crate::clients::Clients;
use crate::config::{Config, Patience};
use crate::denials::Denials;
use crate::ends::Ends;
use crate::error::{ApiError, chain};
use crate::guests::Guests;
use crate::limits;
use crate::metrics::Metrics;
use crate::networks::{LazyPool, namespace_of};
use crate::outside::Outside;
use crate::packs::Packs;
use crate::registry::{Change, Registry, RegistryError, Sandbox, now_unix};
use crate::sessions::Sessions;
use crate::spawns::Spawns;
use crate::work::Watches;

/// Why a sandbox ended, when nobody knows.
const ENDED: &str = "its VM ended, by itself or by another program";

/// How much of the output of commands may wait in memory, all requests together.
const MAX_OUTPUTS: usize = 256 << 20;
/// How much input may wait for processes, all together.
const MAX_INPUTS: usize = 64 << 20;

/// The daemon, as a route sees it.
#[derive(Clone, Debug)]
pub(crate) struct App(Arc<Inner>);

/// What it is made of.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) dirs: Dirs,
    /// It ends by itself after so long without a client and without anything to look after.
    pub(crate) idle: Option<Duration>,
    pub(crate) started_unix: u64,
    pub(crate) patience: Patience,
    pub(crate) registry: Registry,
    pub(crate) auth: Auth,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    /// Who builds images, when this daemon cannot.
    pub(crate) outside: Option<Outside>,
    /// Who talks to which guest.
    pub(crate) guests: Arc<Guests>,
    /// What waits in memory of the output of commands.
    pub(crate) outputs: Arc<Budget>,
    /// What waits in memory for processes that have not read it yet.
    pub(crate) inputs: Arc<Budget>,
    /// The networks of sandboxes.
    pub(crate) networks: LazyPool,
    /// What they were refused.
    pub(crate) denials: Arc<Denials>,
    /// Sandboxes that are being ended.
    pub(crate) ends: Ends,
    /// Spawns under way.
    pub(crate) spawns: Spawns,
    /// Commands that somebody follows.
    pub(crate) sessions: Sessions,
    /// Who is connected.
    pub(crate) clients: Clients,
    /// Packs on their way.
    pub(crate) packs: Packs,
    /// Requests about to come that somebody wants to watch.
    pub(crate) watches: Watches,
    /// How much long work is under way.
    pub(crate) jobs: AtomicUsize,
    /// One for each branch that may be written now.
    pub(crate) branch_slots: Arc<Semaphore>,
    pub(crate) branch_cap: u32,
    /// With whom sandboxes share cores of the CPU.
    pub(crate) cores: Cores,
    /// Becomes true when the daemon is about to end: streams without an end of their own end then.
    pub(crate) stopping: watch::Sender<bool>,
    /// What somebody does something with that nobody may disturb.
    pub(crate) busy: Busy,
}

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl App {
    pub(crate) fn new(config: &Config, registry: Registry, auth: Auth, audit: Audit, outside: Option<Outside>) -> Self {
        let branch_cap = config.branch_concurrency;
        let denials = Arc::new(Denials::new(audit.clone()));
        Self(Arc::new(Inner {
            dirs: config.dirs.clone(),
            idle: config.idle,
            started_unix: now_unix(),
            patience: config.patience,
            registry,
            auth,
            audit,
            metrics: Metrics::new(),
            outside,
            guests: Arc::default(),
            outputs: Budget::new(MAX_OUTPUTS),
            inputs: Budget::new(MAX_INPUTS),
            networks: LazyPool::new(config.networks_ready, Arc::clone(&denials)),
            denials,
            ends: Ends::default(),
            spawns: Spawns::default(),
            sessions: Sessions::default(),
            clients: Clients::default(),
            packs: Packs::default(),
            watches: Watches::default(),
            jobs: AtomicUsize::new(0),
            branch_slots: Arc::new(Semaphore::new(usize::try_from(branch_cap).unwrap_or(usize::MAX >> 3))),
            branch_cap,
            cores: config.cores,
            stopping: watch::Sender::new(false),
            busy: Busy::default(),
        }))
    }

    /// Runs what blocks, off the reactor. One that panics is an error of its request and of nobody else.
    pub(crate) async fn verb<T, W>(&self, work: W) -> Result<T, ApiError>
    where
        T: Send + 'static,
        W: FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    {
        let app = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&app)).await;
        done.unwrap_or_else(|error| Err(ApiError::internal(format!("it failed in an unforeseen way: {error}"))))
    }

    /// An error, or that the daemon is about to end, which is its reason then.
    pub(crate) fn unless_stopping(&self, error: ApiError) -> ApiError {
        if !*self.stopping.borrow() {
            return error;
        }
        let message = format!("the daemon is about to end: {}", error.message);
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Code::Stopping, message)
    }
}

impl Inner {
    /// Nobody has been here for so long as was set, and nothing is left to look after.
    pub(crate) fn is_idle(&self) -> bool {
        let writes = self.branch_slots.available_permits() < usize::try_from(self.branch_cap).unwrap_or(usize::MAX);
        if self.idle.is_none_or(|idle| self.clients.absent() < idle)
            || writes
            || self.jobs.load(Ordering::Relaxed) > 0
            || self.spawns.over() < self.spawns.next()
        {
            return false;
        }
        self.registry.count_living().is_ok_and(|living| living == 0)
    }

    /// A sandbox that lives, by its exact id. One that is found dead is noted as such; one that nobody knew, because it was
    /// not made through the daemon, is known from now on.
    pub(crate) fn living(&self, id: &str) -> Result<(Sandbox, Child), ApiError> {
        let known = self.registry.sandbox(id)?;
        if let Some(gone) = known.as_ref().filter(|known| known.status == SandboxStatus::Gone) {
            return Err(is_gone(id, gone.reason.as_deref().unwrap_or(ENDED)));
        }
        let opened = engine::open(id, &self.dirs);
        match (known, opened) {
            (Some(known), Ok(child)) => Ok((self.as_it_is(known, &child)?, child)),
            (Some(_), Err(FindError::Unknown { .. } | FindError::Died(_))) if self.ends.has(id) => {
                Err(is_gone(id, "somebody ended it"))
            }
            (Some(known), Err(error @ (FindError::Unknown { .. } | FindError::Died(_)))) => {
                let reason = end_of(&error);
                self.registry.change(|change| note_death(change, &known, &error, &reason))?;
                Err(is_gone(id, &reason))
            }
            (None, Ok(child)) => {
                let found = self.take_in(&child)?.ok_or_else(|| unknown(id))?;
                Ok((found, child))
            }
            (None, Err(FindError::Unknown { .. } | FindError::Died(_))) => Err(unknown(id)),
            (_, Err(error)) => Err(error.into()),
        }
    }

    /// What is known of a living child, with what others may have done to it. That of a workspace stands still while it
    /// is suspended, which is not what is told.
    pub(crate) fn as_it_is(&self, known: Sandbox, child: &Child) -> Result<Sandbox, ApiError> {
        let known = self.with_hits(known, child)?;
        let status = status_of(child);
        if known.workspace.is_some() || known.status == status {
            return Ok(known);
        }
        self.registry.change(|change| change.set_status(&known.id, status))?;
        Ok(Sandbox { status, ..known })
    }

    /// What is known of a living child, with the limits it has hit by now.
    fn with_hits(&self, known: Sandbox, child: &Child) -> Result<Sandbox, ApiError> {
        if child.limits().is_empty() {
            return Ok(known);
        }
        match child.hits() {
            Ok(hits) if hits != known.hits => {
                self.registry.change(|change| change.add_hits(&known.id, hits))?;
                Ok(Sandbox { hits, ..known })
            }
            Ok(_) => Ok(known),
            Err(error) => {
                log::warn!("which limits {} has hit cannot be told: {error}", child.id());
                Ok(known)
            }
        }
    }

    /// Makes a living child known that was not made through the daemon. One of ours that is not known is just being made,
    /// or was just ended.
    pub(crate) fn take_in(&self, child: &Child) -> Result<Option<Sandbox>, ApiError> {
        if child.owner() == Some(self.registry.id()) {
            return Ok(None);
        }
        self.take_in_as(child, pid_of(child))
    }

    /// The same for others' whose process is known.
    pub(crate) fn take_in_as(&self, child: &Child, pid: Option<u32>) -> Result<Option<Sandbox>, ApiError> {
        let found = Sandbox { pid, ..row_of(child) };
        // Looked at once more: it may have been ended since it was found.
        let alive = child.is_alive().unwrap_or(false);
        if alive && self.registry.change(|change| change.add_sandbox(&found))? {
            log::info!("sandbox {} of `{}` was found and is managed from now on", found.id, found.tag);
        }
        Ok(alive.then_some(found))
    }
}

/// A living child as the registry has it. Its process is not asked for.
pub(crate) fn row_of(child: &Child) -> Sandbox {
    Sandbox {
        id: child.id().to_owned(),
        tag: child.tag().to_string(),
        created_unix: child.created_unix_ms() / 1000,
        pid: None,
        memory_limit_mib: child.limits().memory.map(engine::MemoryLimit::mib),
        labels: std::collections::BTreeMap::new(),
        expires_unix: None,
        status: status_of(child),
        reason: None,
        branch_count: 0,
        last_branch: None,
        workspace: None,
        language: None,
        numpy: None,
        limits: limits::told(child.limits()),
        hits: Hits::default(),
        netns: namespace_of(child),
    }
}

fn status_of(child: &Child) -> SandboxStatus {
    if child.is_paused() { SandboxStatus::Paused } else { SandboxStatus::Running }
}

/// Its process, if it has one that answers.
pub(crate) fn pid_of(child: &Child) -> Option<u32> {
    let pid = child.pid().unwrap_or_else(|error| {
        log::debug!("the process of {}: {error}", child.id());
        None
    });
    pid.and_then(|pid| u32::try_from(pid).ok())
}

/// Why one that is not there any more ended.
pub(crate) fn end_of(error: &FindError) -> String {
    if let FindError::Died(death) = error { chain(death) } else { ENDED.into() }
}

/// It ended, and if it did for want of memory, that is said of it, too.
pub(crate) fn note_death(
    change: &mut Change<'_>,
    known: &Sandbox,
    error: &FindError,
    reason: &str,
) -> Result<(), RegistryError> {
    if let FindError::Died(Death::OutOfMemory { .. }) = error {
        change.add_hits(&known.id, Hits { oom_killed: true, ..known.hits })?;
    }
    change.end_sandbox(&known.id, EventKind::SandboxGone, reason)
}

fn unknown(id: &str) -> ApiError {
    let id: String = id.chars().take(64).collect();
    ApiError::missing(Code::SandboxNotFound, format!("there is no sandbox `{id}`; `forkd ls` lists those that run"))
}

/// It was there, and ended for this reason.
pub(crate) fn is_gone(id: &str, reason: &str) -> ApiError {
    ApiError::missing(Code::SandboxGone, format!("sandbox {id} is gone: {reason}"))
}
