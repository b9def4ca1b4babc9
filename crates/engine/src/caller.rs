//! Sockets with a path that VMMs listen on, and how they are called.

use std::io;
use std::path::Path;
use std::time::Duration;

use proto::control::ControlSocket;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The longest path a unix socket can have, its terminating zero not counted.
pub(crate) const MAX_SOCKET_PATH: usize = 107;
/// How long a VMM may let a caller wait, and may leave a message unread. Generous: a busy host is slow, not dead.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls who listens there; `None` when nobody does.
pub(crate) fn call(path: &Path) -> io::Result<Option<ControlSocket>> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(Some(socket.into())),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use proto::control::{ToVmm, listen};

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
