//! The agent as a plain process: the whole protocol, and no machine to bring up or down.

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};

use crate::lines::Door;
use crate::renew::Scope;
use crate::serve::Listener;
use crate::service::{Service, ServiceError, read_token};

/// Why a plain agent does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlainError {
    #[error("usage: forkd-agent --serve unix:PATH|tcp:ADDR:PORT [--token-file FILE] [--root DIR] [--lines ADDR:PORT]")]
    Usage,
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Serves until a client powers it off.
pub(crate) fn run(arguments: &[OsString]) -> Result<(), PlainError> {
    let options = Options::parse(arguments).ok_or(PlainError::Usage)?;
    let token = options.token_file.as_deref().map(read_token).transpose()?;
    let listener = listen(options.address)?;
    // Orphans of what we start come to us, as they come to PID 1.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(ServiceError::from)?;
    let scope = options.root.map_or(Scope::Nothing, Scope::Directory);
    let service = Service::start(listener, token, getrlimit(Resource::Nofile), scope)?;
    if let Some(at) = options.lines {
        // To whoever has the same address, which is this machine.
        let listening = service.serve_lines(Door { at, from: at.ip() });
        listening.map_err(|source| PlainError::Listen { address: at.to_string(), source })?;
    }
    // Whoever asked for a reboot can start it again.
    service.wait_for_stop();
    service.children.close();
    service.children.kill_all();
    Ok(())
}

#[derive(Debug, Default)]
struct Options<'a> {
    address: &'a str,
    token_file: Option<PathBuf>,
    /// Below which a renewal writes its files; without it nothing is renewed, this being somebody's own machine.
    root: Option<PathBuf>,
    /// Where those are served who speak in lines.
    lines: Option<SocketAddr>,
}

impl<'a> Options<'a> {
    fn parse(arguments: &'a [OsString]) -> Option<Self> {
        let [serve, address, flags @ ..] = arguments else { return None };
        let mut options = Self { address: address.to_str()?, ..Self::default() };
        for flag in flags.chunks(2) {
            match flag {
                [name, file] if name == "--token-file" => options.token_file = Some(file.into()),
                [name, root] if name == "--root" => options.root = Some(root.into()),
                [name, at] if name == "--lines" => options.lines = Some(at.to_str()?.parse().ok()?),
                _ => return None,
            }
        }
        (serve == "--serve").then_some(options)
    }
}

fn listen(address: &str) -> Result<Listener, PlainError> {
    let listening = match address.split_once(':').ok_or(PlainError::Usage)? {
        ("unix", path) => UnixListener::bind(path).map(Listener::Unix),
        ("tcp", address) => TcpListener::bind(address).map(Listener::Tcp),
        _ => return Err(PlainError::Usage),
    };
    listening.map_err(|source| PlainError::Listen { address: address.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_options_are_understood() {
        let parse = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            Options::parse(&words).map(|options| (options.address.to_owned(), options.token_file, options.root))
        };
        assert_eq!(parse(&["--serve", "unix:/a"]), Some(("unix:/a".into(), None, None)));
        let all = parse(&["--serve", "tcp:x:1", "--root", "/r", "--token-file", "/t"]);
        assert_eq!(all, Some(("tcp:x:1".into(), Some("/t".into()), Some("/r".into()))));
        for bad in [
            &[][..],
            &["--serve"],
            &["--serve", "unix:/a", "--root"],
            &["x", "unix:/a"],
            &["--serve", "a", "b", "c"],
            &["--serve", "a", "--lines", "1"],
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
