//! What sandboxes may reach, and how much of it, as people write it.

use std::num::NonZeroU32;

use api::{EgressPolicy, NetworkLimits};
use clap::Args;
use engine::Egress;

/// What each sandbox may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Network of each sandbox (its snapshot must have one; see `forkd net --help`)")]
pub(crate) struct EgressArgs {
    /// Where it may connect to; unless said, what its snapshot was taken with
    #[arg(long, value_name = "none|all|LIST")]
    egress: Option<Egress>,
    /// What it sends in a second
    #[arg(long, value_name = "KIB")]
    send_kib_per_sec: Option<NonZeroU32>,
    /// What it receives in a second
    #[arg(long, value_name = "KIB")]
    receive_kib_per_sec: Option<NonZeroU32>,
    /// Packets in a second, each way
    #[arg(long, value_name = "N")]
    packets_per_sec: Option<NonZeroU32>,
    /// Connections at a time [default: 1024]
    #[arg(long, value_name = "N")]
    connections: Option<NonZeroU32>,
}

impl EgressArgs {
    /// Whether nothing is said.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn policy(&self) -> Option<EgressPolicy> {
        self.egress.as_ref().map(|egress| EgressPolicy::Text(egress.to_string()))
    }

    pub(crate) fn limits(&self) -> NetworkLimits {
        let number = |number: Option<NonZeroU32>| number.map(NonZeroU32::get);
        NetworkLimits {
            send_kib_per_sec: number(self.send_kib_per_sec),
            receive_kib_per_sec: number(self.receive_kib_per_sec),
            packets_per_sec: number(self.packets_per_sec),
            connections: number(self.connections),
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
        network: EgressArgs,
    }

    fn parse(words: &[&str]) -> Result<EgressArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("x").chain(words.iter().copied())).map(|line| line.network)
    }

    #[test]
    fn what_is_said_is_checked_before_anything_starts() {
        assert!(parse(&[]).unwrap().is_empty());
        let args = parse(&["--egress", "a.org:443, 10.0.0.0/8", "--send-kib-per-sec", "9"]).unwrap();
        assert_eq!(args.policy(), Some(EgressPolicy::Text("a.org:443,10.0.0.0/8".into())));
        assert_eq!(args.limits(), NetworkLimits { send_kib_per_sec: Some(9), ..NetworkLimits::default() });
        for bad in [["--egress", "all,a.org"], ["--connections", "0"], ["--packets-per-sec", "x"]] {
            assert_eq!(parse(&bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
