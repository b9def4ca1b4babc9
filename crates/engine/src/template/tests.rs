use std::fs;

use rustix::process::{Pid, getsid};
use store::Removal;

use super::*;
use crate::testing::{LONG, World};

/// Names below `run/templates`.
fn left(world: &World) -> usize {
    fs::read_dir(world.dirs.run.join("templates")).map_or(0, Iterator::count)
}

#[test]
fn a_template_is_started_once_and_found_afterwards() {
    let world = World::new();
    let first = world.start("obeys").unwrap();
    let again = world.start("must-not-be-started").unwrap();
    assert_eq!(first.process.pid(), again.process.pid());
    assert_eq!(getsid(Pid::from_raw(first.process.pid())).unwrap().as_raw_nonzero().get(), first.process.pid());
    let runs = |id: &str| template_runs(&world.tag, id, &world.dirs).unwrap();
    assert!(runs(&world.snapshot().manifest().id) && !runs("another"));
    assert!(stop_template(&world.tag, &world.dirs).unwrap());
    assert!(first.process.wait(Instant::now() + LONG).unwrap());
    assert!(!runs(&world.snapshot().manifest().id));
    assert!(!stop_template(&world.tag, &world.dirs).unwrap(), "none runs any more");
    assert_eq!(left(&world), 0);
}

#[test]
fn those_who_want_one_at_the_same_time_get_the_same() {
    let world = World::new();
    world.program("obeys");
    let pids = crate::pool::each((0..8).collect(), |_: u32| world.start("obeys").unwrap().process.pid());
    assert!(pids.windows(2).all(|two| two[0] == two[1]), "{pids:?}");
}

#[test]
fn a_refusal_is_passed_on_and_nothing_is_left() {
    let world = World::new();
    let error = world.start("refuses").unwrap_err();
    assert!(matches!(&error, TemplateError::Refused { code: RefusalCode::Snapshot, .. }), "{error:?}");
    assert_eq!(error.to_string(), "it was made on another CPU");
    assert_eq!(left(&world), 0);
}

#[test]
fn one_that_dies_shows_its_log_and_nothing_is_left() {
    let world = World::new();
    let error = world.start("dies-loading").unwrap_err();
    assert!(matches!(&error, TemplateError::Died { log } if log.contains("dies-loading")), "{error:?}");
    assert_eq!(left(&world), 0);
}

#[test]
fn a_killed_one_is_replaced() {
    let world = World::new();
    let first = world.start("obeys").unwrap();
    first.process.kill().unwrap();
    assert!(first.process.wait(Instant::now() + LONG).unwrap());
    let second = world.start("obeys").unwrap();
    assert_ne!(first.process.pid(), second.process.pid());
}

#[test]
fn one_of_a_replaced_snapshot_is_ended() {
    let world = World::new();
    let first = world.start("obeys").unwrap();
    world.take_snapshot();
    let second = world.start("obeys").unwrap();
    assert!(first.process.wait(Instant::now() + LONG).unwrap());
    assert_ne!(first.process.pid(), second.process.pid());
}

#[test]
fn one_whose_starter_was_killed_halfway_is_ended() {
    let world = World::new();
    let first = world.start("obeys").unwrap();
    // As it is before the template has said that it is loaded.
    fs::remove_file(world.dirs.run.join("templates/t/template.json")).unwrap();
    let second = world.start("obeys").unwrap();
    assert!(first.process.wait(Instant::now() + LONG).unwrap());
    assert_ne!(first.process.pid(), second.process.pid());
}

#[test]
fn a_snapshot_goes_with_its_template() {
    let world = World::new();
    let template = world.start("obeys").unwrap();
    assert_eq!(remove_snapshot(&world.tag, Removal::Plain, &world.dirs).unwrap(), std::slice::from_ref(&world.tag));
    assert!(template.process.wait(Instant::now() + LONG).unwrap());
    assert!(!store::Store::new(&world.dirs).path(&world.tag).exists());
    assert_eq!(left(&world), 0);
    let again = remove_snapshot(&world.tag, Removal::Plain, &world.dirs).unwrap_err();
    assert!(matches!(again, TemplateError::Store(StoreError::Unknown { .. })));
    assert_eq!(left(&world), 0);
}

#[test]
fn who_comes_late_does_not_end_the_template_of_the_next() {
    let world = World::new();
    world.start("obeys").unwrap();
    store::Store::new(&world.dirs).remove(&world.tag, Removal::Plain).unwrap();
    // Before whoever removed it gets to the template, the tag means another snapshot, and that has one.
    world.take_snapshot();
    let next = world.start("obeys").unwrap();
    assert!(!end_unwanted(&world.tag, &world.dirs).unwrap());
    assert!(!stop_template_of(&world.tag, "another", &world.dirs).unwrap());
    assert!(template_runs(&world.tag, &next.snapshot, &world.dirs).unwrap());
    assert!(stop_template_of(&world.tag, &next.snapshot, &world.dirs).unwrap());
    assert_eq!(left(&world), 0);
}

#[test]
fn a_fork_waits_for_the_template_and_not_for_the_disk() {
    let world = World::new();
    let (tag, store): (Tag, _) = ("b".parse().unwrap(), Store::new(&world.dirs));
    let origin = store::Origin::branched(world.snapshot().manifest().clone(), "sb-1".into());
    let staged = store.stage(&tag, store::Existing::Keep, origin).unwrap();
    let status = store.status(&tag).unwrap();
    let found = std::thread::scope(|scope| {
        let looking = scope.spawn(|| template_of_status(&tag, status, &world.dirs, Instant::now() + LONG, None));
        let program = world.program("obeys");
        let made = adopt(&Place::new(&world.dirs, &tag), staged.id(), |listener, log| {
            let (listener, log) = (listener.try_clone().unwrap(), log.try_clone().unwrap());
            let template = std::process::Command::new(program).arg("template").stdin(listener).stderr(log).spawn();
            let pid = i32::try_from(template.unwrap().id()).unwrap();
            let process = Process::open(pid).unwrap().unwrap();
            Ok::<_, TemplateError>((Made { process, tops: 1, uid: None }, ()))
        });
        assert_eq!(made.unwrap().0.snapshot, staged.id());
        looking.join().unwrap().unwrap()
    });
    assert_eq!(found.snapshot, staged.id());
    assert!(matches!(store.status(&tag), Ok(Status::Writing(_))), "nothing was written meanwhile");
    assert!(stop_template(&tag, &world.dirs).unwrap());
}
