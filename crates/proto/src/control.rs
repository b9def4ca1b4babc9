//! Engine to VMM process.
//!
//! The engine starts `forkd-vmm` with one end of a `SOCK_SEQPACKET` pair and sends [`ToVmm::Boot`]; every message is
//! one packet of JSON, with file descriptors beside it where a message needs them. The VMM answers with
//! [`FromVmm::Booted`] or [`FromVmm::Refused`], and says [`FromVmm::Ended`] before it exits. A VMM whose
//! [`Lifetime`] is `Connection` ends when its engine's end of the socket closes, so a killed client leaks no VM.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use types::{GuestMemorySize, VcpuCount};

/// The largest packet either side sends.
const MAX_PACKET: usize = 64 << 10;
/// The most descriptors beside one packet.
const MAX_FDS: usize = 16;

/// What the engine says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ToVmm {
    /// Builds the VM and runs it. The tap of `net`, if there is one, comes as the only descriptor.
    Boot(Box<VmSpec>),
    /// Presses the power button: the guest shuts itself down.
    PowerButton,
    /// Ends the VM at once.
    Stop,
}

/// What the VMM says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum FromVmm {
    /// The vCPUs run.
    Booted {
        /// From the request until the first vCPU ran.
        setup_us: u64,
    },
    /// The VM could not be built; the process exits.
    Refused {
        /// Which case it is.
        code: RefusalCode,
        /// What a person should read.
        message: String,
    },
    /// The VM is over; the process exits.
    Ended {
        /// How it ended.
        outcome: Outcome,
    },
}

/// Why a VM could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// `/dev/kvm` is missing, forbidden or lacks something.
    Kvm,
    /// The kernel or initramfs cannot be loaded.
    Kernel,
    /// A disk cannot be opened or is not one.
    Disk,
    /// The host has not enough memory.
    Memory,
    /// Anything else of the host's.
    Host,
}

/// How a VM ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Outcome {
    /// The guest powered itself off.
    Shutdown,
    /// The guest asked for a restart.
    Reboot,
    /// The guest's kernel panicked.
    Panic {
        /// The kernel's words, if they reached the console.
        reason: Option<String>,
    },
    /// The engine ended it, or went away.
    Stopped,
    /// The VMM or KVM could not go on.
    Fault {
        /// What happened.
        message: String,
    },
}

/// What the VM is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// Virtual CPUs.
    pub vcpus: VcpuCount,
    /// Memory.
    pub memory: GuestMemorySize,
    /// A bzImage or an ELF vmlinux.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: Option<PathBuf>,
    /// The kernel's command line; the VMM adds nothing.
    pub cmdline: String,
    /// Disks in order: `/dev/vda`, `/dev/vdb`, ...
    pub disks: Vec<DiskSpec>,
    /// The network card; its tap comes beside the message.
    pub net: Option<NetSpec>,
    /// The vsock device.
    pub vsock: VsockSpec,
    /// Where the serial console is written. Bounded: of a long log the tail is kept.
    pub console: PathBuf,
    /// What ends the VM.
    pub lifetime: Lifetime,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// A raw image; never written to.
    pub image: PathBuf,
    /// Whether the guest may write.
    pub access: DiskAccess,
}

/// What a guest may do with a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskAccess {
    /// Read.
    ReadOnly,
    /// Write to a private top layer, an unlinked sparse file made in this directory, gone with the VM.
    PrivateTop {
        /// Where the top layer's bytes go.
        dir: PathBuf,
    },
}

/// A network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetSpec {
    /// The guest's hardware address.
    pub mac: [u8; 6],
}

/// The vsock device: the host reaches guest port P through `socket` by saying `CONNECT P\n`; the guest reaches the
/// host's port P as the unix socket `<socket>_P`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsockSpec {
    /// The guest's context id; at least 3.
    pub cid: u64,
    /// The host's end.
    pub socket: PathBuf,
}

/// What ends a VM besides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// The engine's end of the control socket closing.
    Connection,
    /// Nothing.
    Detached,
}

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
