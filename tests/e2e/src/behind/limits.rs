//! Sandboxes of one request, each held to limits of its own by the host's kernel and its VMM, and told by the API.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::fs::Advice;
use serde_json::{Value, json};

use super::{TAG, World, path};
use crate::serving::PATIENCE;
use crate::world::wait_until;

/// Where the groups are on the hosts that tests run on.
const GROUPS: &str = "/sys/fs/cgroup/forkd";
const MIB: u64 = 1 << 20;
/// How much more than its share one may get: shares are dealt out by periods, and the first comes at once.
const LEEWAY: f64 = 1.3;
const CPU_MILLIS: u64 = 200;
const MEMORY_MIB: u64 = 40;
const HIGH_MIB: u64 = 32;
const IO_MIB_PER_SEC: u64 = 2;
/// What is read to see how long that takes.
const IO_MIB: u64 = 6;
/// Reads as much of the image, of files that nobody needed yet.
const READ: &str = "find /usr/share /usr/lib -xdev -type f -size +16k | xargs cat | head -c 6M > /dev/null";
const FILL: &str = "dd if=/dev/zero of=/root/filler bs=1M count=16 oflag=direct && echo there was room";

/// One of them.
struct Held<'a> {
    world: &'a World,
    id: String,
    group: PathBuf,
}

impl Held<'_> {
    fn read(&self, file: &str) -> Result<String> {
        let path = self.group.join(file);
        Ok(fs::read_to_string(&path).with_context(|| path.display().to_string())?.trim_end().to_owned())
    }

    /// The number behind a word in one of the group's files; what was never counted is not there.
    fn count(&self, file: &str, word: &str) -> Result<u64> {
        let said = self.read(file)?;
        let mut numbers = said.split_whitespace().skip_while(|it| *it != word).skip(1);
        Ok(numbers.next().map(str::parse).transpose()?.unwrap_or_default())
    }

    /// Bytes that went between it and the host's disks.
    fn moved(&self, word: &str) -> Result<u64> {
        let said = self.read("io.stat")?;
        let numbers = said.split_whitespace().filter_map(|it| it.strip_prefix(word)?.strip_prefix('='));
        numbers.map(|number| Ok(number.parse::<u64>()?)).sum()
    }

    fn info(&self) -> Result<Value> {
        self.world.get(&path(&self.id))
    }

    /// What the shell's line says, and fails or not.
    fn sh(&self, line: &str) -> Result<Value> {
        let body = json!({ "args": ["sh", "-c", line], "timeout_secs": 60 });
        self.world.daemon.expect(200, "POST", &format!("{}/exec", path(&self.id)), Some(&body))
    }

    /// Has something run that nobody waits for.
    fn start(&self, line: &str) -> Result<()> {
        let body = json!({ "args": ["sh", "-c", line] });
        self.world.daemon.expect(201, "POST", &format!("{}/processes", path(&self.id)), Some(&body)).map(drop)
    }

    fn waits_to_be_told(&self, what: &str) -> Result<()> {
        let told = || self.info().is_ok_and(|info| info[what] == true);
        wait_until(what, PATIENCE, told).with_context(|| format!("{:?}", self.info()))
    }
}

pub(super) fn hold_each_to_its_own(world: &World) -> Result<()> {
    let limits = [
        json!({ "cpu_millis": CPU_MILLIS, "cpu_weight": 50 }),
        json!({ "memory_mib": MEMORY_MIB }),
        json!({ "memory_high_mib": HIGH_MIB, "swap_mib": 1 }),
        json!({ "disk_mib": 8 }),
        json!({ "read_mib_per_sec": IO_MIB_PER_SEC, "write_mib_per_sec": IO_MIB_PER_SEC }),
    ];
    let each: Vec<Value> = limits.iter().map(|own| json!({ "limits": own })).collect();
    let body = json!({ "snapshot_tag": TAG, "n": limits.len(), "limits": { "cpu_weight": 70 }, "per_child": each });
    let made = world.daemon.expect(201, "POST", "/v1/sandboxes", Some(&body))?;
    let ids = made.as_array().context("sandboxes")?.iter().map(|one| one["id"].as_str().map(String::from));
    let held = ids.map(|id| id.map(|id| Held { world, group: Path::new(GROUPS).join(&id), id }));
    let held: Vec<Held<'_>> = held.collect::<Option<_>>().context("ids")?;
    let [cpu, memory, high, disk, io] = &held[..] else { anyhow::bail!("five were asked for: {made}") };
    are_in_force(&held, &limits)?;
    let (begun, used) = (Instant::now(), cpu.count("cpu.stat", "usage_usec")?);
    cpu.start("while :; do :; done")?;
    high.start("tail /dev/zero")?;
    disk_ends(disk)?;
    memory_ends(memory)?;
    io_takes_its_time(io)?;
    // It has wanted all of a CPU all the time.
    cpu.waits_to_be_told("throttled")?;
    let used = cpu.count("cpu.stat", "usage_usec")? - used;
    let (got, share) = (used as f64 / begun.elapsed().as_secs_f64() / 1e6, CPU_MILLIS as f64 / 1e3);
    ensure!((share / 2.0..=share * LEEWAY).contains(&got), "it got {got:.2} CPUs, and may have {share:.2}");
    high.waits_to_be_told("throttled")?;
    let current: u64 = high.read("memory.current")?.parse()?;
    ensure!(high.count("memory.events", "high")? > 0 && current < 2 * HIGH_MIB * MIB, "it has {current} bytes");
    ensure!(high.info()?["status"] == "running", "it is slow, and lives: {}", high.info()?);
    // Nobody is told what another did.
    for (one, flags) in [(io, [false; 3]), (disk, [false, false, true]), (cpu, [false, true, false])] {
        let info = one.info()?;
        ensure!(["oom_killed", "throttled", "disk_full"].map(|flag| info[flag] == true) == flags, "{info}");
    }
    Ok(())
}

/// Each group says what was asked for, and the API as well.
fn are_in_force(held: &[Held<'_>], limits: &[Value]) -> Result<()> {
    let [cpu, memory, high, disk, io] = held else { anyhow::bail!("five") };
    let bytes = |mib: u64| (mib * MIB).to_string();
    let expected = [
        (cpu, "cpu.max", format!("{} 100000", CPU_MILLIS * 100)),
        (cpu, "cpu.weight", "50".into()),
        (disk, "cpu.weight", "70".into()),
        (disk, "memory.max", "max".into()),
        (memory, "memory.max", bytes(MEMORY_MIB)),
        (memory, "memory.swap.max", "0".into()),
        (memory, "memory.oom.group", "1".into()),
        (high, "memory.high", bytes(HIGH_MIB)),
        (high, "memory.swap.max", bytes(1)),
        (high, "memory.max", "max".into()),
    ];
    for (one, file, value) in expected {
        ensure!(one.read(file)? == value, "{file} is {}, and not {value}", one.read(file)?);
    }
    let rate = bytes(IO_MIB_PER_SEC);
    let set = io.read("io.max")?;
    ensure!(set.contains(&format!("rbps={rate} wbps={rate}")), "io.max is {set}");
    for (one, own) in held.iter().zip(limits) {
        ensure!(one.read("pids.max")? != "max", "its threads are not bounded");
        let told = one.info()?;
        let is_told = own.as_object().is_some_and(|own| own.iter().all(|(name, value)| told["limits"][name] == *value));
        ensure!(is_told, "{own} is told as {told}");
        let pid = told["pid"].as_u64().context("its process")?;
        let member = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        ensure!(member.contains(&format!("0::/forkd/{}\n", one.id)), "{member}");
    }
    Ok(())
}

/// Who writes more to its disk than it may gets an error, and goes on.
fn disk_ends(disk: &Held<'_>) -> Result<()> {
    let filled = disk.sh(FILL)?;
    ensure!(filled["exit_code"] != 0 && !filled["stdout"].to_string().contains("room"), "{filled}");
    disk.waits_to_be_told("disk_full")?;
    ensure!(disk.sh("echo $((6 * 7))")?["stdout"] == "42\n", "it answers no more");
    Ok(())
}

/// Who needs more memory than it may have is ended, and it is said why.
fn memory_ends(memory: &Held<'_>) -> Result<()> {
    memory.start("tail /dev/zero")?;
    memory.waits_to_be_told("oom_killed")?;
    // It is known a moment before it is over.
    wait_until("its end", PATIENCE, || memory.info().is_ok_and(|info| info["status"] == "gone"))?;
    let info = memory.info()?;
    let reason = info["reason"].as_str().unwrap_or_default();
    let named = reason.contains(&format!("ran out of its memory limit of {MEMORY_MIB} MiB"));
    ensure!(info["oom_killed"] == true && named, "{info}");
    Ok(())
}

/// What it reads from the host's disks takes as long as it must. Writing is not looked at: it is in the host's memory first,
/// and a few MiB that were then written down were not counted for its group.
fn io_takes_its_time(io: &Held<'_>) -> Result<()> {
    let image = File::open(&io.world.host.artifacts.debian)?;
    // Nothing of it is in the host's memory, so that it has to be read.
    image.sync_data()?;
    rustix::fs::fadvise(&image, 0, None, Advice::DontNeed)?;
    let (before, begun) = (io.moved("rbytes")?, Instant::now());
    io.sh(READ)?;
    let (seconds, moved) = (begun.elapsed().as_secs_f64(), (io.moved("rbytes")? - before) as f64 / MIB as f64);
    ensure!(moved > IO_MIB as f64 / 2.0, "only {moved:.1} MiB of {IO_MIB} were read");
    ensure!(moved / seconds < IO_MIB_PER_SEC as f64 * LEEWAY, "{moved:.1} MiB in {seconds:.1} s");
    Ok(())
}
