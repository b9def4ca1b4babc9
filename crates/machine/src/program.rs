//! Finds programs of the distribution.

use std::env;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::MachineError;

/// Where mke2fs lives and a plain user's `PATH` does not look.
const SBIN: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The program's path, or the package that has it.
pub(crate) fn find(program: &'static str, package: &'static str) -> Result<PathBuf, MachineError> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let runnable = |file: &Path| rustix::fs::access(file, Access::EXEC_OK).is_ok() && file.is_file();
    env::split_paths(&path)
        .chain(env::split_paths(SBIN))
        .map(|dir| dir.join(program))
        .find(|file| runnable(file))
        .ok_or(MachineError::MissingProgram { program, package })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        assert!(find("sh", "dash").unwrap().ends_with("sh"));
        let error = find("qemu-system-none", "qemu-system-x86").unwrap_err();
        assert!(error.to_string().contains("apt-get install qemu-system-x86"), "{error}");
    }
}
