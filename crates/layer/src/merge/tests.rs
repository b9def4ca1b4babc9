use std::os::unix::fs::FileExt;

use super::*;
use crate::test_utils::{contents, empty, layer};

const LENGTH: u64 = 520 * BLOCK_BYTES - 100;

#[test]
fn what_became_zero_is_kept_or_left_out() {
    let layers = [layer(LENGTH, &[(1, 5), (2, 5), (519, 5)]), layer(LENGTH, &[(2, 0), (300, 0), (519, 0)])];
    let inherited = merge(&layers, Bottom::Inherit, &empty()).unwrap();
    assert_eq!(inherited.digest, layer(LENGTH, &[(1, 5), (2, 0), (300, 0), (519, 0)]).digest());
    let alone = merge(&layers, Bottom::Zero, &empty()).unwrap();
    assert_eq!(alone.digest, layer(LENGTH, &[(1, 5)]).digest());
}

#[test]
fn what_one_layer_has_is_copied_without_looking() {
    let layers = [layer(LENGTH, &[(1, 5), (2, 0), (519, 6)]), layer(LENGTH, &[(300, 7)])];
    let to = empty();
    let written = merge(&layers, Bottom::Inherit, &to).unwrap();
    let expected = layer(LENGTH, &[(1, 5), (2, 0), (300, 7), (519, 6)]);
    assert_eq!(written.digest, expected.digest());
    assert_eq!(contents(&to), contents(expected.file()));
}

#[test]
fn damage_does_not_get_a_new_name() {
    let damaged = layer(LENGTH, &[(1, 5), (2, 5)]);
    damaged.file().write_all_at(&[6], BLOCK_BYTES).unwrap();
    // Mixed with another layer, and hidden by it or not.
    for above in [1, 2, 3] {
        let layers = [layer(LENGTH, &[]), reopen(&damaged), layer(LENGTH, &[(above, 1)])];
        let error = merge(&layers, Bottom::Zero, &empty()).unwrap_err();
        assert!(matches!(error, MergeError::Layer { index: 2, source: LayerError::Contents { offset: 0 } }), "{error}");
    }
    // Alone it keeps the sums that tell.
    let to = empty();
    merge(&[damaged], Bottom::Zero, &to).unwrap();
    Layer::open(to, None).unwrap().check_quick().unwrap_err();
}

#[test]
fn layers_of_other_things_and_no_layers_are_refused() {
    assert!(matches!(merge(&[], Bottom::Zero, &empty()), Err(MergeError::Nothing)));
    let layers = [layer(LENGTH, &[]), layer(LENGTH + 1, &[])];
    assert!(matches!(merge(&layers, Bottom::Zero, &empty()), Err(MergeError::Layer { index: 2, .. })));
    let (first, to) = (layer(LENGTH, &[(1, 1)]), empty());
    to.set_len(1).unwrap();
    assert!(matches!(merge(&[first], Bottom::Zero, &to), Err(MergeError::Write { .. })));
}

fn reopen(layer: &Layer) -> Layer {
    Layer::open(layer.file().try_clone().unwrap(), None).unwrap()
}
