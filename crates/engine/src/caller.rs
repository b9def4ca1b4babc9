//! Sockets with a path that VMMs listen on: how they are made, and how they are called.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use proto::control::ControlSocket;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// How long a VMM may let a caller wait, and may leave a message unread. Generous: a busy host is slow, not dead.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many callers may wait to be let in.
const BACKLOG: i32 = 128;

/// Calls who listens there; `None` when nobody does.
pub(crate) fn call(path: &Path) -> io::Result<Option<ControlSocket>> {
    let socket = socket()?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(Some(socket.into())),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A socket that listens there, for a process to be started with.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use proto::control::ToVmm;

    use super::*;

    #[test]
    fn nobody_is_told_from_somebody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        assert!(call(&path).unwrap().is_none());
        let listener = listen(&path).unwrap();
        let caller = call(&path).unwrap().unwrap();
        caller.send(&ToVmm::Stop, &[]).unwrap();
        let accepted = ControlSocket::from(rustix::net::accept(&listener).unwrap());
        assert!(matches!(accepted.recv().unwrap(), Some((ToVmm::Stop, _))));
        drop(listener);
        assert!(call(&path).unwrap().is_none(), "a socket nobody listens on any more");
    }
}
