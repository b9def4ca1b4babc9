//! The daemon that a verb asks, which is the first of these that there is:
//!
//! ```text
//! the one that is named           --daemon-url, or FORKD_URL
//! this home's `forkd serve`       on its unix socket
//! the one at the usual address    http://127.0.0.1:8889, if root or this user runs it, and FORKD_HOME names no home
//! this home's own                 started when it does not run
//! ```
//!
//! So a service that was set up is found by whoever says nothing, and a home of one's own stays one's own.

mod own;
mod usual;
mod verb;

use std::time::Duration;

use anyhow::{Context, bail};
use api::Health;
use clap::Args;
use client::{Client, Endpoint};
use types::{Dirs, Tag};

pub(crate) use own::Own;
pub(crate) use verb::{DaemonVerbArgs, daemon};

/// How long whoever listens at the usual address may take to say that it is a daemon.
const GREETING: Duration = Duration::from_secs(2);

/// Which daemon.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DaemonArgs {
    /// The daemon to ask [default: http://127.0.0.1:8889 if one is there, else this computer's own, started when needed]
    #[arg(long, value_name = "URL", env = "FORKD_URL")]
    daemon_url: Option<Endpoint>,
    /// The token that it wants
    #[arg(long, value_name = "TOKEN", env = "FORKD_TOKEN", hide_env_values = true)]
    daemon_token: Option<String>,
}

/// The one that is asked.
#[derive(Debug)]
enum Chosen {
    At(Endpoint),
    /// Running or not.
    Own(Own),
}

/// Whose files a daemon opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    /// This home's: what is built here is brought to where its VMs run.
    Own,
    /// This computer's.
    Here,
    /// Another computer's.
    Elsewhere,
}

impl DaemonArgs {
    /// One that can be asked.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(self.reach(false)?.0)
    }

    /// The same, for who may not want to be told what is done for it; and whose files it opens.
    pub(crate) fn reach(&self, quiet: bool) -> anyhow::Result<(Client, Files)> {
        Ok(match self.chosen()? {
            Chosen::At(endpoint) => {
                let files = if endpoint.is_here() { Files::Here } else { Files::Elsewhere };
                (Client::new(endpoint, self.token()), files)
            }
            Chosen::Own(own) => (own.quiet(quiet).client()?, Files::Own),
        })
    }

    /// One that can be asked about what runs. `None` when nothing can: the emulated host would have to be started first.
    pub(crate) fn running(&self) -> anyhow::Result<Option<Client>> {
        match self.chosen()? {
            Chosen::At(endpoint) => Ok(Some(Client::new(endpoint, self.token()))),
            Chosen::Own(own) => own.running(),
        }
    }

    /// One that can be asked about what is kept. `None` when nothing is: the emulated host was never made.
    pub(crate) fn looking(&self) -> anyhow::Result<Option<Client>> {
        match self.chosen()? {
            Chosen::At(endpoint) => Ok(Some(Client::new(endpoint, self.token()))),
            Chosen::Own(own) => own.keeping(),
        }
    }

    /// One that can be asked about a snapshot.
    pub(crate) fn keeping(&self, tag: &Tag) -> anyhow::Result<Client> {
        self.looking()?.with_context(|| format!("there is no snapshot `{tag}`"))
    }

    /// Whether it can open what is built here.
    pub(crate) fn opens_what_is_here(&self, what: &str) -> anyhow::Result<()> {
        match self.chosen()? {
            Chosen::At(endpoint) if !endpoint.is_here() => bail!(
                "{what} is on this computer, and the daemon at {endpoint} opens files of its own: unset FORKD_URL, and \
                 `forkd pack` and `forkd unpack` bring the snapshot there"
            ),
            Chosen::At(_) | Chosen::Own(_) => Ok(()),
        }
    }

    /// The one that would be asked, for answers within so long. `None` when it would have to be started.
    pub(crate) fn within(&self, limit: Duration) -> anyhow::Result<Option<Client>> {
        Ok(match self.chosen()? {
            Chosen::At(endpoint) => Some(Client::within(limit, endpoint, self.token())),
            Chosen::Own(own) => own.look()?.map(|_| Client::within(limit, own.endpoint().clone(), None)),
        })
    }

    fn chosen(&self) -> anyhow::Result<Chosen> {
        if let Some(named) = &self.daemon_url {
            return Ok(Chosen::At(named.clone()));
        }
        let own = Own::new(&Dirs::from_env()?)?;
        let usual = std::env::var_os("FORKD_HOME").is_none().then(usual::listener).flatten();
        match usual {
            Some(usual) if !own.is_served()? && greets(&usual) => Ok(Chosen::At(usual)),
            _ => Ok(Chosen::Own(own)),
        }
    }

    /// It is for the one that is named or found, and for nobody else: our own wants none.
    fn token(&self) -> Option<String> {
        self.daemon_token.clone().filter(|token| !token.is_empty())
    }
}

/// Other programs like that port, too. What is no daemon is passed over, whatever it answers.
fn greets(endpoint: &Endpoint) -> bool {
    Client::within(GREETING, endpoint.clone(), None).get::<Health>("/healthz").is_ok_and(|health| health.ok)
}
