use proptest::prelude::*;

use super::*;
use crate::blocks::{BLOCK, BLOCK_BYTES, BlockSet};
use crate::fuzzing::forge;
use crate::test_utils::{contents, empty, layer, write};

const LENGTH: u64 = 520 * BLOCK_BYTES - 100;

fn stream(layer: &Layer) -> (Vec<u8>, Expected) {
    let mut bytes = Vec::new();
    export(layer, &mut bytes).unwrap();
    let dense_bytes = u64::try_from(bytes.len()).unwrap();
    assert_eq!(dense_bytes, dense_len(layer));
    (bytes, Expected { digest: layer.digest(), dense_bytes, max_length: LENGTH })
}

fn refused(bytes: &[u8], expected: &Expected) -> String {
    import(&mut &bytes[..], expected, &empty()).unwrap_err().to_string()
}

proptest! {
    #[test]
    fn what_comes_out_is_the_same_file(
        blocks in prop::collection::btree_map(0_u64..520, 0_u8..3, 0..60),
    ) {
        let blocks: Vec<_> = blocks.into_iter().collect();
        let (file, written) = write(LENGTH, &blocks);
        let before = contents(&file);
        let (bytes, expected) = stream(&Layer::open(file, None).unwrap());
        let to = empty();
        prop_assert_eq!(import(&mut &bytes[..], &expected, &to).unwrap(), written);
        prop_assert_eq!(contents(&to), before);
        Layer::open(to, Some(LENGTH)).unwrap().check(|_| {}).unwrap();
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let (bytes, expected) = stream(&layer(LENGTH, &[(3, 1), (4, 0), (519, 7)]));
    for at in (0..bytes.len()).step_by(13).chain(0..64 + 2 * 112) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        import(&mut &flipped[..], &expected, &empty()).unwrap_err();
    }
    for cut in (0..bytes.len()).step_by(29) {
        assert!(matches!(import(&mut &bytes[..cut], &expected, &empty()), Err(DenseError::Read { .. })), "{cut}");
    }
}

#[test]
fn a_layer_is_refused_before_it_is_read_unless_it_is_the_one_expected() {
    let (bytes, expected) = stream(&layer(LENGTH, &[(3, 1)]));
    let (_, other) = stream(&layer(LENGTH, &[(3, 2)]));
    assert!(refused(&bytes, &Expected { digest: other.digest, ..expected }).contains("was expected"));
    for dense_bytes in [0, expected.dense_bytes - 1, expected.dense_bytes + 1] {
        let error = refused(&bytes, &Expected { dense_bytes, ..expected });
        assert!(error.contains("its table calls for"), "{error}");
    }
    assert!(refused(&bytes, &Expected { max_length: LENGTH - 1, ..expected }).contains("belongs to"));
    let (full, _) = write(LENGTH, &[(1, 1)]);
    assert!(matches!(import(&mut &bytes[..], &expected, &full), Err(DenseError::Write { .. })));
}

#[test]
fn a_footer_that_promises_too_much_takes_no_memory() {
    let footer = Footer { length: 4 << 40, entries: 4 << 20 };
    let digest = Digest::new([7; 32]);
    let bytes = [&footer.encode()[..], digest.as_bytes()].concat();
    let expected = Expected { digest, dense_bytes: 64 + 111 * (4 << 20), max_length: u64::MAX };
    assert!(refused(&bytes, &expected).contains("its table calls for"));
    let expected = Expected { dense_bytes: u64::MAX, ..expected };
    assert!(matches!(import(&mut &bytes[..], &expected, &empty()), Err(DenseError::Read { .. })));
}

#[test]
fn blocks_of_zeroes_that_are_not_called_so_do_not_come_in() {
    let mut has = BlockSet::default();
    has.insert(0..1);
    let zeroes = [0; BLOCK];
    let (quick, digest) = (xxhash_rust::xxh3::xxh3_64(&zeroes), blake3::hash(&zeroes).into());
    let entry = Entry { region: 0, has, zero: BlockSet::default(), quick, digest };
    let forged = Layer::open(forge(LENGTH, &[entry], &zeroes), None).unwrap();
    assert!(matches!(export(&forged, &mut Vec::new()), Err(DenseError::Layer(LayerError::Table { .. }))));
    let footer = Footer { length: LENGTH, entries: 1 };
    let bytes = [&footer.encode()[..], forged.digest().as_bytes(), &entry.encode(), &zeroes].concat();
    let dense_bytes = u64::try_from(bytes.len()).unwrap();
    let expected = Expected { digest: forged.digest(), dense_bytes, max_length: LENGTH };
    assert!(refused(&bytes, &expected).contains("that it is zero"));
}

#[test]
fn damage_does_not_leave() {
    let (file, _) = write(LENGTH, &[(3, 1)]);
    file.write_all_at(&[9], 3 * BLOCK_BYTES + 5).unwrap();
    let damaged = Layer::open(file, None).unwrap();
    let error = export(&damaged, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, DenseError::Layer(LayerError::Contents { offset: 0 })), "{error}");
}
