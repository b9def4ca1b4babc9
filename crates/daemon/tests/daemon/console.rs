//! A sandbox's console, as it is and as it goes on.

use std::fs::OpenOptions;
use std::io::Write as _;

use crate::support::World;

/// As its VMM writes it.
fn write(world: &World, id: &str, text: &str) {
    let path = world.dirs.run.join("vms").join(id).join("console.log");
    OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn it_is_shown_and_followed_to_the_end_of_its_sandbox() {
    let mut world = World::open();
    let ids = world.spawn(2);
    let path = |id: &str, query: &str| format!("/v1/sandboxes/{id}/console{query}");
    write(&world, &ids[0], "one\ntwo\nthree\n");
    let shown = world.ask("GET", &path(&ids[0], ""), None).expect(200);
    assert_eq!(
        (shown.text().as_str(), shown.header("content-type")),
        ("one\ntwo\nthree\n", Some("text/plain; charset=utf-8"))
    );
    assert_eq!(world.ask("GET", &path(&ids[0], "?tail=2"), None).expect(200).text(), "two\nthree\n");

    let mut followed = world.stream("GET", &path(&ids[0], "?follow=true&tail=1"), None);
    assert!(!followed.take_until("three").contains("two"), "only the last line was asked for");
    write(&world, &ids[0], "four\n");
    followed.until("four");
    write(&world, &ids[0], "last words\n");
    world.ask("DELETE", &format!("/v1/sandboxes/{}", ids[0]), None).expect(204);
    followed.rest();

    let mut other = world.stream("GET", &path(&ids[1], "?follow=true"), None);
    other.until("200 OK");
    write(&world, &ids[1], "hello\n");
    other.until("hello");
    assert_eq!(world.stop_daemon(), Some(0), "nobody waits for who follows");
    other.rest();
}
