//! A daemon that is asked to end lets what is under way end first, and not for ever.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Lines, World, wait_until};

/// A command under way in a sandbox that stands still until it is told to go on.
fn under_way(world: &World) -> (Lines, impl Fn(Signal) + use<>) {
    let id = world.spawn(1).remove(0);
    let pid = i32::try_from(world.get(&format!("/v1/sandboxes/{id}"))["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let signal = move |signal| rustix::process::kill_process(pid, signal).unwrap();
    signal(Signal::STOP);
    let asked = world.stream("POST", &format!("/v1/sandboxes/{id}/exec"), Some(json!({ "args": ["echo", "late"] })));
    wait_until("it is asked", || world.guest_threads() > 0);
    (asked, signal)
}

#[test]
fn what_is_under_way_is_answered() {
    let mut world = World::open();
    let (mut asked, signal) = under_way(&world);
    world.signal(Signal::TERM);
    wait_until("the doors are shut", || !world.socket().exists());
    signal(Signal::CONT);
    let answer = asked.rest();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("late"), "{answer}");
    assert_eq!(world.wait_for_daemon(), Some(0));
    assert!(!world.log().contains("cut short"), "{}", world.log());
}

#[test]
fn what_takes_too_long_is_cut_short() {
    let mut world = World::open_with(&["--drain-secs", "1"]);
    let (mut asked, signal) = under_way(&world);
    assert_eq!(world.stop_daemon(), Some(0));
    assert_eq!(asked.rest(), "", "nobody is told something else");
    wait_until("a word on it", || world.log().contains("requests that did not end in time are cut short"));
    signal(Signal::CONT);
}
