//! Writing a running VM down: park its vCPUs, take everything at that one instant, write it out.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use proto::control::FromVmm;

use crate::bus::lock;
use crate::frozen::file::{self, StateFileError};
use crate::frozen::{Frozen, memory};
use crate::parking::ParkError;
use crate::vm::Vm;
use crate::x86::vm_state::VmStateV1;

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
    /// The memory image.
    #[error("the memory cannot be written: {source}")]
    Memory {
        /// What the system says.
        source: io::Error,
    },
    /// A disk's layer.
    #[error("disk {disk} cannot be written: {source}")]
    Disk {
        /// Which of the writable ones.
        disk: usize,
        /// What the system says.
        source: io::Error,
    },
    /// The state file.
    #[error(transparent)]
    State(#[from] StateFileError),
}

impl Vm {
    /// Stops the VM and writes it into these files: state, memory, and a layer per writable disk. After an error the VM
    /// runs on; after success it must not.
    pub(crate) fn freeze(&self, files: Vec<OwnedFd>) -> Result<FromVmm, FreezeError> {
        let files: Vec<File> = files.into_iter().map(File::from).collect();
        let expected = 2 + self.tops.len();
        let (2.., [state, memory, layers @ ..]) = (files.len(), &files[..]) else {
            return Err(FreezeError::Files { found: files.len(), expected });
        };
        if layers.len() != self.tops.len() {
            return Err(FreezeError::Files { found: files.len(), expected });
        }
        let begun = Instant::now();
        let vcpus = self.parking.park(&self.threads)?;
        let written = self.write(begun, vcpus, state, memory, layers);
        if written.is_err() {
            self.parking.resume();
        }
        written
    }

    /// The vCPUs are parked, and this thread is the one that serves the devices: nothing moves.
    fn write(
        &self,
        begun: Instant,
        vcpus: Vec<crate::x86::vcpu_state::VcpuStateV1>,
        state: &File,
        memory: &File,
        layers: &[File],
    ) -> Result<FromVmm, FreezeError> {
        let mut frozen = Frozen {
            shape: self.shape.clone(),
            vm: VmStateV1::capture(&self.fd)?,
            vcpus,
            devices: self.devices.transports.iter().map(|transport| lock(transport).state()).collect(),
            serial: self.bus.ports.state(),
            memory: memory::MemoryMapV1::default(),
        };
        let pause_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        frozen.memory =
            memory::write(&self.mem, self.backing, memory).map_err(|source| FreezeError::Memory { source })?;
        let mut disk_bytes = 0;
        for (disk, (top, layer)) in self.tops.iter().zip(layers).enumerate() {
            let written = top.write_layer(layer).map_err(|source| FreezeError::Disk { disk, source })?;
            disk_bytes += written.stats.data_bytes;
        }
        file::write(&frozen, state)?;
        Ok(FromVmm::Frozen { pause_us, memory_bytes: frozen.memory.bytes(), disk_bytes })
    }
}
