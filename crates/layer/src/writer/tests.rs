use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;

use super::*;
use crate::Layer;
use crate::test_utils::{contents, empty, file, write};

const LENGTH: u64 = 520 * BLOCK_BYTES - 100;

#[test]
fn holes_take_no_space_however_large_the_whole() {
    let (file, written) = write(1 << 40, &[(5, 1), (1 << 20, 2), ((1 << 28) - 1, 3)]);
    assert_eq!(written.stats.file_bytes, 3 * 4096 + 3 * 112 + 64);
    assert!(file.metadata().unwrap().blocks() * 512 <= 128 << 10);
    let layer = Layer::open(file, Some(1 << 40)).unwrap();
    assert_eq!(layer.blocks().map(|(run, _)| run.start).collect::<Vec<_>>(), [5, 1 << 20, (1 << 28) - 1]);
    layer.check(|_| {}).unwrap();
}

#[test]
fn blocks_come_whole_in_order_and_within_the_length() {
    let to = empty();
    let mut writer = Writer::create(&to, LENGTH).unwrap();
    let mut refused = |block, len| {
        let error = writer.put(block, &vec![1; len]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{block}, {len}");
    };
    refused(0, 100);
    refused(520, BLOCK);
    refused(u64::MAX, BLOCK);
    refused(519, BLOCK);
    refused(518, 2 * BLOCK - 101);
    let mut writer = Writer::create(&to, LENGTH).unwrap();
    writer.put(0, &[]).unwrap();
    writer.put(3, &[1; BLOCK]).unwrap();
    writer.put(3, &[1; BLOCK]).unwrap_err();
    writer.zero(2, 1).unwrap_err();
    writer.zero(4, u64::MAX).unwrap_err();
    writer.put(518, &[1; 2 * BLOCK - 100]).unwrap();
    writer.zero(520, 1).unwrap_err();
    assert_eq!(writer.finish().unwrap().stats.blocks, 3);
}

#[test]
fn a_layer_is_only_written_into_an_empty_file_that_keeps_places() {
    let (full, _) = write(LENGTH, &[(1, 1)]);
    let before = contents(&full);
    assert_eq!(Writer::create(&full, LENGTH).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(contents(&full), before);
    assert_eq!(Writer::create(&empty(), MAX_LENGTH + 1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    let dir = tempfile::tempdir().unwrap();
    let appending = File::options().create(true).append(true).read(true).open(dir.path().join("a")).unwrap();
    Writer::create(&appending, LENGTH).unwrap().finish().unwrap_err();
    // A file that cannot be written is an error and no layer.
    let mut writer = Writer::create(&appending, LENGTH);
    assert_eq!(writer.as_mut().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let path = dir.path().join("b");
    drop(File::create(&path).unwrap());
    Writer::create(&File::open(&path).unwrap(), LENGTH).unwrap().finish().unwrap_err();
}

proptest! {
    #[test]
    fn the_same_contents_are_the_same_file_however_they_came(
        start in 200_u64..300,
        bytes in prop::collection::vec(0_u8..3, 1..120),
        cuts in prop::collection::vec(1_usize..20, 1..5),
    ) {
        let blocks: Vec<_> = (start..).zip(bytes.iter().copied()).collect();
        let (one_by_one, written) = write(LENGTH, &blocks);
        let whole: Vec<u8> = bytes.iter().flat_map(|byte| [*byte; BLOCK]).collect();
        let (mut rest, mut at, to) = (&whole[..], start, empty());
        let mut writer = Writer::create(&to, LENGTH).unwrap();
        for cut in cuts.iter().cycle() {
            let (piece, after) = rest.split_at((cut * BLOCK).min(rest.len()));
            if blocks::is_zero(piece) && cut % 2 == 0 {
                writer.zero(at, blocks::count(piece.len() as u64)).unwrap();
            } else {
                writer.put(at, piece).unwrap();
            }
            (rest, at) = (after, at + blocks::count(piece.len() as u64));
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(writer.finish().unwrap(), written);
        prop_assert_eq!(contents(&to), contents(&one_by_one));
        let layer = Layer::open(file(&contents(&to)), None).unwrap();
        layer.check(|_| {}).unwrap();
        prop_assert_eq!(layer.digest(), written.digest);
    }
}
