//! Snapshots in and out of the daemon's host as packs, and the store as a whole.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use store::Store;
use types::progress::Silent;

use crate::http::{Answer, exchange, request, unix};
use crate::support::{World, wait_until};

/// How long a server waits between two pieces.
const PACE: Duration = Duration::from_millis(2);
/// How long those are: of a pack of nothing, that makes some 20, or some 200.
const PIECE: usize = 128;
const LITTLE: usize = 12;

/// A server on this host that hands out some bytes, so many at once, or takes them; its address.
fn server(bytes: Vec<u8>, piece: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let bytes = Arc::new(bytes);
    // It goes with the test.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let bytes = Arc::clone(&bytes);
            // A client that was killed does not read to the end.
            std::thread::spawn(move || drop(serve(stream, &bytes, piece)));
        }
    });
    format!("http://{address}")
}

fn serve(mut stream: TcpStream, bytes: &[u8], piece: usize) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    if head.starts_with("put ") {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        std::io::copy(&mut Read::by_ref(&mut stream).take(length), &mut std::io::sink())?;
        return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    if head.starts_with("get /none") {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\netag: \"x\"\r\nconnection: close\r\n\r\n", bytes.len())?;
    for piece in bytes.chunks(piece) {
        stream.write_all(piece)?;
        std::thread::sleep(PACE);
    }
    Ok(())
}

/// A pack of the snapshot that every world has.
fn packed(world: &World) -> Vec<u8> {
    let answer = world.ask("GET", "/v1/snapshots/base/pack?description=a%20word", None).expect(200);
    assert_eq!(answer.header("content-type"), Some("application/zstd"));
    answer.body
}

fn watch(world: &World, path: &str, body: Value) -> Answer {
    world.ask_with("POST", path, &[("accept", "text/event-stream")], Some(body))
}

/// What the events of this name say.
fn events(answer: &Answer, name: &str) -> Vec<Value> {
    let text = answer.text();
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix(&format!("event: {name}\ndata: ")));
    events.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn what_leaves_as_a_pack_comes_back() {
    let world = World::open();
    let pack = packed(&world);
    assert_eq!(world.send("POST", "/v1/packs", &pack).expect(201).json(), json!([{ "tag": "base", "is_new": false }]));
    let unpacked = world.send("POST", "/v1/packs?tag=again", &pack).expect(201).json();
    assert_eq!(unpacked, json!([{ "tag": "again", "is_new": true }]));
    world.post("/v1/sandboxes", json!({ "snapshot_tag": "again" }), 201);
    assert_eq!(world.get("/v1/snapshots/again/info")["status"], "ready");
    assert_eq!(world.ask("GET", "/v1/snapshots/none/pack", None).code(404), "snapshot_not_found");
    assert_eq!(world.ask("GET", "/v1/snapshots/%2e%2e%2fx/pack", None).code(400), "invalid_tag");
}

#[test]
fn what_is_refused_or_breaks_off_changes_nothing() {
    let world = World::open();
    let pack = packed(&world);
    let before = world.get("/v1/snapshots");
    assert_eq!(world.send("POST", "/v1/packs", b"no pack").code(400), "bad_pack");
    assert_eq!(world.send("POST", "/v1/packs?tag=cut", &pack[..pack.len() / 2]).code(400), "bad_pack");
    assert_eq!(world.send("POST", "/v1/packs?tag=%2e%2e", &pack).code(400), "invalid_tag");
    // Whoever leaves in the midst of it.
    let head = request("POST", "/v1/packs?tag=left", &[("content-length", &pack.len().to_string())], None);
    let mut stream = unix(&world.socket());
    stream.write_all(&[head.as_bytes(), &pack[..pack.len() / 2]].concat()).unwrap();
    drop(stream);
    let staged = || fs::read_dir(world.dirs.data.join("snapshots")).unwrap().flatten().count();
    wait_until("the end of all that was staged", || staged() == 2);
    assert_eq!(world.get("/v1/snapshots"), before);
    assert_eq!(world.get("/v1/store/garbage")["bytes"], 0);
}

#[test]
fn a_workspaces_state_is_not_replaced_by_force() {
    let world = World::open();
    let pack = packed(&world);
    world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    let suspended = world.post("/v1/workspaces/w/suspend", json!({}), 200);
    let state = suspended["current_state_tag"].as_str().unwrap();
    let refused = world.send("POST", &format!("/v1/packs?force=true&tag={state}"), &pack);
    assert_eq!(refused.code(409), "snapshot_exists");
    let replacing = json!({ "tag": state, "recipe": "debian", "replace": true });
    assert_eq!(world.ask("POST", "/v1/snapshots", Some(replacing)).code(409), "snapshot_in_use");
    world.post("/v1/workspaces/w/resume", json!({}), 200);
}

#[test]
fn the_daemon_gets_packs_from_servers_and_hands_them_over() {
    let world = World::open();
    let server = server(packed(&world), LITTLE);
    let pull = |source: String, tag: &str| json!({ "source": source, "tag": tag });
    let watched = watch(&world, "/v1/packs/pull", pull(format!("{server}/p"), "pulled")).expect(200);
    assert_eq!(events(&watched, "result"), [json!([{ "tag": "pulled", "is_new": true }])]);
    let told = events(&watched, "progress");
    assert!(
        told.iter().any(|one| one["stage"].as_str().unwrap().starts_with("Downloading http://127.0.0.1")),
        "{told:?}"
    );
    assert_eq!(world.post("/v1/packs/pull", pull(format!("{server}/p"), "plain"), 201)[0]["tag"], "plain");
    let missing = world.ask("POST", "/v1/packs/pull", Some(pull(format!("{server}/none"), "x")));
    assert_eq!(missing.code(404), "pack_not_found");
    for bad in ["file:///etc/passwd", "me/pyagent", "nonsense"] {
        assert_eq!(world.ask("POST", "/v1/packs/pull", Some(pull(bad.into(), "x"))).code(400), "invalid_request");
    }
    let pushed = world.post("/v1/snapshots/base/push", json!({ "url": format!("{server}/up?secret") }), 200);
    assert!(pushed["bytes"].as_u64().unwrap() > 100, "{pushed}");
    let nowhere = world.ask("POST", "/v1/snapshots/base/push", Some(json!({ "url": "http://127.0.0.1:1/x" })));
    assert_eq!(nowhere.code(409), "server_failed");
}

#[test]
fn a_bad_pack_is_downloaded_anew_and_one_without_a_place_is_not() {
    let world = World::open();
    let (good, downloads) = (packed(&world), || world.get("/v1/store/garbage")["downloads"].as_array().unwrap().len());
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    let pull = |server: &str, tag: &str| {
        world.ask("POST", "/v1/packs/pull", Some(json!({ "source": format!("{server}/p"), "tag": tag })))
    };
    assert_eq!(pull(&server(bad, PIECE), "bad").code(400), "bad_pack");
    assert_eq!(downloads(), 0);
    world.ask("POST", "/v1/snapshots/base/compact", Some(json!({ "to": "other" }))).expect(200);
    assert_eq!(pull(&server(good, PIECE), "other").code(409), "snapshot_exists");
    assert_eq!(downloads(), 1);
}

#[test]
fn who_watches_and_leaves_calls_it_off() {
    let world = World::open();
    // Long enough to be left in the midst of it; what it is does not matter.
    let address = format!("{}/long", server(vec![7; 4 << 20], PIECE));
    let body = json!({ "source": address }).to_string();
    let text = request(
        "POST",
        "/v1/packs/pull",
        &[("content-type", "application/json"), ("accept", "text/event-stream")],
        Some(&body),
    );
    let mut stream = unix(&world.socket());
    stream.write_all(text.as_bytes()).unwrap();
    let mut some = [0; 256];
    stream.read_exact(&mut some).unwrap();
    assert_eq!(world.ask("POST", "/v1/packs/pull", Some(json!({ "source": address }))).code(409), "busy");
    assert_eq!(world.get("/v1/store/garbage")["downloads"], json!([]));
    drop(stream);
    // What came in part is kept, and is garbage once nobody is at it.
    wait_until("the end of the download", || world.get("/v1/store/garbage")["downloads"] != json!([]));
    let gone = world.ask("DELETE", "/v1/store/garbage", None).expect(200).json();
    assert!(gone["downloads"][0]["bytes"].as_u64().unwrap() > 0, "{gone}");
    assert_eq!(world.get("/v1/store/garbage")["downloads"], json!([]));
}

#[test]
fn work_that_is_watched_ends_with_what_it_would_have_answered() {
    let world = World::open();
    let compacted = watch(&world, "/v1/snapshots/base/compact", json!({ "to": "flat" })).expect(200);
    assert_eq!(compacted.header("content-type"), Some("text/event-stream"));
    assert_eq!(events(&compacted, "result")[0]["branched_from"], "compact:base");
    // What fails before it has begun has its status.
    assert_eq!(watch(&world, "/v1/snapshots/none/compact", json!({ "to": "x" })).code(404), "snapshot_not_found");
    assert_eq!(watch(&world, "/v1/snapshots/base/compact", json!({ "to": "flat" })).code(409), "snapshot_exists");
    let verified = watch(&world, "/v1/store/verify", json!({})).expect(200);
    let result = &events(&verified, "result")[0];
    assert_eq!((&result["snapshots"], &result["findings"]), (&json!(2), &json!([])));
}

#[test]
fn a_pack_on_its_way_is_watched_on_another_connection() {
    let world = World::open();
    let mut told = world.stream("GET", "/v1/packs/progress", None);
    told.until(r#"data: {"watch":"0"}"#);
    world.ask("GET", "/v1/snapshots/base/pack?watch=0", None).expect(200);
    // It ends with the pack.
    told.rest();
    assert_eq!(world.ask("GET", "/v1/snapshots/base/pack?watch=0", None).code(400), "invalid_request");
}

#[test]
fn a_tag_that_is_taken_is_told_before_anything_is_built() {
    let world = World::open();
    let taken = world.ask("POST", "/v1/snapshots", Some(json!({ "tag": "base", "recipe": "debian" })));
    assert_eq!(taken.code(400), "snapshot_exists");
    let nobody = world.ask("POST", "/v1/snapshots", Some(json!({ "tag": "new", "recipe": "../debian" })));
    assert_eq!(nobody.code(400), "invalid_request");
}

#[test]
fn the_store_is_counted_and_cleared_up() {
    let world = World::open();
    let before = world.get("/v1/store");
    assert_eq!((&before["snapshots"], &before["layers"]), (&json!(1), &json!(1)));
    // What a killed writer leaves.
    fs::create_dir(world.dirs.data.join("snapshots/.staging-0123456789abcdef")).unwrap();
    let garbage = world.get("/v1/store/garbage");
    assert_eq!(garbage["unfinished"][0]["name"], ".staging-0123456789abcdef");
    assert_eq!(world.get("/v1/store/garbage"), garbage, "looking changes nothing");
    world.ask("DELETE", "/v1/store/garbage", None).expect(200);
    assert_eq!(world.get("/v1/store/garbage")["unfinished"], json!([]));
    assert_eq!(world.get("/v1/store"), before);
    let removed = world.ask_with("DELETE", "/v1/snapshots/base", &[("prefer", "return=representation")], None);
    assert_eq!(removed.expect(200).json(), json!({ "removed": ["base"] }));
    assert!(Store::new(&world.dirs).verify(&[], &Silent).unwrap().findings.is_empty());
    let text = request("DELETE", "/v1/snapshots/base", &[], None);
    assert_eq!(exchange(unix(&world.socket()), text.as_bytes()).unwrap().code(404), "snapshot_not_found");
}
