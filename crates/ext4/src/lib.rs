//! Writes an ext4 file system that holds a given tree of files, without mounting anything and without being root.
//!
//! ```text
//! Tree ---> Plan::new ---> every inode and block has its place
//!           Plan::write ---> superblock, groups, inodes, directories, links, attributes
//!           Plan::write_content ---> the bytes of files, in any order, as they come
//! ```
//!
//! The same tree gives the same bytes: nothing is taken from the clock, the host's users or its configuration. Blocks
//! that are zero are never written, so a sparse file stays one.
//!
//! What is written is the plain ext4 of `ext4.wiki.kernel.org`: 4 KiB blocks, extents, linear directories that the
//! kernel indexes when they grow, attributes in the inode or in one block. There is no journal: who writes to such an
//! image writes to a copy that is thrown away with its VM. There are no checksums and no groups to initialise later.

mod acl;
mod directory;
mod extent;
mod geometry;
mod inode;
mod plan;
mod superblock;
mod tree;
mod write;
mod xattr;

pub use acl::AclError;
pub use plan::{Demand, Plan, PlanError, Spec};
pub use tree::{Content, DeviceKind, Entry, Kind, Meta, Name, NameError, Node, NodeId, Piece, Time, Tree, TreeError};
pub use xattr::{XattrError, is_attribute};

/// Bytes in a block.
pub const BLOCK: u64 = BLOCK_LEN as u64;
const BLOCK_LEN: usize = 4096;
/// The largest file system that is made: 1 TiB.
pub const MAX_BYTES: u64 = 1 << 40;
/// The longest file, most of which has to be holes.
pub const MAX_FILE: u64 = 1 << 40;

#[cfg(test)]
mod tests;
