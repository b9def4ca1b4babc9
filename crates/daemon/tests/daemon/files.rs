//! Files of a sandbox over HTTP.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::json;

use crate::http::{quote, request, unix};
use crate::support::{World, wait_until};

/// A sandbox, and a directory that its agent sees.
struct Place {
    world: World,
    dir: tempfile::TempDir,
    files: String,
}

impl Place {
    fn new() -> Self {
        let world = World::open();
        let id = world.spawn(1).remove(0);
        Self { world, dir: tempfile::tempdir().unwrap(), files: format!("/v1/sandboxes/{id}/files") }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// A route, about a file of this name.
    fn about(&self, more: &str, name: &str) -> String {
        format!("{}{more}?path={}", self.files, quote(&self.path(name)))
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_file_is_written_read_looked_at_moved_and_removed() {
    let place = Place::new();
    let (world, put) = (&place.world, format!("{}&mode=0640", place.about("", "a/b c")));
    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let written = world.send("PUT", &put, &bytes).expect(200).json();
    assert_eq!(fs::read(place.path("a/b c")).unwrap(), bytes);
    assert_eq!(fs::metadata(place.path("a/b c")).unwrap().permissions().mode() & 0o7777, 0o640);
    let told = world.get(&place.about("/stat", "a/b c"));
    assert_eq!(told, written);
    assert_eq!((&told["name"], &told["kind"], &told["mode"]), (&json!("b c"), &json!("file"), &json!("0640")));
    assert_eq!((&told["size"], &told["path"]), (&json!(3 << 20), &json!(place.path("a/b c"))));
    assert!(told["mtime_unix"].as_f64().unwrap() > 1e9 && told.get("target").is_none(), "{told}");
    let read = world.ask("GET", &place.about("", "a/b c"), None).expect(200);
    assert_eq!(read.header("content-type"), Some("application/octet-stream"));
    assert!(read.body == bytes, "what was read is not what was written");
    let moved = json!({ "from": place.path("a/b c"), "to": place.path("a/d") });
    let moved = world.post(&format!("{}/move", place.files), moved, 200);
    assert_eq!(moved["name"], "d");
    symlink("d", place.path("a/link")).unwrap();
    assert_eq!(world.get(&place.about("/stat", "a/link"))["target"], "d");
    world.ask("DELETE", &place.about("", "a/d"), None).expect(204);
    assert_eq!(world.ask("DELETE", &place.about("", "a"), None).code(409), "directory_not_empty");
    world.ask("DELETE", &format!("{}&recursive=true", place.about("", "a")), None).expect(204);
    assert!(place.names().is_empty());
}

#[test]
fn directories_are_made_and_listed_to_any_depth() {
    let place = Place::new();
    let made = json!({ "path": place.path("x/y"), "mode": "0700" });
    let made = place.world.post(&format!("{}/mkdir", place.files), made, 201);
    assert_eq!((&made["kind"], &made["mode"]), (&json!("dir"), &json!("0700")));
    for n in 0..2000 {
        fs::write(place.path(&format!("x/y/{n}")), "").unwrap();
    }
    let listed = |more: &str| {
        let all = place.world.get(&format!("{}{more}", place.about("/list", "x")));
        let mut names: Vec<String> =
            all.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(listed(""), ["y"]);
    assert_eq!(listed("&depth=2").len(), 2001);
    let empty = place.world.post(&format!("{}/mkdir", place.files), json!({ "path": place.path("e") }), 201);
    assert_eq!(empty["name"], "e");
    assert_eq!(place.world.get(&place.about("/list", "e")), json!([]));
    fs::write(place.path("f"), "").unwrap();
    assert_eq!(place.world.send("PUT", &place.about("", "g"), b"").expect(200).json()["size"], 0);
    assert_eq!(place.world.ask("GET", &place.about("", "g"), None).expect(200).body, b"");
}

#[test]
fn what_cannot_be_done_is_told_apart() {
    let place = Place::new();
    fs::create_dir(place.path("dir")).unwrap();
    fs::write(place.path("file"), "old").unwrap();
    let get = |path: &str| place.world.ask("GET", path, None);
    assert_eq!(get(&place.about("", "none")).code(404), "file_not_found");
    assert_eq!(get(&place.about("", "dir")).code(400), "is_a_directory");
    assert_eq!(get(&place.about("/list", "file")).code(400), "not_a_directory");
    assert_eq!(get(&place.about("/list", "none")).code(404), "file_not_found");
    assert_eq!(get(&format!("{}?path=relative", place.files)).code(400), "invalid_request");
    assert_eq!(get(&place.files).code(400), "invalid_request");
    assert_eq!(get(&format!("{}&depth=0", place.about("/list", "dir"))).code(400), "invalid_request");
    let put = |path: &str| place.world.send("PUT", path, b"new");
    assert_eq!(put(&format!("{}&parents=false", place.about("", "no/dir"))).code(404), "file_not_found");
    assert_eq!(put(&format!("{}&mode=99", place.about("", "x"))).code(400), "invalid_request");
    assert_eq!(put(&format!("{}&user=nobody-here", place.about("", "x"))).code(400), "agent_refused");
    let moved = json!({ "from": place.path("dir"), "to": place.path("file") });
    let moved = place.world.ask("POST", &format!("{}/move", place.files), Some(moved));
    assert_eq!(moved.code(409), "file_exists");
    assert_eq!(fs::read(place.path("file")).unwrap(), b"old");
    let elsewhere = place.about("", "file").replace("/v1/sandboxes/sb-", "/v1/sandboxes/sb-0");
    assert_eq!(get(&elsewhere).code(404), "sandbox_not_found");
}

#[test]
fn half_a_body_leaves_the_file_as_it_was() {
    let place = Place::new();
    fs::write(place.path("file"), "old").unwrap();
    let head = request("PUT", &place.about("", "file"), &[("content-length", "1000000")], None);
    let mut stream = unix(&place.world.socket());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&[7; 200_000]).unwrap();
    // It is being written: beside its place.
    wait_until("the beginning", || place.names().len() == 2);
    drop(stream);
    wait_until("the end", || place.names() == ["file"]);
    assert_eq!(fs::read(place.path("file")).unwrap(), b"old");
    let audit = place.world.dirs.data.join("audit.log");
    wait_until("the audit line", || crate::support::holds(&audit, "\"method\":\"PUT\""));
}

#[test]
fn a_file_streams_as_it_is_read_and_ends_with_its_reader() {
    let place = Place::new();
    // Sparse: far more than anybody would keep in memory.
    let file = fs::File::create(place.path("big")).unwrap();
    file.set_len(64 << 30).unwrap();
    let head = request("GET", &place.about("", "big"), &[], None);
    let mut stream = unix(&place.world.socket());
    stream.write_all(head.as_bytes()).unwrap();
    let mut some = vec![0; 32 << 20];
    stream.read_exact(&mut some).unwrap();
    assert!(some.starts_with(b"HTTP/1.1 200"));
    assert!(place.world.daemon_memory_kib() < 200 << 10, "it is kept in memory");
    drop(stream);
    // The daemon ends in time only when nobody reads any more.
    let mut world = place.world;
    let begun = std::time::Instant::now();
    assert_eq!(world.stop_daemon(), Some(0));
    assert!(begun.elapsed().as_secs() < 20, "the file was read on: {:?}", begun.elapsed());
}
