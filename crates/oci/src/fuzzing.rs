//! The body of the fuzz target: bytes of anybody as the layers of an image.

use ext4::{Plan, Spec};

use crate::flatten::{Flattener, Limits, Meaning};
use crate::stream::{Budget, unpacked};

const LIMITS: Limits = Limits { entries: 2000, metadata_bytes: 1 << 20, unpacked_bytes: 4 << 20 };
const HEADER: usize = 512;

/// Up to four layers, as they are or with sums that fit the headers; what they become must be a tree that has a place
/// on a disk, or be refused for its attributes or its size.
pub fn layers(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let mut archive = rest.to_vec();
    if choice & 1 == 1 {
        archive.chunks_exact_mut(HEADER).for_each(seal);
    }
    let count = usize::from(choice >> 1 & 3) + 1;
    let meaning = [Meaning::Image, Meaning::Archive, Meaning::Addition][usize::from(choice >> 3 & 3) % 3];
    let budget = Budget::new(LIMITS.unpacked_bytes);
    let mut flattener = Flattener::new(LIMITS);
    let size = archive.len().div_ceil(count).next_multiple_of(HEADER).max(HEADER);
    for layer in archive.chunks(size) {
        let Ok(stream) = unpacked(layer, &budget, None) else { return };
        if flattener.layer(stream, meaning).is_err() {
            return;
        }
    }
    let flat = flattener.finish();
    for file in &flat.files {
        assert!(flat.tree.entries(file.node).is_none(), "a directory has contents");
    }
    if let Ok(demand) = Plan::demand(&flat.tree) {
        let bytes = demand.bytes_with_free(0).unwrap_or(ext4::MAX_BYTES);
        drop(Plan::new(flat.tree, &Spec { bytes, uuid: [0; 16], label: String::new() }));
    }
}

fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_layers_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..8192)) {
            super::layers(&bytes);
        }

        /// Headers that could be ones: plausible kinds, short names, small sizes.
        #[test]
        fn any_headers_are_layers_or_none(
            heads in proptest::collection::vec((proptest::sample::select(b"0123456SLKxg".to_vec()), "[a./]{0,9}", 0u16..1500), 0..12),
            choice in any::<u8>(),
        ) {
            let mut bytes = vec![choice | 1];
            for (kind, name, size) in heads {
                let mut block = [0; 512];
                block[..name.len()].copy_from_slice(name.as_bytes());
                block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
                block[156] = kind;
                block[157] = b'a';
                bytes.extend(block);
            }
            super::layers(&bytes);
        }
    }
}
