//! The guest's first process: brings the guest up, then runs what the host asks for.
//!
//! ```text
//! kernel ──> /init = forkd-agent, PID 1     mounts, modules, root, network; serves vsock (guest) or TCP (machine)
//! forkd-agent --serve unix:PATH             serves as a plain process, on this machine, for tests and development
//! forkd-agent --serve tcp:ADDR:PORT [--token-file FILE] [--root DIR] [--lines ADDR:PORT]
//! ```
//!
//! The death of PID 1 is the death of its machine, so nothing a client sends may end it: every failure below is a value.

#![deny(unsafe_code)]

mod button;
mod children;
mod console;
mod dial;
mod files;
mod image;
mod init;
mod interpreter;
mod launch;
mod lines;
mod peer;
mod plain;
mod processes;
mod renew;
mod serve;
mod service;
mod session;
mod shutdown;
mod stdio;
#[expect(unsafe_code, reason = "the one place for it")]
mod sys;
mod users;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let serves = arguments.first().is_some_and(|first| first == "--serve");
    // The kernel hands its own leftover words to PID 1; they mean nothing here.
    let ended = if std::process::id() == 1 && !serves {
        init::run().map_err(|error| error.to_string())
    } else {
        plain::run(&arguments).map_err(|error| error.to_string())
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            console::say(format_args!("fatal: {message}"));
            ExitCode::FAILURE
        }
    }
}
