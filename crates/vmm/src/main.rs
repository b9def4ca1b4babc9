//! `forkd-vmm`: one process, one VM.
//!
//! ```text
//! forkd-vmm vm         obeys the control socket on its standard input; logs to standard error
//! forkd-vmm template   holds a frozen VM ready and forks into its children; listens on its standard input
//! forkd-vmm probe      says as JSON whether this host's KVM can run a stock kernel
//! forkd-vmm jail       says as JSON how VMs are confined here
//! ```
//!
//! Threads of a VM: the main thread owns the control socket and every device's host side; each vCPU has a thread of its own,
//! which touches devices only through their registers. Nothing here is asynchronous. What such a process may do is in
//! [`jail`].

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use bounded_log::BoundedLog;
use env_logger::{Env, Target};
use proto::control::ControlSocket;
use serve::ServeError;

mod assembly;
mod bounded_log;
mod branch;
mod bus;
mod console;
mod controls;
mod devices;
mod events;
mod freeze;
mod frozen;
mod generation;
mod host_file;
mod jail;
mod kernel;
mod layout;
mod load;
mod memory;
mod parking;
mod pause;
mod ports;
mod probe;
mod reactor;
mod serve;
mod spawn;
mod stages;
mod sys;
mod template;
mod vcpu;
mod vm;
mod warm_up;
mod write;
mod x86;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's main speaks to whoever started it")]
fn main() -> ExitCode {
    let log = Target::Pipe(Box::new(BoundedLog::new(io::stderr())));
    env_logger::Builder::from_env(Env::default().default_filter_or("info")).target(log).init();
    abort_on_panic();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["vm"] => run(|stdin| serve::serve(ControlSocket::from(stdin))),
        ["template"] => run(template::serve),
        ["probe"] => tell(&probe::run()),
        ["jail"] => tell(&jail::try_out()),
        ["--version"] => {
            println!("forkd-vmm {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("forkd-vmm is started by forkd. Usage: forkd-vmm vm|template|probe|jail|--version");
            ExitCode::from(2)
        }
    }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "whoever asked reads it there")]
fn tell(report: &impl serde::Serialize) -> ExitCode {
    match serde_json::to_string(report) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("forkd-vmm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(serve: impl FnOnce(OwnedFd) -> Result<(), ServeError>) -> ExitCode {
    let Some(stdin) = sys::stdin::take() else { return ExitCode::FAILURE };
    if !sys::heap::share() {
        log::warn!("each thread has a heap of its own");
    }
    match prepare().map_err(ServeError::from).and_then(|()| serve(stdin)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What can only be done by a process that is not confined yet.
fn prepare() -> io::Result<()> {
    sys::trap::install()?;
    sys::kick::install()?;
    sys::fork::forget_children()?;
    warm_up::clock();
    warm_up::threads()
}

/// A thread that panicked leaves a VM of which nobody knows the state: it ends, and whoever holds it is told.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        log::error!("{info}");
        std::process::abort();
    }));
}
