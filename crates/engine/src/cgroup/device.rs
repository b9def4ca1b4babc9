//! The disks that a directory's files are on, as control groups name them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{CgroupError, Limits, failed, mib_to_bytes};

const DEVICES: &str = "/sys/dev/block";

/// A whole disk, `8:0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device(String);

impl Device {
    /// The disks of these directories, each once.
    pub(crate) fn of_all(directories: &[PathBuf]) -> Result<Vec<Self>, CgroupError> {
        let mut all = Vec::new();
        for directory in directories {
            let device = Self::of(directory)?;
            if !all.contains(&device) {
                all.push(device);
            }
        }
        Ok(all)
    }

    fn of(directory: &Path) -> Result<Self, CgroupError> {
        let found = fs::metadata(directory).map_err(failed(directory))?.dev();
        let number = format!("{}:{}", rustix::fs::major(found), rustix::fs::minor(found));
        Self::whole(Path::new(DEVICES), &number).ok_or_else(|| CgroupError::NoDevice { path: directory.into() })
    }

    /// The disk itself, where the number is that of a part of it.
    fn whole(devices: &Path, number: &str) -> Option<Self> {
        let entry = fs::canonicalize(devices.join(number)).ok()?;
        let disk = if entry.join("partition").exists() { entry.parent()? } else { &entry };
        let number = fs::read_to_string(disk.join("dev")).ok()?;
        Some(Self(number.trim().to_owned()))
    }

    /// What to write to `io.max`.
    pub(super) fn line(&self, limits: &Limits) -> String {
        let rate = |name: &str, limit: Option<super::IoLimit>| {
            limit.map_or_else(String::new, |limit| format!(" {name}={}", mib_to_bytes(limit.get())))
        };
        format!("{}{}{}", self.0, rate("rbps", limits.read), rate("wbps", limits.write))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_disk_is_limited_as_the_disk() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/vda");
        fs::create_dir_all(disk.join("vda1")).unwrap();
        fs::write(disk.join("dev"), "254:0\n").unwrap();
        fs::write(disk.join("vda1/dev"), "254:1\n").unwrap();
        fs::write(disk.join("vda1/partition"), "1\n").unwrap();
        for (number, target) in [("254:0", disk.clone()), ("254:1", disk.join("vda1"))] {
            std::os::unix::fs::symlink(target, sys.path().join(number)).unwrap();
            assert_eq!(Device::whole(sys.path(), number), Some(Device("254:0".into())));
        }
        assert_eq!(Device::whole(sys.path(), "0:33"), None, "what is in memory has no device");
        let limits: Limits = serde_json::from_str(r#"{"read_mib_per_sec":2}"#).unwrap();
        assert_eq!(Device("254:0".into()).line(&limits), "254:0 rbps=2097152");
    }

    #[test]
    fn what_is_on_no_disk_is_refused() {
        let error = Device::of(Path::new("/proc")).unwrap_err();
        assert!(matches!(&error, CgroupError::NoDevice { path } if path == Path::new("/proc")), "{error}");
    }
}
