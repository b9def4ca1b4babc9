//! The contents of a stack in one file, without a table.

use std::fs::File;
use std::io;

use rustix::fs::FallocateFlags;

use crate::blocks::bytes_of;
use crate::sparse::{Copier, expect_empty, extents};
use crate::stack::Stack;

/// Writes what a stack adds up to into an empty file, holes where nothing is. On a file system that can, files share
/// what they have in common. Whether the layers are what they should be is for [`Layer::check_quick`] to say before.
///
/// [`Layer::check_quick`]: crate::Layer::check_quick
///
/// # Errors
/// When the file is not empty, or the host cannot read or write.
pub fn flatten(stack: &Stack, to: &File) -> io::Result<()> {
    expect_empty(to)?;
    let cloned = clone_lowest(stack, to);
    // Behind the end, a clone has a table.
    to.set_len(stack.len_bytes())?;
    let mut copier = Copier::new(to);
    for (run, owner) in stack.runs() {
        let bytes = bytes_of(&run, stack.len_bytes());
        if let Some(lowest) = cloned {
            if owner <= lowest {
                continue;
            }
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(to, hole, bytes.start, bytes.end - bytes.start)?;
        }
        let Some(from) = stack.file(owner) else { continue };
        for extent in extents(from, bytes) {
            copier.copy(from, extent?)?;
        }
    }
    Ok(())
}

/// Makes the file a copy of the lowest one without moving a byte, where the file system can; says whose it is.
fn clone_lowest(stack: &Stack, to: &File) -> Option<u16> {
    let (owner, lowest) = [0, 1].into_iter().find_map(|owner| Some((owner, stack.file(owner)?)))?;
    rustix::fs::ioctl_ficlone(to, lowest).is_ok().then_some(owner)
}
