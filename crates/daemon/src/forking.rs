//! A snapshot forked, with all that there is to tell about it; and sandboxes that live only as long as somebody listens.

use std::time::Duration;

use api::{ForkSnapshot, ForkTimings, ForkedSandbox, MemoryUse};
use engine::{Cancel, Child, Lifetime, Results, kill_many};
use session::Metadata;
use types::Tag;

use crate::error::{ApiError, chain};
use crate::limits::checked;
use crate::networks::Wishes;
use crate::spawn::{Made, New, Spawn, Terms, check_labels, expiry, variables};
use crate::state::App;

/// The longest that a fork may take: a day.
const MAX_SECS: f64 = 86_400.0;
/// The most sandboxes of one fork.
const MAX_FORKS: u32 = 4096;

/// What was asked for, checked.
pub(crate) fn spawn_of(tag: Tag, asked: ForkSnapshot, cancel: Cancel) -> Result<Spawn, ApiError> {
    if !(1..=MAX_FORKS).contains(&asked.n) {
        return Err(ApiError::invalid(format!("n is {}; 1 to {MAX_FORKS} sandboxes are made at once", asked.n)));
    }
    check_labels(&asked.labels)?;
    let (env, limits) = (variables(asked.env)?, checked(&asked.limits, asked.memory_limit_mib)?);
    let metadata = Metadata::try_from(asked.metadata);
    let mut terms = Terms { cancel: Some(cancel), ..Terms::default() };
    if let Some(secs) = asked.timeout_secs {
        if !(secs > 0.0 && secs <= MAX_SECS) {
            let message = format!("timeout_secs is {secs}; it can be up to {MAX_SECS}, and more than 0");
            return Err(ApiError::invalid(message));
        }
        terms.limit = Duration::from_secs_f64(secs);
    }
    if asked.attached {
        terms.lifetime = Lifetime::Connection;
    }
    if asked.keep_working {
        terms.results = Results::PerChild;
    }
    let count = usize::try_from(asked.n).unwrap_or(usize::MAX);
    Ok(Spawn {
        tag,
        children: vec![New { env, labels: asked.labels, limits }; count],
        network: Wishes::new(asked.egress.as_ref(), &asked.network_limits)?,
        expires_unix: asked.ttl_secs.map(expiry).transpose()?,
        workspace: None,
        metadata: metadata.map_err(|error| ApiError::invalid(format!("metadata: {error}")))?,
        terms,
    })
}

/// What is told of sandboxes that were just made.
pub(crate) fn told(made: &Made) -> api::Forked {
    let sandboxes = made.sandboxes.iter().zip(&made.ready).map(|(known, ready)| ForkedSandbox {
        sandbox: api::SandboxInfo { memory: memory_of(&ready.child), ..known.clone().into() },
        setup_us: ready.setup_us,
        renew_us: ready.renew_us,
        ready_us: ready.ready_us,
    });
    let engine::ForkTimings { template_us, directories_us, forked_us, started_us, ready_us } = made.forked.timings;
    api::Forked {
        sandboxes: sandboxes.collect(),
        failures: made.failures.iter().map(|error| chain(error)).collect(),
        timings: ForkTimings { template_us, directories_us, forked_us, started_us, ready_us },
    }
}

/// What a sandbox's memory costs now; one that has ended since has none.
pub(crate) fn memory_of(child: &Child) -> Option<MemoryUse> {
    let memory = child.memory().unwrap_or_else(|error| {
        log::debug!("the memory of {}: {error}", child.id());
        None
    });
    memory.map(|engine::MemoryUse { private_kib, shared_kib, tables_kib }| MemoryUse {
        private_kib,
        shared_kib,
        tables_kib,
    })
}

/// Sandboxes that are ended when this is dropped. They hang on connections that it holds, so they end with the daemon, too.
#[derive(Debug)]
pub(crate) struct Attached {
    app: App,
    made: Option<Made>,
}

impl Attached {
    pub(crate) const fn new(app: App, made: Made) -> Self {
        Self { app, made: Some(made) }
    }

    /// They stay.
    pub(crate) fn detach(mut self) -> Option<Made> {
        self.made.take()
    }

    /// What is told of them.
    pub(crate) fn told(&self) -> api::Forked {
        self.made.as_ref().map(told).unwrap_or_default()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Some(made) = self.made.take() else { return };
        let app = self.app.clone();
        // It takes a while, and this may be a thread that must not wait.
        let ending = std::thread::Builder::new().name("detach".into()).spawn(move || end(&app, made));
        if let Err(error) = ending {
            log::error!("sandboxes whose client left end by themselves: {error}");
        }
    }
}

fn end(app: &App, made: Made) {
    let children: Vec<Child> = made.ready.into_iter().map(|ready| ready.child).collect();
    let _ending: Vec<_> = children.iter().map(|child| app.ends.begin(child.id())).collect();
    for error in kill_many(&children).into_iter().filter_map(Result::err) {
        log::error!("{}", chain(&error));
    }
    let forgotten =
        app.registry.change(|change| children.iter().try_for_each(|child| change.remove_sandbox(child.id())));
    if let Err(error) = forgotten {
        log::error!("sandboxes that were ended are still known: {}", chain(&error));
    }
}
