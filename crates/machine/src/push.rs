//! Brings files of this computer into the machine, once per content.
//!
//! A file lands at `/var/lib/forkd/pushed/<digest>/<name>` and is whole when it has that name. `tar` on both sides
//! carries holes as holes, so an image of gigabytes costs what is written in it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use types::progress::Progress;

use crate::digest::{Digests, Version};
use crate::tar::Tar;
use crate::{Machine, MachineError};

/// Where pushed files are, on the data disk.
pub(crate) const PUSHED: &str = "/var/lib/forkd/pushed";
/// How many files one question is about; keeps its arguments below what one message carries.
const ASK_AT_ONCE: usize = 256;
const MAX_NAME: usize = 200;

/// Prints the number of each argument that is not there; those that are count as used today.
const MISSING: &str = r#"
n=0
for file do
    if [ -f "$file" ]; then touch -c "${file%/*}"; else echo "$n"; fi
    n=$((n + 1))
done
"#;

/// Unpacks one file and gives it its name, once the sender has said that all is well by ending the input.
const RECEIVE: &str = r#"
set -eu
dir=$1 target=$2
mkdir -p "$dir"
incoming=$(mktemp -d "$dir/.incoming.XXXXXX")
trap 'rm -rf "$incoming"' EXIT
tar --extract --sparse --preserve-permissions --no-same-owner --file=- --directory="$incoming"
cat >/dev/null
sync --file-system "$incoming"
mkdir -p "${target%/*}"
mv --force --no-target-directory "$incoming/file" "$target"
"#;

/// A file to bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The file here; it must not change while it is brought.
    pub local: PathBuf,
    /// Its last path component there. Whether it is executable is kept.
    pub remote_name: String,
}

struct Transfer {
    local: PathBuf,
    version: Version,
    target: String,
}

impl Machine {
    /// Brings files into the machine unless they are there, and says where they are inside, in the order given.
    ///
    /// # Errors
    /// [`MachineError::BadName`] for a name that is not one path component; [`MachineError::Changed`] when a file
    /// changes meanwhile; [`MachineError::Inside`] when the machine's disk is full.
    pub fn push(&self, files: &[Push], progress: &dyn Progress) -> Result<Vec<PathBuf>, MachineError> {
        let transfers = self.plan(files, progress)?;
        for batch in transfers.chunks(ASK_AT_ONCE) {
            let targets: Vec<_> = batch.iter().map(|transfer| transfer.target.clone()).collect();
            let missing = self.script("look for files", MISSING, &targets)?;
            let numbers = missing.lines().filter_map(|line| line.parse::<usize>().ok());
            for transfer in numbers.filter_map(|number| batch.get(number)) {
                self.send(transfer, progress)?;
            }
        }
        Ok(transfers.into_iter().map(|transfer| transfer.target.into()).collect())
    }

    fn plan(&self, files: &[Push], progress: &dyn Progress) -> Result<Vec<Transfer>, MachineError> {
        let mut digests = Digests::load(&self.layout);
        let mut transfers = Vec::with_capacity(files.len());
        let stage = progress.stage("looking at what the machine needs", Some(files.len() as u64));
        for (done, push) in (1..).zip(files) {
            check_name(&push.remote_name)?;
            let local = fs::canonicalize(&push.local).map_err(MachineError::io("find", &push.local))?;
            let (digest, version) = digests.of(&local)?;
            transfers.push(Transfer { local, version, target: format!("{PUSHED}/{digest}/{}", push.remote_name) });
            stage.advance(done);
        }
        digests.save()?;
        Ok(transfers)
    }

    fn send(&self, transfer: &Transfer, progress: &dyn Progress) -> Result<(), MachineError> {
        let Transfer { local, target, .. } = transfer;
        let name = local.file_name().unwrap_or_default().to_string_lossy();
        let stage = progress.stage(&format!("copying {name} into the machine"), Some(occupied(local)?));
        let mut tar = Tar::start(local)?;
        let mut sent = 0;
        let mut feed = move |chunk: &mut [u8]| {
            let count = tar.read(chunk)?;
            sent += count as u64;
            stage.advance(sent);
            if count == 0 {
                tar.finish()?;
                let now = fs::metadata(local).map_err(MachineError::io("read", local))?;
                if Version::of(&now) != transfer.version {
                    return Err(MachineError::Changed { path: local.clone() });
                }
            }
            Ok(count)
        };
        let args = [PUSHED.to_owned(), target.clone()];
        self.fed_script("store a file", RECEIVE, &args, &mut feed).map(|_| ())
    }
}

fn check_name(name: &str) -> Result<(), MachineError> {
    let fits = (1..=MAX_NAME).contains(&name.len()) && !name.starts_with('.');
    if fits && !name.contains(['/', '\0']) { Ok(()) } else { Err(MachineError::BadName { name: name.into() }) }
}

fn occupied(path: &Path) -> Result<u64, MachineError> {
    Ok(fs::metadata(path).map_err(MachineError::io("read", path))?.blocks() * 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_visible_path_component() {
        for good in ["forkd", "root.ext4", "a b", "-x", "ü"] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", ".incoming", "a/b", "/a", "a\0b", &"x".repeat(201)] {
            assert!(matches!(check_name(bad), Err(MachineError::BadName { .. })), "{bad:?} was accepted");
        }
    }
}
