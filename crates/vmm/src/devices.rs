//! From a specification to virtio devices, in the order in which the guest finds them: disks, network, vsock, rng.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use proto::control::{DiskAccess, DiskSpec, RefusalCode, VmSpec};
use virtio::Device;
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
    Vsock {
        /// Where.
        socket: PathBuf,
        /// What the device says.
        source: virtio::vsock::VsockError,
    },
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

/// Makes every device of the specification. `taps` are the descriptors that came beside it.
pub(crate) fn build(spec: &VmSpec, mut taps: Vec<OwnedFd>) -> Result<Vec<Box<dyn Device>>, DevicesError> {
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    for (index, disk) in spec.disks.iter().enumerate() {
        devices.push(Box::new(Block::new(open_disk(disk)?, &format!("forkd-disk-{index}"))));
    }
    match (spec.net, taps.pop(), taps.len()) {
        (Some(net), Some(tap), 0) => devices.push(Box::new(Net::new(tap, net.mac))),
        (None, None, 0) => {}
        (_, last, more) => return Err(DevicesError::Tap { taps: more + usize::from(last.is_some()) }),
    }
    let vsock = Vsock::new(spec.vsock.cid, spec.vsock.socket.clone())
        .map_err(|source| DevicesError::Vsock { socket: spec.vsock.socket.clone(), source })?;
    devices.push(Box::new(vsock));
    devices.push(Box::new(Rng::new()));
    if devices.len() > VIRTIO_DEVICES_MAX as usize {
        return Err(DevicesError::TooMany { count: devices.len() });
    }
    Ok(devices)
}

fn open_disk(disk: &DiskSpec) -> Result<Box<dyn Backend>, DevicesError> {
    let failed = |source| DevicesError::Disk { image: disk.image.clone(), source };
    let image = host_file::open_image(&disk.image).map_err(failed)?;
    Ok(match &disk.access {
        DiskAccess::ReadOnly => Box::new(RawDisk::new(image).map_err(failed)?),
        DiskAccess::PrivateTop { dir } => Box::new(CowDisk::create(image, dir).map_err(failed)?),
    })
}
