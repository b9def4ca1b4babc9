//! From an image to a disk: its layers become a tree, the tree gets its places, the contents follow.
//!
//! Layers are read twice, first for what there is and then for the contents, so nothing is kept in between but the
//! tree. Each time their contents are compared with their digests.

use std::fs::File;
use std::io::{self, Read};

use ext4::{Kind, Plan, PlanError, Spec};
use types::progress::Progress;

use crate::directory::DirectoryError;
use crate::flatten::{Flat, FlattenError, Flattener, Limits, Stored};
use crate::image::{Image, Layer};
use crate::stream::{Budget, compared, unpacked};

/// Where a guest finds how its image's programs are to be run.
const RUN_FILE: &str = "etc/forkd/image.json";
const LABEL: &str = "forkd-root";
const BUFFER: usize = 1 << 17;

/// How large a disk shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskSize {
    /// So many bytes.
    Bytes(u64),
    /// As large as the image, and so many bytes more.
    Free(u64),
}

/// Why an image did not become a disk.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A layer is not one.
    #[error("layer {number} of the image")]
    Layer {
        /// Which, from 1.
        number: usize,
        /// Why.
        source: FlattenError,
    },
    /// What we add cannot be added.
    #[error("cannot put our own file into the image")]
    Own {
        /// Why.
        source: FlattenError,
    },
    /// What is looked for in it cannot be there.
    #[error("cannot look into the image")]
    Look {
        /// Why.
        source: FlattenError,
    },
    /// It does not fit, or ext4 has no way to say it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A layer could not be read.
    #[error("cannot read layer {number} of the image")]
    Read {
        /// Which, from 1.
        number: usize,
        /// Why.
        source: io::Error,
    },
    /// A directory could not be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The disk could not be written.
    #[error("cannot write the disk")]
    Write {
        /// Why.
        source: io::Error,
    },
}

impl Image {
    /// Writes a file system with everything in it to `out`, whatever that contained.
    ///
    /// # Errors
    /// When the image is not what it says, is more than the limits allow, or does not fit.
    pub fn write(&self, out: &File, size: DiskSize, limits: Limits, progress: &dyn Progress) -> Result<(), WriteError> {
        let stage = progress.stage("Reading the layers", Some(self.layer_bytes()));
        let flat = self.flatten(limits, &|done| stage.advance(done))?.finish();
        drop(stage);
        let Flat { tree, files, texts } = flat;
        let plan = self.plan(tree, size)?;
        let contents = self.files.iter().flat_map(|files| &files.contents);
        let stage =
            progress.stage("Writing the filesystem", Some(self.layer_bytes() + contents.clone().count() as u64));
        let written = |result: io::Result<()>| result.map_err(|source| WriteError::Write { source });
        written(plan.write(out))?;
        for (node, text) in texts {
            written(plan.write_content(out, node, 0, &text))?;
        }
        let mut done = 0;
        for content in contents.filter(|content| plan.has(content.node)) {
            content.each_piece(plan.tree(), |at, bytes: &[u8]| plan.write_content(out, content.node, at, bytes))?;
            done += 1;
            stage.advance(done);
        }
        let budget = Budget::new(limits.unpacked_bytes);
        for (number, layer) in (0..).zip(&self.layers) {
            let of_layer = files.iter().filter(|file| file.layer == number && plan.has(file.node));
            fill(layer, of_layer, &plan, out, &budget).map_err(|error| error.of_layer(number as usize + 1))?;
            done += layer.blob.len();
            stage.advance(done);
        }
        Ok(())
    }

    /// Bytes of all layers, packed as they are.
    fn layer_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.blob.len()).sum()
    }

    /// All of it as one tree.
    pub(crate) fn flatten(&self, limits: Limits, advance: &dyn Fn(u64)) -> Result<Flattener, WriteError> {
        let budget = Budget::new(limits.unpacked_bytes);
        let mut flattener = match &self.files {
            Some(files) => Flattener::over(files.tree.clone(), limits),
            None => Flattener::new(limits),
        };
        let mut done = 0;
        for (number, layer) in (1..).zip(&self.layers) {
            let source = layer.open(&budget).map_err(|source| WriteError::Read { number, source })?;
            flattener.layer(source, layer.meaning).map_err(|source| WriteError::Layer { number, source })?;
            done += layer.blob.len();
            advance(done);
        }
        if self.run.working_dir.starts_with('/') {
            // Container engines make it, too, so images rely on it.
            let made = flattener.ensure_directory(&self.run.working_dir);
            made.map_err(|source| WriteError::Own { source })?;
        }
        if self.run != crate::RunConfig::default() {
            let text = serde_json::to_vec_pretty(&self.run).expect("texts are always JSON");
            flattener.text(RUN_FILE, &text).map_err(|source| WriteError::Own { source })?;
        }
        Ok(flattener)
    }

    fn plan(&self, tree: ext4::Tree, size: DiskSize) -> Result<Plan, PlanError> {
        let bytes = match size {
            DiskSize::Bytes(bytes) => bytes,
            DiskSize::Free(free) => Plan::demand(&tree)?.bytes_with_free(free).ok_or(PlanError::TooLarge)?,
        };
        // A random UUID has four bits that say so; ours are made of the image.
        let mut uuid = [0; 16];
        let digits = self.id().hex().as_bytes();
        for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0);
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Plan::new(tree, &Spec { bytes, uuid, label: LABEL.into() })
    }
}

impl Layer {
    pub(crate) fn open(&self, budget: &Budget) -> io::Result<Box<dyn Read>> {
        unpacked(compared(self.blob.reader(), self.packed.as_ref()), budget, self.diff_id.as_ref())
    }
}

enum FillError {
    Read(io::Error),
    Write(io::Error),
}

impl FillError {
    fn of_layer(self, number: usize) -> WriteError {
        match self {
            Self::Read(source) => WriteError::Read { number, source },
            Self::Write(source) => WriteError::Write { source },
        }
    }
}

/// Copies what files have in this layer to their blocks.
fn fill<'a>(
    layer: &Layer,
    files: impl Iterator<Item = &'a Stored>,
    plan: &Plan,
    out: &File,
    budget: &Budget,
) -> Result<(), FillError> {
    let mut source = layer.open(budget).map_err(FillError::Read)?;
    let mut buffer = vec![0; BUFFER];
    let mut at = 0;
    for file in files {
        // Members lie one after the other, so nothing is passed twice.
        let gap = file.at - at;
        at += io::copy(&mut (&mut source).take(gap), &mut io::sink()).map_err(FillError::Read)?;
        let Kind::File(content) = &plan.tree().node(file.node).kind else { continue };
        for piece in &content.pieces {
            let mut done = 0;
            while done < piece.len {
                let len = usize::try_from(piece.len - done).unwrap_or(BUFFER).min(BUFFER);
                source.read_exact(&mut buffer[..len]).map_err(FillError::Read)?;
                plan.write_content(out, file.node, piece.at + done, &buffer[..len]).map_err(FillError::Write)?;
                done += len as u64;
            }
            at += piece.len;
        }
    }
    io::copy(&mut source, &mut io::sink()).map(drop).map_err(FillError::Read)
}

#[cfg(test)]
mod tests;
