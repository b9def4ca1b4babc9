//! A VMM that was taken over: processes that enter the jail with the code that VMMs enter it with, and then try what they
//! must not. Each try is a test of its own. Needs root, as the jail does.
//!
//! With all layers a forbidden call ends the process, which says which call it was. Where another layer stands behind the
//! filter, a second test takes the filter away and sees that layer hold.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use proto::control::{Condition, Violation};

use super::*;
use crate::sys::hostile::{self, Act, Layers, Sibling};

const UID: u32 = 2_000_100_000;
const SIBLING: u32 = UID + 1;
/// How the process below ends when the thread it has a timer for is not its own.
const NOT_OWN: i32 = 255;
/// What tells the process below what to try.
const ACT: &str = "VMM_HOSTILE";
const WORLD: &str = "VMM_WORLD";

/// How a try ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The call was not made, and the process is over.
    Killed {
        thread: String,
        call: u32,
    },
    /// By the signal for who touches what is not there.
    Crashed,
    /// The call was made and failed.
    Refused(i32),
    Succeeded,
}

/// Run by the tests below in a process of its own. By itself it does nothing.
#[test]
fn hostile_process() {
    let (Ok(act), Some(world)) = (std::env::var(ACT), std::env::var_os(WORLD)) else { return };
    let (act, layers, beside): (Act, Layers, Sibling) = serde_json::from_str(&act).unwrap();
    hostile::run(act, layers, beside, Path::new(&world), [UID, SIBLING].map(|uid| VmUid::new(uid).unwrap()));
}

/// Tries something in a world with a file, a directory and sockets that a jailed process must not reach.
fn attempt(act: Act, layers: Layers) -> Ended {
    attempt_beside(Sibling::Stranger, act, layers)
}

fn attempt_beside(sibling: Sibling, act: Act, layers: Layers) -> Ended {
    assert!(is_root(), "the jail needs root, and so do its tests");
    let world = tempfile::tempdir().unwrap();
    std::fs::write(world.path().join("secret"), "everybody may read this").unwrap();
    let _daemon = UnixListener::bind(world.path().join("daemon.sock")).unwrap();
    let _sibling = proto::control::listen(&world.path().join("control.sock")).unwrap();
    for path in ["", "secret", "daemon.sock", "control.sock"] {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(world.path().join(path), everybody).unwrap();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "jail::tests::hostile_process", "--test-threads", "1", "--nocapture"])
        .env(ACT, serde_json::to_string(&(act, layers, sibling)).unwrap())
        .env(WORLD, world.path())
        .output()
        .unwrap();
    ended(&output, &world.path().join("state"))
}

fn ended(output: &Output, state: &Path) -> Ended {
    let said = String::from_utf8_lossy(&output.stdout);
    let code = said.lines().find_map(|line| line.strip_prefix("the try ended with "));
    let code: i32 = code.and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{output:?}"));
    match code {
        0 => Ended::Succeeded,
        159 => {
            let condition = Condition::read(File::open(state).unwrap()).unwrap();
            let Violation { thread, call } = condition.violation.unwrap();
            let logged = String::from_utf8_lossy(&output.stderr);
            assert!(logged.contains(&format!("not in its table: {thread} {call}")), "{logged}");
            Ended::Killed { thread, call }
        }
        139 => Ended::Crashed,
        errno => Ended::Refused(errno),
    }
}

fn killed(thread: &str, call: libc::c_long) -> Ended {
    Ended::Killed { thread: thread.into(), call: u32::try_from(call).unwrap() }
}

/// The main thread of a VM tries it with all layers, and is ended for this call.
fn ends_main(act: Act, call: libc::c_long) {
    assert_eq!(attempt(act, Layers::All), killed("main", call), "{act:?}");
}

fn is_refused_without_filter(act: Act, errno: i32) {
    assert_eq!(attempt(act, Layers::WithoutFilter), Ended::Refused(errno), "{act:?}");
}

#[test]
fn what_is_tried_here_works_outside_of_the_jail() {
    for act in [Act::OpenFile, Act::OpenAbove, Act::ConnectToDaemon, Act::ConnectToSibling, Act::PtraceSibling] {
        assert_eq!(attempt(act, Layers::None), Ended::Succeeded, "{act:?}");
    }
    for act in [Act::AbortSibling, Act::KickSibling, Act::ReniceSibling] {
        assert_eq!(attempt(act, Layers::None), Ended::Succeeded, "{act:?}");
    }
    for act in [Act::KillSibling, Act::ReadSibling, Act::Mount, Act::MakeNamespace, Act::CloneNamespace, Act::Fork] {
        assert_eq!(attempt(act, Layers::None), Ended::Succeeded, "{act:?}");
    }
}

#[test]
fn a_host_file_cannot_be_opened() {
    ends_main(Act::OpenFile, libc::SYS_openat);
    is_refused_without_filter(Act::OpenFile, libc::ENOENT);
}

#[test]
fn a_directory_that_was_left_open_leads_nowhere() {
    ends_main(Act::OpenAbove, libc::SYS_openat);
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let has_landlock = rules.handle_access(AccessFs::from_all(ABI::V1)).is_ok();
    if has_landlock {
        is_refused_without_filter(Act::OpenAbove, libc::EACCES);
    }
}

#[test]
fn nothing_can_be_made_in_the_root() {
    ends_main(Act::MakeFile, libc::SYS_openat);
    is_refused_without_filter(Act::MakeFile, libc::EROFS);
}

#[test]
fn the_daemon_cannot_be_called() {
    ends_main(Act::ConnectToDaemon, libc::SYS_socket);
    is_refused_without_filter(Act::ConnectToDaemon, libc::ENOENT);
}

#[test]
fn another_vm_cannot_be_called_even_with_a_socket_at_hand() {
    ends_main(Act::ConnectToSibling, libc::SYS_connect);
    is_refused_without_filter(Act::ConnectToSibling, libc::ENOENT);
}

#[test]
fn another_vm_cannot_be_traced() {
    ends_main(Act::PtraceSibling, libc::SYS_ptrace);
    is_refused_without_filter(Act::PtraceSibling, libc::EPERM);
}

#[test]
fn the_memory_of_another_vm_cannot_be_read() {
    ends_main(Act::ReadSibling, libc::SYS_process_vm_readv);
    is_refused_without_filter(Act::ReadSibling, libc::EPERM);
}

#[test]
fn another_vm_cannot_be_ended() {
    ends_main(Act::KillSibling, libc::SYS_kill);
    ends_main(Act::KillSiblingsThread, libc::SYS_tgkill);
    is_refused_without_filter(Act::KillSibling, libc::EPERM);
}

/// Also not by one of the same user, as what is forked from a branch that is not stored is; nor does a template, which is
/// root's, reach what else is root's.
#[test]
fn nobody_is_signalled_or_held_up_by_its_relatives() {
    for (layers, thread, siblings) in [
        (Layers::All, "main", &[Sibling::Stranger, Sibling::Relative][..]),
        (Layers::AllAsVcpu, "vcpu", &[Sibling::Relative]),
        (Layers::AllAsWriter, "writer", &[Sibling::Relative]),
        (Layers::AllAsTemplate, "main", &[Sibling::Root]),
    ] {
        for sibling in siblings {
            let attempt = |act| attempt_beside(*sibling, act, layers);
            assert_eq!(attempt(Act::KickSibling), killed(thread, libc::SYS_tgkill), "{layers:?} {sibling:?}");
            assert_eq!(attempt(Act::KillSiblingsThread), killed(thread, libc::SYS_tgkill), "{layers:?} {sibling:?}");
            assert_eq!(attempt(Act::AbortSibling), Ended::Refused(libc::ENOSYS), "{layers:?} {sibling:?}");
            for renice in [Act::ReniceSibling, Act::ReniceUser] {
                assert_eq!(attempt(renice), killed(thread, libc::SYS_setpriority), "{layers:?} {sibling:?}");
            }
        }
    }
    assert_eq!(attempt(Act::TimeItself, Layers::All), Ended::Succeeded, "as it kicks its vCPUs");
    assert_eq!(attempt(Act::TimeItself, Layers::AllAsVcpu), killed("vcpu", libc::SYS_timer_create));
    assert_eq!(attempt_beside(Sibling::Relative, Act::TimeSibling, Layers::All), Ended::Refused(NOT_OWN));
    assert_eq!(attempt_beside(Sibling::Root, Act::TimeSibling, Layers::AllAsTemplate), Ended::Refused(NOT_OWN));
}

#[test]
fn no_program_can_be_executed() {
    ends_main(Act::Execute, libc::SYS_execve);
    is_refused_without_filter(Act::Execute, libc::ENOENT);
}

#[test]
fn no_code_can_be_brought_in() {
    ends_main(Act::MapCode, libc::SYS_mmap);
    ends_main(Act::ProtectCode, libc::SYS_mprotect);
}

#[test]
fn nothing_can_be_mounted() {
    ends_main(Act::Mount, libc::SYS_mount);
    is_refused_without_filter(Act::Mount, libc::EPERM);
}

#[test]
fn no_namespace_can_be_made_or_entered() {
    ends_main(Act::MakeNamespace, libc::SYS_unshare);
    ends_main(Act::CloneNamespace, libc::SYS_clone);
    is_refused_without_filter(Act::MakeNamespace, libc::EPERM);
    is_refused_without_filter(Act::CloneNamespace, libc::EPERM);
    ends_main(Act::EnterNamespace, libc::SYS_setns);
    assert_eq!(attempt(Act::Clone3, Layers::All), Ended::Refused(libc::ENOSYS), "it cannot be looked into");
}

#[test]
fn nobody_becomes_root_again() {
    assert_eq!(attempt(Act::BecomeRoot, Layers::All), Ended::Refused(libc::EPERM));
    assert_eq!(attempt(Act::BecomeSibling, Layers::All), Ended::Refused(libc::EPERM));
    ends_main(Act::TakeCapabilities, libc::SYS_capset);
}

#[test]
fn other_doors_of_the_kernel_are_closed() {
    let doors = [
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_io_uring_setup,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_init_module,
        libc::SYS_kexec_load,
        libc::SYS_chroot,
        libc::SYS_pivot_root,
        libc::SYS_open_by_handle_at,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd,
        libc::SYS_process_madvise,
        libc::SYS_prlimit64,
        libc::SYS_personality,
        libc::SYS_rt_sigaction,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_memfd_create,
    ];
    for door in doors {
        ends_main(Act::Call(door), door);
    }
}

#[test]
fn the_thread_of_a_vcpu_may_do_less() {
    for (act, call) in [
        (Act::Fork, libc::SYS_clone),
        (Act::Send, libc::SYS_sendmsg),
        (Act::Kvm, libc::SYS_ioctl),
        (Act::BecomeRoot, libc::SYS_setresuid),
        (Act::OpenFile, libc::SYS_openat),
        (Act::Execute, libc::SYS_execve),
    ] {
        assert_eq!(attempt(act, Layers::AllAsVcpu), killed("vcpu", call), "{act:?}");
    }
    for act in [Act::Fork, Act::Send] {
        assert_eq!(attempt(act, Layers::All), Ended::Succeeded, "the main thread may: {act:?}");
    }
}

#[test]
fn a_writer_may_do_less() {
    for (act, call) in
        [(Act::Fork, libc::SYS_clone), (Act::Kvm, libc::SYS_ioctl), (Act::BecomeRoot, libc::SYS_setresuid)]
    {
        assert_eq!(attempt(act, Layers::AllAsWriter), killed("writer", call), "{act:?}");
    }
}

#[test]
fn kvm_is_asked_for_nothing_that_no_vmm_needs() {
    ends_main(Act::KvmDevice, libc::SYS_ioctl);
    assert_eq!(attempt(Act::Kvm, Layers::All), Ended::Refused(libc::EBADF), "what one needs is asked for");
}

/// Or it would be taken for a try to break out.
#[test]
fn an_accident_is_one_in_every_kind_of_thread() {
    for layers in [Layers::None, Layers::All, Layers::AllAsVcpu, Layers::AllAsWriter] {
        assert_eq!(attempt(Act::Crash, layers), Ended::Crashed, "{layers:?}");
        let aborted = attempt(Act::Abort, layers);
        assert!(matches!(aborted, Ended::Crashed) || layers == Layers::None, "{layers:?}: {aborted:?}");
    }
}

#[test]
fn a_terminal_cannot_be_written_to_as_its_user() {
    ends_main(Act::TypeIntoTerminal, libc::SYS_ioctl);
}

/// What the kernel says of a process in the jail.
#[test]
fn the_kernel_agrees() {
    let [status, limits] = hostile::seen_in_jail(VmUid::new(UID).unwrap());
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(field("Uid"), [UID; 4].map(|uid| uid.to_string()).join(" "));
    assert_eq!(field("Gid"), [UID; 4].map(|uid| uid.to_string()).join(" "));
    assert_eq!(field("Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), 0, "{set}");
    }
    assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".into(), "2".into()));
    for (limit, most) in [
        ("Max core file size", 0),
        ("Max locked memory", 0),
        ("Max msgqueue size", 0),
        ("Max processes", MAX_TASKS),
        ("Max open files", MAX_DESCRIPTORS),
        ("Max pending signals", MAX_TIMERS),
    ] {
        let found = limits.lines().find_map(|line| line.strip_prefix(limit)).unwrap();
        let both: Vec<u64> = found.split_whitespace().take(2).map(|number| number.parse().unwrap()).collect();
        assert!(both.iter().all(|number| *number <= most), "{limit}: {found}");
    }
}

/// It has root's uid and two capabilities.
#[test]
fn a_template_that_was_taken_over_reaches_no_more_than_a_vm() {
    for (act, call) in [
        (Act::OpenFile, libc::SYS_openat),
        (Act::OpenAbove, libc::SYS_openat),
        (Act::ConnectToDaemon, libc::SYS_socket),
        (Act::ConnectToSibling, libc::SYS_connect),
        (Act::PtraceSibling, libc::SYS_ptrace),
        (Act::ReadSibling, libc::SYS_process_vm_readv),
        (Act::KillSibling, libc::SYS_kill),
        (Act::Execute, libc::SYS_execve),
        (Act::Mount, libc::SYS_mount),
        (Act::MakeNamespace, libc::SYS_unshare),
        (Act::TakeCapabilities, libc::SYS_capset),
    ] {
        assert_eq!(attempt_beside(Sibling::Root, act, Layers::AllAsTemplate), killed("main", call), "{act:?}");
    }
}

#[test]
fn every_call_in_a_table_has_a_reason_and_the_main_table_has_them_all() {
    for call in [tables::MAIN, tables::VCPU, tables::WRITER].concat() {
        assert!(call.why.len() >= 5, "{call:?}");
    }
    let main: Vec<_> = tables::MAIN.iter().map(|call| call.number).collect();
    for call in [tables::VCPU, tables::WRITER].concat() {
        assert!(main.contains(&call.number), "{call:?} can never be made: the filter of the main thread holds, too");
    }
}
