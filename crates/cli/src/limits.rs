//! Limits as people write them.

use api::SandboxLimits;
use clap::Args;
use engine::{CpuLimit, CpuWeight, DiskLimit, IoLimit, LimitError, MemoryLimit, PidsLimit, SwapLimit};

/// What each sandbox may use at most. What is not said is not limited.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Limits of each sandbox (need root and cgroup v2; --disk-limit-mib does not)")]
pub(crate) struct LimitArgs {
    /// The most memory of the host's; who needs more is ended
    #[arg(long, value_name = "MIB")]
    memory_limit_mib: Option<MemoryLimit>,
    /// From here on who needs more memory is slowed down
    #[arg(long, value_name = "MIB")]
    memory_high_mib: Option<MemoryLimit>,
    /// How much memory may be swapped out; none, if memory is limited
    #[arg(long, value_name = "MIB")]
    swap_limit_mib: Option<SwapLimit>,
    /// CPUs, such as 1.5
    #[arg(long, value_name = "CPUS", value_parser = parse_cpus)]
    cpus: Option<CpuLimit>,
    /// The share of CPU time where it is short; 100 is everybody's
    #[arg(long, value_name = "1-10000")]
    cpu_weight: Option<CpuWeight>,
    /// What is read from the host's disks in a second
    #[arg(long, value_name = "MIB")]
    read_mib_per_sec: Option<IoLimit>,
    /// What is written to the host's disks in a second
    #[arg(long, value_name = "MIB")]
    write_mib_per_sec: Option<IoLimit>,
    /// What the guest may write to its disks before they give errors
    #[arg(long, value_name = "MIB")]
    disk_limit_mib: Option<DiskLimit>,
    /// Processes and threads of its VMM; 512, if anything else is limited
    #[arg(long, value_name = "64-32768")]
    pids_limit: Option<PidsLimit>,
}

/// Thousandths are as fine as it gets.
fn parse_cpus(text: &str) -> Result<CpuLimit, LimitError> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let millis = (digits(whole) && digits(part) && part.len() <= 3).then(|| format!("{whole}{part:0<3}"));
    // What is no number is refused with the same words as one that is out of range.
    millis.as_deref().unwrap_or(text).parse()
}

impl LimitArgs {
    /// The one that has a name of its own in the published interface.
    pub(crate) fn memory_limit_mib(&self) -> Option<u64> {
        self.memory_limit_mib.map(Into::into)
    }

    /// All others, as the daemon takes them.
    pub(crate) fn others(&self) -> SandboxLimits {
        SandboxLimits {
            memory_mib: None,
            memory_high_mib: self.memory_high_mib.map(Into::into),
            swap_mib: self.swap_limit_mib.map(Into::into),
            cpu_millis: self.cpus.map(Into::into),
            cpu_weight: self.cpu_weight.map(Into::into),
            read_mib_per_sec: self.read_mib_per_sec.map(Into::into),
            write_mib_per_sec: self.write_mib_per_sec.map(Into::into),
            disk_mib: self.disk_limit_mib.map(Into::into),
            pids: self.pids_limit.map(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        limits: LimitArgs,
    }

    fn parse(words: &[&str]) -> Result<LimitArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("x").chain(words.iter().copied())).map(|line| line.limits)
    }

    #[test]
    fn cpus_are_whole_or_not() {
        for (text, millis) in [("1", 1000), ("1.5", 1500), ("0.25", 250), ("0.010", 10), ("64", 64_000)] {
            assert_eq!(parse_cpus(text).unwrap().get(), millis, "{text}");
        }
        for bad in ["", ".", "1.", ".5", "0", "0.009", "-1", "1.2345", "1e3", "1001", "two"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_limit_is_checked_before_anything_starts() {
        let none = parse(&[]).unwrap();
        assert!(none.memory_limit_mib().is_none() && none.others().is_empty());
        let args = parse(&["--memory-limit-mib", "256", "--cpus", "0.5", "--disk-limit-mib", "9"]).unwrap();
        assert_eq!(
            (args.memory_limit_mib(), args.others().cpu_millis, args.others().disk_mib),
            (Some(256), Some(500), Some(9))
        );
        for bad in [["--memory-limit-mib", "3"], ["--cpus", "0"], ["--cpu-weight", "0"], ["--disk-limit-mib", "x"]] {
            assert_eq!(parse(&bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
        let error = parse(&["--memory-limit-mib", "3"]).unwrap_err();
        assert!(error.to_string().contains("at least 16"), "{error}");
    }
}
