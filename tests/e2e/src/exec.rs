//! Processes in a guest: all on the shared VM, many at once.

use std::io::Write;
use std::thread;

use anyhow::{Context, Result, ensure};
use proto::guest::{ErrorCode, ExecRequest, ExitStatus, Stdio};
use session::{Event, SessionError};
use sha2::{Digest, Sha256};

use crate::Test;
use crate::host::{Host, Sh, argv, shell};

pub(crate) const TESTS: &[Test] = &[
    // The longest comes first, so that others run beside it.
    ("exec::two_hundred_mib_arrive_whole", two_hundred_mib_arrive_whole),
    ("exec::codes_and_signals_come_back", codes_and_signals_come_back),
    ("exec::streams_are_kept_apart", streams_are_kept_apart),
    ("exec::user_env_and_cwd_are_as_asked", user_env_and_cwd_are_as_asked),
    ("exec::what_cannot_run_says_why", what_cannot_run_says_why),
    ("exec::a_timeout_kills_the_whole_group", a_timeout_kills_the_whole_group),
    ("exec::fifty_run_at_once", fifty_run_at_once),
    ("exec::stdin_reaches_the_process_whole", stdin_reaches_the_process_whole),
    ("exec::numpy_counts", numpy_counts),
    ("exec::vector_registers_survive_task_switches", vector_registers_survive_task_switches),
    ("exec::zombies_are_reaped", zombies_are_reaped),
];

/// Of a length that no buffer on the way has.
const BLOCK: usize = (1 << 20) + 4099;
const BLOCKS: usize = 200;

fn codes_and_signals_come_back(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    ensure!(vm.output(&shell("exit 7"), &[])?.status == ExitStatus::Code(7));
    ensure!(vm.output(&shell("kill -9 $$"), &[])?.status.shell_code() == 137);
    Ok(())
}

fn streams_are_kept_apart(host: &Host) -> Result<()> {
    let output = host.vm()?.output(&shell("echo out; echo err >&2"), &[])?;
    ensure!((&output.stdout[..], &output.stderr[..]) == (&b"out\n"[..], &b"err\n"[..]));
    Ok(())
}

fn user_env_and_cwd_are_as_asked(host: &Host) -> Result<()> {
    let request = ExecRequest {
        user: Some("nobody".into()),
        cwd: Some("/usr".into()),
        env: [("COLOUR".into(), "green".into())].into(),
        ..shell("echo $(id -un) $(pwd) $COLOUR")
    };
    ensure!(host.vm()?.output(&request, &[])?.stdout == b"nobody /usr green\n");
    Ok(())
}

fn what_cannot_run_says_why(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let cases = [
        (argv(&["/no/such/program"]), ErrorCode::NotFound),
        (argv(&["/etc/passwd"]), ErrorCode::NotExecutable),
        (ExecRequest { cwd: Some("/nowhere".into()), ..argv(&["true"]) }, ErrorCode::BadCwd),
        (ExecRequest { user: Some("nobody-at-all".into()), ..argv(&["true"]) }, ErrorCode::NoSuchUser),
        (argv(&[]), ErrorCode::BadArgument),
    ];
    for (request, expected) in cases {
        let refused = vm.exec(&request).map(|exec| exec.pid);
        ensure!(matches!(&refused, Err(SessionError::Refused { code, .. }) if *code == expected), "{refused:?}");
    }
    Ok(())
}

fn a_timeout_kills_the_whole_group(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let request = ExecRequest { timeout_ms: Some(1500), ..shell("sleep 4321 & sleep 4321") };
    let output = vm.output(&request, &[])?;
    ensure!(output.timed_out && output.status == ExitStatus::Signal(9), "{output:?}");
    ensure!(vm.sh("pgrep -fc '^sleep 4321' || true")? == "0");
    Ok(())
}

fn fifty_run_at_once(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    // Each holds its process open until all fifty run: they can only end together.
    let mut running = Vec::new();
    for number in 0..50 {
        let request = ExecRequest { stdio: Stdio::Pipes, ..shell(&format!("read word; echo $word-{number}")) };
        running.push(vm.exec(&request)?);
    }
    for (mut exec, number) in running.into_iter().zip(0..) {
        let mut stdin = exec.stdin();
        stdin.write_all(b"go\n")?;
        let mut said = Vec::new();
        loop {
            match exec.next_event()? {
                Event::Stdout(bytes) => said.extend(bytes),
                Event::Stderr(_) => {}
                Event::Exited { .. } => break,
            }
        }
        ensure!(String::from_utf8(said)? == format!("go-{number}\n"));
    }
    Ok(())
}

fn stdin_reaches_the_process_whole(host: &Host) -> Result<()> {
    let bytes: Vec<u8> = (0_u32..1 << 20).flat_map(u32::to_le_bytes).collect();
    let output = host.vm()?.output(&argv(&["sha256sum"]), &bytes)?;
    ensure!(String::from_utf8(output.stdout)?.starts_with(&hex(&Sha256::digest(&bytes))), "another digest");
    Ok(())
}

/// A block of random bytes again and again, each time with its number before it: whatever is lost, doubled or in the wrong
/// place is seen, and neither side has to hash all of it.
fn two_hundred_mib_arrive_whole(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let sum = vm.sh(&format!("head -c {BLOCK} /dev/urandom > /run/block; sha256sum < /run/block | cut -d' ' -f1"))?;
    let block = vm.output(&argv(&["cat", "/run/block"]), &[])?.stdout;
    ensure!(hex(&Sha256::digest(&block)) == sum, "another block");
    let mut exec = vm.exec(&shell(&format!("for i in $(seq {BLOCKS}); do echo $i; cat /run/block; done")))?;
    let (mut next, mut expected, mut arrived) = (1..=BLOCKS, Vec::new(), 0);
    loop {
        match exec.next_event()? {
            Event::Stdout(bytes) => {
                while expected.len() < bytes.len() {
                    let number = next.next().context("there is more of it")?;
                    expected.extend([format!("{number}\n").as_bytes(), &block].concat());
                }
                ensure!(expected[..bytes.len()] == bytes[..], "other bytes somewhere behind {arrived}");
                expected.drain(..bytes.len());
                arrived += bytes.len();
            }
            Event::Stderr(bytes) => anyhow::bail!("{}", String::from_utf8_lossy(&bytes)),
            Event::Exited { status, .. } => {
                ensure!(status == ExitStatus::Code(0), "{status:?}");
                break;
            }
        }
    }
    ensure!(arrived > 200 << 20 && expected.is_empty() && next.next().is_none(), "{arrived} bytes arrived");
    Ok(())
}

fn numpy_counts(host: &Host) -> Result<()> {
    let said = host.vm()?.sh("python3 -c 'import numpy; print(numpy.zeros(5).tolist())'")?;
    ensure!(said == "[0.0, 0.0, 0.0, 0.0, 0.0]");
    Ok(())
}

/// Two processes per vCPU sum the same series in floating point: with registers lost at a task switch, sums differ.
fn vector_registers_survive_task_switches(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let script =
        "python3 -c 'import numpy as n; a=n.arange(20000.0); print(sum(float((a*a+i).sum()) for i in range(200)))'";
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let vm = std::sync::Arc::clone(&vm);
            thread::spawn(move || vm.sh(script))
        })
        .collect();
    for thread in threads {
        let sum = thread.join().ok().context("a thread died")??;
        ensure!(sum == "533293732000000.0".to_owned());
    }
    Ok(())
}

fn zombies_are_reaped(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    vm.sh("for i in 1 2 3 4 5; do (sleep 0.05 &); done; sleep 0.5")?;
    ensure!(vm.sh("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l")? == "0");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
