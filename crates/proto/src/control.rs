//! Engine to VMM process.
//!
//! The engine starts `forkd-vmm` with one end of a `SOCK_SEQPACKET` pair and sends [`ToVmm::Boot`]; every message is
//! one packet of JSON, with file descriptors beside it where a message needs them. The VMM answers with
//! [`FromVmm::Booted`] or [`FromVmm::Refused`], and says [`FromVmm::Ended`] before it exits. A VMM whose
//! [`Lifetime`] is `Connection` ends when its engine's end of the socket closes, so a killed client leaks no VM.
//!
//! A template is started with a listening socket instead, and so is every VM that outlives its engine: whoever may open
//! the socket's path speaks the same messages. See [`ToVmm`] for who understands what.

mod condition;
mod messages;
mod outfit;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use condition::{Condition, KILLED_AT, MAX_KILLED, Mark, Violation};
pub use messages::{
    ChildDescriptor, ChildSpec, DiskAccess, DiskBase, DiskLayers, DiskSpec, Extent, ForkedChild, FromVmm, LayerCount,
    Lifetime, LoadSpec, NetSpec, Outcome, RefusalCode, ToVmm, VmSpec, VmUid, VsockSpec, WriteSpec,
};

pub use outfit::{CONSOLE, CONTROL, LOG, Outfit, STATE, VSOCK};

/// The largest packet either side sends.
const MAX_PACKET: usize = 64 << 10;
/// The most descriptors beside one packet; the system takes no more than three others.
pub const MAX_FDS: usize = 250;

/// How many callers may wait to be let in.
const BACKLOG: i32 = 128;

/// Why a packet could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The system says no.
    #[error("the control socket failed: {source}")]
    Io {
        /// What the system says.
        #[from]
        source: io::Error,
    },
    /// A packet or its descriptors were cut short.
    #[error("a control packet was longer than {MAX_PACKET} bytes or carried more than {MAX_FDS} descriptors")]
    TooLong,
    /// Not a message.
    #[error("a control packet could not be understood: {source}")]
    Json {
        /// What the parser says.
        #[from]
        source: serde_json::Error,
    },
}

/// A socket that listens there for those who want to speak; closed on exec, and letting somebody in never waits.
///
/// # Errors
/// When the path is taken or too long, or the system has no more descriptors.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = bind(path, SocketType::SEQPACKET)?;
    begin_listening(&socket)?;
    Ok(socket)
}

/// A socket with an address that does not listen yet; closed on exec, and letting somebody in never waits.
///
/// # Errors
/// When the path is taken or too long, or the system has no more descriptors.
pub fn bind(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Lets callers come. They see from then on who called this.
///
/// # Errors
/// When it has no address.
pub fn begin_listening(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::listen(socket, BACKLOG)?)
}

/// One end of the control connection.
#[derive(Debug)]
pub struct ControlSocket {
    fd: OwnedFd,
}

impl ControlSocket {
    /// A connected pair; both ends are closed on exec.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn pair() -> Result<(Self, Self), ControlError> {
        let (one, two) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(io::Error::from)?;
        Ok((Self { fd: one }, Self { fd: two }))
    }

    /// Sends one message, with descriptors beside it.
    ///
    /// # Errors
    /// When the message is too long or the other end is gone.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_PACKET || fds.len() > MAX_FDS {
            return Err(ControlError::TooLong);
        }
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ControlError::TooLong);
        }
        let packet = [io::IoSlice::new(&bytes)];
        rustix::io::retry_on_intr(|| rustix::net::sendmsg(&self.fd, &packet, &mut beside, SendFlags::NOSIGNAL))
            .map_err(io::Error::from)?;
        Ok(())
    }

    /// Waits for one message; `None` when the other end is closed.
    ///
    /// # Errors
    /// When the packet is cut short or not a `T`.
    pub fn recv<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, ControlError> {
        let mut bytes = vec![0; MAX_PACKET];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut packet = [io::IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&self.fd, &mut packet, &mut beside, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            Ok(received) => received,
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        let fds: Vec<OwnedFd> = beside
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(ControlError::TooLong);
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, fds)))
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for ControlSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl From<OwnedFd> for ControlSocket {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<ControlSocket> for OwnedFd {
    fn from(socket: ControlSocket) -> Self {
        socket.fd
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn messages_and_descriptors_cross() {
        let (engine, vmm) = ControlSocket::pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        engine.send(&ToVmm::Stop, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (message, mut fds) = vmm.recv::<ToVmm>().unwrap().unwrap();
        assert_eq!(message, ToVmm::Stop);
        std::fs::File::from(fds.remove(0)).write_all(b"across").unwrap();
        let mut text = String::new();
        std::fs::File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "across");
    }

    #[test]
    fn a_closed_end_is_none_and_garbage_an_error() {
        let (engine, vmm) = ControlSocket::pair().unwrap();
        rustix::net::send(&engine, b"{\"do\":\"dance\"}", SendFlags::empty()).unwrap();
        assert!(matches!(vmm.recv::<ToVmm>(), Err(ControlError::Json { .. })));
        drop(engine);
        assert!(matches!(vmm.recv::<ToVmm>(), Ok(None)));
    }
}
