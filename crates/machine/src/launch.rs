//! Starts QEMU so that it survives us once we say so, and not before.
//!
//! Between us and QEMU stands a small shell process with a pipe to us. While the machine comes up it waits for one
//! word; if the pipe closes without it, because we failed, were interrupted or killed, it kills QEMU. After the word
//! it goes away and QEMU belongs to nobody.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::layout::Layout;
use crate::process::Process;
use crate::{MachineError, sys};

/// Its first output is QEMU's process id. `$!` stays QEMU's for as long as the shell has not waited for it.
const GUARD: &str = r#"
"$@" </dev/null >&2 &
echo "$!"
read -r word
[ "$word" = keep ] || kill -KILL "$!"
"#;

/// How long a killed process may take to be gone.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

/// A QEMU that dies with this value, unless kept.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) process: Process,
    guard: Guard,
    kept: bool,
}

#[derive(Debug)]
struct Guard {
    child: Child,
    word: Option<ChildStdin>,
}

impl Launched {
    /// Starts QEMU in the run directory; both its words and the console's go to the log.
    pub(crate) fn start(layout: &Layout, qemu: &Path, args: &[OsString]) -> Result<Self, MachineError> {
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).arg(qemu).args(args).current_dir(&layout.run);
        // QEMU keeps what is written to the root disk in a nameless file there; memory file systems are too small.
        command.env("TMPDIR", &layout.data);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(new_log(layout)?);
        sys::in_own_session(&mut command);
        let mut child = command.spawn().map_err(MachineError::process("start a shell for QEMU"))?;
        let stdout = child.stdout.take();
        let guard = Guard { word: child.stdin.take(), child };
        let pid = first_line(stdout).map_err(MachineError::process("start QEMU"))?;
        let process = Process::with_pid(pid).map_err(MachineError::process("watch QEMU"))?;
        Ok(Self { process: process.ok_or_else(|| died(layout))?, guard, kept: false })
    }

    /// From here on QEMU lives on its own.
    pub(crate) fn keep(mut self) {
        self.kept = true;
        if let Some(Err(error)) = self.guard.word.take().map(|mut word| word.write_all(b"keep\n")) {
            log::warn!("the shell that guards QEMU was gone before its time: {error}");
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // The guard would do it too, but not wait until QEMU's locks and ports are free again.
        match self.process.kill().and_then(|()| self.process.wait(DEATH_PATIENCE)) {
            Ok(true) => {}
            Ok(false) => log::warn!("QEMU (process {}) does not end", self.process.identity().pid),
            Err(error) => log::warn!("QEMU (process {}) cannot be killed: {error}", self.process.identity().pid),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.word.take());
        // The shell has only to notice the end of its input; it cannot be kept from that.
        if let Err(error) = self.child.wait() {
            log::warn!("the shell that guards QEMU cannot be waited for: {error}");
        }
    }
}

fn first_line(stdout: Option<ChildStdout>) -> io::Result<i32> {
    let mut line = String::new();
    BufReader::new(stdout.ok_or(io::ErrorKind::BrokenPipe)?).read_line(&mut line)?;
    line.trim().parse().map_err(io::Error::other)
}

/// The error for a QEMU that is gone, with what it left in the log.
pub(crate) fn died(layout: &Layout) -> MachineError {
    MachineError::Died { console: layout.console(), last_lines: crate::console::last_lines(&layout.console()) }
}

/// Opened for appending, because QEMU's console appends to the same file.
fn new_log(layout: &Layout) -> Result<File, MachineError> {
    let path = layout.console();
    crate::layout::remove_file(&path)?;
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    opened.map_err(MachineError::io("create", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::layout;

    const SOON: Duration = Duration::from_secs(20);

    /// The guard does not care what it guards.
    fn launch(layout: &Layout, program: &str, argument: &str) -> Launched {
        layout.create_data().unwrap();
        Launched::start(layout, Path::new(program), &[argument.into()]).unwrap()
    }

    fn another(process: &Process) -> Process {
        Process::find(process.identity()).unwrap().unwrap()
    }

    /// Read from the file, because a session that began outside this PID namespace has the number 0 here.
    fn session_of(process: &str) -> i32 {
        let stat = std::fs::read_to_string(Path::new("/proc").join(process).join("stat")).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        after_name.split_ascii_whitespace().nth(3).unwrap().parse().unwrap()
    }

    #[test]
    fn what_is_not_kept_dies_and_what_is_kept_lives() {
        let (_home, layout) = layout();
        let launched = launch(&layout, "sleep", "1000");
        let process = another(&launched.process);
        drop(launched);
        assert!(process.wait(Duration::ZERO).unwrap());

        let launched = launch(&layout, "sleep", "1000");
        let process = another(&launched.process);
        launched.keep();
        assert!(!process.wait(Duration::from_millis(50)).unwrap());
        process.kill().unwrap();
        assert!(process.wait(SOON).unwrap());
    }

    #[test]
    fn a_starter_that_is_killed_takes_it_along() {
        let (_home, layout) = layout();
        let mut launched = launch(&layout, "sleep", "1000");
        // All that the kernel does for a process that is killed: its end of the pipe closes.
        launched.guard.word = None;
        assert!(launched.process.wait(SOON).unwrap());
    }

    #[test]
    fn it_runs_in_a_session_of_its_own_and_its_words_are_kept() {
        let (_home, layout) = layout();
        let launched = launch(&layout, "sleep", "1000");
        assert_ne!(session_of(&launched.process.identity().pid.to_string()), session_of("self"));
        drop(launched);
        // It may end before or after it was looked at; its words are there either way.
        if let Ok(launched) = Launched::start(&layout, Path::new("ls"), &["/nonexistent".into()]) {
            assert!(launched.process.wait(SOON).unwrap());
        }
        assert!(died(&layout).to_string().contains("/nonexistent"));
    }
}
