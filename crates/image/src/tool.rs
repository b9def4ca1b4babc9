//! Runs a program of the distribution, hears what it says, and keeps its last words for the error.
//!
//! A *contained* program has a PID and a mount namespace of its own (and a user namespace, if we are not root): when we
//! die, in whatever way, everything it started dies and everything it mounted is gone, in one instant.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::sys;

/// How many lines of a failed program are shown.
const LAST_LINES: usize = 12;
/// A longer line is cut; bounds what a program can make us hold.
const MAX_LINE: u64 = 4096;
/// mke2fs and its like live here, and a plain user's `PATH` does not have it.
const SBIN: &str = "/usr/local/sbin:/usr/sbin:/sbin";
/// Options of unshare(1). The first process inside is killed with it, and takes the others along.
const CONTAINMENT: [&str; 4] = ["--mount", "--pid", "--fork", "--kill-child=KILL"];
/// What the kernel, and apt before it tries, say about a full disk.
const DISK_FULL: &[&str] = &["No space left on device", "You don't have enough free space"];

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It is not installed.
    #[error("{tool} is not installed; on Debian: apt-get install {packages}")]
    Missing {
        /// The program.
        tool: &'static str,
        /// The Debian packages that bring it.
        packages: &'static str,
    },
    /// It could not be started or heard.
    #[error("cannot run {tool}")]
    Start {
        /// The program.
        tool: &'static str,
        /// Why.
        source: io::Error,
    },
    /// It said that the disk is full.
    #[error("{tool} found no space left on the disk; its last words:\n{said}")]
    DiskFull {
        /// The program.
        tool: &'static str,
        /// The last lines of its output.
        said: String,
    },
    /// It failed.
    #[error("{tool} failed ({status}); its last words:\n{said}")]
    Failed {
        /// The program.
        tool: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its output.
        said: String,
    },
}

/// A program about to be run. It ends when we do.
pub(crate) struct Tool {
    name: &'static str,
    command: Command,
    held: Option<File>,
}

impl Tool {
    /// Finds the program, or says which packages bring it.
    pub(crate) fn find(name: &'static str, packages: &'static str) -> Result<Self, ToolError> {
        let path = search_path();
        let program = which(name, &path).ok_or(ToolError::Missing { tool: name, packages })?;
        let mut command = Command::new(program);
        // Messages are read by us (is the disk full?), so they must be in the language we know.
        command.env("PATH", path).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        Ok(Self { name, command, held: None })
    }

    /// Finds the program and runs it contained, as root: the real one, or that of a user namespace in which our own
    /// files are root's and the other users are our subordinate ones.
    pub(crate) fn contained(name: &'static str, packages: &'static str) -> Result<Self, ToolError> {
        let path = search_path();
        let program = which(name, &path).ok_or(ToolError::Missing { tool: name, packages })?;
        let root = rustix::process::geteuid().is_root();
        if !root && which("newuidmap", &path).is_none() {
            return Err(ToolError::Missing { tool: "newuidmap", packages: "uidmap" });
        }
        if root && !may_unshare()? {
            // A container without that privilege. It cannot mount either, and what it started holds our lock.
            return Self::find(name, packages);
        }
        let mut tool = Self::find("unshare", "util-linux")?;
        if !root {
            tool.command.args(["--user", "--map-root-user", "--map-auto"]);
        }
        tool.command.args(CONTAINMENT).arg("--").arg(program);
        Ok(Self { name, ..tool })
    }

    pub(crate) fn is_installed(name: &str) -> bool {
        which(name, &search_path()).is_some()
    }

    /// For arguments, environment and the like. Where output goes is decided by how it is run.
    pub(crate) fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// The program and its descendants hold this open file, and with it its lock, as long as they live.
    pub(crate) fn holding(mut self, lock: &File) -> Result<Self, ToolError> {
        self.held = Some(lock.try_clone().map_err(|source| ToolError::Start { tool: self.name, source })?);
        Ok(self)
    }

    /// Runs to the end; `heard` gets each line of its output and errors.
    pub(crate) fn run(mut self, heard: &mut dyn FnMut(&str)) -> Result<(), ToolError> {
        let tool = self.name;
        let start = |source| ToolError::Start { tool, source };
        let (reader, writer) = io::pipe().map_err(start)?;
        self.command.stdout(writer.try_clone().map_err(start)?).stderr(writer);
        sys::tie_to_parent(&mut self.command, self.held.take());
        let mut child = self.command.spawn().map_err(start)?;
        // The command holds the pipe's writing end; while it lives, the output never ends.
        drop(self.command);
        let said = last_lines(reader, heard);
        let status = child.wait().map_err(start)?;
        judge(tool, status, said.map_err(start)?)
    }

    /// Runs to the end and returns what it wrote to its standard output.
    pub(crate) fn output(mut self) -> Result<String, ToolError> {
        let tool = self.name;
        sys::tie_to_parent(&mut self.command, self.held.take());
        let output = self.command.output().map_err(|source| ToolError::Start { tool, source })?;
        let said = last_lines(&output.stderr[..], &mut |_| ()).map_err(|source| ToolError::Start { tool, source })?;
        judge(tool, output.status, said)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn may_unshare() -> Result<bool, ToolError> {
    let mut probe = Tool::find("unshare", "util-linux")?;
    probe.command.args(CONTAINMENT).args(["--", "true"]);
    match probe.output() {
        Ok(_) => Ok(true),
        Err(ToolError::Failed { .. }) => Ok(false),
        Err(err) => Err(err),
    }
}

fn judge(tool: &'static str, status: ExitStatus, said: String) -> Result<(), ToolError> {
    if status.success() {
        Ok(())
    } else if DISK_FULL.iter().any(|words| said.contains(words)) {
        Err(ToolError::DiskFull { tool, said })
    } else {
        Err(ToolError::Failed { tool, status, said })
    }
}

fn search_path() -> String {
    match std::env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{SBIN}"),
        _ => format!("/usr/bin:/bin:{SBIN}"),
    }
}

fn which(name: &str, path: &str) -> Option<PathBuf> {
    let runnable = |file: &PathBuf| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file();
    path.split(':').map(|dir| Path::new(dir).join(name)).find(runnable)
}

/// Reads to the end, passing lines on; what is longer than a line may be comes in pieces.
fn last_lines(output: impl io::Read, heard: &mut dyn FnMut(&str)) -> io::Result<String> {
    let mut output = BufReader::new(output);
    let mut last = VecDeque::with_capacity(LAST_LINES);
    let mut line = Vec::new();
    while output.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(line.trim_ascii()).into_owned();
        line.clear();
        if text.is_empty() {
            continue;
        }
        heard(&text);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(text);
    }
    Ok(Vec::from(last).join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Tool {
        let mut tool = Tool::find("sh", "dash").unwrap();
        tool.command().args(["-c", script]);
        tool
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = Tool::find("no-such-program", "some-package").err().unwrap();
        assert_eq!(error.to_string(), "no-such-program is not installed; on Debian: apt-get install some-package");
    }

    #[test]
    fn lines_are_heard_and_the_last_ones_kept() {
        let mut heard = Vec::new();
        let error = shell("seq 1 40; echo bad >&2; exit 3").run(&mut |line| heard.push(line.to_owned())).unwrap_err();
        assert_eq!(heard.len(), 41);
        let ToolError::Failed { status, said, .. } = error else { panic!("{error}") };
        assert_eq!(status.code(), Some(3));
        assert!(said.starts_with("30\n") && said.ends_with("\nbad"), "{said}");
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut longest = 0;
        shell("head -c 100000 /dev/zero | tr '\\0' x").run(&mut |line| longest = longest.max(line.len())).unwrap();
        assert_eq!(longest, 4096);
    }

    #[test]
    fn a_full_disk_is_told_apart() {
        let error = shell("echo 'cp: No space left on device' >&2; exit 1").run(&mut |_| ()).unwrap_err();
        assert!(matches!(error, ToolError::DiskFull { .. }), "{error}");
    }

    #[test]
    fn standard_output_is_returned_alone() {
        assert_eq!(shell("echo out; echo err >&2").output().unwrap(), "out\n");
    }

    #[test]
    fn what_is_contained_sees_only_itself() {
        let mut tool = Tool::contained("sh", "dash").unwrap();
        tool.command().args(["-c", "echo $$ $(id -u)"]);
        let said = tool.output().unwrap();
        assert!(said.ends_with(" 0\n"), "{said}");
        if may_unshare().unwrap() {
            assert_eq!(said, "1 0\n");
        }
    }

    #[test]
    fn what_is_contained_dies_with_all_it_started() {
        let lock = tempfile::NamedTempFile::new().unwrap();
        let exclusive = rustix::fs::FlockOperation::LockExclusive;
        rustix::fs::flock(lock.as_file(), exclusive).unwrap();
        let lock_path = lock.path().to_owned();
        let started = std::time::Instant::now();
        let start = move || {
            let mut tool = Tool::contained("sh", "dash").unwrap().holding(lock.as_file()).unwrap();
            tool.command.args(["-c", "trap '' TERM; sleep 100 & echo up; sleep 100"]).stdout(Stdio::piped());
            sys::tie_to_parent(&mut tool.command, tool.held.take());
            let mut child = tool.command.spawn().unwrap();
            assert_eq!(child.stdout.as_mut().unwrap().read(&mut [0; 8]).unwrap(), 3);
            (child, File::open(&lock_path).unwrap())
        };
        let (mut child, again) = std::thread::spawn(start).join().unwrap();
        // Every process that inherited the lock must be gone before it is ours.
        rustix::fs::flock(&again, exclusive).unwrap();
        assert!(started.elapsed().as_secs() < 60, "they lived on");
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn the_program_inherits_the_lock() {
        let file = tempfile::tempfile().unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let links = shell("readlink /proc/$$/fd/*; true").holding(&file).unwrap().output().unwrap();
        assert_eq!(links.lines().filter(|link| link.contains("(deleted)")).count(), 1, "{links}");
    }
}
