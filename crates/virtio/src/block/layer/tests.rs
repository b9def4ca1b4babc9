use std::io::Write;
use std::os::unix::fs::MetadataExt;

use super::*;

/// Ten blocks, the last of them short.
const DISK_LEN: u64 = 10 * BLOCK_BYTES - 100;

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

/// A layer with blocks 1, 2 and 9 of a disk full of sevens.
fn sealed() -> (File, LayerStats) {
    let top = file(&vec![7; usize::try_from(DISK_LEN).unwrap()]);
    let mut map = BlockMap::new(DISK_LEN).unwrap();
    map.insert(1..3);
    map.insert(9..10);
    let to = tempfile::tempfile().unwrap();
    let stats = write(&top, &map, DISK_LEN, &to).unwrap();
    (to, stats)
}

fn blocks_of(file: &File, disk_len: u64) -> Result<Vec<u64>, LayerFault> {
    let mut found = Vec::new();
    read(file, disk_len, |block| found.push(block)).map(|()| found)
}

#[test]
fn a_layer_has_the_blocks_of_the_map_and_no_others() {
    let (layer, stats) = sealed();
    assert_eq!(blocks_of(&layer, DISK_LEN).unwrap(), [1, 2, 9]);
    let data_bytes = 3 * BLOCK_BYTES - 100;
    assert_eq!(stats, LayerStats { blocks: 3, data_bytes, file_bytes: data_bytes + 8 + 64 });
    let bytes = contents(&layer);
    assert_eq!(bytes.len(), 10 * 4096 + 8 + 64);
    assert!(bytes[..4096].iter().chain(&bytes[3 * 4096..9 * 4096]).all(|byte| *byte == 0));
    assert!(bytes[4096..3 * 4096].iter().chain(&bytes[9 * 4096..10 * 4096 - 100]).all(|byte| *byte == 7));
}

#[test]
fn the_empty_part_of_a_large_map_takes_no_space() {
    let disk_len = 1 << 40;
    let top = tempfile::tempfile().unwrap();
    top.set_len(disk_len).unwrap();
    let mut map = BlockMap::new(disk_len).unwrap();
    map.insert(1 << 20..(1 << 20) + 1);
    let to = tempfile::tempfile().unwrap();
    let stats = write(&top, &map, disk_len, &to).unwrap();
    assert_eq!(stats.file_bytes, 4096 + 4096 + 64);
    assert!(to.metadata().unwrap().blocks() * 512 <= 128 << 10);
    assert_eq!(blocks_of(&to, disk_len).unwrap(), [1 << 20]);
}

#[test]
fn any_flipped_bit_of_map_or_footer_is_noticed() {
    let good = contents(&sealed().0);
    let layer = file(&good);
    for (place, byte) in (0..).zip(&good).skip(10 * 4096) {
        for bit in 0..8 {
            layer.write_all_at(&[byte ^ 1 << bit], place).unwrap();
            assert!(blocks_of(&layer, DISK_LEN).is_err(), "byte {place}, bit {bit}");
        }
        layer.write_all_at(&[*byte], place).unwrap();
    }
    assert_eq!(blocks_of(&layer, DISK_LEN).unwrap(), [1, 2, 9]);
}

#[test]
fn a_layer_that_is_cut_or_continued_is_refused() {
    let (layer, _) = sealed();
    let good = contents(&layer);
    let len = u64::try_from(good.len()).unwrap();
    for cut in (0..len).step_by(512).chain([len - 1, len + 1, len + 512]) {
        layer.set_len(cut).unwrap();
        assert!(matches!(blocks_of(&layer, DISK_LEN), Err(LayerFault::Foreign)), "cut at {cut}");
        layer.write_all_at(&good, 0).unwrap();
        layer.set_len(len).unwrap();
    }
    // Even when its new end looks like a footer.
    layer.write_all_at(&good[good.len() - 64..], len + 448).unwrap();
    let fault = blocks_of(&layer, DISK_LEN).unwrap_err().to_string();
    assert_eq!(fault, format!("it has {} bytes instead of {len}", len + 512));
}

#[test]
fn a_refusal_names_what_was_found() {
    let (layer, _) = sealed();
    let fault = |at: usize, bytes: &[u8]| {
        let mut changed = contents(&layer);
        let at = changed.len() - 64 + at;
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        blocks_of(&file(&changed), DISK_LEN).unwrap_err().to_string()
    };
    assert_eq!(fault(0, b"x"), "it is not a disk layer, or its end is missing");
    assert_eq!(fault(8, &[2]), "it is of format 2; this build reads format 1");
    assert_eq!(fault(12, &512_u32.to_le_bytes()), "its blocks have 512 bytes; this build reads blocks of 4096");
    assert_eq!(fault(16, &4096_u64.to_le_bytes()), "it belongs to a disk of 4096 bytes, and this one has 40860");
    assert_eq!(fault(63, &[0]), "its map is damaged: it does not match its checksum");
    let other = blocks_of(&layer, DISK_LEN + 1).unwrap_err().to_string();
    assert_eq!(other, "it belongs to a disk of 40860 bytes, and this one has 40861");
}

#[test]
fn a_forged_map_cannot_name_blocks_that_are_not_there() {
    let forged = |map: &[u8], count| {
        let layer = file(&forge(DISK_LEN, map, count));
        let bytes = [vec![0; 10 * 4096], contents(&layer)].concat();
        blocks_of(&file(&bytes), DISK_LEN)
    };
    assert_eq!(forged(&[1, 2], 2).unwrap(), [0, 9]);
    assert!(matches!(forged(&[1, 4], 2), Err(LayerFault::Map { .. })), "block 10 of ten");
    assert!(matches!(forged(&[1, 2], 3), Err(LayerFault::Map { .. })), "two blocks, not three");
}

#[test]
fn a_layer_is_only_written_into_an_empty_file_that_keeps_places() {
    let (layer, _) = sealed();
    let mut map = BlockMap::new(DISK_LEN).unwrap();
    map.insert(3..4);
    let before = contents(&layer);
    assert_eq!(write(&layer, &map, DISK_LEN, &layer).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(contents(&layer), before);
    let dir = tempfile::tempdir().unwrap();
    let appending = File::options().create(true).append(true).read(true).open(dir.path().join("a")).unwrap();
    write(&layer, &map, DISK_LEN, &appending).unwrap_err();
}

#[test]
fn where_the_kernel_does_not_copy_we_do() {
    let bytes: Vec<u8> = (0..3 * COPY_CHUNK).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let (from, to) = (file(&bytes), tempfile::tempfile().unwrap());
    let mut copier = Copier { buffer: vec![0; COPY_CHUNK], ..Copier::new(&from, &to) };
    let end = bytes.len() - 5;
    copier.copy(10..u64::try_from(end).unwrap()).unwrap();
    let copied = contents(&to);
    assert!(copied[..10] == [0; 10] && copied[10..] == bytes[10..end]);
    // A directory is something the kernel does not copy to.
    let elsewhere = File::open(std::env::temp_dir()).unwrap();
    Copier::new(&from, &elsewhere).copy(0..10).unwrap_err();
    // What is not there cannot be copied either.
    Copier::new(&from, &to).copy(0..u64::try_from(bytes.len()).unwrap() + 1).unwrap_err();
}
