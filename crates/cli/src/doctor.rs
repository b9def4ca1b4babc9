//! `forkd doctor`: the engine's findings and a few of the other crates', as lines or as JSON.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use client::path;
use engine::doctor::{Check, Report, Verdict, examine};
use engine::on_path;
use engine::place::Place;
use machine::Status;
use rustix::termios::isatty;
use serde_json::{Value, json};
use types::Dirs;

use crate::daemon::DaemonArgs;
use crate::errors::chain;
use crate::{machine as machine_verb, output};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

const HELP: &str = "\
Exit code: 0 when nothing failed, 1 when something did. A warning says what will be missing or slow.

There is no Firecracker to look for, no tap device or namespace to make beforehand, and no userfaultfd to allow: forkd needs
none of them.";

/// Checks what this machine can do for VMs, and says how to fix what it cannot
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(crate) struct DoctorArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn doctor(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let mut report = examine(&dirs);
    report.checks.extend([guest_kernel(&dirs), emulated_host(&dirs), daemon(&args.daemon)]);
    if args.json {
        output::line(&as_json(&report).to_string())?;
    } else {
        output::line(&lines(&report, isatty(rustix::stdio::stdout())))?;
    }
    Ok(if is_well(&report) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_well(report: &Report) -> bool {
    report.place.is_some() && !report.checks.iter().any(|check| check.verdict == Verdict::Fail)
}

/// The one that commands ask. None is started for this.
fn daemon(args: &DaemonArgs) -> Check {
    const NAME: &str = "daemon";
    let client = match args.within(PATIENCE) {
        Ok(Some(client)) => client,
        Ok(None) => return Check::skip(NAME, "none runs; the first command that needs one starts it"),
        Err(error) => return Check::warn(NAME, chain(&error), "`forkd daemon stop`, and try again"),
    };
    let endpoint = client.endpoint().to_string();
    match client.get::<Vec<Value>>(&path(&["snapshots"], &[])) {
        Ok(all) => Check::pass(NAME, format!("{endpoint}, {} snapshots", all.len())),
        Err(error) if matches!(error.status(), Some(401 | 403)) => {
            let fix = "FORKD_TOKEN or --daemon-token says its token; FORKD_HOME=DIR asks a daemon of your own";
            Check::fail(NAME, format!("{endpoint}: {error}"), fix)
        }
        Err(error) => Check::warn(
            NAME,
            format!("{endpoint}: {}", chain(&error.into())),
            "start it, or unset FORKD_URL to have one of this computer's own",
        ),
    }
}

fn guest_kernel(dirs: &Dirs) -> Check {
    const NAME: &str = "guest kernel";
    match image::present_kernel(dirs) {
        Ok(Some(kernel)) => Check::pass(NAME, kernel.image.display().to_string()),
        Ok(None) if on_path("apt-get").is_some() => {
            Check::pass(NAME, "none yet; Debian's cloud kernel is fetched when it is needed")
        }
        Ok(None) => {
            Check::warn(NAME, "neither in the cache nor in /boot, and no apt to get one", "give one with --kernel")
        }
        Err(error) => Check::warn(NAME, chain(&error.into()), "make the cache directory readable"),
    }
}

fn emulated_host(dirs: &Dirs) -> Check {
    const NAME: &str = "emulated host";
    match machine::status(dirs) {
        Ok(status @ Status::Broken { .. }) => {
            Check::warn(NAME, machine_verb::describe(&status), "`forkd machine start` recovers it")
        }
        Ok(status) => Check::pass(NAME, machine_verb::describe(&status)),
        Err(error) => Check::warn(NAME, chain(&error.into()), "`forkd machine rm` makes a fresh start"),
    }
}

fn lines(report: &Report, colour: bool) -> String {
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for check in &report.checks {
        let (mark, code) = match check.verdict {
            Verdict::Pass => ("✓", 32),
            Verdict::Warn => ("!", 33),
            Verdict::Fail => ("✗", 31),
            Verdict::Skip => ("-", 2),
        };
        let mark = if colour { format!("\x1b[{code}m{mark}\x1b[0m") } else { mark.into() };
        lines.push(format!("{mark} {:width$}  {}", check.name, check.detail));
        lines.extend(check.fix.iter().map(|fix| format!("  {:width$}  fix: {fix}", "")));
    }
    let [pass, warn, fail, skip] = counts(report);
    lines.push(format!("\npass={pass} warn={warn} fail={fail} skip={skip}"));
    lines.push(conclusion(report.place.as_ref()).into());
    lines.join("\n")
}

pub(crate) fn conclusion(place: Option<&Place>) -> &'static str {
    match place {
        Some(Place::Local) => "VMs run here, on KVM.",
        Some(Place::Machine { .. }) => "VMs run in the emulated host.",
        None => "VMs cannot run here.",
    }
}

fn counts(report: &Report) -> [usize; 4] {
    [Verdict::Pass, Verdict::Warn, Verdict::Fail, Verdict::Skip]
        .map(|verdict| report.checks.iter().filter(|check| check.verdict == verdict).count())
}

fn as_json(report: &Report) -> Value {
    let [pass, warn, fail, skip] = counts(report);
    let place = match report.place {
        Some(Place::Local) => Some("local"),
        Some(Place::Machine { .. }) => Some("machine"),
        None => None,
    };
    json!({ "place": place, "pass": pass, "warn": warn, "fail": fail, "skip": skip, "checks": report.checks })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let checks = vec![
            Check::pass("platform", "Linux 6.1 x86_64"),
            Check::warn("kvm", "it hangs", "use another machine"),
            Check::fail("agent", "not there", "build it"),
            Check::skip("qemu", "not needed"),
        ];
        Report { checks, place: Some(Place::Machine { why: "it hangs".into() }) }
    }

    #[test]
    fn lines_are_aligned_and_fixes_below_what_they_fix() {
        let expected = "\
✓ platform  Linux 6.1 x86_64
! kvm       it hangs
            fix: use another machine
✗ agent     not there
            fix: build it
- qemu      not needed

pass=1 warn=1 fail=1 skip=1
VMs run in the emulated host.";
        assert_eq!(lines(&report(), false), expected);
    }

    #[test]
    fn colour_is_only_for_terminals() {
        assert!(lines(&report(), true).contains("\x1b[33m!\x1b[0m kvm"));
        assert!(!lines(&report(), false).contains('\x1b'));
    }

    #[test]
    fn json_has_all_of_it() {
        let value = as_json(&report());
        assert_eq!((value["place"].as_str(), value["warn"].as_u64()), (Some("machine"), Some(1)));
        assert_eq!(value["checks"][1]["verdict"], "warn");
        assert_eq!(value["checks"][1]["fix"], "use another machine");
        assert!(value["checks"][0].get("fix").is_none());
    }

    #[test]
    fn one_failure_is_enough() {
        let mut report = report();
        assert!(!is_well(&report), "the agent is missing");
        report.checks.retain(|check| check.verdict != Verdict::Fail);
        assert!(is_well(&report), "warnings are none");
        report.place = None;
        assert!(!is_well(&report));
    }
}
