//! Whether this machine's KVM can run a stock kernel, decided by running guest code.
//!
//! `forkd-vmm probe` does the running, in a process of its own: a KVM that hangs or crashes is an answer too.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::process::timespec;

/// A KVM that has not run a few instructions by then never boots a kernel.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than the probe ever prints, less than a pipe holds.
const MAX_OUTPUT: u64 = 32 << 10;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The answer.
    pub verdict: KvmVerdict,
    /// Why, for a person.
    pub detail: String,
    /// The KVM API's version, where it could be asked.
    #[serde(default)]
    pub api_version: Option<i32>,
    /// How long the guest code ran.
    #[serde(default)]
    pub run_us: Option<u64>,
    /// The most vCPUs a VM can have here.
    #[serde(default)]
    pub vcpus_max: Option<u64>,
}

/// Whether KVM can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvmVerdict {
    /// It ran the code and the results were right.
    Usable,
    /// There is no `/dev/kvm`.
    Missing,
    /// There is, and this user may not open it.
    Denied,
    /// It opens and cannot run a stock kernel.
    Unusable,
}

impl Probe {
    fn unusable(detail: String) -> Self {
        Self { verdict: KvmVerdict::Unusable, detail, api_version: None, run_us: None, vcpus_max: None }
    }

    /// What a person can do about it.
    #[must_use]
    pub const fn fix(&self) -> Option<&'static str> {
        match self.verdict {
            KvmVerdict::Usable => None,
            KvmVerdict::Missing => Some(
                "enable virtualisation in the firmware, or nested virtualisation in the hypervisor, then `modprobe kvm`",
            ),
            KvmVerdict::Denied => Some("`usermod -aG kvm $USER` and log in again, or run as root"),
            KvmVerdict::Unusable => Some("use a machine whose hypervisor offers nested virtualisation"),
        }
    }
}

/// Runs the probe.
///
/// # Errors
/// When the program cannot be run or does not answer as it should; a KVM that hangs is not an error but an answer.
pub(crate) fn probe(vmm: &Path) -> io::Result<Probe> {
    let Some((status, output)) = ask(vmm, "probe")? else {
        return Ok(Probe::unusable(format!("guest code hangs: no answer within {} s", PATIENCE.as_secs())));
    };
    match serde_json::from_str(&output) {
        Ok(probe) => Ok(probe),
        Err(_) if !status.success() => Ok(Probe::unusable(format!("the probe ended with {status}"))),
        Err(error) => Err(error.into()),
    }
}

/// What the VMM says to a question; `None` when it hangs. Nothing of it stays behind.
pub(crate) fn ask(vmm: &Path, question: &str) -> io::Result<Option<(ExitStatus, String)>> {
    let mut child = Command::new(vmm)
        .arg(question)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let pid = rustix::process::Pid::from_child(&child);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let ended = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&timespec(PATIENCE))));
    // Harmless when it has ended.
    child.kill()?;
    let status = child.wait()?;
    if ended? == 0 {
        return Ok(None);
    }
    let mut output = String::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_OUTPUT).read_to_string(&mut output)?;
    }
    Ok(Some((status, output)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_read_with_or_without_the_optional_parts() {
        let full = r#"{"verdict":"usable","detail":"ok","api_version":12,"run_us":123,"vcpus_max":4096}"#;
        let probe: Probe = serde_json::from_str(full).unwrap();
        assert_eq!((probe.verdict, probe.run_us), (KvmVerdict::Usable, Some(123)));
        let probe: Probe = serde_json::from_str(r#"{"verdict":"denied","detail":"x"}"#).unwrap();
        assert_eq!(probe.verdict, KvmVerdict::Denied);
        assert!(probe.fix().is_some_and(|fix| fix.contains("kvm")));
    }

    #[test]
    fn a_program_that_is_no_probe_is_no_answer() {
        probe(Path::new("/nowhere/vmm")).unwrap_err();
        let failed = probe(Path::new("/bin/false")).unwrap();
        assert_eq!(failed.verdict, KvmVerdict::Unusable);
        assert!(probe(Path::new("/bin/echo")).is_err(), "`probe` is not the answer");
    }
}
