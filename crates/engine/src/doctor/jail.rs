//! How VMs are confined here, found out by confining a process.

use std::path::Path;

use serde::Deserialize;

use super::Check;
use crate::probe::ask;

const NAME: &str = "jail";

/// What `forkd-vmm jail` says.
#[derive(Debug, Deserialize)]
struct Report {
    own_user: bool,
    landlock: Landlock,
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Landlock {
    Full,
    Partial,
    None,
}

pub(super) fn check(vmm: &Path) -> Check {
    let said = ask(vmm, "jail").map(|answer| answer.and_then(|(_, output)| serde_json::from_str(&output).ok()));
    match said {
        Ok(Some(report)) => judge(report),
        Ok(None) => Check::fail(
            NAME,
            "a process that was confined does not answer",
            "install forkd and forkd-vmm of the same version",
        ),
        Err(error) => {
            Check::fail(NAME, format!("{} cannot be asked: {error}", vmm.display()), "install forkd-vmm beside forkd")
        }
    }
}

fn judge(report: Report) -> Check {
    let Report { own_user, landlock, error } = report;
    if let Some(error) = error {
        let fix = "run forkd as root of the host, or as a user who is not root";
        return Check::fail(NAME, format!("no VM starts: {error}"), fix);
    }
    let landlock = match landlock {
        Landlock::Full => "Landlock",
        Landlock::Partial => "some of Landlock",
        Landlock::None if own_user => {
            let detail = "own user, empty root, no capabilities, seccomp; this kernel has no Landlock";
            return Check::warn(NAME, detail, "boot Linux 5.13 or later with landlock among lsm=");
        }
        Landlock::None => "no Landlock",
    };
    if own_user {
        return Check::pass(NAME, format!("own user, empty root, no capabilities, seccomp, {landlock}"));
    }
    let detail = format!(
        "VMs run as you: seccomp, {landlock}, no new privileges; neither a user of their own nor an empty root"
    );
    Check::warn(NAME, detail, "run `forkd serve` as root, which gives each VM a user of its own")
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn judged(text: &str) -> (Verdict, String) {
        let check = judge(serde_json::from_str(text).unwrap());
        assert_eq!(check.verdict == Verdict::Pass, check.fix.is_none());
        (check.verdict, check.detail)
    }

    #[test]
    fn what_is_missing_is_named() {
        let (verdict, detail) = judged(r#"{"own_user":true,"landlock":"full","error":null}"#);
        assert!(verdict == Verdict::Pass && detail.ends_with("Landlock"), "{detail}");
        let (verdict, detail) = judged(r#"{"own_user":true,"landlock":"none","error":null}"#);
        assert!(verdict == Verdict::Warn && detail.contains("no Landlock"), "{detail}");
        let (verdict, detail) = judged(r#"{"own_user":false,"landlock":"partial","error":null}"#);
        assert!(verdict == Verdict::Warn && detail.contains("neither a user"), "{detail}");
        let (verdict, detail) = judged(r#"{"own_user":true,"landlock":"none","error":"no namespaces"}"#);
        assert!(verdict == Verdict::Fail && detail.contains("no namespaces"), "{detail}");
    }
}
