//! Ends what has lived long enough, notices what died, and finds what others made. One thread, one look a second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use api::EventKind;
use engine::list;

use crate::adopt::{bury, end, end_unwanted, note_end};
use crate::error::{ApiError, chain};
use crate::registry::{Filter, Sandbox, now_unix};
use crate::state::App;

/// Between two looks: a time to live is whole seconds.
const PAUSE: Duration = Duration::from_secs(1);
/// How many of them pass between two looks at everything.
const ROUNDS: u32 = 2;

/// The thread; ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reaper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    pub(crate) fn start(app: App) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("reaper".into()).spawn(move || watch(&app, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.stop.take();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread that ends sandboxes had panicked");
        }
    }
}

fn watch(app: &App, stopped: &Receiver<()>) {
    let mut round = 0_u32;
    let mut strangers = Strangers::new();
    while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
        round = round.wrapping_add(1);
        app.metrics.keep_up();
        let looked = end_expired(app)
            .and_then(|()| if round.is_multiple_of(ROUNDS) { look_around(app, &mut strangers) } else { Ok(()) });
        if let Err(error) = looked {
            log::error!("sandboxes cannot be looked after: {}", error.message);
        }
    }
}

/// Ends those whose time is up.
pub(crate) fn end_expired(app: &App) -> Result<(), ApiError> {
    for expired in app.registry.expired(now_unix())? {
        // Ending others takes a while, in which somebody may have let it live longer. From here on nobody can.
        let begin = || app.ends.begin(&expired.id);
        let Some(_ending) = app.registry.if_expired(&expired.id, now_unix(), begin)? else { continue };
        if let Err(error) = end(app, &expired.id) {
            log::error!("the time of sandbox {} is up, but {}", expired.id, error.message);
            continue;
        }
        let reason = "its time to live was up";
        app.registry.change(|change| change.end_sandbox(&expired.id, EventKind::SandboxExpired, reason))?;
        app.metrics.counter("forkd_sandboxes_expired_total", &[]).increment(1);
    }
    Ok(())
}

/// Sandboxes of ours that nobody knows, with the number that the next spawn had when they were first seen.
type Strangers = BTreeMap<String, u64>;

/// Compares what is known with what lives. In this order: one that is made meanwhile is then in neither or in the latter.
fn look_around(app: &App, strangers: &mut Strangers) -> Result<(), ApiError> {
    let over = app.spawns.over();
    let known = app.registry.sandboxes(&Filter::default())?.sandboxes;
    app.denials.look(|| app.networks.in_use());
    let living = list(&app.dirs)?;
    let ids: BTreeSet<&str> = living.iter().map(engine::Child::id).collect();
    for sandbox in known.iter().filter(|sandbox| !ids.contains(sandbox.id.as_str())) {
        note_end(app, sandbox);
    }
    let mut known: BTreeMap<String, Sandbox> = known.into_iter().map(|known| (known.id.clone(), known)).collect();
    let mut unknown = Strangers::new();
    for child in &living {
        if let Some(known) = known.remove(child.id()) {
            app.as_it_is(known, child)?;
        } else if child.owner() != Some(app.registry.id()) {
            app.take_in(child)?;
        } else if strangers.get(child.id()).is_some_and(|seen| *seen <= over) {
            end_stranger(child);
        } else {
            let seen = strangers.get(child.id()).copied().unwrap_or_else(|| app.spawns.next());
            unknown.insert(child.id().to_owned(), seen);
        }
    }
    *strangers = unknown;
    end_unwanted(app)?;
    bury(app)?;
    Ok(app.registry.change(|change| change.forget_sandboxes())?)
}

/// Ends a sandbox whose spawn is over and did not make it known.
fn end_stranger(child: &engine::Child) {
    log::warn!("sandbox {} was made for a request that failed, and is ended", child.id());
    if let Err(error) = engine::kill(child) {
        log::error!("{}", chain(&error));
    }
}
