//! What this machine can do, as data: one [`Check`] per thing that matters, each with the fix where one is needed.
//!
//! A check never changes anything and never fails itself: what cannot be found out is a finding too.

mod features;
mod host;
mod jail;
mod netfilter;
mod tools;

use serde::Serialize;
use types::Dirs;

use crate::place::{EMULATOR, Place, PlaceError, choose};
use crate::probe::{KvmVerdict, Probe, probe};
use crate::programs::{Program, on_path};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// Something will be missing or slow.
    Warn,
    /// Something cannot work.
    Fail,
    /// There was nothing to look at, and nothing is missing.
    Skip,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// All is well.
    pub fn pass(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Pass, detail: detail.into(), fix: None }
    }

    /// Nothing to look at.
    pub fn skip(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Skip, detail: detail.into(), fix: None }
    }

    /// Worth knowing.
    pub fn warn(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, detail: detail.into(), fix: Some(fix.into()) }
    }

    /// In the way.
    pub fn fail(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fail, detail: detail.into(), fix: Some(fix.into()) }
    }
}

/// Everything that was found.
#[derive(Debug)]
pub struct Report {
    /// The findings, in the order of their importance.
    pub checks: Vec<Check>,
    /// Where VMs would run; `None` when nowhere.
    pub place: Option<Place>,
}

/// Looks at everything.
#[must_use]
pub fn examine(dirs: &Dirs) -> Report {
    let (kvm, place) = kvm();
    let mut checks = vec![host::platform(), host::cpu(), kvm];
    // Where VMs run in the emulated host, that host's root confines them.
    if let (Some(Place::Local), Ok(vmm)) = (&place, Program::Vmm.find()) {
        checks.push(jail::check(&vmm));
    }
    checks.extend(features::all());
    checks.extend(host::resources(dirs));
    checks.extend(tools::all(place.as_ref()));
    Report { checks, place }
}

fn kvm() -> (Check, Option<Place>) {
    const NAME: &str = "kvm";
    let vmm = match Program::Vmm.find() {
        Ok(vmm) => vmm,
        Err(error) => return (Check::fail(NAME, error.to_string(), "build or install forkd-vmm"), None),
    };
    match probe(&vmm) {
        Ok(found) => judge(&found, on_path(EMULATOR).is_some()),
        Err(error) => {
            let detail = format!("{} cannot be asked: {error}", vmm.display());
            (Check::fail(NAME, detail, "install forkd and forkd-vmm of the same version"), None)
        }
    }
}

/// KVM's absence is in the way only where nothing stands in for it.
fn judge(kvm: &Probe, emulator: bool) -> (Check, Option<Place>) {
    let detail = match (kvm.verdict, kvm.run_us) {
        (KvmVerdict::Usable, Some(run_us)) => format!("{} ({run_us} µs)", kvm.detail),
        _ => kvm.detail.clone(),
    };
    let fix = kvm.fix().unwrap_or_default();
    match choose(kvm, emulator) {
        Ok(Place::Local) => (Check::pass("kvm", detail), Some(Place::Local)),
        Ok(machine) => {
            let detail = format!("{detail}; VMs run in the emulated host instead, 10 to 100 times slower");
            (Check::warn("kvm", detail, fix), Some(machine))
        }
        Err(PlaceError::Nowhere { .. }) => {
            (Check::fail("kvm", detail, format!("{fix}; or install qemu-system-x86 for the emulated host")), None)
        }
        Err(error) => (Check::fail("kvm", error.to_string(), fix), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(verdict: KvmVerdict) -> Probe {
        Probe { verdict, detail: "KVM 12".into(), api_version: Some(12), run_us: Some(70), vcpus_max: None }
    }

    #[test]
    fn a_missing_kvm_is_fatal_only_without_the_emulator() {
        let verdicts = |verdict, emulator| {
            let (check, place) = judge(&found(verdict), emulator);
            (check.verdict, place.is_some(), check.fix.is_some())
        };
        assert_eq!(verdicts(KvmVerdict::Usable, false), (Verdict::Pass, true, false));
        assert_eq!(verdicts(KvmVerdict::Unusable, true), (Verdict::Warn, true, true));
        assert_eq!(verdicts(KvmVerdict::Denied, false), (Verdict::Fail, false, true));
    }

    #[test]
    fn every_finding_that_is_wrong_has_a_fix() {
        let home = tempfile::tempdir().unwrap();
        let report = examine(&Dirs::under(home.path()));
        assert!(report.checks.len() >= 12);
        for check in &report.checks {
            let is_wrong = matches!(check.verdict, Verdict::Warn | Verdict::Fail);
            assert_eq!(is_wrong, check.fix.is_some(), "{check:?}");
            assert!(!check.detail.is_empty() && !check.detail.contains('\n'), "{check:?}");
        }
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "looking changes nothing");
    }
}
