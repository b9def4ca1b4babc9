//! Packing a snapshot.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use layer::LayerError;
use layer::dense::DenseError;
use store::{Store, StoreError};
use types::Tag;
use types::progress::Progress;

use crate::calendar::rfc3339;
use crate::collect::collect;
use crate::host::HostCpu;
use crate::manifest::{Limits, Manifest, ManifestError, VERSION};
use crate::pace::Pace;
use crate::write::{self, Body};

/// Why a snapshot could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The store has no such snapshot, or a damaged one.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A layer in the store cannot be used.
    #[error("a layer of snapshot `{tag}` cannot be packed: {source}")]
    Layer {
        /// Whose.
        tag: Tag,
        /// What is wrong with it.
        source: LayerError,
    },
    /// The image under a disk cannot be read, or there is no room for the layer it becomes.
    #[error("the disk image {} cannot be made part of the pack", image.display())]
    Image {
        /// The image.
        image: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The state says nothing of what it needs.
    #[error("the state of snapshot `{tag}` cannot be packed: {problem}")]
    State {
        /// Whose.
        tag: Tag,
        /// What is wrong with it.
        problem: String,
    },
    /// What CPU this is cannot be told.
    #[error("cannot tell what the CPU here can do")]
    Cpu {
        /// What the system says.
        source: io::Error,
    },
    /// More than a pack can hold, or words that are too long.
    #[error("there can be no such pack: {0}")]
    Manifest(#[from] ManifestError),
    /// On the way into the pack.
    #[error("the pack could not be written: {0}")]
    Write(#[from] DenseError),
}

/// What shall be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackSpec {
    /// Which snapshot.
    pub tag: Tag,
    /// A word on it.
    pub description: Option<String>,
    /// What it was built from; unless given, its recipe.
    pub base_image: Option<String>,
}

/// What was packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// What the pack says about itself.
    pub manifest: Manifest,
    /// How long the pack is.
    pub bytes: u64,
}

/// Writes a pack. Nothing is synced. `cancelled` is asked now and then.
///
/// # Errors
/// When the store has no whole snapshot of that tag, or the stream takes no more. What was written then is not a pack.
pub fn pack(
    store: &Store,
    spec: &PackSpec,
    to: &mut impl Write,
    progress: &dyn Progress,
    cancelled: &dyn Fn() -> bool,
) -> Result<Packed, PackError> {
    let cpu = HostCpu::here().map_err(|source| PackError::Cpu { source })?;
    let recipe = store.get(&spec.tag)?.manifest().recipe.as_ref().map(ToString::to_string);
    let (collected, requires) = collect(store, &spec.tag, &cpu, progress)?;
    let total = collected.bodies.iter().map(|(_, body): &(_, Body)| body.len()).sum();
    let summing = Pace::new(progress.stage("Checking what is packed", Some(total)), cancelled);
    let files = write::sum_up(&collected.bodies, &summing)?;
    drop(summing);
    let manifest = Manifest {
        forkd_pack_version: VERSION,
        tag: spec.tag.clone(),
        description: spec.description.clone(),
        base_image: spec.base_image.clone().or(recipe),
        created_at: rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
        forkd_version: env!("CARGO_PKG_VERSION").into(),
        requires,
        chain: collected.chain,
        files,
    };
    // What we would not take, we do not hand out.
    Manifest::parse(manifest.to_text().as_bytes(), &Limits::default())?;
    let mut to = Counted { inner: to, bytes: 0 };
    let pace = Pace::new(progress.stage("Packing", Some(total)), cancelled);
    write::write(&manifest, &collected.bodies, &mut to, &pace)?;
    Ok(Packed { manifest, bytes: to.bytes })
}

struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
