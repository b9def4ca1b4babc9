//! Chains that come from elsewhere.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::steps;

/// What an exporter hands over: `base`, and `next` that descends from it, over nothing but layers.
struct Parcel {
    from: World,
    chain: Vec<Manifest>,
}

impl Parcel {
    fn new() -> Self {
        let from = World::new();
        from.write("base", from.booted(), &[(1, 1)]);
        from.write("next", from.over("base"), &[(2, 2)]);
        let chain = ["base", "next"].map(|name| {
            let mut manifest = from.store.get(&tag(name)).unwrap().manifest().clone();
            manifest.disks.iter_mut().for_each(|disk| disk.image = None);
            manifest
        });
        Self { from, chain: chain.into() }
    }

    /// Stages it elsewhere.
    fn stage(&self, to: &Store) -> Import {
        let import = to.import(&self.chain[1].as_parent()).unwrap();
        for (link, name) in ["base", "next"].into_iter().enumerate() {
            import.state(link, name.as_bytes()).unwrap();
        }
        let digests: std::collections::BTreeSet<_> = self.chain[1].layers().map(|layer| layer.digest).collect();
        for digest in digests {
            let mut from = File::open(self.from.store.layer_path(&digest)).unwrap();
            std::io::copy(&mut from, &mut import.layer(&digest).unwrap()).unwrap();
        }
        import
    }
}

fn tags(names: &[&str]) -> Vec<Tag> {
    names.iter().map(|name| tag(name)).collect()
}

#[test]
fn a_chain_lands_whole_and_a_second_time_changes_nothing() {
    let (parcel, here) = (Parcel::new(), World::new());
    let import = parcel.stage(&here.store);
    assert!(matches!(here.store.status(&tag("next")), Ok(Status::Writing(_))));
    assert_eq!(import.commit(&parcel.chain, Existing::Keep).unwrap(), tags(&["base", "next"]));
    assert_eq!(state(&here.store.get(&tag("next")).unwrap()), "next");
    assert!(here.store.verify(&[], &Silent).unwrap().findings.is_empty());
    let before = (here.names(), here.layers());
    assert_eq!(parcel.stage(&here.store).commit(&parcel.chain, Existing::Keep).unwrap(), []);
    assert_eq!((here.names(), here.layers()), before);
    assert_eq!(here.names(), ["base", "next"]);
}

#[test]
fn what_is_not_committed_leaves_nothing() {
    let (parcel, here) = (Parcel::new(), World::new());
    drop(parcel.stage(&here.store));
    assert!(here.names().is_empty() && here.layers().is_empty());
}

#[test]
fn one_tag_that_is_taken_refuses_all_of_it() {
    let (parcel, here) = (Parcel::new(), World::new());
    here.plain("next");
    let before = (here.names(), here.layers());
    let error = parcel.stage(&here.store).commit(&parcel.chain, Existing::Keep).unwrap_err();
    assert!(matches!(&error, StoreError::Exists { tag } if tag.as_str() == "next"), "{error}");
    assert_eq!((here.names(), here.layers()), before);
    let new = parcel.stage(&here.store).commit(&parcel.chain, Existing::Replace).unwrap();
    assert_eq!(new, tags(&["base", "next"]));
    assert_eq!(here.store.get(&tag("next")).unwrap().manifest().id, parcel.chain[1].id);
    assert_eq!(here.names(), ["base", "next"]);
}

#[test]
fn one_that_cannot_be_put_in_place_takes_the_others_back() {
    let (parcel, here) = (Parcel::new(), World::new());
    here.write("base", here.booted(), &[(4, 4)]);
    let before = (here.names(), here.layers(), here.store.get(&tag("base")).unwrap().manifest().id.clone());
    // When the first is in place, somebody who does not care for locks takes the second's name.
    let path = here.store.path(&tag("next"));
    let thief = path.clone();
    let steal = move |step: &str| {
        if step == "put in place" && !thief.exists() {
            std::fs::create_dir(&thief).unwrap();
        }
    };
    let import = parcel.stage(&here.store);
    steps::with(steal, || import.commit(&parcel.chain, Existing::Replace).unwrap_err());
    std::fs::remove_dir(&path).unwrap();
    // As long as it was there, nobody knew what it needed.
    here.store.gc(Garbage::Remove).unwrap();
    let after = (here.names(), here.layers(), here.store.get(&tag("base")).unwrap().manifest().id.clone());
    assert_eq!(after, before);
}

#[test]
fn whenever_the_power_fails_each_snapshot_is_whole() {
    let (parcel, here) = (Parcel::new(), World::new());
    here.plain("base");
    let copies = Rc::new(RefCell::new(Vec::new()));
    let (seen, from) = (Rc::clone(&copies), here.home.path().join("data"));
    let copy = move |step: &str| {
        let home = tempfile::tempdir().unwrap();
        let done = std::process::Command::new("cp").arg("-a").arg(&from).arg(home.path()).status().unwrap();
        assert!(done.success());
        seen.borrow_mut().push((step.to_owned(), home));
    };
    let import = parcel.stage(&here.store);
    steps::with(copy, || import.commit(&parcel.chain, Existing::Replace).unwrap());
    let copies = copies.take();
    assert!(copies.len() >= 5, "{}", copies.len());
    for (step, home) in copies {
        let store = Store::new(&Dirs::under(home.path()));
        let verified = store.verify(&[], &Silent).unwrap();
        assert!(verified.findings.is_empty(), "after {step}: {:?}", verified.findings);
        store.gc(Garbage::Remove).unwrap();
        assert!(store.get(&tag("base")).is_ok(), "after {step}");
        let left = names(store.dir());
        assert!(left.iter().all(|name| !name.starts_with(".staging")), "after {step}: {left:?}");
    }
}
