//! From a specification to virtio devices, in the order in which the guest finds them: disks, network, vsock, rng,
//! balloon.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use proto::control::{DiskAccess, DiskSpec, NetSpec, RefusalCode, VmSpec, begin_listening, bind};
use rustix::net::SocketType;
use virtio::Device;
use virtio::balloon::Balloon;
use virtio::block::{Backend, Block, CowDisk, RawDisk};
use virtio::net::Net;
use virtio::rng::Rng;
use virtio::vsock::Vsock;

use crate::host_file;
use crate::layout::VIRTIO_DEVICES_MAX;

/// Why a device could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicesError {
    /// A disk's image cannot be used.
    #[error("the disk image {} cannot be used: {source}", image.display())]
    Disk {
        /// Which.
        image: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The network card was asked for, and no tap came with the request, or the other way round.
    #[error("a network card needs exactly one tap beside the request, {taps} came")]
    Tap {
        /// How many came.
        taps: usize,
    },
    /// The vsock's host end cannot be made.
    #[error("the vsock socket {} cannot be made: {source}", socket.display())]
    Socket {
        /// Where.
        socket: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The vsock itself.
    #[error(transparent)]
    Vsock(#[from] virtio::vsock::VsockError),
    /// More devices than there is room for.
    #[error("{count} virtio devices were asked for, there is room for {VIRTIO_DEVICES_MAX}")]
    TooMany {
        /// How many.
        count: usize,
    },
}

impl DevicesError {
    /// Which case the engine is told.
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::Disk { .. } => RefusalCode::Disk,
            _ => RefusalCode::Host,
        }
    }
}

/// A disk, beside the device made of it: both are the same disk.
#[derive(Clone, Debug)]
pub(crate) enum Disk {
    /// An image the guest only reads.
    ReadOnly(RawDisk),
    /// One it writes to its own top of.
    Private(CowDisk),
}

/// What the devices of a VM are made of.
#[derive(Debug)]
pub(crate) struct Parts {
    /// In order.
    pub(crate) disks: Vec<Disk>,
    /// The card.
    pub(crate) net: Option<NetSpec>,
    /// Its tap, if there is a card.
    pub(crate) taps: Vec<OwnedFd>,
    /// The guest's context id.
    pub(crate) cid: u64,
    /// The host's end of the vsock, which listens and never waits.
    pub(crate) vsock: OwnedFd,
    /// Whether the guest can give memory back.
    pub(crate) balloon: bool,
}

/// The devices of a VM, and its disks once more: what was written to them is sealed when it is frozen or branched.
#[derive(Debug)]
pub(crate) struct Devices {
    /// In the order of their register pages.
    pub(crate) virtio: Vec<Box<dyn Device>>,
    /// In order.
    pub(crate) disks: Vec<Disk>,
}

impl Parts {
    /// From a specification and the descriptors that came beside it.
    pub(crate) fn new(spec: &VmSpec, taps: Vec<OwnedFd>) -> Result<Self, DevicesError> {
        let disks = spec.disks.iter().map(open_disk).collect::<Result<_, _>>()?;
        let socket = &spec.vsock.socket;
        let vsock = bind(socket, SocketType::STREAM).and_then(|bound| begin_listening(&bound).map(|()| bound));
        let vsock = vsock.map_err(|source| DevicesError::Socket { socket: socket.clone(), source })?;
        Ok(Self { disks, net: spec.net, taps, cid: spec.vsock.cid, vsock, balloon: spec.balloon })
    }

    /// Makes the devices.
    pub(crate) fn build(mut self) -> Result<Devices, DevicesError> {
        let mut virtio: Vec<Box<dyn Device>> = Vec::new();
        for (index, disk) in self.disks.iter().enumerate() {
            let backend: Box<dyn Backend> = match disk {
                Disk::ReadOnly(disk) => Box::new(disk.clone()),
                Disk::Private(disk) => Box::new(disk.clone()),
            };
            virtio.push(Box::new(Block::new(backend, &format!("forkd-disk-{index}"))));
        }
        match (self.net, self.taps.pop(), self.taps.len()) {
            (Some(net), Some(tap), 0) => virtio.push(Box::new(Net::new(tap, net.mac))),
            (None, None, 0) => {}
            (_, last, more) => return Err(DevicesError::Tap { taps: more + usize::from(last.is_some()) }),
        }
        virtio.push(Box::new(Vsock::on(self.cid, self.vsock)?));
        virtio.push(Box::new(Rng::new()));
        if self.balloon {
            virtio.push(Box::new(Balloon::new()));
        }
        if virtio.len() > VIRTIO_DEVICES_MAX as usize {
            return Err(DevicesError::TooMany { count: virtio.len() });
        }
        Ok(Devices { virtio, disks: self.disks })
    }
}

fn open_disk(disk: &DiskSpec) -> Result<Disk, DevicesError> {
    let failed = |source| DevicesError::Disk { image: disk.image.clone(), source };
    let image = host_file::open_image(&disk.image).map_err(failed)?;
    Ok(match &disk.access {
        DiskAccess::ReadOnly => Disk::ReadOnly(RawDisk::new(image).map_err(failed)?),
        DiskAccess::PrivateTop { dir } => Disk::Private(CowDisk::create(image, dir).map_err(failed)?),
    })
}
