//! What the daemon is told, on the command line or by the environment, and what it refuses before it starts.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, value_parser};
use engine::Cores;
use types::Dirs;

/// The least a token may be: 16 bytes are beyond guessing.
const MIN_TOKEN: usize = 16;
/// What examples have where a token belongs.
const PLACEHOLDERS: [&str; 2] = ["REPLACE_ME", "CHANGE_ME"];

/// How to serve.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", env = "FORKD_BIND", default_value = "127.0.0.1:8889")]
    pub bind: SocketAddr,
    /// Listens on the unix socket only
    #[arg(long)]
    pub socket_only: bool,
    /// The unix socket to listen on; who may open it may do everything [default: forkd.sock beside the VMs' sockets]
    #[arg(long, value_name = "FILE", env = "FORKD_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Where the daemon remembers things [default: registry.db in the data directory]
    #[arg(long, value_name = "FILE", env = "FORKD_STATE")]
    pub state: Option<PathBuf>,
    /// Where the snapshots are; its last part is `snapshots` [default: that of the data directory]
    #[arg(long, value_name = "DIR", env = "FORKD_SNAPSHOT_ROOT")]
    pub snapshot_root: Option<PathBuf>,
    /// Where each request leaves a line; one that was moved away is begun anew on SIGHUP [default: audit.log in the data
    /// directory]
    #[arg(long, value_name = "FILE", env = "FORKD_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,
    /// A file with the token that every request must bring; read again on SIGHUP
    #[arg(long, value_name = "FILE", env = "FORKD_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// A certificate chain in PEM; makes the address speak TLS; read again on SIGHUP
    #[arg(long, value_name = "FILE", env = "FORKD_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM
    #[arg(long, value_name = "FILE", env = "FORKD_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// How many branches may be written at once
    #[arg(long, value_name = "N", env = "FORKD_BRANCH_CONCURRENCY", default_value = "4")]
    pub branch_concurrency: u32,
    /// How many networks are kept ready for sandboxes, once one was needed; more than that are made when they are
    #[arg(long, value_name = "N", env = "FORKD_NETWORKS", default_value = "32", value_parser = value_parser!(u16).range(..=1024))]
    pub networks: u16,
    /// Runs no two sandboxes on the hardware threads of one core at once; needs a kernel with core scheduling
    #[arg(long, env = "FORKD_CORE_SCHEDULING")]
    pub core_scheduling: bool,
    /// Ends by itself after so long without a client, when no sandbox is left to look after
    #[arg(long, value_name = "SECONDS")]
    pub idle_secs: Option<u32>,
    /// How long requests under way may take to end after a SIGTERM
    #[arg(long, value_name = "SECONDS", default_value = "30", hide = true)]
    pub drain_secs: u32,
    /// How long the head of a request may take to come
    #[arg(long, value_name = "SECONDS", default_value = "30", hide = true)]
    pub head_secs: u32,
    /// How long the body of a request may take to come
    #[arg(long, value_name = "SECONDS", default_value = "60", hide = true)]
    pub body_secs: u32,
    /// Where whoever builds images for this daemon comes to
    #[arg(long, value_name = "FILE", hide = true)]
    pub builder_socket: Option<PathBuf>,
    /// Needs nothing here: nothing is written to warm a sandbox up
    #[arg(long, value_name = "DIR", env = "FORKD_PREWARM_SCRATCH_DIR", hide = true)]
    pub prewarm_scratch_dir: Option<PathBuf>,
}

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Everybody could come.
    #[error(
        "{bind} can be reached from other machines, and whoever reaches it could run anything here; \
         give it a token with --token-file, or bind it to 127.0.0.1"
    )]
    Open {
        /// The address.
        bind: SocketAddr,
    },
    /// The token is no secret.
    #[error("the token in {} is {problem}; put at least {MIN_TOKEN} random bytes there", path.display())]
    Token {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Nothing could ever be branched.
    #[error("--branch-concurrency is 0; let at least one branch be written at a time")]
    NoBranches,
    /// The store cannot be there.
    #[error("the snapshots are always in a directory called `snapshots`; {} is not", path.display())]
    SnapshotRoot {
        /// What was given.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// How long a request may take to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Also of the next one of a connection.
    pub(crate) head: Duration,
    /// Of one that is read as a whole.
    pub(crate) body: Duration,
}

/// What was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// None: the unix socket is enough.
    pub(crate) bind: Option<SocketAddr>,
    pub(crate) socket: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) audit_log: PathBuf,
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate and key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) branch_concurrency: u32,
    pub(crate) networks_ready: usize,
    pub(crate) cores: Cores,
    pub(crate) patience: Patience,
    pub(crate) drain: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) builder_socket: Option<PathBuf>,
    pub(crate) dirs: Dirs,
}

impl Config {
    /// Checks all that can be checked before anything starts.
    pub(crate) fn new(args: &ServeArgs, mut dirs: Dirs) -> Result<Self, ConfigError> {
        if args.branch_concurrency == 0 {
            return Err(ConfigError::NoBranches);
        }
        let cores = if args.core_scheduling { Cores::Own } else { Cores::Shared };
        let bind = (!args.socket_only).then_some(args.bind);
        if let Some(bind) = bind.filter(|bind| args.token_file.is_none() && !bind.ip().is_loopback()) {
            return Err(ConfigError::Open { bind });
        }
        if let Some(root) = &args.snapshot_root {
            let fits = root.is_absolute() && root.file_name().is_some_and(|name| name == "snapshots");
            let data = root.parent().filter(|_| fits);
            dirs.data = data.ok_or_else(|| ConfigError::SnapshotRoot { path: root.clone() })?.into();
        }
        let or = |given: &Option<PathBuf>, default: PathBuf| given.clone().unwrap_or(default);
        Ok(Self {
            bind,
            socket: or(&args.socket, dirs.run.join("forkd.sock")),
            state: or(&args.state, dirs.data.join("registry.db")),
            audit_log: or(&args.audit_log, dirs.data.join("audit.log")),
            token_file: args.token_file.clone(),
            tls: args.tls_cert.clone().zip(args.tls_key.clone()),
            branch_concurrency: args.branch_concurrency,
            networks_ready: args.networks.into(),
            cores,
            patience: Patience {
                head: Duration::from_secs(args.head_secs.into()),
                body: Duration::from_secs(args.body_secs.into()),
            },
            drain: Duration::from_secs(args.drain_secs.into()),
            idle: args.idle_secs.map(|secs| Duration::from_secs(secs.into())),
            builder_socket: args.builder_socket.clone(),
            dirs,
        })
    }
}

/// The token of the file: all of it without the space around it.
pub(crate) struct FileToken(String);

impl FileToken {
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let token = text.trim();
        let problem = if token.is_empty() {
            Some("empty")
        } else if PLACEHOLDERS.iter().any(|word| token.starts_with(word)) {
            Some("that of an example")
        } else if token.len() < MIN_TOKEN {
            Some("too short")
        } else {
            None
        };
        problem.map_or_else(|| Ok(Self(token.into())), |problem| Err(ConfigError::Token { path: path.into(), problem }))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A secret is not for logs.
impl fmt::Debug for FileToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileToken")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn config(words: &[&str]) -> Result<Config, ConfigError> {
        let line = Line::try_parse_from(std::iter::once("serve").chain(words.iter().copied())).unwrap();
        Config::new(&line.serve, Dirs::under(Path::new("/h")))
    }

    #[test]
    fn an_address_for_all_needs_a_token() {
        let config = config(&["--bind", "0.0.0.0:1"]).unwrap_err().to_string();
        assert!(config.contains("--token-file"), "{config}");
    }

    #[test]
    fn the_defaults_are_below_the_home() {
        let config = config(&[]).unwrap();
        assert_eq!(config.bind, Some("127.0.0.1:8889".parse().unwrap()));
        assert_eq!(config.state, Path::new("/h/data/registry.db"));
        assert_eq!(config.socket, Path::new("/h/run/forkd.sock"));
    }

    #[test]
    fn a_socket_needs_no_address_and_no_token() {
        assert_eq!(config(&["--bind", "0.0.0.0:1", "--socket-only"]).unwrap().bind, None);
    }

    #[test]
    fn senseless_settings_are_refused() {
        assert!(matches!(config(&["--branch-concurrency", "0"]), Err(ConfigError::NoBranches)));
        assert!(matches!(config(&["--snapshot-root", "/x/y"]), Err(ConfigError::SnapshotRoot { .. })));
        assert_eq!(config(&["--snapshot-root", "/x/snapshots"]).unwrap().dirs.data, Path::new("/x"));
        Line::try_parse_from(["serve", "--tls-cert", "/c"]).unwrap_err();
        Line::try_parse_from(["serve", "--networks", "1025"]).unwrap_err();
        assert_eq!(config(&["--networks", "0"]).unwrap().networks_ready, 0);
    }

    #[test]
    fn a_token_must_be_a_secret() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            FileToken::read(file.path())
        };
        for bad in ["", " \n", "short", "fifteen bytes..", "REPLACE_ME_WITH_A_TOKEN", "CHANGE_ME_CHANGE_ME"] {
            assert!(matches!(read(bad), Err(ConfigError::Token { .. })), "{bad:?}");
        }
        assert_eq!(read("  0123456789abcdef\n").unwrap().as_str(), "0123456789abcdef");
        assert!(matches!(FileToken::read(Path::new("/nowhere")), Err(ConfigError::Read { .. })));
    }
}
