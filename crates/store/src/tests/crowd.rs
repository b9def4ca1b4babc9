//! Several processes at once.

use std::process::{Command, Stdio};

use super::*;

const HOME: &str = "STORE_CROWD_HOME";
const ROUNDS: u8 = 12;

/// Played by another process, which the test below starts. By itself it does nothing.
#[test]
fn one_of_many() {
    let Some(home) = std::env::var_os(HOME) else { return };
    let who = std::env::var("STORE_CROWD_WHO").unwrap();
    let store = Store::new(&Dirs::under(Path::new(&home)));
    let mut below: Option<Manifest> = None;
    for round in 0..ROUNDS {
        let image = Path::new(&home).join("image");
        let origin = below.take().map_or_else(|| Origin::booted(vec![image]), |it| Origin::branched(it, "sb".into()));
        let name = tag(&format!("{who}-{}", round % 3));
        let staged = store.stage(&name, Existing::Replace, origin).unwrap();
        // Some contents are the same as those of others.
        fill(&staged, &name.to_string(), &[(u64::from(round % 4), round % 5)]);
        let collected = store.gc(Garbage::Remove).unwrap();
        drop(collected);
        let snapshot = staged.commit(described()).unwrap();
        snapshot.files().unwrap();
        store.list().unwrap();
        below = Some(snapshot.manifest().clone());
        if round % 3 == 2 {
            store.remove(&name, Removal::Force).unwrap();
            below = None;
        }
    }
}

#[test]
fn writers_removers_and_collectors_do_not_meet() {
    let world = World::new();
    let start = |who: &str| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::crowd::one_of_many", "--nocapture"])
            .env(HOME, world.home.path())
            .env("STORE_CROWD_WHO", who)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = ["x", "y", "z"].map(start).into();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let left: Vec<Tag> = world.store.list().unwrap().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(left, ["x-0", "x-1", "y-0", "y-1", "z-0", "z-1"].map(tag));
    let verified = world.store.verify(&[], &Silent).unwrap();
    assert!(verified.findings.is_empty(), "{:?}", verified.findings);
    assert_eq!(world.store.gc(Garbage::Count).unwrap(), Collected::default(), "nobody left garbage");
}
