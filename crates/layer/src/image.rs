//! The contents of a disk image as a layer, so that it can travel as layers do.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::blocks::{BLOCK, BLOCK_BYTES, REGION, is_zero, len_of};
use crate::sparse::{extents, file_len};
use crate::writer::{Writer, Written};

/// Writes what an image holds into an empty file, as a layer over zeroes: what is zero is left out. `advance` hears how
/// far in the image it is.
///
/// # Errors
/// When the file is not empty, the image is too large, or the host cannot read or write.
pub fn from_image(image: &File, to: &File, mut advance: impl FnMut(u64)) -> io::Result<Written> {
    let length = file_len(image)?;
    let mut writer = Writer::create(to, length)?;
    let mut buffer = vec![0; REGION];
    let mut next = 0;
    for extent in extents(image, 0..length) {
        let extent = extent?;
        // A file system's grain need not be ours.
        let mut at = (extent.start / BLOCK_BYTES * BLOCK_BYTES).max(next);
        let end = extent.end.next_multiple_of(BLOCK_BYTES).min(length);
        while at < end {
            let part = at..end.min(at + REGION as u64);
            let bytes = &mut buffer[..len_of(&part)];
            image.read_exact_at(bytes, at)?;
            for (block, bytes) in (at / BLOCK_BYTES..).zip(bytes.chunks(BLOCK)) {
                if !is_zero(bytes) {
                    writer.put(block, bytes)?;
                }
            }
            at = part.end;
            advance(at);
        }
        next = next.max(at);
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_utils::{contents, empty, file};
    use crate::{Base, Layer, Stack, flatten};

    #[test]
    fn an_image_and_its_layer_over_zeroes_are_the_same_disk() {
        let image = file(&[]);
        image.set_len(5 << 20).unwrap();
        image.write_all_at(&[1; 10], 4090).unwrap();
        image.write_all_at(&vec![2; 2 << 20], (1 << 20) - 7).unwrap();
        image.write_all_at(&[0; BLOCK], 4 << 20).unwrap();
        image.set_len((5 << 20) - 100).unwrap();
        image.write_all_at(&[3; 5], (5 << 20) - 105).unwrap();
        let (to, flat) = (empty(), empty());
        let mut seen = 0;
        let written = from_image(&image, &to, |at| seen = at).unwrap();
        assert_eq!((written.stats.blocks, written.stats.zero_blocks, seen), (2 + 513 + 1, 0, (5 << 20) - 100));
        let layer = Layer::open(to, None).unwrap();
        layer.check(|_| {}).unwrap();
        let stack = Stack::open(Base::Zero { length: layer.len_bytes() }, vec![layer]).unwrap();
        flatten(&stack, &flat).unwrap();
        assert_eq!(contents(&flat), contents(&image));
    }
}
