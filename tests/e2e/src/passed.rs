//! What has passed already. The VM tests take minutes, and what comes of them is decided by what runs in them: the same
//! binaries with the same images need not show it twice. Where changes are judged (`CI` is set) nothing is left out.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use engine::Program;
use sha2::{Digest, Sha256};

use crate::host::{Artifacts, Host};

/// A set of everything that decides, and where it is written down that it passed.
pub(crate) struct Passed {
    file: PathBuf,
    fingerprint: String,
}

impl Passed {
    pub(crate) fn of(host: &Host) -> Result<Self> {
        let mut hasher = Sha256::new();
        let agent = Program::Agent.find()?;
        for program in [&std::env::current_exe()?, &host.forkd, &Program::Vmm.find()?, &agent] {
            hasher.update(fs::read(program).with_context(|| program.display().to_string())?);
        }
        // These are named after what they are made of.
        let Artifacts { kernel, initramfs, debian, python, tiny } = &host.artifacts;
        for artifact in [kernel, initramfs, debian, python, tiny] {
            hasher.update(format!("{}\n{}\n", artifact.display(), fs::metadata(artifact)?.len()));
        }
        let fingerprint = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { file: host.dirs.cache.join("e2e-passed"), fingerprint })
    }

    /// Whether all tests passed with the same before, and nobody insists.
    pub(crate) fn already(&self) -> bool {
        std::env::var_os("CI").is_none()
            && fs::read_to_string(&self.file).is_ok_and(|passed| passed == self.fingerprint)
    }

    pub(crate) fn remember(&self) -> Result<()> {
        fs::write(&self.file, &self.fingerprint).with_context(|| self.file.display().to_string())
    }
}
