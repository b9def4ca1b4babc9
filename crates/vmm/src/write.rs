//! Writing a template down, in a copy of its process: the template goes on serving, and so does the VM it was branched
//! from. Nothing here can hurt either: what it holds of them are copies.

use std::fs::File;
use std::os::fd::OwnedFd;

use layer::{Base as Below, Layer, LayerError, Stack, StackError};
use proto::control::{ControlSocket, Extent, FromVmm, WriteSpec};

use crate::frozen::{WriteDownError, file, memory};
use crate::jail::{JailError, Kind, confine};
use crate::load::Base;
use crate::memory::file_len;
use crate::serve::ServeError;
use crate::spawn::tell;
use crate::template::Template;

/// How much the writer steps back behind VMs that run.
const NICENESS: i32 = 10;

/// The number of the image among the files of a disk.
const IMAGE: u16 = 0;

/// Why a template could not be written down.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    /// The files that came with the request.
    #[error("{found} files came with the request to write, {expected} are needed")]
    Files {
        /// How many came.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// A layer of the parent's memory.
    #[error("layer {layer} of the parent's memory cannot be used: {source}")]
    Layer {
        /// Which.
        layer: usize,
        /// What is wrong with it.
        source: LayerError,
    },
    /// The parent's memory as a whole.
    #[error("the parent's memory cannot be used: {0}")]
    Parent(#[from] StackError),
    /// Something cannot be written.
    #[error(transparent)]
    Write(#[from] WriteDownError),
}

/// What a writer is to do.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) spec: WriteSpec,
    pub(crate) files: Vec<OwnedFd>,
}

/// Writes the template down and tells whoever asked.
pub(crate) fn run(template: &Template, writer: Writer, asker: &ControlSocket) -> Result<(), ServeError> {
    confine(Kind::Writer).map_err(JailError::from)?;
    if let Err(error) = rustix::process::nice(NICENESS) {
        log::info!("writing is as important as everything else: {error}");
    }
    let told = match write(template, writer) {
        Ok((memory_bytes, disk_bytes)) => FromVmm::Written { memory_bytes, disk_bytes },
        Err(error) => {
            log::warn!("not written: {error}");
            FromVmm::WriteFailed { message: error.to_string() }
        }
    };
    Ok(tell(asker, &told)?)
}

fn write(template: &Template, writer: Writer) -> Result<(u64, u64), WriteError> {
    let private: Vec<_> = template.disks.iter().filter_map(private).collect();
    let parents = match writer.spec.extent {
        Extent::Full => 0,
        Extent::Diff { memory_layers } => usize::from(memory_layers.get()),
    };
    let (found, expected) = (writer.files.len(), 3 + private.len() + parents);
    let mut files = writer.files.into_iter().map(File::from);
    let (true, Some(page_map), Some(state), Some(memory)) =
        (found == expected, files.next(), files.next(), files.next())
    else {
        return Err(WriteError::Files { found, expected });
    };
    let layers: Vec<File> = files.by_ref().take(private.len()).collect();
    let failed = |source| WriteDownError::Memory { source };
    let memory_bytes = match writer.spec.extent {
        Extent::Full => memory::write_all(&template.ram, &page_map, &memory).map_err(failed)?,
        Extent::Diff { .. } => {
            let parent = parent(template, files)?;
            memory::write_diff(&template.ram, &page_map, &parent, &memory).map_err(failed)?
        }
    };
    let mut disk_bytes = 0;
    for (disk, (below, layer)) in private.into_iter().zip(&layers).enumerate() {
        let written = match writer.spec.extent {
            Extent::Full => below.write_layer(IMAGE + 1, layer),
            Extent::Diff { .. } => below.write_layer(below.floor(), layer),
        };
        disk_bytes += written.map_err(|source| WriteDownError::Disk { disk, source })?.stats.data_bytes;
    }
    file::write(&template.frozen, &state).map_err(WriteDownError::from)?;
    Ok((memory_bytes, disk_bytes))
}

const fn private(disk: &Base) -> Option<&virtio::block::Layers> {
    match disk {
        Base::Private(layers) => Some(layers),
        Base::ReadOnly(_) => None,
    }
}

fn parent(template: &Template, files: impl Iterator<Item = File>) -> Result<Stack, WriteError> {
    let length = file_len(template.frozen.shape.memory);
    let open = |(layer, file)| Layer::open(file, Some(length)).map_err(|source| WriteError::Layer { layer, source });
    let layers = files.enumerate().map(open).collect::<Result<_, _>>()?;
    Ok(Stack::open(Below::Zero { length }, layers)?)
}
