mod chains;
mod crash;
mod crowd;
mod import;

use std::fs::File;
use std::io::{Read as _, Write as _};

use layer::{BLOCK_BYTES, Writer};
use proptest::prelude::*;
use types::progress::Silent;
use types::{GuestMemorySize, VcpuCount};

use super::*;

/// Of memory and disk in these tests.
const LENGTH: u64 = 8 * BLOCK_BYTES;

struct World {
    home: tempfile::TempDir,
    store: Store,
}

/// A block, and the byte it is full of.
type Block = (u64, u8);

impl World {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(&Dirs::under(home.path()));
        std::fs::write(home.path().join("image"), vec![7; usize::try_from(LENGTH).unwrap()]).unwrap();
        Self { home, store }
    }

    fn image(&self) -> PathBuf {
        self.home.path().join("image")
    }

    fn booted(&self) -> Origin {
        Origin::booted(vec![self.image()])
    }

    fn over(&self, parent: &str) -> Origin {
        Origin::branched(self.store.get(&tag(parent)).unwrap().manifest().clone(), "sb-1".into())
    }

    /// Writes a snapshot of which memory and disk have these blocks.
    fn write(&self, name: &str, origin: Origin, blocks: &[Block]) -> Snapshot {
        let staged = self.store.stage(&tag(name), Existing::Keep, origin).unwrap();
        fill(&staged, name, blocks);
        staged.commit(described()).unwrap()
    }

    /// A snapshot whose contents nobody cares about.
    fn plain(&self, name: &str) -> Snapshot {
        self.write(name, self.booted(), &[(1, 1)])
    }

    /// All names in the store, the lock aside.
    fn names(&self) -> Vec<String> {
        let mut names = names(self.store.dir());
        names.retain(|name| name != ".lock");
        names
    }

    fn layers(&self) -> Vec<String> {
        names(&self.home.path().join("data/layers"))
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn tag(text: &str) -> Tag {
    text.parse().unwrap()
}

fn described() -> Described {
    Described {
        recipe: Some("debian".parse().unwrap()),
        kernel: "6.1.0".into(),
        agent: "0.1.0".into(),
        vcpus: VcpuCount::DEFAULT,
        memory: GuestMemorySize::DEFAULT,
        network: false,
        egress: None,
        interpreter: Some(types::Interpreter::Python3),
        ports: vec![std::num::NonZeroU16::MIN],
        pause_us: Some(3),
    }
}

fn fill(staged: &Staged, state: &str, blocks: &[Block]) {
    staged.state().unwrap().write_all(state.as_bytes()).unwrap();
    for file in [staged.memory().unwrap(), staged.layer(0).unwrap()] {
        write_layer(&file, LENGTH, blocks);
    }
}

fn write_layer(file: &File, length: u64, blocks: &[Block]) {
    let mut writer = Writer::create(file, length).unwrap();
    for (block, byte) in blocks {
        writer.put(*block, &vec![*byte; usize::try_from(BLOCK_BYTES).unwrap()]).unwrap();
    }
    writer.finish().unwrap();
}

fn state(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    snapshot.files().unwrap().state.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn what_was_written_is_found_listed_and_removed() {
    let world = World::new();
    assert!(world.store.list().unwrap().is_empty());
    let written = world.plain("pyagent");
    let found = world.store.get(&tag("pyagent")).unwrap();
    assert_eq!(found.manifest(), written.manifest());
    assert_eq!((found.manifest().format, found.manifest().id.len(), found.manifest().depth()), (FORMAT, 32, 0));
    assert_eq!(found.manifest().memory_stored(), Stored { chain: BLOCK_BYTES, own: BLOCK_BYTES });
    let files = found.files().unwrap();
    assert_eq!(state(&found), "pyagent");
    assert_eq!((files.memory.len(), files.disks.len(), files.disks[0].layers.len()), (1, 1, 1));
    assert!(files.disks[0].image.is_some());
    assert_eq!(world.layers().len(), 1, "memory and disk have the same contents here");
    world.plain("another");
    let tags: Vec<Tag> = world.store.list().unwrap().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [tag("another"), tag("pyagent")]);
    assert_eq!(world.store.remove(&tag("pyagent"), Removal::Plain).unwrap(), [tag("pyagent")]);
    assert_eq!((world.names().len(), world.layers().len()), (1, 1), "the other one needs it");
    assert!(matches!(world.store.get(&tag("pyagent")), Err(StoreError::Unknown { .. })));
    assert!(matches!(world.store.remove(&tag("pyagent"), Removal::Force), Err(StoreError::Unknown { .. })));
    world.store.remove(&tag("another"), Removal::Plain).unwrap();
    assert!(world.names().is_empty() && world.layers().is_empty());
}

#[test]
fn a_tag_that_is_taken_is_refused_early_and_late() {
    let world = World::new();
    let stage = || world.store.stage(&tag("a"), Existing::Keep, world.booted());
    let late = stage().unwrap();
    assert!(matches!(stage(), Err(StoreError::Writing { .. })), "somebody is about to take it");
    let early = world.store.stage(&tag("a"), Existing::Replace, world.booted()).unwrap();
    fill(&early, "first", &[(1, 1)]);
    fill(&late, "second", &[(2, 2)]);
    early.commit(described()).unwrap();
    assert!(matches!(late.commit(described()), Err(StoreError::Exists { .. })));
    assert!(matches!(stage(), Err(StoreError::Exists { .. })));
    assert_eq!(state(&world.store.get(&tag("a")).unwrap()), "first");
    assert_eq!((world.names(), world.layers().len()), (vec!["a".to_owned()], 1), "nothing of the second is left");
}

#[test]
fn a_replaced_snapshot_goes_with_its_layers() {
    let world = World::new();
    let old = world.plain("a");
    let held = old.files().unwrap();
    let staged = world.store.stage(&tag("a"), Existing::Replace, world.booted()).unwrap();
    let id = staged.id().to_owned();
    fill(&staged, "new", &[(3, 3)]);
    assert_eq!(world.store.get(&tag("a")).unwrap().manifest().id, old.manifest().id, "until the new one is whole");
    let new = staged.commit(described()).unwrap();
    assert_eq!(new.manifest().id, id);
    assert_eq!(state(&new), "new");
    assert_eq!((world.names().len(), world.layers()), (1, vec![new.manifest().memory_layers[0].digest.to_string()]));
    // Whoever opened its files has them; otherwise it says that it is damaged, and never shows the new one's.
    layer::Layer::open(held.memory.into_iter().next().unwrap(), None).unwrap().check(|_| {}).unwrap();
    assert!(matches!(old.files(), Err(StoreError::Damaged { .. })));
}

#[test]
fn what_was_not_committed_leaves_nothing() {
    let world = World::new();
    let stage = |origin| world.store.stage(&tag("a"), Existing::Keep, origin);
    fill(&stage(world.booted()).unwrap(), "x", &[]);
    assert!(world.names().is_empty());
    let error = stage(Origin::booted(vec!["/no/such/image".into()])).unwrap_err();
    assert!(matches!(error, StoreError::Io { action: "find", .. }), "{error}");
    let staged = stage(world.booted()).unwrap();
    staged.state().unwrap();
    staged.memory().unwrap().write_all(b"no layer").unwrap();
    write_layer(&staged.layer(0).unwrap(), LENGTH, &[]);
    assert!(matches!(staged.commit(described()), Err(StoreError::Unfit { .. })));
    let staged = stage(world.booted()).unwrap();
    staged.state().unwrap();
    write_layer(&staged.memory().unwrap(), LENGTH, &[]);
    write_layer(&staged.layer(0).unwrap(), 2 * LENGTH, &[]);
    let error = staged.commit(described()).unwrap_err();
    assert!(error.to_string().contains("disk-0.layer"), "{error}");
    assert!(world.names().is_empty() && world.layers().is_empty());
}

#[test]
fn damage_is_told_by_file_and_kind() {
    let world = World::new();
    world.plain("a");
    let dir = world.store.path(&tag("a"));
    let problem = || world.store.list().unwrap().pop().unwrap().1.unwrap_err().to_string();
    std::fs::write(dir.join("state"), "as").unwrap();
    assert!(problem().contains("state is 2 bytes long and was 1"), "{}", problem());
    std::fs::write(dir.join("state"), "b").unwrap();
    let error = world.store.get(&tag("a")).unwrap().files().unwrap_err();
    assert!(error.to_string().contains("state is not what was written"), "{error}");
    std::fs::remove_file(dir.join("state")).unwrap();
    assert!(problem().contains("state is missing"), "{}", problem());
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("state"), 0o600.into()).unwrap();
    assert!(problem().contains("state is not a plain file"), "{}", problem());
    std::fs::write(dir.join("manifest.json"), "{").unwrap();
    assert!(matches!(world.store.get(&tag("a")), Err(StoreError::Manifest { .. })));
    std::fs::write(dir.join("manifest.json"), vec![b' '; 300 << 10]).unwrap();
    assert!(problem().contains("longer than"), "{}", problem());
    std::fs::write(dir.join("manifest.json"), r#"{"format": 3, "colour": "green"}"#).unwrap();
    assert!(matches!(world.store.get(&tag("a")), Err(StoreError::Newer { found: 3, .. })));
    std::fs::write(dir.join("manifest.json"), r#"{"format": 1, "images": []}"#).unwrap();
    assert!(problem().contains("older than this forkd understands"), "{}", problem());
    world.store.remove(&tag("a"), Removal::Plain).unwrap();
}

/// Whoever wrote it may have wanted that others, who have these contents, are given something else.
#[test]
fn a_layer_whose_blocks_are_not_what_its_table_says_is_refused() {
    let world = World::new();
    let staged = world.store.stage(&tag("a"), Existing::Keep, world.booted()).unwrap();
    fill(&staged, "a", &[(1, 1), (2, 2)]);
    let memory = names(world.store.dir()).into_iter().map(|name| world.store.dir().join(name).join("memory.layer"));
    let memory = memory.into_iter().find(|path| path.exists()).unwrap();
    let forged = File::options().write(true).open(memory).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&forged, &[9], BLOCK_BYTES).unwrap();
    let error = staged.commit(described()).unwrap_err();
    assert!(matches!(&error, StoreError::Unfit { problem, .. } if problem.contains("memory")), "{error}");
    assert!(world.names().is_empty() && world.layers().is_empty());
}

#[test]
fn a_forged_layer_does_not_stay_when_the_honest_one_comes() {
    let world = World::new();
    let one = world.write("one", world.booted(), &[(1, 1)]);
    let path = world.store.layer_path(&one.manifest().memory_layers[0].digest);
    let forged = File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&forged, &[9], BLOCK_BYTES).unwrap();
    world.write("two", world.booted(), &[(1, 1)]);
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(&path).unwrap(), &mut byte, BLOCK_BYTES).unwrap();
    assert_eq!(byte, [1]);
}

#[test]
fn a_missing_or_swapped_layer_is_told() {
    let world = World::new();
    let one = world.write("one", world.booted(), &[(1, 1)]);
    let two = world.write("two", world.booted(), &[(2, 2)]);
    let [one_path, two_path] = [&one, &two].map(|it| world.store.layer_path(&it.manifest().memory_layers[0].digest));
    std::fs::remove_file(&one_path).unwrap();
    let error = world.store.list().unwrap().remove(0).1.unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
    std::fs::copy(&two_path, &one_path).unwrap();
    let error = one.files().unwrap_err();
    assert!(error.to_string().contains("has the contents of another"), "{error}");
    // The next one with these contents brings the right one back.
    world.write("three", world.booted(), &[(1, 1)]);
    one.files().unwrap();
}

#[test]
fn a_changed_or_missing_image_is_refused_before_anything_starts() {
    let world = World::new();
    let snapshot = world.plain("a");
    let then = world.image().metadata().unwrap().modified().unwrap();
    let file = File::options().write(true).open(world.image()).unwrap();
    file.set_modified(then + std::time::Duration::from_nanos(1000)).unwrap();
    assert!(snapshot.files().unwrap_err().to_string().contains("was written to since"));
    file.set_modified(then).unwrap();
    snapshot.files().unwrap();
    std::fs::write(world.image(), [7; 4096]).unwrap();
    assert!(snapshot.files().unwrap_err().to_string().contains("is 4096 bytes long and was 32768"));
    std::fs::remove_file(world.image()).unwrap();
    assert!(matches!(snapshot.files(), Err(StoreError::Image { .. })));
}

#[test]
fn a_writer_is_seen_and_may_fail() {
    let world = World::new();
    let a = tag("a");
    let staged = world.store.stage(&a, Existing::Keep, world.booted()).unwrap();
    let listed = world.store.list().unwrap();
    assert!(
        matches!(&listed[..], [(name, Ok(Status::Writing(it)))] if *name == a && it.id == staged.id()),
        "{listed:?}"
    );
    assert!(matches!(world.store.get(&a), Err(StoreError::Writing { .. })));
    assert!(matches!(world.store.remove(&a, Removal::Force), Err(StoreError::Writing { .. })));
    assert!(matches!(world.store.expect_free(&a), Err(StoreError::Writing { .. })));
    fill(&staged, "x", &[(1, 1)]);
    staged.fail("the disk is full").unwrap();
    assert!(matches!(world.store.status(&a), Ok(Status::Failed(it)) if it.reason == "the disk is full"));
    world.store.expect_free(&a).unwrap();
    assert_eq!((names(&world.store.path(&a)), world.layers().len()), (vec!["failed.json".into()], 0));
    let error = world.store.get(&a).unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
    // The next one needs no permission to take its place, and a failure takes nobody's.
    world.plain("a");
    assert!(matches!(world.store.expect_free(&a), Err(StoreError::Exists { .. })));
    let staged = world.store.stage(&a, Existing::Replace, world.booted()).unwrap();
    staged.fail("no").unwrap();
    assert_eq!(world.store.status(&a).unwrap().word(), "ready");
    world.store.stage(&tag("b"), Existing::Keep, world.booted()).unwrap().fail("no").unwrap();
    assert_eq!(world.store.gc(Garbage::Remove).unwrap(), Collected::default());
    world.store.remove(&tag("b"), Removal::Plain).unwrap();
    assert_eq!(world.names(), ["a"]);
}

proptest! {
    #[test]
    fn any_manifest_is_answered_without_panic(cut in 0_usize..1200, byte in any::<u8>(), at in 0_usize..1200) {
        let digest = "0".repeat(64);
        let layer = format!(r#"{{"digest":"{digest}","file_bytes":1,"data_bytes":18446744073709551615}}"#);
        let manifest = format!(r#"{{"format":2,"tag":"a","id":"x","created_unix":1,"parent":{{"tag":"b","id":"y"}},
            "branched_from":null,"pause_us":1,"recipe":"debian","kernel":"6","agent":"0","vcpus":1,"memory":536870912,
            "network":false,"interpreter":null,"state":{{"digest":"{digest}","bytes":1}},
            "memory_layers":[{layer},{layer}],
            "disks":[{{"image":{{"path":"/i","bytes":1,"mtime_ns":-1}},"length":1,"layers":[{layer}]}}]}}"#);
        let mut bytes = manifest.into_bytes();
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        bytes.truncate(cut);
        if let Ok(parsed) = manifest::Manifest::parse(&tag("a"), &bytes) {
            prop_assert!(!parsed.memory_layers.is_empty());
            prop_assert!(parsed.stored_bytes() >= parsed.memory_stored().own);
        }
    }
}
