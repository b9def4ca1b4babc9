use proptest::prelude::*;
use rustix::fs::FallocateFlags;

use super::*;
use crate::blocks::{BLOCK, BlockSet};
use crate::format::table_at;
use crate::fuzzing::{self, forge};
use crate::test_utils::{contents, file, layer, write};

/// Two regions and a bit, the last block short.
const LENGTH: u64 = 520 * BLOCK_BYTES - 100;
const BLOCKS: [(u64, u8); 5] = [(1, 7), (2, 7), (3, 0), (300, 9), (519, 5)];

fn open(bytes: &[u8]) -> Result<Layer, LayerError> {
    Layer::open(file(bytes), Some(LENGTH))
}

#[test]
fn a_layer_has_its_blocks_and_no_others() {
    let (file, written) = write(LENGTH, &BLOCKS);
    let layer = Layer::open(file, None).unwrap();
    let runs: Vec<_> = layer.blocks().collect();
    let data = |run| (run, Kind::Data);
    assert_eq!(runs, [data(1..3), (3..4, Kind::Zero), data(300..301), data(519..520)]);
    assert_eq!((layer.digest(), layer.stats(), layer.len_bytes()), (written.digest, written.stats, LENGTH));
    let data_bytes = 4 * BLOCK_BYTES - 100;
    let file_bytes = data_bytes + 3 * 112 + 64;
    assert_eq!(written.stats, LayerStats { blocks: 5, zero_blocks: 1, data_bytes, file_bytes });
    let mut heard = Vec::new();
    layer.check(|done| heard.push(done)).unwrap();
    assert_eq!(heard, [2 * BLOCK_BYTES, 3 * BLOCK_BYTES, data_bytes]);
    layer.check_quick().unwrap();
}

#[test]
fn any_flipped_bit_of_table_or_footer_is_noticed() {
    let good = contents(&write(LENGTH, &BLOCKS).0);
    let bad = file(&good);
    for (place, byte) in (0..).zip(&good).skip(usize::try_from(table_at(LENGTH)).unwrap()) {
        for bit in 0..8 {
            bad.write_all_at(&[byte ^ 1 << bit], place).unwrap();
            let opened = Layer::open(bad.try_clone().unwrap(), None);
            assert!(opened.is_err(), "byte {place}, bit {bit}");
        }
        bad.write_all_at(&[*byte], place).unwrap();
    }
    Layer::open(bad, None).unwrap().check(|_| {}).unwrap();
}

#[test]
fn any_flipped_bit_of_the_contents_is_noticed() {
    let (file, _) = write(LENGTH, &BLOCKS);
    let layer = Layer::open(file.try_clone().unwrap(), None).unwrap();
    let good = contents(&file);
    // In data, in what became zero, in holes, in regions without an entry, and behind a short last block.
    let end = usize::try_from(table_at(LENGTH)).unwrap();
    for place in (0..end).step_by(1021).chain([4095, 4096, 3 * BLOCK - 1, 3 * BLOCK, end - 100, end - 1]) {
        let bit = 1 << (place % 8);
        file.write_all_at(&[good[place] ^ bit], u64::try_from(place).unwrap()).unwrap();
        let noticed = |result| matches!(result, Err(LayerError::Contents { .. } | LayerError::Stray { .. }));
        assert!(noticed(layer.check_quick()), "byte {place}");
        assert!(noticed(layer.check(|_| {})), "byte {place}");
        file.write_all_at(&good[place..=place], u64::try_from(place).unwrap()).unwrap();
    }
    // Zeroes that take space are no damage.
    layer.check(|_| {}).unwrap();
}

#[test]
fn lost_data_is_noticed() {
    let (file, _) = write(LENGTH, &BLOCKS);
    let layer = Layer::open(file.try_clone().unwrap(), None).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 300 * BLOCK_BYTES, BLOCK_BYTES).unwrap();
    assert!(matches!(layer.check_quick(), Err(LayerError::Contents { offset: 0x10_0000 })));
    file.set_len(BLOCK_BYTES).unwrap();
    assert!(matches!(layer.check_quick(), Err(LayerError::Io { .. })));
}

#[test]
fn a_layer_that_is_cut_or_continued_is_refused() {
    let good = contents(&write(LENGTH, &BLOCKS).0);
    let table = usize::try_from(table_at(LENGTH)).unwrap();
    for cut in (0..table).step_by(100_000).chain(table..good.len()) {
        assert!(open(&good[..cut]).is_err(), "cut at {cut}");
    }
    for more in [1, 64, 112, 4096] {
        assert!(open(&[&good[..], &vec![0; more]].concat()).is_err(), "{more} more");
    }
    // Even when its new end looks like a footer.
    let error = open(&[&good[..], &[0; 448], &good[good.len() - 64..]].concat()).unwrap_err();
    assert!(matches!(error, LayerError::Length { .. }), "{error}");
}

#[test]
fn a_refusal_names_what_was_found() {
    let good = contents(&write(LENGTH, &BLOCKS).0);
    let fault = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        let at = changed.len() - 64 + at;
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        open(&changed).unwrap_err().to_string()
    };
    assert_eq!(fault(0, b"x"), "it is not a layer, or its end is missing");
    assert_eq!(fault(8, &[1]), "it is of format 1; this build reads format 2");
    assert_eq!(fault(12, &512_u32.to_le_bytes()), "its blocks have 512 bytes; this build reads blocks of 4096");
    let huge = (MAX_LENGTH + 1).to_le_bytes();
    assert_eq!(fault(16, &huge), "it is of 4398046511105 bytes; at most 4398046511104 are possible");
    assert_eq!(fault(24, &4_u64.to_le_bytes()), "its table is damaged: it has more entries than there are regions");
    assert_eq!(fault(63, &[good[good.len() - 1] ^ 1]), "its table is damaged: it does not match its digest");
    let other = Layer::open(file(&good), Some(LENGTH + 1)).unwrap_err().to_string();
    assert_eq!(other, format!("it belongs to {LENGTH} bytes of disk or memory, and here are {}", LENGTH + 1));
}

#[test]
fn a_forged_table_cannot_say_what_cannot_be() {
    let entry = |region, has: Range<u64>, zero: Range<u64>| {
        let mut entry =
            Entry { region, has: BlockSet::default(), zero: BlockSet::default(), quick: 0, digest: [0; 32] };
        entry.has.insert(has);
        entry.zero.insert(zero);
        entry
    };
    let refused = |entries: &[Entry]| match Layer::open(forge(LENGTH, entries, &[]), None) {
        Ok(_) => panic!("{entries:?} was accepted"),
        Err(error) => assert!(matches!(error, LayerError::Table { .. }), "{error}"),
    };
    refused(&[entry(0, 0..0, 0..0)]);
    refused(&[entry(0, 0..2, 1..3)]);
    refused(&[entry(1, 0..1, 0..0), entry(1, 1..2, 0..0)]);
    refused(&[entry(1, 0..1, 0..0), entry(0, 0..1, 0..0)]);
    refused(&[entry(2, 7..9, 0..0)]);
    refused(&[entry(3, 0..1, 0..0)]);
    refused(&[entry(u64::MAX, 0..1, 0..0)]);
    Layer::open(forge(LENGTH, &[entry(0, 0..1, 0..0), entry(2, 7..8, 7..8)], &[]), None).unwrap();
}

#[test]
fn a_forged_layer_cannot_have_zeroes_as_data() {
    let mut has = BlockSet::default();
    has.insert(0..1);
    let data = [0; BLOCK];
    let (quick, digest) = (xxhash_rust::xxh3::xxh3_64(&data), blake3::hash(&data).into());
    let entry = Entry { region: 0, has, zero: BlockSet::default(), quick, digest };
    let layer = Layer::open(forge(LENGTH, &[entry], &[]), None).unwrap();
    assert!(matches!(layer.check(|_| {}), Err(LayerError::Table { .. })));
    assert!(matches!(layer.check_quick(), Err(LayerError::Table { .. })));
}

#[test]
fn a_large_hole_with_a_footer_makes_us_hold_nothing() {
    // As many entries as there may be, none of which is one.
    let length = MAX_LENGTH;
    let footer = Footer { length, entries: length >> 20 };
    let file = rustix::fs::memfd_create("layer", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(file);
    let at = table_at(length) + footer.entries * ENTRY_BYTES;
    file.write_all_at(&[&footer.encode()[..], &[0; 32]].concat(), at).unwrap();
    assert!(matches!(Layer::open(file, None), Err(LayerError::Table { .. })));
}

#[test]
fn nothing_at_all_is_a_layer() {
    let layer = layer(0, &[]);
    assert_eq!((layer.blocks().count(), layer.stats().file_bytes), (0, 64));
    layer.check(|_| {}).unwrap();
    assert!(matches!(open(&[]), Err(LayerError::Foreign)));
}

proptest! {
    #[test]
    fn any_file_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzzing::layer(&bytes);
    }

    #[test]
    fn any_plausible_file_is_answered(mode in 1_u8..3, mut bytes in prop::collection::vec(any::<u8>(), 4..600)) {
        (bytes[0], bytes[2]) = (mode, bytes[2] % 16);
        fuzzing::layer(&bytes);
    }
}
