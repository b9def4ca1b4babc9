//! Boots that fail, with `examples/scripted-vmm.rs` in the VMM's place: real sockets, real processes, no guest.

use std::os::unix::fs::symlink;
use std::thread;

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Boots with a VMM that fails in this way, and checks that nothing is left.
fn boot_that(fails: &str, limit: Duration, cancel: Option<Cancel>) -> BootError {
    boot_in(&tempfile::tempdir().unwrap(), fails, limit, cancel)
}

fn boot_in(home: &tempfile::TempDir, fails: &str, limit: Duration, cancel: Option<Cancel>) -> BootError {
    let program = home.path().join(fails);
    // This test lies in deps/, beside examples/.
    let built = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_path_buf();
    let scripted = built.join("examples/scripted-vmm").canonicalize().unwrap();
    symlink(scripted, &program).unwrap();
    let dirs = Dirs::under(&home.path().join("h"));
    let spec = BootSpec {
        vcpus: VcpuCount::DEFAULT,
        memory: GuestMemorySize::DEFAULT,
        kernel: "/kernel".into(),
        initramfs: "/initramfs".into(),
        image: "/image".into(),
        append: None,
        tap: None,
        limit,
        cancel,
    };
    let error = boot_with(&program, spec, &dirs).expect_err("no VM can come of this");
    let left: Vec<_> = fs::read_dir(dirs.run.join("vms")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"], "a failed boot leaves nothing");
    error
}

#[test]
fn a_refusal_is_passed_on_with_its_code() {
    let error = boot_that("refuses", LONG, None);
    assert!(matches!(&error, BootError::Refused { code: RefusalCode::Kernel, .. }), "{error:?}");
    assert_eq!(error.to_string(), "no kernel");
}

#[test]
fn a_panic_shows_its_reason_and_the_console() {
    let text = boot_that("panics", LONG, None).to_string();
    assert!(text.contains("(No working init found)") && text.ends_with("  two: no init"), "{text}");
}

#[test]
fn a_vmm_that_dies_shows_its_log() {
    let error = boot_that("dies", LONG, None);
    assert!(matches!(&error, BootError::VmmDied { status, .. } if status.code() == Some(1)), "{error:?}");
    assert!(error.to_string().contains("  out of luck"), "{error}");
}

#[test]
fn an_agent_that_never_answers_ends_with_the_limit_and_the_console() {
    let limit = Duration::from_millis(400);
    for fails in ["boots-without-agent", "hangs", "is-stuck"] {
        let started = Instant::now();
        let error = boot_that(fails, limit, None);
        assert!(matches!(&error, BootError::AgentSilent { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("within 0.4 s") && text.ends_with("  still waiting"), "{text}");
        assert!((limit..limit * 20).contains(&started.elapsed()), "{fails} took {:?}", started.elapsed());
    }
}

#[test]
fn a_boot_can_be_called_off_whatever_it_waits_for() {
    for fails in ["boots-without-agent", "hangs", "is-stuck"] {
        let (home, cancel) = (tempfile::tempdir().unwrap(), Cancel::new().unwrap());
        let error = thread::scope(|scope| {
            let boot = scope.spawn(|| boot_in(&home, fails, LONG, Some(cancel.clone())));
            wait_for_socket(home.path());
            cancel.cancel();
            let called_off = Instant::now();
            let error = boot.join().unwrap();
            assert!(called_off.elapsed() < Duration::from_secs(8), "{fails} took {:?}", called_off.elapsed());
            error
        });
        assert!(matches!(error, BootError::Cancelled), "{error:?}");
    }
}

/// Until the VMM listens, which it does just before it says that the guest runs.
fn wait_for_socket(home: &Path) {
    let until = Instant::now() + LONG;
    let listens = || {
        let vms = fs::read_dir(home.join("h/run/vms")).ok()?;
        vms.flatten().map(|vm| vm.path().join("vsock.sock")).find(|socket| socket.exists())
    };
    while listens().is_none() {
        assert!(Instant::now() < until, "the VMM never listened");
        thread::sleep(Duration::from_millis(2));
    }
}
