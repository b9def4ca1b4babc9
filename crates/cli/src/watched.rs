//! Packs on their way, shown: how far they are the daemon tells on another connection, because it alone knows what is to
//! come.

use std::thread;

use api::Watch;
use client::{Client, Events, path};
use types::progress::Progress;

use crate::progress;

/// Does something with a pack, which the request shall say is watched under this name, if it can be.
pub(crate) fn watched<T>(client: &Client, progress: &dyn Progress, work: impl FnOnce(Option<&str>) -> T) -> T {
    let Some((name, events)) = watch(client) else { return work(None) };
    thread::scope(|scope| {
        let shower = thread::Builder::new().name("progress".into());
        match shower.spawn_scoped(scope, || show(events, progress)) {
            Ok(_) => work(Some(&name)),
            // Nothing is shown, which hurts nobody.
            Err(_) => work(None),
        }
    })
}

/// The name, and what is told; `None` when the daemon does not know how.
fn watch(client: &Client) -> Option<(String, Events)> {
    let mut events = client.events(&path(&["packs", "progress"], &[]), None::<&()>).ok()?;
    let first = events.next()?.ok()?;
    let told: Watch = serde_json::from_str(&first.data).ok().filter(|_| first.name == "watch")?;
    Some((told.watch, events))
}

/// Ends with the request, or with the connection.
fn show(events: Events, progress: &dyn Progress) {
    let mut show = progress::watch(progress);
    for event in events.map_while(Result::ok).filter(|event| event.name == "progress") {
        match serde_json::from_str(&event.data) {
            Ok(told) => show(told),
            Err(error) => log::debug!("what the daemon tells is not understood: {error}"),
        }
    }
}
