//! The agent as a plain process: the whole protocol, and no machine to bring up or down.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};

use crate::serve::Listener;
use crate::service::{Service, ServiceError, read_token};

/// Why a plain agent does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlainError {
    #[error("usage: forkd-agent --serve unix:PATH | --serve tcp:ADDR:PORT [--token-file FILE]")]
    Usage,
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Serves until a client powers it off.
pub(crate) fn run(arguments: &[OsString]) -> Result<(), PlainError> {
    let (address, token_file) = parse(arguments).ok_or(PlainError::Usage)?;
    let token = token_file.as_deref().map(read_token).transpose()?;
    let listener = listen(address)?;
    // Orphans of what we start come to us, as they come to PID 1.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(ServiceError::from)?;
    let service = Service::start(listener, token, getrlimit(Resource::Nofile))?;
    // Whoever asked for a reboot can start it again.
    service.wait_for_stop();
    service.children.close();
    service.children.kill_all();
    Ok(())
}

fn parse(arguments: &[OsString]) -> Option<(&str, Option<PathBuf>)> {
    match arguments {
        [serve, address] if serve == "--serve" => Some((address.to_str()?, None)),
        [serve, address, flag, file] if serve == "--serve" && flag == "--token-file" => {
            Some((address.to_str()?, Some(file.into())))
        }
        _ => None,
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
