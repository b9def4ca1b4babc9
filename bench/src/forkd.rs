//! Running the `forkd` of this build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Where VMs ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this host's KVM.
    Local,
    /// In the emulated host.
    Machine,
}

impl Place {
    /// What `FORKD_PLACE` calls it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Machine => "machine",
        }
    }
}

/// The binary beside this one.
pub(crate) fn binary() -> Result<PathBuf> {
    beside("forkd")
}

/// The VMM beside this one.
pub(crate) fn vmm() -> Result<PathBuf> {
    beside("forkd-vmm")
}

fn beside(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if !path.is_file() {
        bail!("{} is not built; run `make build`", path.display());
    }
    Ok(path)
}

/// Where the files of many VMs go: where it was said, or where nothing waits for a disk, if there is such a place.
pub(crate) fn place(said: Option<&Path>) -> PathBuf {
    let shared_memory = Path::new("/dev/shm");
    match said {
        Some(dir) => dir.into(),
        None if shared_memory.is_dir() => shared_memory.into(),
        None => std::env::temp_dir(),
    }
}

/// What the doctor says, as data.
pub(crate) fn doctor() -> Result<Value> {
    let output = Command::new(binary()?).args(["doctor", "--json"]).output()?;
    serde_json::from_slice(&output.stdout).context("forkd doctor --json")
}

/// What numbers were made on.
pub(crate) fn host() -> Value {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "cpu": model.trim_start_matches(['\t', ' ', ':']),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": kernel.trim(),
        "load": load.trim(),
    })
}

/// Whether this host's own KVM is usable.
pub(crate) fn has_kvm(doctor: &Value) -> bool {
    let checks = doctor["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
    checks.iter().any(|check| check["name"] == "kvm" && check["verdict"] == "pass")
}

/// Runs `forkd run` with these words and returns the time of each stage in milliseconds. Where a run went through the
/// emulated host, its stages inside follow as `inside ...`.
pub(crate) fn timed_run(place: Option<Place>, words: &[&str]) -> Result<BTreeMap<String, f64>> {
    let timings = tempfile::NamedTempFile::new()?;
    let mut command = Command::new(binary()?);
    if let Some(place) = place {
        command.env("FORKD_PLACE", place.name());
    }
    let status = command.arg("run").arg("--timings").arg(timings.path()).args(words).status()?;
    if !status.success() {
        bail!("forkd run {} ended with {status}", words.join(" "));
    }
    let timings: Value = serde_json::from_slice(&std::fs::read(timings.path())?).context("the timings")?;
    let mut stages = BTreeMap::new();
    collect("", &timings, &mut stages);
    Ok(stages)
}

fn collect(prefix: &str, timings: &Value, stages: &mut BTreeMap<String, f64>) {
    for (name, value) in timings.as_object().into_iter().flatten() {
        match (value, name.strip_suffix("_us"), name.strip_suffix("_ms")) {
            (Value::Object(_), ..) => collect(&format!("{prefix}{name} "), value, stages),
            (Value::Number(number), Some(stage), _) => {
                stages.insert(format!("{prefix}{stage}"), number.as_f64().unwrap_or_default() / 1000.0);
            }
            (Value::Number(number), _, Some(stage)) => {
                stages.insert(format!("{prefix}{stage}"), number.as_f64().unwrap_or_default());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_flat_and_in_milliseconds() {
        let timings = serde_json::json!({"place": "machine", "total_us": 1500, "inside": {"guest_boot_ms": 7}});
        let mut stages = BTreeMap::new();
        collect("", &timings, &mut stages);
        assert_eq!(stages, BTreeMap::from([("inside guest_boot".into(), 7.0), ("total".into(), 1.5)]));
    }
}
