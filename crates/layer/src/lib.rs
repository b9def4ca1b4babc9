//! Layers: how memory and disks are stored, each as the blocks that changed above what lies below.
//!
//! A layer is a sparse file in which each block of 4 KiB is where it is in the guest, followed by a table that says
//! which blocks there are. So a self-contained layer of memory can be mapped as it is, and a disk is read in place.
//!
//! ```text
//! 0                        table                   footer     end
//! +------------------------+-----------------------+----------+
//! | blocks, each at its    | an entry of 112 bytes | 64 bytes |
//! | own offset; holes      | per region touched    |          |
//! +------------------------+-----------------------+----------+
//!
//! entry:   region u64 | has [u64; 4] | zero [u64; 4] | quick u64 | digest [u8; 32]
//! footer:  magic [u8; 8] | version u32 | block size u32 | length u64 | entries u64 | digest [u8; 32]
//! ```
//!
//! All numbers are little-endian. The table begins at the length, rounded up to a block. A region is 1 MiB; bit
//! `n % 64` of word `n / 64` stands for its block `n`: in `has` when the layer has it, in `zero` too when it became
//! zero and is a hole in the file. What is in neither is inherited. `quick` (XXH3-64) and `digest` (BLAKE3) are of the
//! region's other blocks, in order; the last block of a disk may be a short one. The footer's digest is the BLAKE3 of
//! all entries and of the footer before it, and so of everything: it is the layer's name.
//!
//! What must hold:
//! - The same blocks with the same contents are the same file, whoever wrote it: entries ascend, none is empty, a block
//!   of zeroes is always one of `zero`.
//! - [`Layer::open`] believes nothing: what it returns has a table that was written by [`Writer`] or could have been.
//!   What is *in* the blocks it does not read; [`Layer::check_quick`] finds accidents and [`Layer::check`] forgeries.
//! - A layer is written once and never changes. What is only read here must not be written by others meanwhile.

#![forbid(unsafe_code)]

mod blocks;
mod check;
pub mod dense;
mod digest;
mod flatten;
mod format;
#[cfg(any(test, feature = "test-utils"))]
pub mod fuzzing;
mod image;
mod layer;
mod merge;
mod owners;
mod sparse;
mod stack;
#[cfg(test)]
mod test_utils;
mod writer;

pub use blocks::{BLOCK_BYTES, REGION_BLOCKS};
pub use digest::{Digest, DigestError};
pub use flatten::flatten;
pub use format::MAX_LENGTH;
pub use image::from_image;
pub use layer::{Kind, Layer, LayerError, LayerStats};
pub use merge::{Bottom, MergeError, merge};
pub use owners::Owners;
pub use stack::{Base, MAX_LAYERS, Stack, StackError};
pub use writer::{Writer, Written};
