//! One file as a tar stream, by way of the program `tar`, which knows how to tell holes.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::{MachineError, program};

/// How much of tar's complaints is kept.
const MAX_SAID: u64 = 4096;

/// A running tar; killed when dropped early.
#[derive(Debug)]
pub(crate) struct Tar {
    child: Child,
    stdout: ChildStdout,
    /// A file and not a pipe: tar never waits for us to read its complaints.
    stderr: File,
}

impl Tar {
    /// Packs the file under the name `file`. The path must be absolute and have a last component.
    pub(crate) fn start(path: &Path) -> Result<Self, MachineError> {
        let tar = program::find("tar", "tar")?;
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let stderr = tempfile::tempfile().map_err(failed)?;
        let mut child = Command::new(tar)
            .args(["--create", "--sparse", "--hole-detection=seek", "--owner=root:0", "--group=root:0"])
            .args(["--no-unquote", "--transform=s|.*|file|", "--file=-", "--directory"])
            .arg(dir)
            // Never taken for an option, whatever the name begins with.
            .arg(Path::new(".").join(name))
            .env("LC_ALL", "C")
            .env_remove("TAR_OPTIONS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { child, stdout, stderr })
    }

    /// The next bytes; none at the end.
    pub(crate) fn read(&mut self, chunk: &mut [u8]) -> Result<usize, MachineError> {
        loop {
            match self.stdout.read(chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(failed),
            }
        }
    }

    /// After the last bytes: was it all well?
    pub(crate) fn finish(&mut self) -> Result<(), MachineError> {
        if self.child.wait().map_err(failed)?.success() {
            return Ok(());
        }
        let mut said = String::new();
        self.stderr.rewind().map_err(failed)?;
        (&self.stderr).take(MAX_SAID).read_to_string(&mut said).map_err(failed)?;
        Err(failed(io::Error::other(said.trim().to_owned())))
    }
}

impl Drop for Tar {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            log::warn!("tar (process {}) was left behind: {error}", self.child.id());
        }
    }
}

fn failed(source: io::Error) -> MachineError {
    MachineError::Process { doing: "pack a file with tar", source }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    use super::*;

    fn pack(path: &Path) -> Result<Vec<u8>, MachineError> {
        let mut tar = Tar::start(path)?;
        let (mut all, mut chunk) = (Vec::new(), vec![0; 10_000]);
        loop {
            match tar.read(&mut chunk)? {
                0 => return tar.finish().map(|()| all),
                count => all.extend_from_slice(&chunk[..count]),
            }
        }
    }

    #[test]
    fn holes_and_mode_survive_and_the_name_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("-rf * [a] \\n.img");
        let file = File::create_new(&path).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"far", 300 << 20).unwrap();
        file.set_len(1 << 30).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let packed = pack(&path).unwrap();
        assert!(packed.len() < 1 << 20, "{} bytes for a file of two blocks", packed.len());

        let out = tempfile::tempdir().unwrap();
        let mut unpack = Command::new("tar").args(["-xSpf", "-", "-C"]).arg(out.path()).stdin(Stdio::piped()).spawn();
        let unpack = unpack.as_mut().unwrap();
        unpack.stdin.take().unwrap().write_all(&packed).unwrap();
        assert!(unpack.wait().unwrap().success());
        let copy = out.path().join("file");
        let meta = fs::metadata(&copy).unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o777), (1 << 30, 0o750));
        assert!(meta.blocks() * 512 < 1 << 20);
        let mut far = [0; 3];
        File::open(&copy).unwrap().read_exact_at(&mut far, 300 << 20).unwrap();
        assert_eq!(&far, b"far");
    }

    #[test]
    fn a_missing_file_fails_in_words() {
        let error = pack(Path::new("/nonexistent/file")).unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
    }
}
