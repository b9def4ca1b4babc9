//! A parent in the middle of everything: each child goes on from there.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::Child;

use super::Parent;
use super::children::{Children, Py};
use super::parents::SLEEP;
use crate::Test;
use crate::host::{Host, Sh, argv};
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[
    ("fork::two_hundred_threads", two_hundred_threads),
    ("fork::open_things_go_on", open_things_go_on),
    // Last, when the parent has been frozen for a while.
    ("fork::a_frozen_vm_carries_on", a_frozen_vm_carries_on),
];

const LIMIT: Duration = Duration::from_secs(60);
/// How often the busy program ticks, in seconds.
const TICK: f64 = 0.5;
/// How late a sleeper may wake up.
const OVERSLEPT: f64 = 10.0;
const TRANSFER: usize = 20 << 20;

/// Asks the busy program.
fn ask(child: &Child, question: &str) -> Result<String> {
    child.py(&format!(
        "c = socket.create_connection(('127.0.0.1', 7000)); c.sendall(b'{question}')\n\
         print(b''.join(iter(lambda: c.recv(4096), b'')).decode(), end='')"
    ))
}

/// Two numbers or more, as Python writes a tuple.
fn numbers(tuple: &str) -> Result<Vec<f64>> {
    tuple.trim_matches(['(', ')']).split(", ").map(|number| Ok(number.parse()?)).collect()
}

fn two_hundred_threads(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Busy, 2)?;
    for child in children.iter() {
        let counted = || numbers(&ask(child, "counted")?);
        let first = counted()?;
        // The main one, the one that ticks, and those that count.
        ensure!(first[1] == 202.0, "{first:?}");
        // What is told is how far the last of them is.
        wait_until("every thread going on", LIMIT, || counted().is_ok_and(|now| now[0] >= first[0] + 2.0))?;
    }
    Ok(())
}

fn open_things_go_on(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Busy, 2)?;
    for (child, word) in children.iter().zip(["one", "two"]) {
        ensure!(ask(child, &format!("write {word}"))? == format!("'parent {word}'"), "the file's offset is lost");
        child.sh(&format!("touch /root/watched/{word}"))?;
        ensure!(ask(child, "created")? == format!("['{word}']"), "the watch is lost");
        let committed = ask(child, &format!("commit {word}"))?;
        ensure!(committed == format!("([], ['parent', '{word}'])"), "the transaction came to {committed}");
    }
    Ok(())
}

fn a_frozen_vm_carries_on(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Busy, 1)?;
    let child = &children[0];
    // A timer that was running.
    ensure!(child.sh("test ! -e /run/slept && echo asleep")? == "asleep", "it slept too short a time to be frozen");
    let ticks = numbers(&ask(child, "gaps")?)?[0];
    disk(child)?;
    vsock(child)?;
    // The program goes on. Its clock never went back, and stood still while the parent was frozen: between two ticks is
    // no more time than the child has lived.
    let gaps = numbers(&ask(child, "gaps")?)?;
    let lived = children.age().as_secs_f64();
    ensure!(gaps[0] > ticks && gaps[1] > 0.0 && gaps[2] < lived + 2.0 * TICK, "{gaps:?} after {lived} s");
    wait_until("the end of a sleep", LIMIT, || child.sh("test -e /run/slept").is_ok())?;
    let slept = child.sh("cat /run/slept")?;
    let (from, to) = slept.split_once('\n').context("two times")?;
    let slept = to.parse::<f64>()? - from.parse::<f64>()?;
    ensure!((SLEEP..SLEEP + OVERSLEPT).contains(&slept), "it slept {slept} s");
    Ok(())
}

fn disk(child: &Child) -> Result<()> {
    child.sh("echo 3 > /proc/sys/vm/drop_caches && sha256sum /usr/bin/python3 > /dev/null")?;
    child.sh("f=/root/big; head -c 4M /dev/urandom > $f && a=$(sha256sum < $f) && sync $f && \
         echo 3 > /proc/sys/vm/drop_caches && test \"$a\" = \"$(sha256sum < $f)\"")?;
    ensure!(child.sh("dmesg | grep -ci 'I/O error' || true")? == "0", "the disk reported errors");
    Ok(())
}

/// Several connections at once, one of which carries much in both directions.
fn vsock(child: &Child) -> Result<()> {
    thread::scope(|scope| {
        let small: Vec<_> = (0..4).map(|number| scope.spawn(move || child.sh(&format!("echo {number}")))).collect();
        let bytes: Vec<u8> = (0..=250).cycle().take(TRANSFER).collect();
        let output = child.connect()?.output(&argv(&["cat"]), &bytes, 2 * TRANSFER)?;
        ensure!(output.stdout == bytes, "{} other bytes came back", output.stdout.len());
        for (number, said) in small.into_iter().enumerate() {
            ensure!(said.join().ok().context("a thread died")?? == number.to_string());
        }
        Ok(())
    })
}
