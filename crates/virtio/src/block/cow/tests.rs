use std::io::Write;
use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;

use super::super::backend::image_len;
use super::*;

fn image(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn disk(bytes: &[u8]) -> CowDisk {
    CowDisk::create(image(bytes), &std::env::temp_dir()).unwrap()
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(image_len(file).unwrap()).unwrap()];
    read_all(file, Buffers::from(bytes.as_mut_slice()), 0).unwrap();
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

#[test]
fn a_whole_block_is_written_without_reading_the_image() {
    let mut disk = disk(&pattern(3 * BLOCK));
    // An image that lost its contents shows whether it is read.
    disk.layers.file(0).set_len(0).unwrap();
    disk.write_at(Buffers::from(&mut [9; BLOCK][..]), BLOCK_BYTES).unwrap();
    disk.write_at(Buffers::from(&mut [9; 10][..]), 1).unwrap_err();
    let mut bytes = [0; BLOCK];
    disk.read_at(Buffers::from(&mut bytes[..]), BLOCK_BYTES).unwrap();
    assert_eq!(bytes, [9; BLOCK]);
}

#[test]
fn only_written_blocks_take_space() {
    let mut disk = disk(&pattern(256 * BLOCK));
    disk.write_at(Buffers::from(&mut [1; 3][..]), 100 * BLOCK_BYTES + 5).unwrap();
    let top = disk.top().file.metadata().unwrap();
    assert!(top.blocks() * 512 <= 2 * BLOCK_BYTES);
    assert_eq!(top.nlink(), 0);
}

#[test]
fn a_write_beyond_the_end_changes_nothing() {
    let mut disk = disk(&pattern(BLOCK));
    disk.write_at(Buffers::from(&mut [1; 2][..]), BLOCK_BYTES - 1).unwrap_err();
    disk.write_at(Buffers::from(&mut [1; 2][..]), u64::MAX).unwrap_err();
    disk.read_at(Buffers::from(&mut [0; 2][..]), BLOCK_BYTES - 1).unwrap_err();
    let mut bytes = [0];
    disk.read_at(Buffers::from(&mut bytes[..]), BLOCK_BYTES - 1).unwrap();
    assert_eq!(bytes[0], pattern(BLOCK)[BLOCK - 1]);
}

#[test]
fn a_clone_is_the_same_disk() {
    let mut disk = disk(&pattern(BLOCK));
    let mut clone = disk.clone();
    disk.write_at(Buffers::from(&mut [9; 3][..]), 1).unwrap();
    let mut bytes = [0; 3];
    clone.read_at(Buffers::from(&mut bytes[..]), 1).unwrap();
    assert_eq!(bytes, [9; 3]);
}

#[test]
fn a_new_top_is_made_without_reading_and_takes_no_space() {
    let files = vec![image(&pattern(BLOCK))];
    files[0].set_len(1 << 40).unwrap();
    let layers = Arc::new(Layers::open(files).unwrap());
    // Whoever reads now finds nothing.
    layers.file(0).set_len(0).unwrap();
    let mut disk = CowDisk::over(layers, &std::env::temp_dir()).unwrap();
    let last = (1 << 40) - BLOCK_BYTES;
    disk.write_at(Buffers::from(&mut [5; BLOCK][..]), last).unwrap();
    let mut bytes = [0; BLOCK];
    disk.read_at(Buffers::from(&mut bytes[..]), last).unwrap();
    assert_eq!(bytes, [5; BLOCK]);
    assert!(disk.top().file.metadata().unwrap().blocks() * 512 <= 64 << 10);
}

proptest! {
    #[test]
    fn it_behaves_like_memory_and_spares_the_image(
        len in 1_usize..6 * BLOCK,
        transfers in prop::collection::vec((any::<bool>(), any::<u16>(), any::<u16>(), any::<u8>()), 0..40),
    ) {
        let mut model = pattern(len);
        let mut disk = disk(&model);
        for (write, offset, count, byte) in transfers {
            let offset = usize::from(offset) % (len + 1);
            let count = usize::from(count) % (len - offset + 1);
            let mut bytes = vec![byte; count];
            let buffers = Buffers::from(bytes.as_mut_slice());
            if write {
                disk.write_at(buffers, offset as u64).unwrap();
                model[offset..offset + count].fill(byte);
            } else {
                disk.read_at(buffers, offset as u64).unwrap();
                prop_assert_eq!(&bytes, &model[offset..offset + count]);
            }
        }
        let mut all = vec![0; len];
        disk.read_at(Buffers::from(all.as_mut_slice()), 0).unwrap();
        prop_assert_eq!(all, model);
        prop_assert_eq!(contents(disk.layers.file(0)), pattern(len));
    }
}
