//! A VM at one instant, as plain data: what it is, its vCPUs and its devices.
//!
//! The contents of its memory and disks are layers (see [`memory`] and [`layer`]). [`file`] writes all of this
//! down with a header that a person can read, and takes nothing back that is not exactly what was written.

pub(crate) mod file;
pub(crate) mod memory;

use std::io;

use kvm_bindings::CpuId;
use proto::control::NetSpec;
use serde::{Deserialize, Serialize};
use types::{GuestMemorySize, VcpuCount};
use virtio::{DeviceState, TransportStateV1};

use crate::frozen::file::StateFileError;
use crate::ports::SerialStateV1;
use crate::x86::vcpu_state::VcpuStateV1;
use crate::x86::vm_state::VmStateV1;

/// Why a VM could not be written down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteDownError {
    /// The memory.
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

/// What a VM consists of; enough to build one whose guest finds everything where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShapeV1 {
    pub(crate) vcpus: VcpuCount,
    pub(crate) memory: GuestMemorySize,
    pub(crate) disks: Vec<DiskKind>,
    pub(crate) net: Option<NetSpec>,
    pub(crate) cid: u64,
}

/// What a guest may do with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DiskKind {
    /// Read.
    ReadOnly,
    /// Write, to a top of its own.
    Private,
}

/// All of a VM but the contents of its memory and disks.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) shape: ShapeV1,
    pub(crate) vm: VmStateV1,
    pub(crate) vcpus: Vec<VcpuStateV1>,
    pub(crate) devices: Vec<TransportStateV1>,
    pub(crate) serial: SerialStateV1,
}

impl Frozen {
    /// Says why this cannot be a VM of ours on this host.
    pub(crate) fn check(&self, offered: &CpuId) -> Result<(), String> {
        if self.vcpus.len() != usize::from(self.shape.vcpus.get()) {
            return Err(format!("it has the state of {} vCPUs of {}", self.vcpus.len(), self.shape.vcpus.get()));
        }
        if !self.devices_fit() {
            return Err("its devices are not those it says it has".to_owned());
        }
        match self.vcpus.iter().find_map(|vcpu| vcpu.misses(offered)) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Whether its guest can give memory back. What was taken before there was a way to has none.
    pub(crate) fn has_balloon(&self) -> bool {
        self.devices.last().is_some_and(|last| matches!(last.device, DeviceState::Balloon(_)))
    }

    /// In the order of [`crate::devices`]: disks, network, vsock, rng, balloon.
    fn devices_fit(&self) -> bool {
        let disks = self.shape.disks.len();
        let net = usize::from(self.shape.net.is_some());
        self.devices.len() == disks + net + 2 + usize::from(self.has_balloon())
            && self.devices.iter().enumerate().all(|(index, state)| match &state.device {
                DeviceState::Block(_) => index < disks,
                DeviceState::Net(_) => net == 1 && index == disks,
                DeviceState::Vsock(_) => index == disks + net,
                DeviceState::Rng(_) => index == disks + net + 1,
                DeviceState::Balloon(_) => index == disks + net + 2,
            })
    }
}
