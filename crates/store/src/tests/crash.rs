//! Writers that are killed, power that fails, disks that are full.

use std::cell::RefCell;
use std::process::{Command, Stdio};
use std::rc::Rc;

use super::*;
use crate::steps;

/// What a process of its own shall do, and the step at which it dies.
const ROLE: &str = "STORE_TEST_ROLE";
const HOME: &str = "STORE_TEST_HOME";

/// Played by another process, which the tests below start. By itself it does nothing.
#[test]
fn another_process() {
    let (Ok(role), Some(home)) = (std::env::var(ROLE), std::env::var_os(HOME)) else { return };
    let store = Store::new(&Dirs::under(Path::new(&home)));
    let image = Path::new(&home).join("image");
    let (what, last) = role.split_once(' ').unwrap();
    let last = last.to_owned();
    let die = move |step: &str| {
        if step == last {
            println!("reached");
            std::io::stdin().read_to_string(&mut String::new()).unwrap();
        }
    };
    steps::with(die, || match what {
        "write" => {
            let parent = store.get(&tag("base")).unwrap().manifest().clone();
            let staged = store.stage(&tag("a"), Existing::Replace, Origin::branched(parent, "sb".into())).unwrap();
            fill(&staged, "written", &[(5, 5)]);
            steps::reached("written");
            staged.commit(described()).unwrap();
        }
        "remove" => drop(store.remove(&tag("base"), Removal::Force).unwrap()),
        "compact" => {
            let error = store.compact(&tag("base"), &tag("flat"), &Silent).unwrap_err();
            println!("{}", std::error::Error::source(&error).unwrap());
            assert!(matches!(error, StoreError::Merge { .. }), "{error}");
        }
        "boot" => {
            let staged = store.stage(&tag("a"), Existing::Keep, Origin::booted(vec![image.clone()])).unwrap();
            fill(&staged, "x", &[(5, 5)]);
        }
        other => panic!("what is {other}?"),
    });
}

fn start(world: &World, role: &str, limit: &str) -> std::process::Child {
    let line = format!("trap '' XFSZ; {limit} exec \"$0\" --exact tests::crash::another_process --nocapture");
    Command::new("sh")
        .args(["-c", &line])
        .arg(std::env::current_exe().unwrap())
        .envs([(ROLE, role.into()), (HOME, world.home.path().as_os_str().to_owned())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a process and kills it when it has come so far.
fn kill_at(world: &World, role: &str) {
    let mut process = start(world, role, "");
    let mut heard = Vec::new();
    let mut stdout = process.stdout.take().unwrap();
    while !String::from_utf8_lossy(&heard).contains("reached") {
        let mut byte = [0];
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{role}: {}", String::from_utf8_lossy(&heard));
        heard.extend(byte);
    }
    process.kill().unwrap();
    process.wait().unwrap();
}

/// A base, and an `a` that is to be replaced.
fn with_base() -> World {
    let world = World::new();
    world.write("base", world.booted(), &[(1, 1)]);
    world.write("a", world.booted(), &[(2, 2)]);
    world
}

/// Everything that can be seen is whole, `a` is the old or the new, and what is left over can be collected.
fn expect_whole(store: &Store, when: &str) -> String {
    let listed = store.list().unwrap();
    assert!(listed.iter().all(|(_, status)| matches!(status, Ok(Status::Ready(_)))), "{when}: {listed:?}");
    let findings = store.verify(&[], &Silent).unwrap().findings;
    assert!(findings.is_empty(), "{when}: {findings:?}");
    let a = store.get(&tag("a")).unwrap();
    let which = state(&a);
    let depth = a.manifest().depth();
    assert_eq!(depth, usize::from(which == "written"), "{when}");
    store.gc(Garbage::Remove).unwrap();
    assert!(store.verify(&[], &Silent).unwrap().findings.is_empty(), "{when}: after the garbage went");
    let needed = store.needed().unwrap().len();
    assert_eq!(store.pool.all().unwrap().len(), needed, "{when}");
    assert!(!names(store.dir()).iter().any(|name| name.starts_with(".staging")), "{when}");
    which
}

#[test]
fn a_killed_writer_leaves_the_old_or_the_new() {
    for (step, expected) in [
        ("staged", "a"),
        ("written", "a"),
        ("synced", "a"),
        ("layer moved", "a"),
        ("published", "written"),
        ("tidied", "written"),
    ] {
        let world = with_base();
        kill_at(&world, &format!("write {step}"));
        assert_eq!(expect_whole(&world.store, step), expected, "{step}");
        world.write("next", world.over("a"), &[(6, 6)]);
    }
}

#[test]
fn whoever_is_killed_removing_leaves_garbage() {
    let world = with_base();
    world.write("child", world.over("base"), &[(3, 3)]);
    kill_at(&world, "remove nameless");
    assert!(matches!(world.store.get(&tag("base")), Err(StoreError::Unknown { .. })));
    assert_eq!(expect_whole(&world.store, "removed"), "a");
}

#[test]
fn a_living_writer_is_left_alone_and_a_dead_one_swept() {
    let world = World::new();
    let living = world.store.stage(&tag("b"), Existing::Keep, world.booted()).unwrap();
    kill_at(&world, "boot staged");
    assert_eq!(world.names().len(), 2);
    let listed: Vec<_> = world.store.list().unwrap().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(listed, [tag("b")], "half a snapshot of a dead writer is none");
    let next = world.store.stage(&tag("c"), Existing::Keep, world.booted()).unwrap();
    assert_eq!(world.names().len(), 2, "the dead writer's is swept");
    drop((living, next));
}

#[test]
fn power_may_fail_at_any_step() {
    let world = with_base();
    let copies = Rc::new(RefCell::new(Vec::new()));
    let (home, taken) = (world.home.path().to_owned(), Rc::clone(&copies));
    let copy = move |step: &str| {
        let to = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg("-a").arg(home.join("data")).arg(to.path()).status().unwrap();
        assert!(copied.success());
        taken.borrow_mut().push((step.to_owned(), to));
    };
    steps::with(copy, || {
        let staged = world.store.stage(&tag("a"), Existing::Replace, world.over("base")).unwrap();
        fill(&staged, "written", &[(5, 5)]);
        staged.commit(described()).unwrap();
        world.store.remove(&tag("base"), Removal::Force).unwrap();
    });
    let copies = copies.borrow();
    let steps: Vec<&str> = copies.iter().map(|(step, _)| step.as_str()).collect();
    assert_eq!(steps, ["staged", "synced", "layer moved", "layer moved", "published", "tidied", "nameless"]);
    for (step, home) in &*copies {
        let which = expect_whole(&Store::new(&Dirs::under(home.path())), step);
        let published = ["published", "tidied", "nameless"].contains(&step.as_str());
        assert_eq!(which == "written", published, "{step}");
    }
}

#[test]
fn a_full_disk_is_told_and_nothing_is_left() {
    let world = World::new();
    let blocks: Vec<Block> = (0..8).map(|block| (block, 1)).collect();
    world.write("base", world.booted(), &blocks);
    let layers = world.layers();
    // Files may have 16 KiB at most, or 8 where the shell counts otherwise: enough for a lock and an intent.
    let process = start(&world, "compact never", "ulimit -f 16;");
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("cannot be written: File too large"), "{said}");
    assert_eq!((world.names(), world.layers()), (vec!["base".to_owned()], layers));
}
