use layer::Layer;
use layer::{Base, Stack};

use super::*;
use crate::testing::{AS_IT_IS, DISK, World, list, manifest, members, tag, zipped};

fn tags(installed: &[Installed]) -> Vec<(&str, bool)> {
    installed.iter().map(|link| (link.tag.as_str(), link.is_new)).collect()
}

/// What the guest sees on its disk.
fn disk(store: &Store, name: &str) -> Vec<u8> {
    let files = store.get(&tag(name)).unwrap().files().unwrap();
    let disk = files.disks.into_iter().next().unwrap();
    let base = disk.image.map_or(Base::Zero { length: DISK }, Base::Image);
    let layers = disk.layers.into_iter().map(|file| Layer::open(file, Some(DISK)).unwrap()).collect();
    let mut bytes = vec![0; usize::try_from(DISK).unwrap()];
    Stack::open(base, layers).unwrap().read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn what_was_packed_is_the_same_on_another_host() {
    let (here, there) = (World::with_chain(), World::new());
    let pack = here.pack("next");
    assert_eq!(tags(&there.unpack(&pack, &AS_IT_IS).unwrap()), [("base", true), ("next", true)]);
    for name in ["base", "next"] {
        let (then, now) = (here.store.get(&tag(name)).unwrap(), there.store.get(&tag(name)).unwrap());
        let (then, now) = (then.manifest(), now.manifest());
        assert_eq!((&then.id, &then.parent, &then.state), (&now.id, &now.parent, &now.state));
        assert_eq!(then.memory_layers, now.memory_layers);
        assert_eq!(then.disks[0].layers[..], now.disks[0].layers[1..], "the image lies below");
        assert_eq!(now.disks[0].image, None);
    }
    for layer in there.store.get(&tag("next")).unwrap().manifest().layers() {
        let file = File::open(there.store.layer_path(&layer.digest)).unwrap();
        Layer::open(file, None).unwrap().check(|_| {}).unwrap();
    }
    assert!(!String::from_utf8_lossy(&members(&pack)[1].body).contains(&here.home.path().display().to_string()));
}

#[test]
fn a_disk_reads_the_same_without_its_image() {
    let (here, there) = (World::with_chain(), World::new());
    there.unpack(&here.pack("next"), &AS_IT_IS).unwrap();
    for name in ["base", "next"] {
        assert!(disk(&here.store, name) == disk(&there.store, name), "{name}");
    }
    // And goes on from there: packed again, with nothing but layers.
    let further = World::new();
    further.unpack(&there.pack("next"), &AS_IT_IS).unwrap();
    assert!(disk(&further.store, "next") == disk(&here.store, "next"));
}

#[test]
fn what_is_there_already_stays() {
    let here = World::with_chain();
    let pack = here.pack("next");
    let before = here.tree();
    assert_eq!(tags(&here.unpack(&pack, &AS_IT_IS).unwrap()), [("base", false), ("next", false)]);
    assert_eq!(here.tree(), before, "not even a layer is left");
    let there = World::new();
    there.unpack(&here.pack("base"), &AS_IT_IS).unwrap();
    assert_eq!(tags(&there.unpack(&pack, &AS_IT_IS).unwrap()), [("base", false), ("next", true)]);
}

#[test]
fn another_of_the_same_name_is_only_replaced_when_asked_for() {
    let (here, there) = (World::with_chain(), World::with_chain());
    let pack = here.pack("next");
    assert!(there.refuses(&pack).contains("another one of that name"));
    let force = UnpackSpec { existing: Existing::Replace, ..AS_IT_IS };
    let sparing = UnpackSpec { spared: vec![tag("base")], ..force.clone() };
    let before = there.tree();
    assert!(matches!(there.unpack(&pack, &sparing), Err(UnpackError::Taken { tag: taken }) if taken == tag("base")));
    assert_eq!(there.tree(), before, "what is spared is not replaced by force");
    assert_eq!(tags(&there.unpack(&pack, &force).unwrap()), [("base", true), ("next", true)]);
    let id = |world: &World| world.store.get(&tag("base")).unwrap().manifest().id.clone();
    assert_eq!(id(&here), id(&there));
    assert_eq!(there.tree().keys().filter(|path| path.to_string_lossy().contains("staging")).count(), 0);
}

#[test]
fn a_new_name_moves_those_out_of_the_way_that_would_collide() {
    let (here, there) = (World::with_chain(), World::with_chain());
    let pack = here.pack("next");
    let renamed = |name: &str| UnpackSpec { tag: Some(tag(name)), ..AS_IT_IS };
    assert_eq!(tags(&there.unpack(&pack, &renamed("mine")).unwrap()), [("mine-1", true), ("mine", true)]);
    let mine = there.store.get(&tag("mine")).unwrap();
    assert_eq!(mine.manifest().parent.as_ref().map(|parent| parent.tag.as_str()), Some("mine-1"));
    // What it descends from is here by now; it itself would be here twice, so it becomes another one.
    assert_eq!(tags(&there.unpack(&pack, &renamed("again")).unwrap()), [("mine-1", false), ("again", true)]);
    assert_ne!(there.store.get(&tag("again")).unwrap().manifest().id, mine.manifest().id);
    assert!(matches!(there.unpack(&pack, &renamed("next")), Err(UnpackError::Taken { .. })));
    // A name of which there is no longer one.
    let other = World::with_chain().pack("next");
    let long = "x".repeat(64);
    assert!(matches!(there.unpack(&other, &renamed(&long)), Err(UnpackError::Name { .. })));
}

#[test]
fn a_pack_for_another_cpu_is_refused_before_anything_is_made() {
    let (here, there) = (World::with_chain(), World::new());
    let pack = here.pack("base");
    let cpu = HostCpu { vendor: "OtherVendor".into(), ..HostCpu::here().unwrap() };
    let error = unpack_on(&cpu, &there.store, &pack[..], &AS_IT_IS, &types::progress::Silent, &|| false).unwrap_err();
    assert!(matches!(error, UnpackError::Unmet(Unmet::Vendor { .. })), "{error}");
    assert!(!there.home.path().join("data").exists());
}

#[test]
fn more_than_there_is_room_for_is_refused_before_anything_is_made() {
    let (here, there) = (World::with_chain(), World::new());
    let mut raw = members(&here.pack("base"));
    let mut said = manifest(&raw);
    let layer = said.files.iter_mut().find(|member| matches!(member.path, Path::Layer(_)));
    layer.unwrap().size = 7 << 40;
    raw[0].body = said.to_text().into_bytes();
    let error = there.refuses(&zipped(&raw));
    assert!(error.contains("make room"), "{error}");
    assert!(!there.home.path().join("data").exists());
}

#[test]
fn manifests_that_reach_out_or_lie_are_refused() {
    let (here, there) = (World::with_chain(), World::new());
    let good = members(&here.pack("base"));
    let at = good.iter().position(|member| member.path == "snapshots/0/manifest.json").unwrap();
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut raw = good.clone();
        let mut value = serde_json::from_slice(&raw[at].body).unwrap();
        change(&mut value);
        raw[at].body = serde_json::to_vec(&value).unwrap();
        list(&mut raw);
        there.refuses(&zipped(&raw))
    };
    let image = serde_json::json!({ "path": "/etc/shadow", "bytes": 1, "mtime_ns": 0 });
    assert!(refused(&|value| value["disks"][0]["image"] = image.clone()).contains("names a file of this host"));
    assert!(refused(&|value| value["disks"][0]["length"] = 4096.into()).contains("another length"));
    assert!(refused(&|value| value["memory_layers"][0]["file_bytes"] = 1.into()).contains("not what it says"));
    let memory = |value: &mut serde_json::Value| value["memory_layers"] = value["disks"][0]["layers"].clone();
    assert!(refused(&memory).contains("does not need layer"));
    assert!(refused(&|value| value["memory_layers"] = serde_json::json!([])).contains("no layer"));
    assert!(refused(&|value| value["id"] = "0".repeat(32).into()).contains("another one than the list says"));
    assert!(refused(&|value| value["tag"] = "other".into()).contains("another one than the list says"));
    assert!(refused(&|value| value["state"]["bytes"] = 1.into()).contains("its state is another one"));
    assert!(refused(&|value| value["kernel"] = "6\u{1b}[2J".into()).contains("not fit to be shown"));
    assert!(refused(&|value| value["format"] = 99.into()).contains("format 99"));
    assert!(refused(&|value| value["parent"] = serde_json::json!({ "tag": "x", "id": "y" })).contains("another one"));
}

#[test]
fn a_pack_that_was_called_off_leaves_nothing() {
    let (here, there) = (World::with_chain(), World::new());
    let pack = here.pack("next");
    let asked = std::cell::Cell::new(0);
    let cancelled = || asked.replace(asked.get() + 1) > 3;
    let cpu = HostCpu { vendor: "TestVendor".into(), ..HostCpu::here().unwrap() };
    let spec = AS_IT_IS;
    unpack_on(&cpu, &there.store, &pack[..], &spec, &types::progress::Silent, &cancelled).unwrap_err();
    assert!(there.tree().is_empty());
}

#[test]
fn a_damaged_layer_is_not_packed() {
    use std::os::unix::fs::FileExt as _;
    let here = World::with_chain();
    let next = here.store.get(&tag("next")).unwrap();
    let path = here.store.layer_path(&next.manifest().memory_layers[1].digest);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[77], 2 * 4096 + 5).unwrap();
    let spec = crate::PackSpec { tag: tag("next"), description: None, base_image: None };
    let mut to = Vec::new();
    let error = crate::pack(&here.store, &spec, &mut to, &types::progress::Silent, &|| false).unwrap_err();
    assert!(error.to_string().contains("damaged in the mebibyte"), "{error}");
    assert!(to.is_empty());
}

/// Run by the test below in a process of its own, whose files cannot grow. By itself it does nothing.
#[test]
fn unpacker_without_room() {
    let Some(file) = std::env::var_os("PACK_WITHOUT_ROOM") else { return };
    let there = World::new();
    let error = there.refuses(&std::fs::read(file).unwrap());
    println!("refused: {error}");
}

#[test]
fn a_full_disk_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pack");
    std::fs::write(&file, World::with_chain().pack("next")).unwrap();
    // What a limit of the shell does to files, a full disk does: a write fails on the way.
    let output = std::process::Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; ulimit -f 64; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "install::tests::unpacker_without_room", "--nocapture"])
        .env("PACK_WITHOUT_ROOM", &file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("refused: what is in the pack cannot be written"), "{said}");
    assert!(said.contains("File too large"), "{said}");
}
