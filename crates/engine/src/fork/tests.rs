//! Forks with `examples/scripted-template.rs` in the template's place: real sockets, real processes, no guest.

use std::collections::BTreeSet;
use std::time::Duration;

use proto::control::{KILLED_AT, STATE};
use session::RenewRequest;

use super::*;
use crate::testing::{LONG, World};
use crate::{kill_many, list};

fn spec(world: &World, count: usize) -> ForkSpec {
    ForkSpec {
        tag: world.tag.clone(),
        children: vec![ChildOptions::default(); count],
        lifetime: Lifetime::Detached,
        results: Results::AllOrNothing,
        limit: LONG,
        cancel: None,
    }
}

/// Forks from a template that behaves so.
fn fork_that(world: &World, behaves: &str, spec: &ForkSpec) -> Result<Forked, ForkError> {
    world.start(behaves).unwrap();
    fork(spec, &world.dirs)
}

fn failure(forked: Result<Forked, ForkError>) -> (ChildError, usize) {
    match forked {
        Err(ForkError::Child { source, failed, .. }) => (source, failed),
        other => panic!("{other:?} is not the failure of a child"),
    }
}

#[test]
fn many_children_are_each_somebody_of_their_own() {
    let world = World::new();
    let mut spec = spec(&world, 220);
    let env = |n: usize| {
        Variables::try_from([("N".to_owned(), n.to_string())].into_iter().collect::<std::collections::BTreeMap<_, _>>())
    };
    for (n, options) in spec.children.iter_mut().enumerate() {
        options.env = env(n).unwrap();
    }
    let forked = fork_that(&world, "obeys", &spec).unwrap();
    let children: Vec<ForkedChild> = forked.children.into_iter().map(Result::unwrap).collect();
    let renewals: Vec<RenewRequest> = children
        .iter()
        .map(|ready| serde_json::from_slice(&std::fs::read(ready.child.path().join("renewed.json")).unwrap()).unwrap())
        .collect();
    for (n, (ready, renewal)) in children.iter().zip(&renewals).enumerate() {
        assert_eq!(renewal.sandbox_id.as_str(), ready.child.id());
        assert_eq!(renewal.hostname.as_str(), ready.child.id());
        assert_eq!(renewal.env, env(n).unwrap(), "each got its own");
        assert_eq!(ready.child.pid().unwrap(), Some(ready.pid));
        assert!(ready.ready_us > 0 && (ready.setup_us, ready.renew_us) == (7, 11));
    }
    let distinct = |what: fn(&RenewRequest) -> String| renewals.iter().map(what).collect::<BTreeSet<_>>().len();
    assert_eq!(distinct(|renewal| renewal.sandbox_id.to_string()), 220);
    assert_eq!(distinct(|renewal| renewal.machine_id.to_string()), 220);
    assert_eq!(distinct(|renewal| renewal.generation.to_string()), 220);
    assert_eq!(distinct(|renewal| format!("{:?}", renewal.entropy.as_bytes())), 220);
    let timings = forked.timings;
    assert!(timings.template_us <= timings.directories_us && timings.started_us <= timings.ready_us, "{timings:?}");
    let listed = list(&world.dirs).unwrap();
    assert_eq!(listed.len(), 220);
    assert!(kill_many(&listed).into_iter().all(|killed| killed.is_ok()));
    world.expect_no_children();
}

/// Five hundred come and go, and each is a user that nobody else is at the time.
#[test]
fn no_user_is_left_behind() {
    let world = World::new();
    let mut users = BTreeSet::new();
    for _ in 0..2 {
        let forked = fork_that(&world, "obeys", &spec(&world, 250)).unwrap();
        let own: BTreeSet<u32> =
            forked.children.iter().filter_map(|child| Some(child.as_ref().ok()?.child.uid()?.get())).collect();
        assert_eq!(own.len(), if rustix::process::geteuid().is_root() { 250 } else { 0 });
        assert!(own.iter().all(is_taken));
        users.extend(own);
        assert!(kill_many(&list(&world.dirs).unwrap()).into_iter().all(|killed| killed.is_ok()));
    }
    world.expect_no_children();
    let until = Instant::now() + LONG;
    while users.iter().any(is_taken) {
        assert!(Instant::now() < until, "they are taken for ever");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Asked of the lock itself: what `/proc/locks` lists may lack some while others come and go.
fn is_taken(uid: &u32) -> bool {
    let file = std::fs::File::options().write(true).open("/run/forkd.uids").unwrap();
    !crate::sys::are_free(&file, u64::from(*uid)..u64::from(*uid) + 1).unwrap()
}

#[test]
fn one_that_is_refused_takes_all_with_it_unless_each_counts_by_itself() {
    let world = World::new();
    let (error, failed) = failure(fork_that(&world, "forgets-the-second", &spec(&world, 5)));
    assert!(matches!(&error, ChildError::NotStarted { message, .. } if message.contains("refused a process")));
    assert_eq!(failed, 1);
    world.expect_no_children();
    let forked = fork(&ForkSpec { results: Results::PerChild, ..spec(&world, 5) }, &world.dirs).unwrap();
    let lives: Vec<bool> = forked.children.iter().map(Result::is_ok).collect();
    assert_eq!(lives, [true, false, true, true, true]);
    assert_eq!(list(&world.dirs).unwrap().len(), 4);
}

#[test]
fn one_that_dies_is_noticed_at_once_and_not_by_the_clock() {
    for behaves in ["loses-the-second", "loses-the-second-later"] {
        let (world, begun) = (World::new(), Instant::now());
        let (error, _) = failure(fork_that(&world, behaves, &spec(&world, 4)));
        assert!(matches!(&error, ChildError::Died { log, .. } if log.contains("a child that dies")), "{error:?}");
        assert!(begun.elapsed() < LONG / 4, "{behaves} took {:?}", begun.elapsed());
        world.expect_no_children();
    }
}

#[test]
fn an_agent_that_cannot_renew_is_quoted() {
    let world = World::new();
    let (error, _) = failure(fork_that(&world, "cannot-renew-the-second", &spec(&world, 3)));
    assert!(matches!(&error, ChildError::Agent { .. }) && error.to_string().contains("hook 10-net failed"), "{error}");
    world.expect_no_children();
}

#[test]
fn a_silent_one_ends_with_the_limit_and_the_others_live_if_each_counts() {
    let world = World::new();
    let limit = Duration::from_millis(700);
    let patient = ForkSpec { limit, results: Results::PerChild, ..spec(&world, 3) };
    let begun = Instant::now();
    let forked = fork_that(&world, "has-a-silent-second", &patient).unwrap();
    assert!(matches!(forked.children[1], Err(ChildError::Silent { .. })), "{:?}", forked.children[1]);
    assert!(forked.children[0].is_ok() && forked.children[2].is_ok());
    assert!((limit..limit * 20).contains(&begun.elapsed()), "took {:?}", begun.elapsed());
    let (error, _) = failure(fork(&ForkSpec { limit, ..spec(&world, 3) }, &world.dirs));
    assert!(matches!(error, ChildError::Silent { .. }), "{error:?}");
    assert_eq!(list(&world.dirs).unwrap().len(), 2, "those of before");
}

#[test]
fn a_connection_that_a_guest_resets_is_tried_again() {
    let world = World::new();
    let forked = fork_that(&world, "resets-first-calls", &spec(&world, 3)).unwrap();
    assert!(forked.children.iter().all(Result::is_ok), "{:?}", forked.children);
}

#[test]
fn a_template_that_dies_when_it_is_asked_is_noticed_whatever_is_heard_first() {
    let world = World::new();
    for _ in 0..10 {
        let (error, failed) = failure(fork_that(&world, "dies-asked", &spec(&world, 3)));
        assert!(matches!(error, ChildError::TemplateDied { .. }), "{error:?}");
        assert_eq!(failed, 3);
    }
}

#[test]
fn a_template_that_dies_leaves_no_child_behind() {
    let (world, begun) = (World::new(), Instant::now());
    match fork_that(&world, "dies-forking", &spec(&world, 6)) {
        // Those that came up before it died go on; that it is one or the other is a matter of microseconds.
        Ok(forked) => assert!(kill_many(&list(&world.dirs).unwrap()).len() == forked.children.len()),
        Err(ForkError::Child { source: ChildError::TemplateDied { log }, .. }) => assert!(log.contains("dies-forking")),
        Err(other) => panic!("{other:?}"),
    }
    assert!(begun.elapsed() < LONG / 4, "took {:?}", begun.elapsed());
    world.expect_no_children();
}

#[test]
fn a_fork_can_be_called_off() {
    let world = World::new();
    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    let forked = fork_that(&world, "obeys", &ForkSpec { cancel: Some(cancel), ..spec(&world, 9) });
    assert!(matches!(forked, Err(ForkError::Cancelled)), "{forked:?}");
    world.expect_no_children();
}

#[test]
fn children_of_a_connection_go_with_it_and_others_do_not() {
    let world = World::new();
    let detached = fork_that(&world, "obeys", &spec(&world, 2)).unwrap();
    let bound = fork(&ForkSpec { lifetime: Lifetime::Connection, ..spec(&world, 3) }, &world.dirs).unwrap();
    assert_eq!(list(&world.dirs).unwrap().len(), 5);
    drop(detached);
    drop(bound);
    let until = Instant::now() + LONG;
    while list(&world.dirs).unwrap().len() > 2 {
        assert!(Instant::now() < until, "they live on");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(list(&world.dirs).unwrap().len(), 2);
    crate::sweep(&world.dirs).unwrap();
    assert_eq!(std::fs::read_dir(world.dirs.run.join("vms")).unwrap().count(), 3, "two, and the lock");
}

#[test]
fn what_ended_a_child_is_known_until_its_owner_has_it_swept() {
    let world = World::new();
    let owned = ChildOptions { owner: Some("me".into()), ..ChildOptions::default() };
    let forked = fork_that(&world, "obeys", &ForkSpec { children: vec![owned], ..spec(&world, 1) }).unwrap();
    let ForkedChild { child, pid, .. } = forked.children.into_iter().next().unwrap().unwrap();
    let state = std::fs::File::options().write(true).open(child.path().join(STATE)).unwrap();
    rustix::io::pwrite(&state, b"vcpu 59\n", KILLED_AT).unwrap();
    drop(state);
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let until = Instant::now() + LONG;
    while child.is_alive().unwrap() {
        assert!(Instant::now() < until, "it lives on");
        std::thread::sleep(Duration::from_millis(2));
    }
    let next = fork(&spec(&world, 1), &world.dirs).unwrap().children.remove(0).unwrap();
    crate::sweep(&world.dirs).unwrap();
    crate::sweep_but(|id| id == child.id(), &world.dirs).unwrap();
    assert!(matches!(crate::open(child.id(), &world.dirs), Err(crate::FindError::Died(_))));
    crate::sweep_but(|_| false, &world.dirs).unwrap();
    assert!(matches!(crate::open(child.id(), &world.dirs), Err(crate::FindError::Unknown { .. })));
    assert!(!child.path().exists() && next.child.is_alive().unwrap());
}

#[test]
fn a_stuck_child_is_killed() {
    let world = World::new();
    let forked = fork_that(&world, "obeys", &spec(&world, 1)).unwrap();
    let ready = forked.children.into_iter().next().unwrap().unwrap();
    let pid = rustix::process::Pid::from_raw(ready.pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    crate::kill(&ready.child).unwrap();
    world.expect_no_children();
}

#[test]
fn senseless_numbers_are_refused() {
    let world = World::new();
    for count in [0, MAX_CHILDREN + 1] {
        assert!(matches!(fork(&spec(&world, count), &world.dirs), Err(ForkError::Count { asked }) if asked == count));
    }
}

#[test]
fn a_policy_for_children_without_a_network_is_an_error_and_no_network_is_asked_for() {
    let world = World::new();
    world.start("obeys").unwrap();
    let none = || -> Result<_, net::NetworkError> { panic!("nobody needs a network") };
    let fork = |egress| fork_on(&spec(&world, 1), Some(&Networks { pool: &none, egress, limits: None }), &world.dirs);
    let refused = fork(Some("all".parse().unwrap())).unwrap_err();
    assert!(matches!(refused, ForkError::NoNetwork { .. }) && refused.to_string().contains("--egress"), "{refused}");
    let forked = fork(None).unwrap();
    let child = forked.children.into_iter().next().unwrap().unwrap().child;
    assert_eq!(child.network().unwrap(), None);
    kill_many(&[child]).into_iter().for_each(Result::unwrap);
}
