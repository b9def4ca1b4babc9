//! Snapshots in and out of the daemon's host, as packs: with a request, or between the daemon and a server.
//!
//! Each of them holds a thread for as long as whoever is at the other end takes, so there is room for a few only. What
//! comes in is staged in the store and put in place at its end; a request that breaks off leaves nothing.

mod errors;
mod pipe;

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use api::{Code, EventKind, PullPack, PushPack, Pushed, Unpacked};
use axum::http::StatusCode;
use engine::{Existing, Store};
use pack::{Checked, Client, PackSpec, Package, UnpackSpec};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::Tag;
use types::progress::Progress;

use crate::error::ApiError;
use crate::registry::About;
use crate::snapshots;
use crate::state::App;
use crate::work::Job;

pub(crate) use pipe::{pipe_in, pipe_out};

/// How many packs may be on their way at once.
const MAX_PACKS: usize = 8;

/// Room for packs on their way.
#[derive(Debug)]
pub(crate) struct Packs(Arc<Semaphore>);

impl Default for Packs {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_PACKS)))
    }
}

impl Packs {
    /// Room for one more; given back when dropped.
    pub(crate) fn enter(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_PACKS} packs are on their way, which is all that may be; try again");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, message)
        })
    }
}

/// How a pack shall be unpacked.
#[derive(Clone, Debug)]
pub(crate) struct Unpacking {
    tag: Option<Tag>,
    existing: Existing,
}

impl Unpacking {
    /// What a request says about it.
    pub(crate) fn new(tag: Option<&str>, force: bool) -> Result<Self, ApiError> {
        let tag = tag.map(crate::spawn::parse_tag).transpose()?;
        Ok(Self { tag, existing: if force { Existing::Replace } else { Existing::Keep } })
    }

    /// Reads a pack into the store. What a workspace needs is not replaced, whatever the request says.
    pub(crate) fn unpack(
        self,
        app: &App,
        from: impl Read,
        progress: &dyn Progress,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Unpacked>, ApiError> {
        let spec = UnpackSpec { tag: self.tag, existing: self.existing, spared: snapshots::needed(app)? };
        let installed = pack::unpack(&Store::new(&app.dirs), from, &spec, progress, cancelled)?;
        let new = installed.iter().filter(|link| link.is_new);
        app.registry.change(|change| {
            new.clone().try_for_each(|link| {
                change.forget_branch(link.tag.as_str())?;
                change.tell(EventKind::SnapshotReady, About::tag(link.tag.as_str()))
            })
        })?;
        Ok(installed.into_iter().map(|link| Unpacked { tag: link.tag.to_string(), is_new: link.is_new }).collect())
    }
}

/// Gets a pack from a server and unpacks it. What came of it in part is kept for the next who asks for it, and so is what
/// came and has no place; what is bad, or for another host, is not: the next one would be refused the same.
pub(crate) fn pull(app: &App, asked: &PullPack, job: &Job) -> Result<Vec<Unpacked>, ApiError> {
    let how = Unpacking::new(asked.tag.as_deref(), asked.force)?;
    let _room = app.packs.enter()?;
    let client = Client::new();
    let (url, checked) = resolve(&client, asked)?;
    let cancelled = || job.is_cancelled();
    let downloads = app.dirs.cache.join("packs");
    let mut downloaded = pack::download(&client, &url, &checked, &downloads, job.progress(), &cancelled)?;
    let installed = how.unpack(app, &mut downloaded.file, job.progress(), &cancelled);
    let kept = installed.as_ref().is_err_and(|error| !matches!(error.code, Code::BadPack | Code::SnapshotUnusable));
    if !kept {
        downloaded.remove()?;
    }
    installed
}

/// The address, and what is known of what is there.
fn resolve(client: &Client, asked: &PullPack) -> Result<(String, Checked), ApiError> {
    if asked.source.contains("://") {
        return Ok((asked.source.clone(), Checked::default()));
    }
    let package: Package = asked.source.parse()?;
    let hub = asked.hub.as_deref().filter(|hub| !hub.is_empty());
    let hub = hub.ok_or_else(|| ApiError::invalid("say with `hub` which hub lists it, or give an address"))?;
    let version = pack::find(client, hub, &package)?;
    Ok((version.url, Checked { size: version.size_bytes, sha256: version.sha256 }))
}

/// Packs a snapshot and hands it to a server.
pub(crate) fn push(app: &App, tag: Tag, asked: PushPack, job: &Job) -> Result<Pushed, ApiError> {
    let _room = app.packs.enter()?;
    let cancelled = || job.is_cancelled();
    let spec = PackSpec { tag, description: asked.description, base_image: asked.base_image };
    // The length must be known first. Without a name, the file is gone with us.
    let mut file = nameless(app)?;
    let packed = pack::pack(&Store::new(&app.dirs), &spec, &mut file, job.progress(), &cancelled)?;
    pack::upload(&Client::new(), &asked.url, &file, job.progress(), &cancelled)?;
    Ok(Pushed { tag: spec.tag.to_string(), bytes: packed.bytes })
}

fn nameless(app: &App) -> Result<File, ApiError> {
    let dir = &app.dirs.cache;
    std::fs::create_dir_all(dir)
        .and_then(|()| tempfile::tempfile_in(dir))
        .map_err(|error| ApiError::internal(format!("cannot keep the pack in {}: {error}", dir.display())))
}
