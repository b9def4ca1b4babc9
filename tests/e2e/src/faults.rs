//! Bad input and bad luck: a clear error and an exit code, never a hang, a panic or a leftover.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::Test;
use crate::host::{Artifacts, Host};
use crate::world::{Traces, vmms_of, wait_until};

pub(crate) const TESTS: &[Test] = &[
    ("faults::impossible_sizes_are_refused", impossible_sizes_are_refused),
    ("faults::what_is_no_kernel_is_refused", what_is_no_kernel_is_refused),
    ("faults::a_corrupt_image_is_told_with_the_console", a_corrupt_image_is_told_with_the_console),
    ("faults::an_agent_that_never_answers_is_given_up", an_agent_that_never_answers_is_given_up),
    ("faults::a_full_disk_reaches_the_guest_as_an_error", a_full_disk_reaches_the_guest_as_an_error),
    ("faults::a_forbidden_kvm_is_told", a_forbidden_kvm_is_told),
];
pub(crate) const NATIVE_TESTS: &[Test] = &[
    ("faults::a_killed_client_leaves_nothing", a_killed_client_leaves_nothing),
    ("faults::a_killed_vmm_is_told", a_killed_vmm_is_told),
    ("faults::an_interrupt_ends_the_command", an_interrupt_ends_the_command),
];

const NOBODY: u32 = 65534;
const END_LIMIT: Duration = Duration::from_secs(60);

/// Runs it and expects a failure that says all of `words`, and no panic of ours.
fn fails_saying(command: &mut Command, words: &[&str]) -> Result<Output> {
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && output.status.code().is_some(), "{command:?}: {:?}", output.status);
    ensure!(!stderr.contains("panicked at"), "{stderr}");
    for word in words {
        ensure!(stderr.contains(word), "{command:?} did not say `{word}`:\n{stderr}");
    }
    Ok(output)
}

fn impossible_sizes_are_refused(host: &Host) -> Result<()> {
    for (flag, value, word) in [
        ("--vcpus", "0", "1 to 32"),
        ("--vcpus", "1000", "1 to 32"),
        ("--memory", "1M", "128 MiB"),
        ("--memory", "999T", "128 MiB"),
        ("--memory", "1T", "this host has"),
        ("--memory", "much", "not a size"),
    ] {
        fails_saying(host.forkd_run().args([flag, value, "--", "true"]), &[word])?;
    }
    Ok(())
}

fn what_is_no_kernel_is_refused(host: &Host) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let corrupt = dir.path().join("corrupt");
    fs::write(&corrupt, vec![0x5a; 1 << 20])?;
    let mut short = fs::read(&host.artifacts.kernel)?;
    short.truncate(0x300);
    let truncated = dir.path().join("truncated");
    fs::write(&truncated, short)?;
    for path in [dir.path().join("missing"), corrupt, truncated, dir.path().to_path_buf()] {
        let name = path.to_string_lossy().into_owned();
        let mut command = host.with(|artifacts| artifacts.kernel = path).forkd_run();
        fails_saying(command.args(["--", "true"]), &[&name])?;
    }
    Ok(())
}

fn a_corrupt_image_is_told_with_the_console(host: &Host) -> Result<()> {
    let image = tempfile::NamedTempFile::new()?;
    image.as_file().set_len(64 << 20)?;
    let mut command = host.with(|artifacts| artifacts.debian = image.path().into()).forkd_run();
    fails_saying(command.args(["--", "true"]), &["panicked", "forkd-agent: fatal"])?;
    let mut command = host.with(|artifacts| artifacts.debian = "/no/such/image".into()).forkd_run();
    fails_saying(command.args(["--", "true"]), &["/no/such/image"])?;
    Ok(())
}

fn an_agent_that_never_answers_is_given_up(host: &Host) -> Result<()> {
    let initramfs = tempfile::NamedTempFile::new()?;
    write_initramfs(initramfs.as_file(), &std::env::current_exe()?)?;
    let mut command = host.with(|artifacts| artifacts.initramfs = initramfs.path().into()).forkd_run();
    // So that the console has something to tell: errors only are what it usually has.
    command.args(["--append", "loglevel=7", "--boot-timeout", "15", "--", "true"]);
    // Lines of a kernel begin with the time since it began.
    fails_saying(&mut command, &["did not answer within 15 s", "[   "])?;
    Ok(())
}

/// A cpio archive that holds `init` and nothing else.
fn write_initramfs(mut file: &File, init: &Path) -> Result<()> {
    let program = fs::read(init)?;
    for (name, mode, data) in [("init", 0o100_755, &program[..]), ("TRAILER!!!", 0, &[])] {
        let fields = [1, mode, 0, 0, 1, 0, data.len(), 0, 0, 0, 0, name.len() + 1, 0];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        let head = format!("070701{header}{name}\0");
        file.write_all(head.as_bytes())?;
        file.write_all(&[0; 3][..head.len().next_multiple_of(4) - head.len()])?;
        file.write_all(data)?;
        file.write_all(&[0; 3][..data.len().next_multiple_of(4) - data.len()])?;
    }
    Ok(())
}

fn a_full_disk_reaches_the_guest_as_an_error(host: &Host) -> Result<()> {
    let home = tempfile::tempdir()?;
    rustix::mount::mount("tmpfs", home.path(), "tmpfs", MountFlags::empty(), Some(c"size=16m"))?;
    let mut command = host.forkd_run();
    command.env("FORKD_HOME", home.path()).args(["--", "dd", "if=/dev/urandom", "of=/big", "bs=1M", "count=64"]);
    command.arg("oflag=direct");
    let output = command.output();
    rustix::mount::unmount(home.path(), UnmountFlags::DETACH)?;
    let output = output?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{:?}: {stderr}", output.status);
    ensure!(stderr.contains("Input/output error") || stderr.contains("Read-only file system"), "{stderr}");
    Ok(())
}

fn a_forbidden_kvm_is_told(host: &Host) -> Result<()> {
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    let vmm = engine::Program::Vmm.find()?;
    for (from, name) in [(&host.forkd, "forkd"), (&vmm, "forkd-vmm")] {
        fs::copy(from, dir.path().join(name))?;
    }
    let home = dir.path().join("home");
    fs::create_dir(&home)?;
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY))?;
    let kvm = fs::metadata("/dev/kvm")?.permissions().mode();
    ensure!(kvm & 0o7 == 0, "/dev/kvm is open to everybody here (mode {kvm:o})");
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new(dir.path().join("forkd"));
        command.uid(NOBODY).gid(NOBODY).env("FORKD_HOME", &home).env("FORKD_PLACE", "local").env_remove("FORKD_VMM");
        command.env_remove("FORKD_BIN").stdin(Stdio::null()).args(words);
        command
    };
    let output = as_nobody(&["doctor"]).output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.code() == Some(1), "{:?}: {stdout}", output.status);
    ensure!(stdout.contains("Permission denied") && stdout.contains("kvm"), "{stdout}");
    let mut run = as_nobody(&["run"]);
    // Files that anybody may read.
    let Artifacts { kernel, initramfs, .. } = &host.artifacts;
    let image = dir.path().join("image");
    File::create(&image)?.set_len(1 << 20)?;
    for (flag, from) in [("--kernel", kernel), ("--initramfs", initramfs)] {
        let readable = dir.path().join(flag);
        fs::copy(from, &readable)?;
        fs::set_permissions(&readable, PermissionsExt::from_mode(0o644))?;
        run.arg(flag).arg(readable);
    }
    fails_saying(run.arg("--image").arg(image).args(["--", "true"]), &["/dev/kvm", "Permission denied"])?;
    Ok(())
}

/// A `forkd run` that sleeps in the guest, with the VMM it started.
fn sleeping(host: &Host) -> Result<(std::process::Child, u32)> {
    let files = host.native_files()?;
    let host = host.with(|artifacts| {
        (artifacts.kernel, artifacts.initramfs, artifacts.debian) = (files.kernel, files.initramfs, files.image);
    });
    let mut command = host.forkd_run();
    command.args(["--net", "--", "sleep", "0", "up"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut line = String::new();
    let stdout = child.stdout.as_mut().context("its output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
    ensure!(line == "up\n", "the guest said {line:?}");
    let vmms = vmms_of(child.id());
    ensure!(vmms.len() == 1, "{vmms:?}");
    Ok((child, vmms[0]))
}

pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id")?;
    Ok(kill_process(pid, signal)?)
}

fn a_killed_client_leaves_nothing(host: &Host) -> Result<()> {
    let (mut child, vmm) = sleeping(host)?;
    signal(child.id(), Signal::KILL)?;
    child.wait()?;
    wait_until("the VMM's end", END_LIMIT, || !Path::new(&format!("/proc/{vmm}")).exists())?;
    Ok(())
}

fn a_killed_vmm_is_told(host: &Host) -> Result<()> {
    let (child, vmm) = sleeping(host)?;
    signal(vmm, Signal::KILL)?;
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{:?}: {stderr}", output.status);
    ensure!(stderr.contains("VMM died") || stderr.contains("killed") || stderr.contains("signal: 9"), "{stderr}");
    Ok(())
}

fn an_interrupt_ends_the_command(host: &Host) -> Result<()> {
    let (child, vmm) = sleeping(host)?;
    let traces = Traces::of(vmm)?;
    ensure!(traces.has_tap() && !traces.are_gone(), "{traces:?}");
    signal(child.id(), Signal::INT)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.code() == Some(130), "{:?}", output.status);
    wait_until("the VMM's end", END_LIMIT, || !Path::new(&format!("/proc/{vmm}")).exists())?;
    wait_until("a tidy host", END_LIMIT, || traces.are_gone())
}
