use proptest::prelude::*;

use super::*;
use crate::blocks::BLOCK;
use crate::test_utils::{contents, empty, file, layer};
use crate::{Bottom, Writer, flatten, merge};

/// More than a region, the last block short.
const BLOCKS: u64 = 260;
const LENGTH: u64 = BLOCKS * BLOCK_BYTES - 10;

fn pattern() -> Vec<u8> {
    (0..usize::try_from(LENGTH).unwrap()).map(|at| u8::try_from(at / 7 % 250 + 1).unwrap()).collect()
}

fn range(blocks: &Range<u64>) -> Range<usize> {
    let bytes = blocks::bytes_of(blocks, LENGTH);
    usize::try_from(bytes.start).unwrap()..usize::try_from(bytes.end).unwrap()
}

/// A layer of the given blocks of some contents.
fn layer_of(model: &[u8], runs: &[Range<u64>]) -> Layer {
    let to = empty();
    let mut writer = Writer::create(&to, LENGTH).unwrap();
    let mut has = Owners::new(BLOCKS);
    runs.iter().for_each(|run| has.claim(run.clone(), 1));
    for (run, _) in has.runs(0..BLOCKS).filter(|(_, owner)| *owner == 1) {
        writer.put(run.start, &model[range(&run)]).unwrap();
    }
    writer.finish().unwrap();
    Layer::open(to, Some(LENGTH)).unwrap()
}

fn again(layer: &Layer) -> Layer {
    Layer::open(layer.file().try_clone().unwrap(), None).unwrap()
}

fn read(stack: &Stack) -> Vec<u8> {
    let mut bytes = vec![1; usize::try_from(stack.len_bytes()).unwrap()];
    stack.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn only_layers_of_the_same_length_go_together() {
    let error = Stack::open(Base::Zero { length: LENGTH }, vec![layer(LENGTH, &[]), layer(4096, &[])]).unwrap_err();
    assert!(matches!(error, StackError::Layer { index: 2, source: LayerError::Whole { found: 4096, .. } }), "{error}");
    assert!(matches!(Stack::open(Base::Zero { length: u64::MAX }, vec![]), Err(StackError::TooLarge { .. })));
    let image = empty();
    image.set_len(MAX_LENGTH + 1).unwrap();
    assert!(matches!(Stack::open(Base::Image(image), vec![]), Err(StackError::TooLarge { .. })));
}

#[test]
fn nothing_is_read_beyond_the_end() {
    let stack = Stack::open(Base::Zero { length: LENGTH }, vec![layer(LENGTH, &[(259, 7)])]).unwrap();
    let mut bytes = [0; 11];
    stack.read_at(&mut bytes[..10], LENGTH - 10).unwrap();
    assert_eq!(bytes[..10], [7; 10]);
    stack.read_at(&mut bytes, LENGTH - 10).unwrap_err();
    stack.read_at(&mut bytes, u64::MAX).unwrap_err();
    assert_eq!((stack.owner(259), stack.owner(258), stack.owner(u64::MAX)), (1, 0, 0));
}

#[test]
fn flattening_wants_an_empty_file_and_leaves_holes() {
    use std::os::unix::fs::MetadataExt;
    let length = 1 << 30;
    let layers = vec![layer(length, &[(7, 1), (9, 1)]), layer(length, &[(9, 0), (200_000, 2)])];
    let stack = Stack::open(Base::Zero { length }, layers).unwrap();
    flatten(&stack, &file(&[1])).unwrap_err();
    let to = empty();
    flatten(&stack, &to).unwrap();
    assert_eq!(to.metadata().unwrap().len(), length);
    assert!(to.metadata().unwrap().blocks() * 512 <= 64 << 10);
    let mut block = [1; BLOCK];
    for (number, byte) in [(7, 1), (9, 0), (200_000, 2), (0, 0)] {
        to.read_exact_at(&mut block, number * BLOCK_BYTES).unwrap();
        assert_eq!(block, [byte; BLOCK]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn layers_add_up_and_any_of_them_can_be_merged(
        on_image in any::<bool>(),
        steps in prop::collection::vec(
            prop::collection::vec((0..BLOCKS, 1_u64..40, 0_u8..4), 0..5), 1..6),
        part in (0_usize..6, 0_usize..6),
        odd in (0..LENGTH, 0_u64..20_000),
    ) {
        let zeroes = vec![0; usize::try_from(LENGTH).unwrap()];
        let mut model = if on_image { pattern() } else { zeroes };
        let base = || if on_image { Base::Image(file(&pattern())) } else { Base::Zero { length: LENGTH } };
        let mut layers = Vec::new();
        for writes in steps {
            let mut runs = Vec::new();
            for (start, len, byte) in writes {
                let run = start..(start + len).min(BLOCKS);
                model[range(&run)].fill(byte);
                runs.push(run);
            }
            layers.push(layer_of(&model, &runs));
        }
        let stack = Stack::open(base(), layers.iter().map(again).collect()).unwrap();
        prop_assert!(read(&stack) == model);
        let odd = odd.0..(odd.0 + odd.1).min(LENGTH);
        let mut bytes = vec![1; blocks::len_of(&odd)];
        stack.read_at(&mut bytes, odd.start).unwrap();
        prop_assert!(bytes == model[usize::try_from(odd.start).unwrap()..usize::try_from(odd.end).unwrap()]);
        let flat = empty();
        flatten(&stack, &flat).unwrap();
        prop_assert!(contents(&flat) == model);

        // Any neighbours may become one.
        let first = part.0 % layers.len();
        let last = first + part.1 % (layers.len() - first);
        let to = empty();
        let written = merge(&layers[first..=last], Bottom::Inherit, &to).unwrap();
        let merged = Layer::open(to, Some(LENGTH)).unwrap();
        merged.check(|_| {}).unwrap();
        prop_assert_eq!((merged.digest(), merged.stats()), (written.digest, written.stats));
        let (below, above) = (&layers[..first], &layers[last + 1..]);
        let chain = below.iter().map(again).chain([merged]).chain(above.iter().map(again)).collect();
        prop_assert!(read(&Stack::open(base(), chain).unwrap()) == model);
        if !on_image {
            let to = empty();
            let written = merge(&layers, Bottom::Zero, &to).unwrap();
            prop_assert_eq!(written.stats.zero_blocks, 0);
            let data = (0..BLOCKS).filter(|block| !blocks::is_zero(&model[range(&(*block..block + 1))]));
            let data: Vec<_> = data.map(|block| block..block + 1).collect();
            prop_assert_eq!(written.digest, layer_of(&model, &data).digest(), "the same contents, the same name");
            let alone = Layer::open(to, Some(LENGTH)).unwrap();
            alone.check(|_| {}).unwrap();
            prop_assert!(read(&Stack::open(base(), vec![alone]).unwrap()) == model);
        }
    }
}
