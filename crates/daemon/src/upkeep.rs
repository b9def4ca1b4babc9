//! The store as a whole: what it takes, what of it nobody needs, and whether it is what was written.

use std::collections::HashMap;

use api::{Finding, Leftover, StoreInfo, Verified};
use engine::{Garbage, Manifest, Store, sweep_templates};
use types::Tag;

use crate::error::{ApiError, chain};
use crate::state::App;
use crate::work::Job;

/// What all snapshots take; what they share counts once.
pub(crate) fn info(app: &App) -> Result<StoreInfo, ApiError> {
    let listed = Store::new(&app.dirs).list()?;
    let ready = || listed.iter().filter_map(|(_, status)| Some(status.as_ref().ok()?.ready()?.manifest()));
    let layers: HashMap<_, _> =
        ready().flat_map(Manifest::layers).map(|layer| (layer.digest, layer.data_bytes)).collect();
    let sizes = layers.values().copied().chain(ready().map(|manifest| manifest.state.bytes));
    Ok(StoreInfo {
        snapshots: listed.len() as u64,
        layers: layers.len() as u64,
        occupied_bytes: sizes.fold(0, u64::saturating_add),
    })
}

/// What no snapshot needs: looked at, or removed.
pub(crate) fn garbage(app: &App, garbage: Garbage) -> Result<api::Garbage, ApiError> {
    let is_removed = garbage == Garbage::Remove;
    let ended_templates = if is_removed { sweep_templates(&app.dirs)? as u64 } else { 0 };
    let collected = Store::new(&app.dirs).gc(garbage)?;
    let packs = pack::leftovers(&app.dirs.cache.join("packs"), is_removed)?;
    let image_layers = image::layer_leftovers(&app.dirs.cache, is_removed);
    let image_layers = image_layers.map_err(|error| ApiError::internal(chain(&error)))?;
    let left = |name: String, bytes| Leftover { name, bytes };
    let downloads: Vec<_> = packs.into_iter().chain(image_layers).map(|(name, bytes)| left(name, bytes)).collect();
    Ok(api::Garbage {
        bytes: downloads.iter().fold(collected.bytes(), |sum, one| sum.saturating_add(one.bytes)),
        layers: collected.layers.iter().map(|(digest, bytes)| left(digest.to_string(), *bytes)).collect(),
        unfinished: collected.staging.into_iter().map(|(name, bytes)| left(name, bytes)).collect(),
        downloads,
        ended_templates,
    })
}

/// Compares these snapshots, or all, with what was written.
pub(crate) fn verify(app: &App, tags: &[Tag], job: &Job) -> Result<Verified, ApiError> {
    let verified = Store::new(&app.dirs).verify(tags, job.progress())?;
    let told = |finding: engine::Finding| Finding { tag: finding.tag.to_string(), problem: chain(&finding.problem) };
    Ok(Verified {
        snapshots: verified.snapshots as u64,
        layers: verified.layers as u64,
        bytes: verified.bytes,
        findings: verified.findings.into_iter().map(told).collect(),
    })
}
