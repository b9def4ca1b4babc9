//! The other programs of forkd: found beside the running one, or where the environment says.

use std::path::{Path, PathBuf};
use std::{env, io};

/// A program that forkd starts or hands to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `forkd`, which is also what runs inside the emulated host.
    Forkd,
    /// `forkd-vmm`: one process per VM.
    Vmm,
    /// `forkd-agent`: PID 1 of every guest.
    Agent,
}

impl Program {
    /// The file's name.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Forkd => "forkd",
            Self::Vmm => "forkd-vmm",
            Self::Agent => "forkd-agent",
        }
    }

    /// The environment variable that names another file.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Forkd => "FORKD_BIN",
            Self::Vmm => "FORKD_VMM",
            Self::Agent => "FORKD_AGENT",
        }
    }

    /// Where the program is.
    ///
    /// # Errors
    /// When it is neither where the environment says nor beside the running program.
    pub fn find(self) -> Result<PathBuf, ProgramError> {
        let beside = env::current_exe().map_err(|source| ProgramError::Unknown { source })?;
        self.find_from(env::var_os(self.variable()).map(PathBuf::from), &beside)
    }

    fn find_from(self, named: Option<PathBuf>, running: &Path) -> Result<PathBuf, ProgramError> {
        let path = named.unwrap_or_else(|| running.with_file_name(self.file_name()));
        if path.is_file() {
            Ok(path)
        } else {
            Err(ProgramError::Missing { program: self.file_name(), variable: self.variable(), path })
        }
    }
}

/// Why a program was not found.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// There is no file there.
    #[error("{program} is not at {}; keep forkd's programs in one directory, or set {variable}", path.display())]
    Missing {
        /// Which program.
        program: &'static str,
        /// What would name another place.
        variable: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The running program does not know where it is itself.
    #[error("cannot tell where the running program is")]
    Unknown {
        /// What the system says.
        source: io::Error,
    },
}

/// Where the shell would find `name`, also in the directories that hold system tools but are often not in a user's
/// `PATH`.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_the_running_program_unless_named() {
        let dir = tempfile::tempdir().unwrap();
        let (running, vmm, other) =
            (dir.path().join("forkd"), dir.path().join("forkd-vmm"), dir.path().join("another-vmm"));
        std::fs::write(&vmm, "").unwrap();
        std::fs::write(&other, "").unwrap();
        assert_eq!(Program::Vmm.find_from(None, &running).unwrap(), vmm);
        assert_eq!(Program::Vmm.find_from(Some(other.clone()), &running).unwrap(), other);
    }

    #[test]
    fn a_missing_program_says_where_it_was_looked_for_and_what_to_set() {
        let error = Program::Agent.find_from(None, Path::new("/nowhere/forkd")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/forkd-agent") && error.contains("FORKD_AGENT"), "{error}");
    }

    #[test]
    fn tools_are_found_as_a_shell_finds_them() {
        assert!(on_path("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(on_path("no-such-tool-anywhere"), None);
    }
}
