//! The probe's answer, kept until something could change it.
//!
//! Running guest code costs 5 to 10 ms where it works and up to seconds where it does not, and every command asks. The
//! answer can change with a reboot, another build of the VMM, or another user; these are the key. An answer that a
//! person can change meanwhile (`modprobe kvm`, a group) costs nothing to find out, and is not kept.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::probe::{KvmVerdict, Probe, probe};

const FILE: &str = "kvm-probe.json";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    key: String,
    probe: Probe,
}

/// The answer, found out again only if it could be another.
pub(crate) fn remembered_probe(vmm: &Path, run: &Path) -> io::Result<Probe> {
    let key = key(vmm)?;
    if let Some(probe) = recall(run, &key) {
        return Ok(probe);
    }
    let probe = probe(vmm)?;
    if matches!(probe.verdict, KvmVerdict::Usable | KvmVerdict::Unusable) {
        let memory = Remembered { key, probe: probe.clone() };
        if let Err(error) = keep(run, &memory) {
            log::debug!("the probe's answer is not kept: {error}");
        }
    }
    Ok(probe)
}

fn key(vmm: &Path) -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let meta = fs::metadata(vmm)?;
    let user = rustix::process::geteuid().as_raw();
    Ok(format!("{} {} {}.{} {user}", boot.trim(), meta.ino(), meta.mtime(), meta.mtime_nsec()))
}

/// `None` as well when the file cannot be read or understood: the probe can always be run again.
fn recall(run: &Path, key: &str) -> Option<Probe> {
    let text = fs::read(run.join(FILE)).ok()?;
    let memory: Remembered = serde_json::from_slice(&text).ok()?;
    (memory.key == key).then_some(memory.probe)
}

fn keep(run: &Path, memory: &Remembered) -> io::Result<()> {
    fs::create_dir_all(run)?;
    let staged = run.join(format!("{FILE}.{}", std::process::id()));
    fs::write(&staged, serde_json::to_vec(memory)?)?;
    fs::rename(&staged, run.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(key: &str) -> Remembered {
        let probe = serde_json::from_str(r#"{"verdict":"unusable","detail":"remembered"}"#).unwrap();
        Remembered { key: key.into(), probe }
    }

    #[test]
    fn an_answer_is_kept_for_its_key_only() {
        let run = tempfile::tempdir().unwrap();
        keep(run.path(), &memory("this boot")).unwrap();
        assert_eq!(recall(run.path(), "this boot").map(|probe| probe.detail), Some("remembered".into()));
        assert_eq!(recall(run.path(), "the next boot"), None);
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1, "nothing staged is left");
    }

    #[test]
    fn a_damaged_file_is_no_answer() {
        let run = tempfile::tempdir().unwrap();
        fs::write(run.path().join(FILE), b"{\"key\":").unwrap();
        assert_eq!(recall(run.path(), "this boot"), None);
    }

    #[test]
    fn a_program_that_was_asked_is_not_asked_again() {
        let run = tempfile::tempdir().unwrap();
        let (vmm, other) = (Path::new("/bin/false"), Path::new("/bin/true"));
        keep(run.path(), &memory(&key(vmm).unwrap())).unwrap();
        assert_eq!(remembered_probe(vmm, run.path()).unwrap().detail, "remembered");
        remembered_probe(other, run.path()).expect_err("another program is asked, and `true` says nothing");
    }
}
