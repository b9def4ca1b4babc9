use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use types::{GuestMemorySize, VcpuCount};

use super::*;

struct World {
    home: tempfile::TempDir,
    store: Store,
}

impl World {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(&Dirs::under(home.path()));
        std::fs::write(home.path().join("image"), [7; 8192]).unwrap();
        Self { home, store }
    }

    fn described(&self) -> Described {
        Described {
            parent: None,
            recipe: Some("debian".parse().unwrap()),
            kernel: "6.1.0".into(),
            agent: "0.1.0".into(),
            vcpus: VcpuCount::DEFAULT,
            memory: GuestMemorySize::DEFAULT,
            images: vec![self.home.path().join("image")],
            network: false,
            interpreter: Some(types::Interpreter::Python3),
            memory_used: 3,
            disk_used: 5,
        }
    }

    fn staged(&self, tag: &str, existing: Existing, state: &str) -> Staged {
        let staged = self.store.stage(&tag.parse().unwrap(), existing).unwrap();
        staged.state().unwrap().write_all(state.as_bytes()).unwrap();
        staged.memory().unwrap().set_len(1 << 20).unwrap();
        staged.layer(0).unwrap().write_all(b"layer").unwrap();
        staged
    }

    fn write(&self, tag: &str, state: &str) -> Snapshot {
        self.staged(tag, Existing::Keep, state).commit(self.described()).unwrap()
    }

    /// All names in the store, the lock aside.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.store.dir()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != ".lock");
        names.sort();
        names
    }
}

fn tag(text: &str) -> Tag {
    text.parse().unwrap()
}

fn read(mut file: &std::fs::File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn what_was_written_is_found_listed_and_removed() {
    let world = World::new();
    assert!(world.store.list().unwrap().is_empty());
    let written = world.write("pyagent", "state one");
    let found = world.store.get(&tag("pyagent")).unwrap();
    assert_eq!(found.manifest(), written.manifest());
    assert_eq!((found.manifest().format, found.manifest().id.len()), (FORMAT, 32));
    assert_eq!(found.manifest().sizes.memory, 1 << 20);
    let files = found.files().unwrap();
    assert_eq!(read(&files.state), "state one");
    assert_eq!((files.disks.len(), files.disks[0].len()), (1, 2));
    assert_eq!(read(&files.disks[0][1]), "layer");
    world.write("another", "x");
    let tags: Vec<Tag> = world.store.list().unwrap().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [tag("another"), tag("pyagent")]);
    world.store.remove(&tag("pyagent")).unwrap();
    assert_eq!(world.names(), ["another"]);
    assert!(matches!(world.store.get(&tag("pyagent")), Err(StoreError::Unknown { .. })));
    assert!(matches!(world.store.remove(&tag("pyagent")), Err(StoreError::Unknown { .. })));
}

#[test]
fn a_tag_that_is_taken_is_refused_early_and_late() {
    let world = World::new();
    let early = world.staged("a", Existing::Keep, "first");
    let late = world.staged("a", Existing::Keep, "second");
    early.commit(world.described()).unwrap();
    assert!(matches!(late.commit(world.described()), Err(StoreError::Exists { .. })));
    assert!(matches!(world.store.stage(&tag("a"), Existing::Keep), Err(StoreError::Exists { .. })));
    assert_eq!(read(&world.store.get(&tag("a")).unwrap().files().unwrap().state), "first");
    assert_eq!(world.names(), ["a"]);
}

#[test]
fn a_replaced_snapshot_stays_whole_for_who_holds_it() {
    let world = World::new();
    let old = world.write("a", "old");
    let new = world.staged("a", Existing::Replace, "new").commit(world.described()).unwrap();
    assert_ne!(old.manifest().id, new.manifest().id);
    assert_eq!(read(&new.files().unwrap().state), "new");
    assert_eq!(world.names(), ["a"], "the old one is gone");
    // Its directory is empty now, so it says that it is damaged; it never shows the new one's files.
    assert!(matches!(old.files(), Err(StoreError::Damaged { .. })));
}

#[test]
fn what_was_not_committed_leaves_nothing() {
    let world = World::new();
    drop(world.staged("a", Existing::Keep, "x"));
    assert!(world.names().is_empty());
    let mut described = world.described();
    described.images = vec!["/no/such/image".into()];
    let staged = world.staged("a", Existing::Keep, "x");
    assert!(matches!(staged.commit(described), Err(StoreError::Io { action: "find", .. })));
    assert!(world.names().is_empty());
}

/// Run by the test below in a process of its own, which is then killed. By itself it does nothing.
#[test]
fn writer_to_be_killed() {
    let Some(home) = std::env::var_os("STORE_WRITER_HOME") else { return };
    let store = Store::new(&Dirs::under(Path::new(&home)));
    let staged = store.stage(&tag("a"), Existing::Keep).unwrap();
    staged.state().unwrap().write_all(b"half").unwrap();
    println!("staged");
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
}

#[test]
fn a_killed_writer_leaves_what_the_next_one_sweeps() {
    let world = World::new();
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::writer_to_be_killed", "--nocapture"])
        .env("STORE_WRITER_HOME", world.home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut heard = Vec::new();
    let mut stdout = writer.stdout.take().unwrap();
    while !String::from_utf8_lossy(&heard).contains("staged") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        heard.extend(byte);
    }
    let living = world.staged("b", Existing::Keep, "x");
    assert_eq!(world.names().len(), 2, "a living writer is left alone");
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(world.store.list().unwrap().is_empty(), "half a snapshot is none");
    let next = world.staged("c", Existing::Keep, "x");
    assert_eq!(world.names().len(), 2, "the dead writer's is swept");
    drop((living, next));
}

#[test]
fn damage_is_told_by_file_and_kind() {
    let world = World::new();
    world.write("a", "state");
    let dir = world.store.path(&tag("a"));
    let problem = || world.store.get(&tag("a")).unwrap_err().to_string();
    std::fs::write(dir.join("state"), "stat").unwrap();
    assert!(problem().contains("state is 4 bytes long and was 5"), "{}", problem());
    std::fs::remove_file(dir.join("state")).unwrap();
    assert!(problem().contains("state is missing"), "{}", problem());
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("state"), 0o600.into()).unwrap();
    assert!(problem().contains("state is not a plain file"), "{}", problem());
    std::fs::write(dir.join("manifest.json"), "{").unwrap();
    assert!(matches!(world.store.get(&tag("a")), Err(StoreError::Manifest { .. })));
    std::fs::write(dir.join("manifest.json"), vec![b' '; 70 << 10]).unwrap();
    assert!(problem().contains("longer than"), "{}", problem());
    std::fs::write(dir.join("manifest.json"), r#"{"format": 2, "colour": "green"}"#).unwrap();
    assert!(matches!(world.store.get(&tag("a")), Err(StoreError::Newer { found: 2, newest: 1, .. })));
    let listed = world.store.list().unwrap();
    assert!(matches!(&listed[..], [(name, Err(_))] if *name == tag("a")));
    world.store.remove(&tag("a")).unwrap();
}

#[test]
fn a_changed_or_missing_image_is_refused_before_anything_starts() {
    let world = World::new();
    let snapshot = world.write("a", "state");
    let image = world.home.path().join("image");
    std::fs::write(&image, [7; 4096]).unwrap();
    assert!(snapshot.files().unwrap_err().to_string().contains("is 4096 bytes long and was 8192"));
    std::fs::remove_file(&image).unwrap();
    assert!(matches!(snapshot.files(), Err(StoreError::Image { .. })));
}

#[test]
fn what_others_are_made_of_stays() {
    let world = World::new();
    world.write("base", "x");
    let described = Described { parent: Some(tag("base")), ..world.described() };
    world.staged("next", Existing::Keep, "y").commit(described).unwrap();
    let error = world.store.remove(&tag("base")).unwrap_err();
    assert!(matches!(&error, StoreError::HasChildren { children, .. } if children == &[tag("next")]), "{error}");
    world.store.remove(&tag("next")).unwrap();
    world.store.remove(&tag("base")).unwrap();
}

proptest! {
    #[test]
    fn any_manifest_is_answered_without_panic(cut in 0_usize..900, byte in any::<u8>(), at in 0_usize..900) {
        let manifest = r#"{"format":1,"tag":"a","id":"x","created_unix":1,"parent":null,"recipe":"debian","kernel":"6",
            "agent":"0","vcpus":1,"memory":536870912,"images":[{"path":"/i","bytes":1}],"network":false,
            "interpreter":null,"sizes":{"state":1,"memory":1,"layers":[1],"memory_used":1,"disk_used":1,"occupied":1}}"#;
        let mut bytes = manifest.as_bytes().to_vec();
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        bytes.truncate(cut);
        // Whatever comes of it: no panic, and never a manifest with another number of layers than disks.
        if let Ok(parsed) = manifest::Manifest::parse(&tag("a"), &bytes) {
            prop_assert_eq!(parsed.images.len(), parsed.sizes.layers.len());
        }
    }
}
