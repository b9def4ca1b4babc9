//! Much at once, and for long: the daemon keeps nothing of what is over, and neither does the host.
//!
//! `FORKD_E2E_SOAK_SECS` has the coming and going last for longer than a test should.

#![expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::networks::has_groups;
use super::world::World;
use crate::Test;
use crate::host::Host;
use crate::world::{names, vmms_in, wait_until};

/// To be run when nothing else runs: they take all there is, and look at all there is.
pub(crate) const TESTS: &[Test] = &[
    ("native::a_thousand_sandboxes_come_and_go", a_thousand_sandboxes_come_and_go),
    ("native::two_hundred_streams_run_at_once", two_hundred_streams_run_at_once),
    ("native::churn_leaves_nothing", churn_leaves_nothing),
];

const SANDBOXES: usize = 1000;
const STREAMS: usize = 200;
/// How many sandboxes have them.
const STREAMING: usize = 10;
/// What each of them says.
const STREAM_BYTES: usize = 50_000;
const SOAK: Duration = Duration::from_secs(20);
const SOAK_SECS: &str = "FORKD_E2E_SOAK_SECS";
const LIMIT: Duration = Duration::from_secs(60);
/// Threads that wait for work, and memory that the C library keeps, come and go within this.
const MORE_THREADS: u64 = 16;
const MORE_KIB: u64 = 32 << 10;
/// By then it has what it keeps.
const MORE_KIB_LATER: u64 = 8 << 10;
const MEMORY_MIB: u64 = 256;

/// What there is at an instant.
#[derive(Debug)]
struct Holdings {
    /// Of the daemon.
    descriptors: usize,
    threads: u64,
    resident_kib: u64,
    /// Of the host.
    vmms: BTreeSet<u32>,
    directories: BTreeSet<String>,
    tops: BTreeSet<OsString>,
    groups: BTreeSet<OsString>,
}

impl Holdings {
    fn of(world: &World) -> Result<Self> {
        let process = format!("/proc/{}", world.daemon.pid()?);
        let status = fs::read_to_string(format!("{process}/status"))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find(|line| line.starts_with(name)).context("a field")?;
            Ok(line.split_whitespace().nth(1).context("a number")?.parse()?)
        };
        let groups = ["/sys/fs/cgroup/forkd", "/sys/fs/cgroup/unified/forkd"].map(|dir| names(Path::new(dir)));
        Ok(Self {
            descriptors: fs::read_dir(format!("{process}/fd"))?.count(),
            threads: field("Threads:")?,
            resident_kib: field("VmRSS:")?,
            vmms: vmms_in(&world.host.dirs.run),
            directories: world.homes(),
            tops: names(&world.host.dirs.cache.join("tops")),
            groups: groups.into_iter().flatten().collect(),
        })
    }

    fn covers(&self, now: &Self) -> bool {
        now.descriptors <= self.descriptors
            && now.threads <= self.threads + MORE_THREADS
            && now.resident_kib <= self.resident_kib + MORE_KIB
            && (&now.vmms, &now.directories, &now.tops, &now.groups)
                == (&self.vmms, &self.directories, &self.tops, &self.groups)
    }

    /// Waits until there is no more than there was.
    fn settle(&self, world: &World) -> Result<()> {
        let settled = wait_until("the end of everything", LIMIT, || Self::of(world).is_ok_and(|now| self.covers(&now)));
        settled.with_context(|| format!("before: {self:?}\nafter: {:?}", Self::of(world)))
    }
}

fn a_thousand_sandboxes_come_and_go(host: &Host) -> Result<()> {
    let world = World::new(host)?;
    world.delete_all(&world.daemon.spawn(&world.tag, 8)?)?;
    let before = Holdings::of(&world)?;
    let ids = world.daemon.spawn(&world.tag, SANDBOXES)?;
    ensure!(world.living()?.len() == SANDBOXES);
    let listed = world.daemon.expect(200, "GET", &format!("/v1/sandboxes?limit={SANDBOXES}"), None)?;
    ensure!(listed.as_array().is_some_and(|listed| listed.len() == SANDBOXES), "{listed}");
    // Each is a VM that knows who it is; to ask some is to ask all.
    for id in ids.iter().step_by(SANDBOXES / 50) {
        ensure!(world.daemon.exec(id, &["hostname"])? == *id);
    }
    world.delete_all(&ids)?;
    ensure!(world.living()?.is_empty());
    before.settle(&world)
}

/// Reads until a line has this in it.
fn read_until(stream: &mut BufReader<UnixStream>, wanted: &str) -> Result<()> {
    let mut lines = stream.lines();
    ensure!(lines.any(|line| line.is_ok_and(|line| line.contains(wanted))), "`{wanted}` never came");
    Ok(())
}

fn two_hundred_streams_run_at_once(host: &Host) -> Result<()> {
    let world = World::new(host)?;
    let ids = world.daemon.spawn(&world.tag, STREAMING)?;
    let before = Holdings::of(&world)?;
    let streams = |words: &[&str]| -> Result<Vec<BufReader<UnixStream>>> {
        let body = json!({ "args": words, "stream": true, "timeout_secs": 600 });
        let path = |n: usize| format!("/v1/sandboxes/{}/exec", ids[n % ids.len()]);
        (0..STREAMS).map(|n| world.daemon.send("POST", &path(n), Some(&body))).collect()
    };
    // All of them say something.
    for mut stream in streams(&["yes", &STREAM_BYTES.to_string()])? {
        let mut all = String::new();
        std::io::Read::read_to_string(&mut stream, &mut all)?;
        let said = all.split("event: stdout\ndata: ").skip(1).map(|event| event.matches('y').count()).sum::<usize>();
        ensure!(said == STREAM_BYTES && all.contains("event: exit"), "it said {said} and {}", &all[all.len() - 200..]);
    }
    // All of them wait.
    let mut waiting = streams(&["sleep"])?;
    waiting.iter_mut().try_for_each(|stream| read_until(stream, "event: started"))?;
    // Others are served meanwhile.
    let begun = Instant::now();
    ensure!(world.daemon.exec(&ids[0], &["echo", "x"])? == "x");
    ensure!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    // Half of the clients leave; the others see their sandboxes end.
    let staying = waiting.split_off(STREAMS / 2);
    drop(waiting);
    world.delete_all(&ids)?;
    for stream in staying {
        let rest: String = stream.lines().map_while(Result::ok).collect();
        ensure!(rest.contains("error") || rest.contains("exit"), "{rest}");
    }
    // Threads that served them wait for others for a while; whether they go is seen where fewer run at once.
    let gone = Holdings {
        threads: before.threads + STREAMS as u64,
        vmms: vmms_in(&world.host.dirs.run.join("templates")),
        directories: BTreeSet::new(),
        ..before
    };
    gone.settle(&world)
}

/// What a day brings: some come, with limits where there can be, are used, are branched, put away, and go or are left to
/// their time.
fn round(world: &World, number: usize) -> Result<()> {
    let limits = if has_groups() { json!({ "memory_mib": MEMORY_MIB }) } else { json!({}) };
    let body = json!({ "snapshot_tag": world.tag, "n": 3, "limits": limits });
    let made = world.daemon.expect(201, "POST", "/v1/sandboxes", Some(&body))?;
    let ids = made.as_array().into_iter().flatten().filter_map(|one| Some(one["id"].as_str()?.to_owned()));
    let ids: Vec<String> = ids.collect();
    let path = |what: &str| format!("/v1/sandboxes/{}/{what}", ids[0]);
    ensure!(world.daemon.exec(&ids[0], &["remember", "1", "word"])?.is_empty());
    let stream = json!({ "args": ["sleep"], "stream": true });
    read_until(&mut world.daemon.send("POST", &path("exec"), Some(&stream))?, "event: started")?;
    let evaluated = world.daemon.expect(200, "POST", &path("eval"), Some(&json!({ "code": "1" })))?;
    ensure!(evaluated["result"] == "1", "{evaluated}");
    if number.is_multiple_of(4) {
        world.daemon.expect(201, "POST", &path("branch"), Some(&json!({ "tag": "churn" })))?;
        let copies = world.daemon.spawn("churn", 1)?;
        ensure!(world.daemon.exec(&copies[0], &["recall", "1"])? == "word");
        world.delete_all(&copies)?;
        world.daemon.expect(204, "DELETE", "/v1/snapshots/churn", None)?;
    }
    if number % 4 == 1 {
        let body = json!({ "name": "churn", "snapshot_tag": world.tag });
        world.daemon.expect(201, "POST", "/v1/workspaces", Some(&body))?;
        world.daemon.expect(200, "POST", "/v1/workspaces/churn/suspend", Some(&json!({})))?;
        world.daemon.expect(200, "POST", "/v1/workspaces/churn/resume", None)?;
        world.daemon.expect(204, "DELETE", "/v1/workspaces/churn", None)?;
    }
    if number % 4 == 2 {
        let body = json!({ "snapshot_tag": world.tag, "ttl_secs": 1 });
        world.daemon.expect(201, "POST", "/v1/sandboxes", Some(&body))?;
    }
    world.delete_all(&ids)
}

fn churn_leaves_nothing(host: &Host) -> Result<()> {
    if !has_groups() {
        eprintln!("there are no control groups of version 2 here: that none is left behind is not shown");
    }
    let world = World::new(host)?;
    (0..4).try_for_each(|number| round(&world, number))?;
    wait_until("the end of what has a time to live", LIMIT, || world.living().is_ok_and(|living| living.is_empty()))?;
    let before = Holdings::of(&world)?;
    let asked = std::env::var(SOAK_SECS).ok().map(|secs| secs.parse().map(Duration::from_secs)).transpose()?;
    let half = asked.unwrap_or(SOAK) / 2;
    let first = rounds(&world, half)?;
    let between = Holdings::of(&world)?.resident_kib;
    let second = rounds(&world, half)?;
    let after = Holdings::of(&world)?.resident_kib;
    eprintln!("{first} rounds: from {} to {between} KiB; {second} more: {after} KiB", before.resident_kib);
    ensure!(after <= between + MORE_KIB_LATER, "it grew from {between} to {after} KiB in {second} rounds");
    before.settle(&world)
}

/// As many rounds as there is time for.
fn rounds(world: &World, time: Duration) -> Result<usize> {
    let until = Instant::now() + time;
    let mut number = 0;
    while Instant::now() < until {
        round(world, number)?;
        number += 1;
    }
    Ok(number)
}
