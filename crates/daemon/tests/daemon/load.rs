//! Much at once, and for long: the daemon keeps nothing of what is over.
//!
//! `FORKD_SOAK_SECS` has the churn go on for longer than a test should.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::{request, unix};
use crate::support::{World, wait_until};

const SANDBOXES: usize = 1000;
const STREAMS: usize = 200;
const SOAK: Duration = Duration::from_secs(5);
/// Threads that wait for work, and memory that the C library keeps, come and go within this.
const MORE_THREADS: u64 = 16;
const MORE_KIB: u64 = 32 << 10;

/// What the daemon has at an instant.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    descriptors: usize,
    threads: u64,
    resident_kib: u64,
}

impl Holdings {
    fn of(world: &World) -> Self {
        let process = format!("/proc/{}", world.daemon_pid());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let descriptors = fs::read_dir(format!("{process}/fd")).unwrap().count();
        Self { descriptors, threads: field("Threads:"), resident_kib: field("VmRSS:") }
    }

    /// Waits until the daemon has no more than it had.
    fn settle(self, world: &World) {
        wait_until("the daemon gives everything back", || {
            let now = Self::of(world);
            now.descriptors <= self.descriptors
                && now.threads <= self.threads + MORE_THREADS
                && now.resident_kib <= self.resident_kib + MORE_KIB
        });
    }
}

fn delete_all(world: &World, ids: &[String]) {
    std::thread::scope(|scope| {
        for part in ids.chunks(ids.len().div_ceil(8).max(1)) {
            scope.spawn(move || {
                for id in part {
                    world.ask("DELETE", &format!("/v1/sandboxes/{id}"), None).expect(204);
                }
            });
        }
    });
}

#[test]
fn a_thousand_sandboxes_come_and_go() {
    let world = World::open();
    delete_all(&world, &world.spawn(8));
    let before = Holdings::of(&world);
    let ids = world.spawn(SANDBOXES);
    assert_eq!(world.living().len(), SANDBOXES);
    assert_eq!(world.get("/v1/sandboxes?limit=1000").as_array().unwrap().len(), SANDBOXES);
    delete_all(&world, &ids);
    assert!(world.living().is_empty());
    assert!(world.homes().is_empty());
    before.settle(&world);
}

#[test]
fn two_hundred_streams_run_at_once() {
    let world = World::open();
    let ids = world.spawn(10);
    let before = Holdings::of(&world);
    let body = json!({ "args": ["sleep"], "stream": true, "timeout_secs": 600 }).to_string();
    let mut streams: Vec<_> = (0..STREAMS)
        .map(|n| {
            let path = format!("/v1/sandboxes/{}/exec", ids[n % ids.len()]);
            let text = request("POST", &path, &[("content-type", "application/json")], Some(&body));
            let mut stream = unix(&world.socket());
            stream.write_all(text.as_bytes()).unwrap();
            BufReader::new(stream)
        })
        .collect();
    for stream in &mut streams {
        let mut lines = stream.lines();
        assert!(lines.any(|line| line.unwrap().contains("event: started")), "every one of them runs");
    }
    // Others are served meanwhile.
    let begun = Instant::now();
    let ran = world.post(&format!("/v1/sandboxes/{}/exec", ids[0]), json!({ "args": ["echo", "x"] }), 200);
    assert_eq!(ran["stdout"], "x\n");
    assert!(begun.elapsed() < Duration::from_secs(10));
    // Half of the clients leave; the others see their sandboxes end.
    let staying = streams.split_off(STREAMS / 2);
    drop(streams);
    delete_all(&world, &ids);
    for stream in staying {
        let rest: String = stream.lines().map_while(Result::ok).collect();
        assert!(rest.contains("error") || rest.contains("exit"), "{rest}");
    }
    before.settle(&world);
}

#[test]
fn churn_leaves_nothing() {
    let world = World::open();
    let round = |n: usize| {
        let ids = world.spawn(3);
        let path = |what: &str| format!("/v1/sandboxes/{}/{what}", ids[0]);
        assert_eq!(world.post(&path("exec"), json!({ "args": ["echo", "x"] }), 200)["stdout"], "x\n");
        world.post(&path("eval"), json!({ "code": "1" }), 200);
        if n.is_multiple_of(4) {
            world.post(&path("branch"), json!({ "tag": "churn" }), 201);
            world.ask("DELETE", "/v1/snapshots/churn", None).expect(204);
        }
        delete_all(&world, &ids);
    };
    (0..4).for_each(round);
    let before = Holdings::of(&world);
    let asked = std::env::var("FORKD_SOAK_SECS").ok().map(|secs| Duration::from_secs(secs.parse().unwrap()));
    let until = Instant::now() + asked.unwrap_or(SOAK);
    for n in 0.. {
        if Instant::now() > until {
            break;
        }
        round(n);
    }
    assert!(world.living().is_empty());
    before.settle(&world);
}
