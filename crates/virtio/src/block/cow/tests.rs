use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;

fn image(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn disk_over(image: &File) -> CowDisk {
    CowDisk::create(image.try_clone().unwrap(), &std::env::temp_dir()).unwrap()
}

fn disk(bytes: &[u8]) -> CowDisk {
    disk_over(&image(bytes))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

fn with_top<T>(disk: &CowDisk, look: impl Fn(&File) -> T) -> T {
    let disk = disk.lock();
    let disk = disk.as_ref().unwrap();
    look(disk.layers.file(disk.top()).unwrap())
}

/// Gives the disk another top; says which it had.
fn swap_top(disk: &CowDisk, other: File) -> File {
    let mut disk = disk.lock();
    disk.as_mut().unwrap().layers.replace_top(other)
}

fn read_only(file: &File) -> File {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

fn fresh() -> Fresh {
    let written = tempfile::tempfile().unwrap();
    Fresh { read: read_only(&written), written }
}

fn seal(disk: &CowDisk) -> Option<File> {
    disk.prepare(fresh(), read_only(&disk.top().unwrap())).unwrap().seal()
}

#[test]
fn a_whole_block_is_written_without_reading_the_image() {
    let image = image(&pattern(3 * BLOCK));
    let mut disk = disk_over(&image);
    // An image that lost its contents shows whether it is read.
    image.set_len(0).unwrap();
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
    let top = with_top(&disk, |top| top.metadata().unwrap());
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
    let image = image(&[]);
    image.set_len(1 << 40).unwrap();
    let layers = Layers::open(image.try_clone().unwrap(), Vec::new()).unwrap();
    // Whoever reads now finds nothing.
    image.set_len(0).unwrap();
    let mut disk = CowDisk::over(layers, tempfile::tempfile().unwrap()).unwrap();
    let last = (1 << 40) - BLOCK_BYTES;
    disk.write_at(Buffers::from(&mut [5; BLOCK][..]), last).unwrap();
    let mut bytes = [0; BLOCK];
    disk.read_at(Buffers::from(&mut bytes[..]), last).unwrap();
    assert_eq!(bytes, [5; BLOCK]);
    assert!(with_top(&disk, |top| top.metadata().unwrap().blocks() * 512) <= 64 << 10);
}

#[test]
fn a_write_that_fails_leaves_what_was_visible() {
    let mut disk = disk(&pattern(2 * BLOCK));
    disk.write_at(Buffers::from(&mut [9; 8][..]), 0).unwrap();
    let top = swap_top(&disk, File::open("/dev/zero").unwrap());
    disk.write_at(Buffers::from(&mut [1; 8][..]), BLOCK_BYTES).unwrap_err();
    swap_top(&disk, top);
    let mut bytes = [0; 8];
    disk.read_at(Buffers::from(&mut bytes[..]), BLOCK_BYTES).unwrap();
    assert_eq!(bytes, pattern(2 * BLOCK)[BLOCK..][..8]);
}

#[test]
fn sealing_moves_nothing_and_the_sealed_top_stays() {
    let mut disk = disk(&pattern(3 * BLOCK));
    disk.write_at(Buffers::from(&mut [1; 8][..]), 0).unwrap();
    let sealed = with_top(&disk, |top| top.try_clone().unwrap());
    seal(&disk).unwrap();
    assert_eq!(with_top(&disk, |top| top.metadata().unwrap().blocks()), 0);
    disk.write_at(Buffers::from(&mut [2; 4][..]), 0).unwrap();
    let mut bytes = [0; 9];
    disk.read_at(Buffers::from(&mut bytes[..]), 0).unwrap();
    assert_eq!(bytes, [2, 2, 2, 2, 1, 1, 1, 1, pattern(9)[8]]);
    sealed.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..8], [1; 8]);
}

#[test]
fn a_top_without_blocks_is_not_sealed() {
    let mut disk = disk(&pattern(BLOCK));
    for _ in 0..3 {
        assert!(seal(&disk).is_none());
    }
    assert_eq!(disk.lock().as_ref().unwrap().layers.files(), 2);
    disk.write_at(Buffers::from(&mut [1; 8][..]), 0).unwrap();
    seal(&disk).unwrap();
    // A fork taken now has the files that this disk does not write to.
    let sealed = disk.clone().take_sealed().unwrap();
    assert_eq!((sealed.files(), sealed.floor()), (2, 1));
    assert!(disk.take_sealed().is_none());
    assert_eq!(disk.top().unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.prepare(fresh(), image(&[])).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.write_layer(&image(&[])).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn what_is_sealed_can_only_be_read_by_both() {
    let mut source = disk(&pattern(2 * BLOCK));
    for byte in 1..4 {
        source.write_at(Buffers::from(&mut [byte; 8][..]), 0).unwrap();
        drop(seal(&source).unwrap());
    }
    source.write_at(Buffers::from(&mut [4; 8][..]), 0).unwrap();
    // What a process that was forked now would have.
    let prepared = source.prepare(fresh(), read_only(&source.top().unwrap())).unwrap();
    let layers = source.take_sealed().unwrap();
    assert_eq!(layers.files(), 5);
    for file in layers.iter().skip(1) {
        let error = file.write_all_at(&[9], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
    assert!(prepared.seal().is_none(), "there is nothing any more that could be written");
    let mut child = CowDisk::over(layers, tempfile::tempfile().unwrap()).unwrap();
    let mut bytes = [0; 8];
    child.read_at(Buffers::from(&mut bytes[..]), 0).unwrap();
    assert_eq!(bytes, [4; 8]);
}

#[test]
fn another_file_is_not_taken_for_the_top() {
    let mut disk = disk(&pattern(BLOCK));
    disk.write_at(Buffers::from(&mut [1; 8][..]), 0).unwrap();
    let error = disk.prepare(fresh(), image(&[1; BLOCK])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let crossed = Fresh { written: fresh().written, read: fresh().read };
    disk.prepare(crossed, read_only(&disk.top().unwrap())).unwrap_err();
    disk.write_at(Buffers::from(&mut [1; 8][..]), 0).unwrap();
    assert_eq!(disk.lock().as_ref().unwrap().layers.files(), 2);
}

#[test]
fn a_disk_takes_no_more_than_its_quota_and_goes_on() {
    let (mut one, mut other) = (disk(&pattern(8 * BLOCK)), disk(&pattern(8 * BLOCK)));
    let quota = Arc::new(Quota::new(3 * BLOCK_BYTES));
    one.limit(Arc::clone(&quota));
    other.limit(Arc::clone(&quota));
    let write = |disk: &mut CowDisk, blocks: usize, at: u64| {
        disk.write_at(Buffers::from(&mut vec![9; blocks * BLOCK][..]), at * BLOCK_BYTES)
    };
    write(&mut one, 2, 0).unwrap();
    write(&mut one, 2, 0).unwrap();
    assert!(!quota.was_exceeded());
    let error = write(&mut other, 2, 4).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(quota.was_exceeded());
    let mut bytes = vec![0; 2 * BLOCK];
    other.read_at(Buffers::from(&mut bytes[..]), 4 * BLOCK_BYTES).unwrap();
    assert_eq!(bytes, pattern(8 * BLOCK)[4 * BLOCK..6 * BLOCK], "what was refused changed nothing");
    write(&mut other, 1, 4).unwrap();
    write(&mut one, 1, 0).unwrap();
    // A block that was sealed is kept by the host beside the one that is written over it.
    seal(&one).unwrap();
    write(&mut one, 1, 0).unwrap_err();
}

#[test]
fn a_write_that_fails_leaves_the_quota_as_it_was() {
    let image = image(&pattern(2 * BLOCK));
    let mut disk = disk_over(&image);
    disk.limit(Arc::new(Quota::new(BLOCK_BYTES)));
    image.set_len(0).unwrap();
    disk.write_at(Buffers::from(&mut [9; 10][..]), 1).unwrap_err();
    disk.write_at(Buffers::from(&mut [9; BLOCK][..]), BLOCK_BYTES).unwrap();
}
