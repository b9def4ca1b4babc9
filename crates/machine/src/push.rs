//! Brings files of this computer into the machine, once per content.
//!
//! ```text
//! file ──> transfer disk ──> pushed/.incoming.XXXXXX/<n> ──> pushed/<digest>/<name>
//!      copy             dd, inside                       mv, inside
//! ```
//!
//! A file is whole when it has its name. The last step is a question of its own: it is asked only by somebody who
//! still holds the transfer disk, so what was copied is what was written there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use types::progress::Progress;

use crate::console::presentable;
use crate::digest::{Digests, Version};
use crate::transfer::{ALIGN, DEVICE, Transfer};
use crate::{Machine, MachineError};

/// Where pushed files are, on the data disk.
pub(crate) const PUSHED: &str = "/var/lib/forkd/pushed";
/// How many files are brought in one go; keeps the arguments below what one message carries.
const AT_ONCE: usize = 128;
const MAX_NAME: usize = 200;

/// Prints the number of each argument that is not there; those that are count as used today.
const MISSING: &str = r#"
n=0
for file do
    if [ -f "$file" ]; then touch -c "${file%/*}"; else echo "$n"; fi
    n=$((n + 1))
done
"#;

/// Copies from the transfer disk: directory, device, block size, then size, mode and parts of each file, each part its
/// place there, its offset in the file and its length. Prints the directory they are in. dd tells its progress every
/// second, so that the other side knows that it lives.
const COPY: &str = r#"
set -eu
dir=$1 device=$2 block=$3
shift 3
mkdir -p "$dir"
incoming=$(mktemp -d "$dir/.incoming.XXXXXX")
n=0
while [ $# -gt 0 ]; do
    : >"$incoming/$n"
    for part in $3; do
        place=${part%%,*} bytes=${part##*,} offset=${part#*,}
        dd if="$device" of="$incoming/$n" bs="$block" skip="$place" seek="${offset%,*}" count="$bytes" status=progress \
            conv=sparse,notrunc iflag=direct,skip_bytes,count_bytes,fullblock oflag=direct,seek_bytes ||
            { rm -rf "$incoming"; exit 1; }
    done
    truncate --size="$1" "$incoming/$n"
    chmod "$2" "$incoming/$n"
    n=$((n + 1))
    shift 3
done
sync --file-system "$incoming"
echo "$incoming"
"#;

/// Gives the copies their names: the directory they are in, then the names in order.
const COMMIT: &str = r#"
set -eu
incoming=$1
shift
n=0
for target do
    mkdir -p "${target%/*}"
    mv --force --no-target-directory "$incoming/$n" "$target"
    n=$((n + 1))
done
rmdir "$incoming"
"#;

/// A file to bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The file here; it must not change while it is brought.
    pub local: PathBuf,
    /// Its last path component there. Whether it is executable is kept.
    pub remote_name: String,
}

/// A file looked at: what it is now, and where it shall be.
struct Planned {
    local: PathBuf,
    version: Version,
    target: String,
}

impl Machine {
    /// Brings files into the machine unless they are there, and says where they are inside, in the order given.
    ///
    /// # Errors
    /// [`MachineError::BadName`] for a name that is not one path component; [`MachineError::Changed`] when a file
    /// changes meanwhile; [`MachineError::Inside`] when the machine cannot store it, such as when its disk is full.
    pub fn push(&self, files: &[Push], progress: &dyn Progress) -> Result<Vec<PathBuf>, MachineError> {
        let planned = self.plan(files, progress)?;
        for batch in planned.chunks(AT_ONCE) {
            let mut missing = self.missing(batch)?;
            if missing.is_empty() {
                continue;
            }
            let transfer = Transfer::acquire(&self.layout, progress)?;
            if transfer.waited {
                missing = self.missing(batch)?;
            }
            if !missing.is_empty() {
                self.bring(&missing, transfer, progress)?;
            }
        }
        Ok(planned.into_iter().map(|file| file.target.into()).collect())
    }

    fn plan(&self, files: &[Push], progress: &dyn Progress) -> Result<Vec<Planned>, MachineError> {
        let mut digests = Digests::load(&self.layout);
        let mut planned = Vec::with_capacity(files.len());
        let stage = progress.stage("looking at what the machine needs", Some(files.len() as u64));
        for (done, push) in (1..).zip(files) {
            check_name(&push.remote_name)?;
            let local = fs::canonicalize(&push.local).map_err(MachineError::io("find", &push.local))?;
            let (digest, version) = digests.of(&local)?;
            planned.push(Planned { local, version, target: format!("{PUSHED}/{digest}/{}", push.remote_name) });
            stage.advance(done);
        }
        digests.save()?;
        Ok(planned)
    }

    fn missing<'a>(&self, files: &'a [Planned]) -> Result<Vec<&'a Planned>, MachineError> {
        let targets: Vec<_> = files.iter().map(|file| file.target.clone()).collect();
        let numbers = self.script("look for files", MISSING, &targets)?;
        Ok(numbers.lines().filter_map(|line| files.get(line.parse::<usize>().ok()?)).collect())
    }

    fn bring(
        &self,
        files: &[&Planned],
        mut transfer: Transfer<'_>,
        progress: &dyn Progress,
    ) -> Result<(), MachineError> {
        let look = |file: &&Planned| fs::metadata(&file.local).map_err(MachineError::io("read", &file.local));
        let metas = files.iter().map(look).collect::<Result<Vec<_>, _>>()?;
        transfer.check_room(metas.iter().map(|meta| meta.blocks() * 512).sum())?;
        let mut args = vec![PUSHED.into(), DEVICE.into(), ALIGN.to_string()];
        for (file, meta) in files.iter().zip(&metas) {
            let name = Path::new(&file.target).file_name().unwrap_or_default().to_string_lossy();
            let stage = progress.stage(&format!("handing {name} to the machine"), Some(meta.blocks() * 512));
            let parts = transfer.write(&file.local, &file.version, stage.as_ref())?;
            let parts: Vec<_> =
                parts.iter().map(|part| format!("{},{},{}", part.place, part.offset, part.bytes)).collect();
            let mode = if meta.mode() & 0o111 == 0 { "644" } else { "755" };
            args.extend([file.version.size().to_string(), mode.into(), parts.join(" ")]);
        }
        let stage = progress.stage("copying inside the machine", None);
        let mut heard = |bytes: &[u8]| {
            let words = presentable(bytes);
            if let Some((copied, _)) = words.lines().filter_map(|line| line.split_once(" copied, ")).next_back() {
                stage.note(copied);
            }
        };
        let incoming = self.script_heard("store files", COPY, &args, &mut heard)?;
        let targets = files.iter().map(|file| file.target.clone());
        let args: Vec<_> = std::iter::once(incoming).chain(targets).collect();
        self.script("name files", COMMIT, &args).map(|_| ())
    }
}

fn check_name(name: &str) -> Result<(), MachineError> {
    let fits = (1..=MAX_NAME).contains(&name.len()) && !name.starts_with('.');
    if fits && !name.contains(['/', '\0']) { Ok(()) } else { Err(MachineError::BadName { name: name.into() }) }
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
