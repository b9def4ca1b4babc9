//! The daemon that a verb asks: the one that is named, else this computer's own, which is started when it does not run.

mod own;
mod verb;

use anyhow::Context;
use clap::Args;
use client::{Client, Endpoint};
use types::{Dirs, Tag};

pub(crate) use own::Own;
pub(crate) use verb::{DaemonVerbArgs, daemon};

/// Which daemon.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DaemonArgs {
    /// The daemon to ask [default: this computer's own, started when it is needed]
    #[arg(long, value_name = "URL", env = "FORKD_URL")]
    daemon_url: Option<Endpoint>,
    /// The token that it wants
    #[arg(long, value_name = "TOKEN", env = "FORKD_TOKEN", hide_env_values = true)]
    daemon_token: Option<String>,
}

impl DaemonArgs {
    /// One that can be asked.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        self.client_for(false)
    }

    /// The same, for who may not want to be told what is done for it.
    pub(crate) fn client_for(&self, quiet: bool) -> anyhow::Result<Client> {
        self.named().map_or_else(|| Own::new(&Dirs::from_env()?)?.quiet(quiet).client(), Ok)
    }

    /// One that can be asked about what runs. `None` when nothing can: the emulated host would have to be started first.
    pub(crate) fn running(&self) -> anyhow::Result<Option<Client>> {
        self.named().map_or_else(|| Own::new(&Dirs::from_env()?)?.running(), |named| Ok(Some(named)))
    }

    /// One that can be asked about what is kept. `None` when nothing is: the emulated host was never made.
    pub(crate) fn looking(&self) -> anyhow::Result<Option<Client>> {
        self.named().map_or_else(|| Own::new(&Dirs::from_env()?)?.keeping(), |named| Ok(Some(named)))
    }

    /// One that can be asked about a snapshot.
    pub(crate) fn keeping(&self, tag: &Tag) -> anyhow::Result<Client> {
        self.looking()?.with_context(|| format!("there is no snapshot `{tag}`"))
    }

    /// Whether it is this computer's own, started when it is needed.
    pub(crate) const fn is_own(&self) -> bool {
        self.daemon_url.is_none()
    }

    /// The one that is named. Its token is for it, and for nobody else.
    fn named(&self) -> Option<Client> {
        let token = self.daemon_token.clone().filter(|token| !token.is_empty());
        self.daemon_url.clone().map(|endpoint| Client::new(endpoint, token))
    }
}
