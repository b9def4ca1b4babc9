//! The data disk: a sparse ext4 image that outlives every run of the machine.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::layout::{Layout, remove_file};
use crate::{MachineError, program};

/// What the disk can hold; it occupies what was written to it.
const SIZE: u64 = 64 << 30;

/// Makes the disk unless it is there. It has its name only when it is whole.
pub(crate) fn ensure(layout: &Layout) -> Result<(), MachineError> {
    let disk = layout.data_disk();
    if disk.try_exists().map_err(MachineError::io("look at", &disk))? {
        return Ok(());
    }
    layout.create_data()?;
    let staged = disk.with_extension("new");
    let made = format(&staged).and_then(|()| fs::rename(&staged, &disk).map_err(MachineError::io("rename", &staged)));
    if made.is_err() {
        remove_file(&staged)?;
    }
    made
}

fn format(staged: &Path) -> Result<(), MachineError> {
    let mke2fs = program::find("mke2fs", "e2fsprogs")?;
    remove_file(staged)?;
    let file = File::create_new(staged).map_err(MachineError::io("create", staged))?;
    file.set_len(SIZE).map_err(MachineError::io("enlarge", staged))?;
    // Only root uses it, so nothing is reserved for root.
    let output = Command::new(mke2fs)
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-J", "size=64", "-L", "forkd-data"])
        .arg(staged)
        .stdin(Stdio::null())
        .output()
        .map_err(MachineError::process("run mke2fs"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(MachineError::DataDisk { path: staged.into(), said });
    }
    file.sync_all().map_err(MachineError::io("write", staged))
}

/// How many bytes of this computer's disk it occupies; `None` when there is none.
pub(crate) fn occupied(layout: &Layout) -> Result<Option<u64>, MachineError> {
    use std::os::unix::fs::MetadataExt;
    let disk = layout.data_disk();
    match fs::metadata(&disk) {
        Ok(meta) => Ok(Some(meta.blocks() * 512)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(MachineError::Io { doing: "look at", path: disk, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::layout;

    #[test]
    fn the_disk_is_made_once_sparse_and_whole() {
        let (_home, layout) = layout();
        assert_eq!(occupied(&layout).unwrap(), None);
        fs::create_dir_all(&layout.data).unwrap();
        fs::write(layout.data_disk().with_extension("new"), "half made by a killed forkd").unwrap();
        ensure(&layout).unwrap();
        let disk = layout.data_disk();
        assert_eq!(fs::metadata(&disk).unwrap().len(), SIZE);
        assert!(occupied(&layout).unwrap().unwrap() < 200 << 20);
        let modified = fs::metadata(&disk).unwrap().modified().unwrap();
        ensure(&layout).unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().modified().unwrap(), modified);
        assert_eq!(fs::read_dir(&layout.data).unwrap().count(), 1);
    }
}
