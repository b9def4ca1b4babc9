//! How the machine fails.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use session::{ExitStatus, SessionError};

/// Why something could not be done with the machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A program this computer must have is not there.
    #[error("{program} is not installed; on Debian: apt-get install {package}")]
    MissingProgram {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The machine's root filesystem could not be built.
    #[error("cannot build the machine's root filesystem")]
    Root {
        /// Why.
        #[from]
        source: image::ImageError,
    },
    /// No kernel could be got for the machine.
    #[error("cannot get a kernel for the machine")]
    Kernel {
        /// Why.
        #[from]
        source: image::KernelError,
    },
    /// The machine's initramfs could not be written.
    #[error("cannot write the machine's initramfs")]
    Initramfs {
        /// Why.
        #[from]
        source: image::InitramfsError,
    },
    /// The data disk could not be made.
    #[error("cannot make the machine's data disk {}: {said}", path.display())]
    DataDisk {
        /// The disk.
        path: PathBuf,
        /// mke2fs's words.
        said: String,
    },
    /// A file or directory of the machine's.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A process could not be started or looked after.
    #[error("cannot {doing}")]
    Process {
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The state file is not one of ours.
    #[error("{} is damaged: {why}; `forkd machine start` makes the machine anew and keeps its data", path.display())]
    DamagedState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// QEMU ended before the machine was up.
    #[error("QEMU ended before the machine was up; the last lines of {}:\n{last_lines}", console.display())]
    Died {
        /// The whole log.
        console: PathBuf,
        /// Its end.
        last_lines: String,
    },
    /// The agent inside did not answer in time.
    #[error("the machine was not up after {} s; the last lines of {}:\n{last_lines}", waited.as_secs(), console.display())]
    BootTimeout {
        /// How long was waited.
        waited: Duration,
        /// The whole log.
        console: PathBuf,
        /// Its end.
        last_lines: String,
    },
    /// Every port that was free when chosen was taken when QEMU came.
    #[error("no loopback port stayed free for the machine in {tries} tries")]
    NoPort {
        /// How many were tried.
        tries: usize,
    },
    /// There is no machine to talk to.
    #[error("the machine does not run; start it with `forkd machine start`")]
    NotRunning,
    /// QEMU cannot be got rid of.
    #[error("QEMU (process {pid}) does not end, not even when killed")]
    Unkillable {
        /// Its process id.
        pid: i32,
    },
    /// The agent inside refused, or went away.
    #[error(transparent)]
    Session {
        /// Why.
        #[from]
        source: SessionError,
    },
    /// A name for a pushed file that is not one path component.
    #[error("`{name}` cannot name a file in the machine; use one path component that does not begin with a dot")]
    BadName {
        /// The name.
        name: String,
    },
    /// A file to be pushed changed while it was read.
    #[error("{} changed while it was being copied; try again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file to be pushed is larger than what can be pushed at once.
    #[error("{} is too large to be copied into the machine, which takes {limit_bytes} bytes more at once", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The room there was.
        limit_bytes: u64,
    },
    /// This computer's disk cannot hold what would be pushed. Found out before, because a data disk that cannot grow
    /// would fail the machine.
    #[error("{} has {free_bytes} bytes free; copying into the machine takes {needed_bytes}", dir.display())]
    NoSpace {
        /// Where the machine's disks are.
        dir: PathBuf,
        /// What is free there.
        free_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
    /// A command of ours failed inside.
    #[error("cannot {doing} in the machine ({}): {said}", describe(*status))]
    Inside {
        /// What was tried.
        doing: &'static str,
        /// How the command ended.
        status: ExitStatus,
        /// What it wrote to standard error.
        said: String,
    },
}

impl MachineError {
    /// For `map_err` on what is done to a path.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }

    /// For `map_err` on what is done to a process.
    pub(crate) fn process(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Process { doing, source }
    }
}

fn describe(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exit code {code}"),
        ExitStatus::Signal(signal) => format!("signal {signal}"),
    }
}
