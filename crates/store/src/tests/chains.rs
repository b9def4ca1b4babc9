//! Snapshots that are made of others.

use layer::{Base, Bottom, Stack};

use super::*;

/// What is in a snapshot's memory and in its disk.
fn contents(snapshot: &Snapshot) -> [Vec<u8>; 2] {
    let read = |base, layers| {
        let stack = Stack::open(base, layers).unwrap();
        let mut bytes = vec![0; usize::try_from(LENGTH).unwrap()];
        stack.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let image = snapshot.manifest().disks[0].image.as_ref().unwrap();
    let image = Base::Image(File::open(&image.path).unwrap());
    [
        read(Base::Zero { length: LENGTH }, snapshot.memory_chain().unwrap()),
        read(image, snapshot.disk_chain(0).unwrap()),
    ]
}

/// `base <- one <- two`, and `base <- other`.
fn family() -> World {
    let world = World::new();
    world.write("base", world.booted(), &[(0, 10), (1, 11), (2, 12)]);
    world.write("one", world.over("base"), &[(1, 21), (2, 0)]);
    world.write("two", world.over("one"), &[(3, 33)]);
    world.write("other", world.over("base"), &[(7, 1)]);
    world
}

fn block(bytes: &[u8], number: usize) -> u8 {
    bytes[number * usize::try_from(BLOCK_BYTES).unwrap()]
}

#[test]
fn a_child_lists_all_layers_and_outlives_its_parents() {
    let world = family();
    let two = world.store.get(&tag("two")).unwrap();
    assert_eq!((two.manifest().depth(), world.layers().len()), (2, 4));
    assert_eq!(two.manifest().memory_stored(), Stored { chain: 5 * BLOCK_BYTES, own: BLOCK_BYTES });
    assert_eq!(two.manifest().branched_from.as_deref(), Some("sb-1"));
    let before = contents(&two);
    let seen = before.each_ref().map(|bytes| (0..5).map(|number| block(bytes, number)).collect::<Vec<_>>());
    assert_eq!(seen, [[10, 21, 0, 33, 0], [10, 21, 0, 33, 7]]);
    let error = world.store.remove(&tag("base"), Removal::Plain).unwrap_err();
    assert!(matches!(&error, StoreError::HasChildren { children, .. } if children == &[tag("one"), tag("other")]));
    assert!(error.to_string().contains("`one`, `other` are made of it"), "{error}");
    assert_eq!(world.store.remove(&tag("base"), Removal::Force).unwrap(), [tag("base")]);
    assert_eq!(world.store.remove(&tag("one"), Removal::Force).unwrap(), [tag("one")]);
    assert_eq!(contents(&world.store.get(&tag("two")).unwrap()), before);
    assert!(world.store.verify(&[], &Silent).unwrap().findings.is_empty());
    world.store.remove(&tag("two"), Removal::Plain).unwrap();
    assert_eq!(world.layers().len(), 2, "those of `other`");
}

#[test]
fn a_cascade_takes_the_deepest_first() {
    let world = family();
    assert_eq!(world.store.remove(&tag("one"), Removal::Cascade).unwrap(), [tag("two"), tag("one")]);
    let gone = world.store.remove(&tag("base"), Removal::Cascade).unwrap();
    assert_eq!(gone, [tag("other"), tag("base")]);
    assert!(world.names().is_empty() && world.layers().is_empty());
}

#[test]
fn somebody_else_with_the_parents_name_is_not_the_parent() {
    let world = family();
    world.store.remove(&tag("one"), Removal::Force).unwrap();
    world.plain("one");
    let info = world.store.info(&tag("two")).unwrap();
    assert_eq!(info.ancestors, [Ancestor { tag: tag("one"), is_there: false }]);
    assert!(world.store.info(&tag("one")).unwrap().dependants.is_empty());
    world.store.remove(&tag("one"), Removal::Plain).unwrap();
}

#[test]
fn info_tells_where_it_comes_from_and_what_is_made_of_it() {
    let world = family();
    let info = world.store.info(&tag("two")).unwrap();
    let there = |name| Ancestor { tag: tag(name), is_there: true };
    assert_eq!(info.ancestors, [there("base"), there("one")]);
    assert_eq!(info.parent().unwrap().tag, tag("one"));
    assert_eq!(world.store.info(&tag("base")).unwrap().dependants, [tag("one"), tag("other")]);
}

#[test]
fn a_writers_foundation_stays_whoever_removes_it() {
    let world = family();
    let staged = world.store.stage(&tag("three"), Existing::Keep, world.over("two")).unwrap();
    let error = world.store.remove(&tag("two"), Removal::Plain).unwrap_err();
    assert!(matches!(&error, StoreError::HasChildren { children, .. } if children == &[tag("three")]), "{error}");
    assert!(matches!(world.store.remove(&tag("two"), Removal::Cascade), Err(StoreError::Writing { .. })));
    for name in ["two", "one", "base", "other"] {
        world.store.remove(&tag(name), Removal::Force).unwrap();
    }
    assert_eq!(world.store.gc(Garbage::Remove).unwrap().layers, []);
    fill(&staged, "three", &[(4, 44)]);
    let three = staged.commit(described()).unwrap();
    assert_eq!(block(&contents(&three)[0], 1), 21);
    assert_eq!(world.layers().len(), 4);
    // What is gone cannot be built on.
    let manifest = three.manifest().clone();
    world.store.remove(&tag("three"), Removal::Plain).unwrap();
    let error = world.store.stage(&tag("four"), Existing::Keep, Origin::branched(manifest, "sb".into())).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(world.names().is_empty());
}

#[test]
fn compacted_is_the_same_in_one_layer() {
    let world = family();
    let two = world.store.get(&tag("two")).unwrap();
    let flat = world.store.compact(&tag("two"), &tag("flat"), &Silent).unwrap();
    let manifest = flat.manifest();
    assert_eq!((manifest.depth(), manifest.disks[0].layers.len(), &manifest.parent), (0, 1, &None));
    assert_eq!(manifest.branched_from.as_deref(), Some("compact:two"));
    assert_eq!(manifest.memory_stored(), Stored { chain: 3 * BLOCK_BYTES, own: 3 * BLOCK_BYTES });
    assert_eq!((contents(&flat), state(&flat)), (contents(&two), state(&two)));
    let again = world.store.compact(&tag("two"), &tag("flat"), &Silent).unwrap_err();
    assert!(matches!(again, StoreError::Exists { .. }));
    world.store.remove(&tag("base"), Removal::Cascade).unwrap();
    assert!(world.store.verify(&[tag("flat")], &Silent).unwrap().findings.is_empty());
    assert_eq!(world.names(), ["flat"]);
}

#[test]
fn a_chain_ends_with_advice() {
    let world = World::new();
    let mut last = world.plain("a").manifest().clone();
    let more = last.memory_layers[0];
    last.memory_layers = vec![more; MAX_CHAIN - 1];
    let stage = |manifest: &Manifest| {
        world.store.stage(&tag("b"), Existing::Replace, Origin::branched(manifest.clone(), "sb".into()))
    };
    let staged = stage(&last).unwrap();
    fill(&staged, "x", &[]);
    last = staged.commit(described()).unwrap().manifest().clone();
    assert_eq!(last.memory_layers.len(), MAX_CHAIN);
    world.store.get(&tag("b")).unwrap().files().unwrap();
    let error = stage(&last).unwrap_err();
    assert!(error.to_string().contains("forkd snapshot-compact --from b"), "{error}");
}

#[test]
fn damage_is_found_by_verifying_and_told_of_all_it_concerns() {
    let world = family();
    let base = world.store.get(&tag("base")).unwrap().manifest().memory_layers[0];
    let verified = world.store.verify(&[], &Silent).unwrap();
    assert_eq!((verified.snapshots, verified.layers, verified.bytes), (4, 4, 6 * BLOCK_BYTES));
    assert!(verified.findings.is_empty());
    let path = world.store.layer_path(&base.digest);
    let copy = world.home.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let whose = |tags: &[Tag]| {
        let mut tags: Vec<_> =
            world.store.verify(tags, &Silent).unwrap().findings.into_iter().map(|it| it.tag).collect();
        tags.dedup();
        tags
    };
    assert_eq!(whose(&[]), ["base", "one", "other", "two"].map(tag));
    assert_eq!(whose(&[tag("two")]), [tag("two")]);
    // Merging does not spread it.
    assert!(matches!(world.store.compact(&tag("one"), &tag("flat"), &Silent), Err(StoreError::Merge { .. })));
    std::fs::write(world.store.path(&tag("two")).join("state"), "owt").unwrap();
    std::fs::rename(&copy, &path).unwrap();
    assert_eq!(whose(&[]), [tag("two")]);
    assert!(matches!(world.store.verify(&[tag("nobody")], &Silent), Err(StoreError::Unknown { .. })));
}

#[test]
fn garbage_is_counted_before_it_goes() {
    let world = family();
    let needed = world.layers();
    let stray = world.home.path().join("stray");
    write_layer(&File::create_new(&stray).unwrap(), LENGTH, &[(5, 5)]);
    let digest = layer::Layer::open(File::open(&stray).unwrap(), None).unwrap().digest();
    std::fs::rename(&stray, world.store.layer_path(&digest)).unwrap();
    std::fs::create_dir(world.store.dir().join(".staging-dead")).unwrap();
    std::fs::write(world.store.dir().join(".staging-dead/state"), [1; 5000]).unwrap();
    let counted = world.store.gc(Garbage::Count).unwrap();
    assert_eq!((counted.layers.len(), counted.staging.len()), (1, 1));
    assert_eq!(counted.layers[0].0, digest);
    assert!(counted.bytes() >= 5000 + BLOCK_BYTES, "{counted:?}");
    assert_eq!(world.layers().len(), needed.len() + 1, "only counted");
    assert_eq!(world.store.gc(Garbage::Remove).unwrap(), counted);
    assert_eq!((world.layers(), world.names().len()), (needed, 4));
    // As long as one cannot be understood, nothing goes.
    std::fs::write(world.store.path(&tag("two")).join("manifest.json"), "{").unwrap();
    let error = world.store.gc(Garbage::Remove).unwrap_err();
    assert!(matches!(&error, StoreError::Unreachable { tag: name, .. } if *name == tag("two")), "{error}");
    world.store.remove(&tag("other"), Removal::Plain).unwrap();
    world.store.remove(&tag("two"), Removal::Plain).unwrap();
    assert_eq!(world.store.gc(Garbage::Remove).unwrap().layers.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_chain_compacts_to_the_same(chain in prop::collection::vec(prop::collection::btree_map(0_u64..8, 0_u8..3, 0..6), 1..6)) {
        let world = World::new();
        let mut below: Option<Manifest> = None;
        for (number, blocks) in chain.iter().enumerate() {
            let blocks: Vec<Block> = blocks.iter().map(|(block, byte)| (*block, *byte)).collect();
            let origin = below.take().map_or_else(|| world.booted(), |below| Origin::branched(below, "sb".into()));
            below = Some(world.write(&format!("t{number}"), origin, &blocks).manifest().clone());
        }
        let last = world.store.get(&below.unwrap().tag).unwrap();
        let flat = world.store.compact(&last.manifest().tag, &tag("flat"), &Silent).unwrap();
        prop_assert_eq!(contents(&flat), contents(&last));
        let whole = tempfile::tempfile().unwrap();
        layer::merge(&last.memory_chain().unwrap(), Bottom::Zero, &whole).unwrap();
        let digest = layer::Layer::open(whole, None).unwrap().digest();
        prop_assert_eq!(digest, flat.manifest().memory_layers[0].digest);
        prop_assert!(world.store.verify(&[], &Silent).unwrap().findings.is_empty());
    }
}
