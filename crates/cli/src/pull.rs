//! `forkd pull`: a snapshot from a server.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use api::Code;
use clap::Args;
use client::ClientError;
use pack::{Checked, Client, Package, download, find};
use types::Dirs;

use crate::daemon::DaemonArgs;
use crate::progress;
use crate::unpack::HowArgs;

const EXAMPLES: &str = "\
Examples:
  forkd pull https://example.org/pyagent.forkd-snapshot.tar.zst
  forkd pull me/pyagent --hub https://example.org/registry.json
  FORKD_HUB_URL=https://example.org/registry.json forkd pull me/pyagent@v2 --tag mine

The download comes here and goes on to the daemon, which may have another view of the network. What was downloaded in \
part is kept, and the next pull goes on from there; what the daemon refuses is not kept.";

/// Downloads a snapshot that was packed, and unpacks it
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PullArgs {
    /// An address, or OWNER/NAME or OWNER/NAME@VERSION of a package that the hub lists
    #[arg(value_name = "TARGET")]
    target: String,
    /// The address of the hub's registry.json, or of the directory that has it if it ends with a slash
    #[arg(long, value_name = "URL", env = "FORKD_HUB_URL")]
    hub: Option<String>,
    #[command(flatten)]
    how: HowArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn pull(args: &PullArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(args.how.quiet);
    let client = Client::new();
    let (url, checked) = args.resolve(&client)?;
    if checked.sha256.is_none() && !args.how.quiet {
        eprintln!("forkd: nobody says what sum this download should have; what is in it is checked all the same");
    }
    let downloaded = download(&client, &url, &checked, &dirs.cache.join("packs"), &*progress, &|| false)?;
    let file = downloaded.file.try_clone().context("cannot read what was downloaded")?;
    let sent = args.how.send(file, &args.daemon.client()?, &*progress);
    if sent.as_ref().map_or_else(is_refused, |()| true) {
        downloaded.remove()?;
    }
    sent.map(|()| ExitCode::SUCCESS)
}

/// Whether the daemon would refuse the same bytes again, so that they are better downloaded anew.
fn is_refused(error: &anyhow::Error) -> bool {
    let code = error.downcast_ref::<ClientError>().and_then(ClientError::code);
    let code = code.and_then(|code| serde_json::from_value(code.into()).ok());
    matches!(code, Some(Code::BadPack | Code::SnapshotUnusable))
}

impl PullArgs {
    /// The address, and what is known of what is there.
    fn resolve(&self, client: &Client) -> anyhow::Result<(String, Checked)> {
        if self.target.contains("://") {
            return Ok((self.target.clone(), Checked::default()));
        }
        let package: Package = self.target.parse()?;
        let hub = self.hub.as_deref().filter(|hub| !hub.is_empty()).ok_or_else(|| {
            anyhow!("where is `{package}`? Say with --hub URL or FORKD_HUB_URL which hub lists it, or give an address")
        })?;
        let version = find(client, hub, &package).with_context(|| format!("cannot find `{package}`"))?;
        Ok((version.url, Checked { size: version.size_bytes, sha256: version.sha256 }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        pull: PullArgs,
    }

    #[test]
    fn a_name_needs_a_hub_and_an_address_does_not() {
        let resolve = |words: &[&str]| Line::try_parse_from(words).unwrap().pull.resolve(&Client::new());
        let (url, checked) = resolve(&["pull", "https://example.org/x", "--hub", ""]).unwrap();
        assert_eq!((&url[..], checked), ("https://example.org/x", Checked::default()));
        let error = resolve(&["pull", "me/pyagent", "--hub", ""]).unwrap_err().to_string();
        assert!(error.contains("--hub URL or FORKD_HUB_URL"), "{error}");
        assert!(resolve(&["pull", "pyagent", "--hub", ""]).unwrap_err().to_string().contains("OWNER/NAME"));
    }
}
