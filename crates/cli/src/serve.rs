//! `forkd serve`: the daemon. Where VMs run in the emulated host it runs there, too, and its doors are out here.

mod builder;
mod inside;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use daemon::ServeArgs;
use engine::place::{Place, place};
use types::Dirs;

use crate::daemon::Own;
use crate::{Verb, remote};
use inside::InsideDaemon;

const EXAMPLES: &str = "\
Examples:
  forkd serve
  forkd serve --bind 0.0.0.0:8889 --token-file /etc/forkd/token --tls-cert cert.pem --tls-key key.pem
  curl http://127.0.0.1:8889/v1/openapi.json

SIGHUP reads the token and the certificate again; SIGTERM ends it when what is under way has ended.
Sandboxes live on without it, and it goes on with them when it is started again.";

/// Serves the REST API
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: ServeArgs,
}

/// The daemon under the name that other tools start it by
#[derive(Debug, Parser)]
#[command(name = CONTROLLER, version)]
pub(crate) struct Controller {
    #[command(subcommand)]
    verb: ControllerVerb,
}

#[derive(Debug, Subcommand)]
enum ControllerVerb {
    Serve(Box<Serve>),
}

/// That name.
pub(crate) const CONTROLLER: &str = "forkd-controller";

impl Controller {
    pub(crate) fn into_verb(self) -> Verb {
        match self.verb {
            ControllerVerb::Serve(args) => Verb::Serve(args),
        }
    }
}

pub(crate) fn serve(args: &Serve) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if args.settings.idle_secs.is_none() {
        Own::new(&dirs)?.make_way()?;
    }
    match place(&dirs)? {
        Place::Local => daemon::serve(&args.settings, dirs)?,
        Place::Machine { why } => {
            remote::notice(&why);
            if args.settings.state.is_some() || args.settings.snapshot_root.is_some() {
                log::warn!("what is kept is kept in the emulated host; --state and --snapshot-root mean nothing here");
            }
            let start = |token: Option<&str>| InsideDaemon::start(&args.settings, token, &dirs);
            daemon::forward(&args.settings, dirs.clone(), start)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_has_another_name() {
        let parsed = Controller::try_parse_from([CONTROLLER, "serve", "--bind", "127.0.0.1:1"]).unwrap();
        let ControllerVerb::Serve(args) = parsed.verb;
        assert_eq!(args.settings.bind.port(), 1);
        assert_eq!(Controller::try_parse_from([CONTROLLER, "run"]).unwrap_err().exit_code(), 2);
    }
}
