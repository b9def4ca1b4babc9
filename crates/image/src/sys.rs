//! The unsafe part of this crate: what a child process does between fork and exec.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Kills the program when the calling thread ends, and lets it and its descendants inherit `held`.
///
/// A thread, not the process, is the parent here: call this on the thread that waits for the program. Killed, not
/// asked to end: mmdebstrap would finish its current step first, and its files are garbage either way.
pub(crate) fn tie_to_parent(command: &mut Command, held: Option<File>) {
    let parent = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Whoever died before the line above cannot send the signal any more.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if let Some(file) = &held {
            fcntl_setfd(file, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec of a process that may have threads, so it may only do what is
    // async-signal-safe: it makes three raw system calls on values captured beforehand, and neither allocates nor locks.
    unsafe { command.pre_exec(in_child) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_program_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("600");
            tie_to_parent(&mut command, None);
            command.spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }
}
