use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;
use rustix::fs::FallocateFlags;

use super::super::blocks::{BLOCK, BLOCK_BYTES};
use super::*;
use crate::Buffers;
use crate::block::{Backend, CowDisk};

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(image_len(file).unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 7 % 250 + 1).unwrap()).collect()
}

/// The files of a disk, as a store would keep them.
struct Stack(Vec<File>);

impl Stack {
    fn new(image: &[u8]) -> Self {
        Self(vec![file(image)])
    }

    fn open(&self) -> Result<Layers, LayerError> {
        Layers::open(self.0.iter().map(|file| file.try_clone().unwrap()).collect())
    }

    fn disk(&self) -> CowDisk {
        CowDisk::over(Arc::new(self.open().unwrap()), &std::env::temp_dir()).unwrap()
    }

    /// Writes and seals.
    fn seal(&mut self, writes: &[(usize, Vec<u8>)]) {
        let mut disk = self.disk();
        writes.iter().for_each(|(offset, bytes)| write(&mut disk, *offset, bytes));
        let layer = tempfile::tempfile().unwrap();
        disk.write_layer(&layer).unwrap();
        self.0.push(layer);
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(contents).collect()
    }
}

fn write(disk: &mut CowDisk, offset: usize, bytes: &[u8]) {
    disk.write_at(Buffers::from(bytes.to_vec().as_mut_slice()), offset.try_into().unwrap()).unwrap();
}

fn read(disk: &mut CowDisk, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    disk.read_at(Buffers::from(bytes.as_mut_slice()), offset.try_into().unwrap()).unwrap();
    bytes
}

#[test]
fn a_block_that_became_zero_hides_what_is_below_it() {
    let mut stack = Stack::new(&pattern(4 * BLOCK));
    stack.seal(&[(BLOCK, vec![0; BLOCK])]);
    // A file system may drop blocks of zeroes; the map still has them.
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&stack.0[1], hole, 0, 4 * BLOCK_BYTES).unwrap();
    assert_eq!(read(&mut stack.disk(), 0, 3 * BLOCK), {
        let mut expected = pattern(3 * BLOCK);
        expected[BLOCK..2 * BLOCK].fill(0);
        expected
    });
}

#[test]
fn every_layer_is_read_however_many_there_are() {
    let mut stack = Stack::new(&pattern(70 * BLOCK));
    for number in 1..=MAX_LAYERS {
        stack.seal(&[(number * BLOCK + 1, vec![u8::try_from(number).unwrap(); 10])]);
    }
    let layers = stack.open().unwrap();
    assert_eq!((layers.depth(), layers.len_bytes()), (MAX_LAYERS, 70 * BLOCK_BYTES));
    let mut disk = stack.disk();
    for number in 1..=MAX_LAYERS {
        assert_eq!(read(&mut disk, number * BLOCK + 1, 10), [u8::try_from(number).unwrap(); 10]);
    }
    stack.seal(&[]);
    assert!(matches!(stack.open(), Err(LayerError::Count { files: 66 })));
    assert!(matches!(Layers::open(Vec::new()), Err(LayerError::Count { files: 0 })));
}

#[test]
fn an_image_alone_needs_no_table() {
    let layers = Stack::new(&pattern(4 * BLOCK)).open().unwrap();
    assert_eq!((layers.owners.capacity(), layers.depth()), (0, 0));
}

#[test]
fn a_refusal_says_which_layer_it_was() {
    let mut stack = Stack::new(&pattern(2 * BLOCK));
    stack.seal(&[(0, vec![1])]);
    stack.seal(&[(0, vec![2])]);
    stack.0[2].set_len(5000).unwrap();
    let error = stack.open().unwrap_err();
    assert_eq!(error.to_string(), "layer 2 of the disk cannot be used: it is not a disk layer, or its end is missing");
    let mut other = Stack::new(&pattern(3 * BLOCK));
    other.0.push(stack.0.swap_remove(1));
    assert!(matches!(other.open(), Err(LayerError::Layer { index: 1, source: LayerFault::Disk { .. } })));
    other.0[0].set_len(MAX_DISK_BYTES + 1).unwrap();
    assert!(matches!(other.open(), Err(LayerError::TooLarge { .. })));
}

#[test]
fn a_layer_that_shrinks_later_is_an_error_and_no_zeroes() {
    let mut stack = Stack::new(&pattern(2 * BLOCK));
    stack.seal(&[(BLOCK, vec![1; BLOCK])]);
    let mut disk = stack.disk();
    stack.0[1].set_len(BLOCK_BYTES).unwrap();
    let error = disk.read_at(Buffers::from(&mut [0; 8][..]), BLOCK_BYTES).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn nothing_is_read_beyond_the_end_of_a_disk_with_a_short_last_block() {
    let mut stack = Stack::new(&pattern(BLOCK + 10));
    stack.seal(&[(BLOCK, vec![1; 10])]);
    let mut disk = stack.disk();
    disk.read_at(Buffers::from(&mut [0; 11][..]), BLOCK_BYTES).unwrap_err();
    assert_eq!(read(&mut disk, BLOCK, 10), [1; 10]);
}

/// A write somewhere on the disk: where, how much, and which byte, often zero.
fn writes() -> impl Strategy<Value = Vec<(u16, u16, u8)>> {
    prop::collection::vec((any::<u16>(), any::<u16>(), prop_oneof![Just(0), any::<u8>()]), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_stack_behaves_like_memory_at_any_depth(
        len in 1_usize..9 * BLOCK,
        generations in prop::collection::vec(writes(), 1..=9),
    ) {
        let place = |(offset, count, byte): (u16, u16, u8)| {
            let offset = usize::from(offset) % len;
            (offset, vec![byte; usize::from(count) % (len - offset).min(2 * BLOCK + 1)])
        };
        let (mut model, mut stack) = (pattern(len), Stack::new(&pattern(len)));
        for (depth, generation) in generations.into_iter().enumerate() {
            let before = stack.contents();
            prop_assert_eq!(stack.open().unwrap().depth(), depth);
            prop_assert_eq!(&read(&mut stack.disk(), 0, len), &model);
            let writes: Vec<_> = generation.into_iter().map(place).collect();
            stack.seal(&writes);
            for (offset, bytes) in writes {
                model[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            let mut top = stack.disk();
            prop_assert_eq!(&read(&mut top, 0, len), &model);
            // What is written now is nobody else's.
            write(&mut top, 0, &vec![0xee; len]);
            prop_assert_eq!(&stack.contents()[..=depth], &before[..]);
        }
    }

    #[test]
    fn a_layer_has_what_its_map_says(map in any::<[u8; 16]>()) {
        let count = map.iter().map(|byte| u64::from(byte.count_ones())).sum();
        let layer = tempfile::tempfile().unwrap();
        layer.write_all_at(&layer::forge(128 * BLOCK_BYTES, &map, count), 128 * BLOCK_BYTES).unwrap();
        let layers = Layers::open(vec![file(&[1; 128 * BLOCK]), layer]).unwrap();
        for block in 0..128 {
            let bit = map[usize::try_from(block / 8).unwrap()] >> (block % 8) & 1;
            prop_assert_eq!(layers.owner(block), bit);
        }
    }

    #[test]
    fn any_file_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzzing::layers(&bytes);
    }
}
