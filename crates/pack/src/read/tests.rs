use proptest::prelude::*;

use super::*;
use crate::testing::{AS_IT_IS, Raw, World, list, manifest, members, zipped};

fn good() -> (World, Vec<Raw>) {
    (World::new(), members(&World::with_chain().pack("next")))
}

#[test]
fn what_is_taken_apart_and_put_together_is_still_a_pack() {
    let (world, raw) = good();
    assert_eq!(raw[0].path, "manifest.toml");
    world.unpack(&zipped(&raw), &AS_IT_IS).unwrap();
}

#[test]
fn members_that_lead_elsewhere_are_refused_listed_or_not() {
    let (world, raw) = good();
    for path in ["../../etc/passwd", "/etc/passwd", "snapshots/../../x", "layers/../x", "./manifest.toml", "x"] {
        for at in [1, raw.len()] {
            let mut raw = raw.clone();
            raw.insert(at, Raw::file(path, b"x"));
            let error = world.refuses(&zipped(&raw));
            assert!(error.contains("comes where the list has") || error.contains("not in the list"), "{error}");
        }
        let mut raw = raw.clone();
        let text = String::from_utf8(raw[0].body.clone()).unwrap();
        raw[0].body = text.replace("snapshots/1/state", path).into_bytes();
        let error = world.refuses(&zipped(&raw));
        assert!(error.contains("is no member of a pack"), "{error}");
    }
}

#[test]
fn only_plain_files_are_members() {
    let (world, raw) = good();
    for (kind, word) in [
        (EntryType::Symlink, "symbolic link"),
        (EntryType::Link, "hard link"),
        (EntryType::Directory, "directory"),
        (EntryType::Char, "device"),
        (EntryType::Block, "device"),
        (EntryType::Fifo, "pipe"),
        (EntryType::XHeader, "extension"),
        (EntryType::XGlobalHeader, "extension"),
        (EntryType::GNULongName, "extension"),
        (EntryType::GNULongLink, "extension"),
        (EntryType::GNUSparse, "extension"),
        (EntryType::Continuous, "extension"),
    ] {
        let mut changed = raw.clone();
        (changed[2].kind, changed[2].link) = (kind, Some("/etc/passwd".into()));
        let error = world.refuses(&zipped(&changed));
        assert!(error.contains(word), "{kind:?}: {error}");
        // In front of all, and as one too many.
        let extra = Raw { path: "x".into(), kind, link: Some("/etc".into()), body: b"16 path=/etc/x\n".to_vec() };
        for at in [0, 1, raw.len()] {
            let mut changed = raw.clone();
            changed.insert(at, extra.clone());
            world.refuses(&zipped(&changed));
        }
    }
}

#[test]
fn members_come_once_all_and_in_order() {
    let (world, raw) = good();
    let mut twice = raw.clone();
    twice.insert(2, raw[1].clone());
    assert!(world.refuses(&zipped(&twice)).contains("comes where the list has"));
    let mut extra = raw.clone();
    extra.push(raw[1].clone());
    assert!(world.refuses(&zipped(&extra)).contains("not in the list"));
    let mut swapped = raw.clone();
    swapped.swap(1, 2);
    assert!(world.refuses(&zipped(&swapped)).contains("comes where the list has"));
    let missing = &raw[..raw.len() - 1];
    assert!(world.refuses(&zipped(missing)).contains("is missing"));
    let mut headless = raw.clone();
    headless.remove(0);
    assert!(world.refuses(&zipped(&headless)).contains("comes where `manifest.toml` should"));
    let mut listed_twice = raw.clone();
    let mut said = manifest(&raw);
    said.files.push(said.files[0].clone());
    listed_twice[0].body = said.to_text().into_bytes();
    assert!(world.refuses(&zipped(&listed_twice)).contains("listed twice"));
    // A layer that a snapshot needs, neither listed nor there.
    let mut short = raw.clone();
    let at = short.iter().position(|member| member.path.starts_with("layers/")).unwrap();
    short.remove(at);
    list(&mut short);
    assert!(world.refuses(&zipped(&short)).contains("is missing"));
}

#[test]
fn members_have_the_size_and_the_sum_that_is_listed() {
    let (world, raw) = good();
    for at in 1..raw.len() {
        let mut flipped = raw.clone();
        let middle = flipped[at].body.len() / 2;
        flipped[at].body[middle] ^= 1;
        world.refuses(&zipped(&flipped));
        let mut longer = raw.clone();
        longer[at].body.push(0);
        assert!(world.refuses(&zipped(&longer)).contains("and the list says"), "{}", raw[at].path);
        // A layer is checked by its own sums as well.
        if flipped[at].path.starts_with("layers/") {
            list(&mut flipped);
            assert!(world.refuses(&zipped(&flipped)).contains("is not what it should be"));
            list(&mut longer);
            assert!(world.refuses(&zipped(&longer)).contains("its table calls for"));
        }
    }
}

#[test]
fn a_layer_under_another_name_is_refused() {
    let (world, mut raw) = good();
    let layers: Vec<_> = (0..raw.len()).filter(|at| raw[*at].path.starts_with("layers/")).collect();
    let body = raw[layers[0]].body.clone();
    raw[layers[1]].body = body;
    list(&mut raw);
    assert!(world.refuses(&zipped(&raw)).contains("was expected"));
}

#[test]
fn a_stream_that_is_cut_or_goes_on_is_refused() {
    let world = World::new();
    let pack = World::with_chain().pack("base");
    for cut in (0..pack.len()).step_by(pack.len() / 40) {
        world.refuses(&pack[..cut]);
    }
    world.refuses(&pack[..pack.len() - 1]);
    for more in [&b"x"[..], &pack, &[0; 4096]] {
        assert!(world.refuses(&[&pack, more].concat()).contains("more in it than it lists"));
    }
    assert!(world.refuses(b"PK\x03\x04").contains("not compressed with zstd"));
    assert!(world.refuses(b"").contains("not compressed with zstd"));
}

#[test]
fn what_follows_the_end_of_the_tar_is_refused() {
    let (world, raw) = good();
    let mut tar = zstd::decode_all(&zipped(&raw)[..]).unwrap();
    tar.extend([0; 10240]);
    world.unpack(&zstd::encode_all(&tar[..], 1).unwrap(), &AS_IT_IS).unwrap();
    let world = World::new();
    let last = tar.len() - 1;
    tar[last] = 1;
    assert!(world.refuses(&zstd::encode_all(&tar[..], 1).unwrap()).contains("more in it"));
    tar[last] = 0;
    tar.resize(tar.len() + (1 << 20), 0);
    assert!(world.refuses(&zstd::encode_all(&tar[..], 1).unwrap()).contains("more in it"));
}

#[test]
fn a_bomb_goes_off_nowhere() {
    let world = World::new();
    // A manifest that is said to be huge, one that is, and a window that is.
    let huge = Raw::file("manifest.toml", &vec![b' '; 2 << 20]);
    assert!(world.refuses(&zipped(&[huge])).contains("there can be"));
    let tar = vec![0; 64 << 20];
    assert!(world.refuses(&zstd::encode_all(&tar[..], 19).unwrap()).contains("not a pack"));
    let mut wide = zstd::Encoder::new(Vec::new(), 1).unwrap();
    wide.window_log(27).unwrap();
    wide.long_distance_matching(true).unwrap();
    io::copy(&mut &tar[..], &mut wide).unwrap();
    let error = world.refuses(&wide.finish().unwrap());
    assert!(error.contains("damaged or cannot be read"), "{error}");
}

#[test]
fn flipped_bits_never_get_through() {
    let pack = World::with_chain().pack("base");
    let tar = zstd::decode_all(&pack[..]).unwrap();
    let mut refused = 0;
    for at in (4..pack.len()).step_by(pack.len() / 60) {
        let mut flipped = pack.clone();
        flipped[at] ^= 1 << (at % 8);
        let world = World::new();
        match world.unpack(&flipped, &AS_IT_IS) {
            // There are bits in a frame that mean nothing.
            Ok(_) => assert!(zstd::decode_all(&flipped[..]).is_ok_and(|same| same == tar), "bit {} of {at}", at % 8),
            Err(error) => {
                assert!(world.tree().is_empty(), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_change_of_the_tar_is_answered(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let (world, raw) = good();
        let mut tar = zstd::decode_all(&zipped(&raw)[..]).unwrap();
        let at = at.index(tar.len());
        tar[at] = byte;
        // Refused, or one of the bytes that mean nothing.
        if let Err(error) = world.unpack(&zstd::encode_all(&tar[..], 1).unwrap(), &AS_IT_IS) {
            prop_assert!(world.tree().is_empty(), "{}", error);
        }
    }
}
