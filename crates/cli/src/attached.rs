//! Sandboxes that live as long as we do: the daemon ends them when we leave, whatever ends us.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, anyhow, bail};
use api::{ErrorBody, ForkSnapshot, Forked};
use client::{Client, ClientError, Events, path};
use types::Tag;

use crate::interrupts::Interrupts;

/// How many are ended at once.
const ENDERS: usize = 16;

/// They, for as long as this is there.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) forked: Forked,
    _stream: Events,
}

impl Attached {
    /// The id of the only one.
    pub(crate) fn only(&self) -> anyhow::Result<&str> {
        Ok(&self.forked.sandboxes.first().context("there is no sandbox")?.sandbox.id)
    }

    /// Ends them now, and not a moment later than we leave.
    pub(crate) fn end(self, client: &Client) -> anyhow::Result<()> {
        let ids: Vec<String> = self.forked.sandboxes.into_iter().map(|one| one.sandbox.id).collect();
        let failed = end_all(client, &ids).into_iter().filter_map(Result::err);
        // One that ended by itself needs no ending.
        match failed.into_iter().find(|error| error.status() != Some(404)) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

/// Forks a snapshot. `None` when a signal came first: none is left then.
pub(crate) fn fork(
    client: &Client,
    tag: &Tag,
    asked: ForkSnapshot,
    interrupts: &Interrupts,
) -> anyhow::Result<Option<Attached>> {
    let (client, path) = (client.clone(), path(&["snapshots", tag.as_str(), "fork"], &[]));
    let asked = ForkSnapshot { attached: true, ..asked };
    interrupts.unless(move || first(client.events(&path, Some(&asked))?))?.transpose()
}

fn first(mut stream: Events) -> anyhow::Result<Attached> {
    let event = stream.next().context("the daemon went away")??;
    match event.name.as_str() {
        "forked" => {
            let forked = serde_json::from_str(&event.data).context("the daemon said something else")?;
            Ok(Attached { forked, _stream: stream })
        }
        "error" => bail!("{}", serde_json::from_str::<ErrorBody>(&event.data)?.error),
        name => Err(anyhow!("the daemon said something else: {name}")),
    }
}

/// Ends many at once; the results are in their order.
pub(crate) fn end_all(client: &Client, ids: &[String]) -> Vec<Result<(), ClientError>> {
    let next = AtomicUsize::new(0);
    let results: Vec<_> = ids.iter().map(|_| Mutex::new(Ok(()))).collect();
    thread::scope(|scope| {
        for _ in 0..ENDERS.min(ids.len()) {
            scope.spawn(|| {
                while let Some((index, id)) = ids.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    let ended = client.delete(&path(&["sandboxes", id], &[]));
                    *results[index].lock().expect("nobody panics") = ended;
                }
            });
        }
    });
    results.into_iter().map(|result| result.into_inner().expect("nobody panics")).collect()
}
