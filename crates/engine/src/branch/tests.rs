//! Branches with `examples/scripted-template.rs` in the place of VM and template: real sockets, real processes, no guest.

use store::{Garbage, Removal};

use super::*;
use crate::testing::{LONG, World};
use crate::{ChildOptions, ForkSpec, Lifetime, Results, fork, remove_snapshot};

/// A sandbox whose template behaves so.
fn sandbox(world: &World, behaves: &str) -> Child {
    world.start(behaves).unwrap();
    let spec = ForkSpec {
        tag: world.tag.clone(),
        children: vec![ChildOptions::default()],
        lifetime: Lifetime::Detached,
        results: Results::AllOrNothing,
        limit: LONG,
        cancel: None,
    };
    fork(&spec, &world.dirs).unwrap().children.remove(0).unwrap().child
}

fn take(world: &World, child: Child, extent: Extent) -> Result<Branch, BranchError> {
    branch(BranchSpec { child, tag: name(), extent }, &world.dirs)
}

fn name() -> Tag {
    "b".parse().unwrap()
}

#[test]
fn what_a_branch_lies_on_stays_from_its_first_moment() {
    let world = World::new();
    let branch = take(&world, sandbox(&world, "obeys"), Extent::Diff).unwrap();
    assert_eq!(branch.pause_us(), 9);
    let store = Store::new(&world.dirs);
    store.remove(&world.tag, Removal::Force).unwrap();
    store.gc(Garbage::Remove).unwrap();
    let kept = branch.keep(None).unwrap();
    let manifest = kept.snapshot.manifest();
    assert_eq!((manifest.memory_layers.len(), manifest.parent.as_ref().map(|it| &it.tag)), (2, Some(&world.tag)));
    kept.snapshot.files().unwrap();
    remove_snapshot(&name(), Removal::Plain, &world.dirs).unwrap();
}

#[test]
fn a_branch_says_what_its_sandbox_may_reach_from_its_first_moment() {
    for extent in [Extent::Diff, Extent::Full] {
        let world = World::new();
        let child = sandbox(&world, "obeys");
        let network = r#"{"number":1,"turn":1,"egress":"198.51.100.7:80"}"#;
        std::fs::write(child.path().join("network.json"), network).unwrap();
        let branch = take(&world, child, extent).unwrap();
        let status = Store::new(&world.dirs).status(&name()).unwrap();
        let Status::Writing(intent) = &status else { panic!("{status:?}") };
        assert_eq!(intent.egress.as_deref(), Some("198.51.100.7:80"));
        let spec = ForkSpec {
            tag: name(),
            children: vec![ChildOptions::default()],
            lifetime: Lifetime::Detached,
            results: Results::AllOrNothing,
            limit: LONG,
            cancel: None,
        };
        let forked = fork(&spec, &world.dirs).unwrap_err();
        assert!(matches!(forked, crate::ForkError::Network { .. }), "its children have a network, too: {forked}");
        let kept = branch.keep(None).unwrap();
        assert_eq!(kept.snapshot.manifest().egress.as_deref(), Some("198.51.100.7:80"));
        remove_snapshot(&name(), Removal::Plain, &world.dirs).unwrap();
    }
}

#[test]
fn a_full_branch_needs_nobody_and_names_nobody() {
    let world = World::new();
    let child = sandbox(&world, "obeys");
    let branch = take(&world, child.clone(), Extent::Full).unwrap();
    let status = Store::new(&world.dirs).status(&name()).unwrap();
    assert!(matches!(&status, Status::Writing(intent) if intent.parent.is_none()), "{status:?}");
    let kept = branch.keep(None).unwrap();
    let manifest = kept.snapshot.manifest();
    assert_eq!((manifest.memory_layers.len(), &manifest.parent), (1, &None));
    assert_eq!(manifest.branched_from.as_deref(), Some(child.id()));
    assert_eq!(remove_snapshot(&world.tag, Removal::Plain, &world.dirs).unwrap(), std::slice::from_ref(&world.tag));
    remove_snapshot(&name(), Removal::Plain, &world.dirs).unwrap();
}

#[test]
fn a_sandbox_whose_snapshot_is_gone_can_be_stored_in_full() {
    let world = World::new();
    let child = sandbox(&world, "obeys");
    remove_snapshot(&world.tag, Removal::Force, &world.dirs).unwrap();
    let error = take(&world, child.clone(), Extent::Diff).unwrap_err();
    assert!(matches!(error, BranchError::Orphan { known: true, .. }), "{error:?}");
    assert!(error.to_string().ends_with("--full"), "{error}");
    let kept = take(&world, child, Extent::Full).unwrap().keep(None).unwrap();
    let manifest = kept.snapshot.manifest();
    assert_eq!((manifest.memory_layers.len(), &manifest.parent, manifest.depth()), (1, &None, 0));
    kept.snapshot.files().unwrap();
    remove_snapshot(&name(), Removal::Plain, &world.dirs).unwrap();
}

#[test]
fn a_template_that_fails_at_first_is_noticed_at_once() {
    let world = World::new();
    let error = take(&world, sandbox(&world, "dies-branched"), Extent::Diff).unwrap_err();
    let BranchError::Template(TemplateError::Died { log }) = &error else { panic!("{error:?}") };
    assert!(log.contains("the branch cannot be used"), "{log}");
    assert!(matches!(Store::new(&world.dirs).status(&name()), Err(StoreError::Unknown { .. })));
    assert!(!world.dirs.run.join("templates/b").exists());
}

#[test]
fn a_writer_that_is_killed_is_followed_by_one_more() {
    let world = World::new();
    let kept = take(&world, sandbox(&world, "loses-the-first-writer"), Extent::Diff).unwrap().keep(None).unwrap();
    assert_eq!(kept.memory_bytes, 4096);
    kept.snapshot.files().unwrap();
    remove_snapshot(&name(), Removal::Plain, &world.dirs).unwrap();
    let world = World::new();
    let branch = take(&world, sandbox(&world, "loses-every-writer"), Extent::Diff).unwrap();
    let error = branch.keep(None).unwrap_err();
    assert!(matches!(error, BranchError::WriterDied { .. }), "{error:?}");
    assert!(matches!(Store::new(&world.dirs).status(&name()), Ok(Status::Failed(_))));
    assert!(!world.dirs.run.join("templates/b").exists());
}
