//! Taking a running VM at one instant, and writing it down for good.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use proto::control::FromVmm;
use virtio::block::CowDisk;

use crate::bus::lock;
use crate::devices::Disk;
use crate::frozen::{Frozen, WriteDownError, file, memory};
use crate::parking::ParkError;
use crate::vm::Vm;
use crate::x86::vcpu_state::VcpuStateV1;
use crate::x86::vm_state::VmStateV1;

/// Why a VM's state could not be taken; it runs on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// The vCPUs did not stop.
    #[error(transparent)]
    Park(#[from] ParkError),
    /// KVM does not say what it knows.
    #[error("the VM's own state cannot be taken: {source}")]
    Kvm {
        /// What KVM says.
        #[from]
        source: kvm_ioctls::Error,
    },
}

/// Why a VM could not be written down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FreezeError {
    /// The files that came with the request.
    #[error("{found} files came with the request to freeze, {expected} are needed")]
    Files {
        /// How many came.
        found: usize,
        /// How many the VM needs.
        expected: usize,
    },
    /// Its state cannot be taken.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Something cannot be written.
    #[error(transparent)]
    Write(#[from] WriteDownError),
}

impl Vm {
    /// Stops the vCPUs and takes everything but the contents of memory and disks. This thread is the one that serves the
    /// devices, so nothing moves until [`Self::go_on`]. After an error they run on. Of a paused VM nothing has moved since
    /// it was taken.
    pub(crate) fn capture(&self) -> Result<Arc<Frozen>, CaptureError> {
        if let Some(frozen) = &self.paused {
            return Ok(Arc::clone(frozen));
        }
        let vcpus = self.parking.park()?;
        let captured = self.capture_parked(vcpus);
        if captured.is_err() {
            self.parking.resume();
        }
        captured.map(Arc::new)
    }

    fn capture_parked(&self, vcpus: Vec<VcpuStateV1>) -> Result<Frozen, CaptureError> {
        Ok(Frozen {
            shape: self.shape.clone(),
            vm: VmStateV1::capture(&self.fd)?,
            vcpus,
            devices: self.devices.transports.iter().map(|transport| lock(transport).state()).collect(),
            serial: self.bus.ports.state(),
        })
    }

    /// Stops the VM and writes it down: the page map of this process comes, and files for state, memory, and a layer per
    /// writable disk. After an error the VM runs on; after success it must not.
    pub(crate) fn freeze(&self, files: Vec<OwnedFd>) -> Result<FromVmm, FreezeError> {
        let files: Vec<File> = files.into_iter().map(File::from).collect();
        let private = self.private_disks().count();
        let (found, expected) = (files.len(), 3 + private);
        let [page_map, state, memory, layers @ ..] = &files[..] else {
            return Err(FreezeError::Files { found, expected });
        };
        if layers.len() != private {
            return Err(FreezeError::Files { found, expected });
        }
        let begun = Instant::now();
        let frozen = self.capture()?;
        let pause_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let written = memory::write_all(&self.ram, page_map, memory)
            .map_err(|source| WriteDownError::Memory { source }.into())
            .and_then(|memory_bytes| Ok((memory_bytes, self.write(&frozen, state, layers)?)));
        if written.is_err() {
            self.go_on();
        }
        written.map(|(memory_bytes, disk_bytes)| FromVmm::Frozen { pause_us, memory_bytes, disk_bytes })
    }

    /// Writes all but the memory; how many bytes the disks' layers have.
    fn write(&self, frozen: &Frozen, state: &File, layers: &[File]) -> Result<u64, FreezeError> {
        let disk_bytes = self.write_disks(layers)?;
        file::write(frozen, state).map_err(WriteDownError::from)?;
        Ok(disk_bytes)
    }

    /// Writes a layer for each writable disk; how many bytes.
    pub(crate) fn write_disks(&self, layers: &[File]) -> Result<u64, FreezeError> {
        let private: Vec<_> = self.private_disks().collect();
        let (found, expected) = (layers.len(), private.len());
        if found != expected {
            return Err(FreezeError::Files { found, expected });
        }
        let mut bytes = 0;
        for (disk, (top, layer)) in private.into_iter().zip(layers).enumerate() {
            bytes += top.write_layer(layer).map_err(|source| WriteDownError::Disk { disk, source })?.stats.data_bytes;
        }
        Ok(bytes)
    }

    pub(crate) fn private_disks(&self) -> impl Iterator<Item = &CowDisk> {
        self.disks.iter().filter_map(|disk| match disk {
            Disk::Private(disk) => Some(disk),
            Disk::ReadOnly(_) => None,
        })
    }
}
