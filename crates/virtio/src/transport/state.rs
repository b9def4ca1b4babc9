//! A transport, its queues and its device as plain data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING};

use super::{ACKNOWLEDGE, DRIVER, DRIVER_OK, EVENT_IDX, FAILED, FEATURES_OK, MmioTransport, NEEDS_RESET, QueueStateV1};
use crate::{Device, DeviceState, GuestMem, IrqLine, Poller, RestoreError};

/// Everything a guest has made of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportStateV1 {
    /// The status register.
    pub status: u32,
    /// Which half of the device's features is shown.
    pub device_features_sel: u32,
    /// Which half of the driver's features is written.
    pub driver_features_sel: u32,
    /// The driver's features.
    pub driver_features: u64,
    /// Which queue is being configured.
    pub queue_sel: u32,
    /// The interrupt status register.
    pub interrupt_status: u32,
    /// Counts changes of the configuration.
    pub config_generation: u32,
    /// The queues; their positions are current.
    pub queues: Vec<QueueStateV1>,
    /// What the device itself remembers.
    pub device: DeviceState,
}

impl TransportStateV1 {
    const fn is_running(&self) -> bool {
        self.status & DRIVER_OK != 0 && self.status & NEEDS_RESET == 0
    }

    /// A status a driver can reach: each step has those before it.
    fn status_is_possible(&self) -> bool {
        let all = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK | NEEDS_RESET | FAILED;
        let has = |bit| self.status & bit != 0;
        self.status & !all == 0
            && (!has(DRIVER) || has(ACKNOWLEDGE))
            && (!has(FEATURES_OK) || has(DRIVER))
            && (!has(DRIVER_OK) || has(FEATURES_OK))
    }
}

const fn impossible(what: &'static str) -> RestoreError {
    RestoreError::Impossible { what }
}

impl MmioTransport {
    /// What the guest has made of the device so far. No call may be under way; what waits in queues or sockets is not
    /// part of it and is found again after a restore.
    #[must_use]
    pub fn state(&self) -> TransportStateV1 {
        let live = self.device.queue_states();
        TransportStateV1 {
            status: self.status,
            device_features_sel: self.device_features_sel,
            driver_features_sel: self.driver_features_sel,
            driver_features: self.driver_features,
            queue_sel: self.queue_sel,
            interrupt_status: self.irq.status(),
            config_generation: self.config_generation,
            queues: if live.is_empty() { self.queues.clone() } else { live },
            device: self.device.state(),
        }
    }

    /// Puts a new device into a saved state. Interrupts that were on their way are sent again, and all queues are
    /// looked at through the loop, so nothing that was under way between guest and device is lost.
    ///
    /// # Errors
    /// When no driver can have made this state, or the device at hand is not like the one it was taken from.
    pub fn restore(
        device: Box<dyn Device>,
        mem: GuestMem,
        line: Box<dyn IrqLine>,
        poller: Arc<dyn Poller>,
        state: &TransportStateV1,
    ) -> Result<Self, RestoreError> {
        let mut transport = Self::new(device, mem, line, poller);
        transport.check(state)?;
        transport.device.restore(&state.device)?;
        transport.status = state.status;
        transport.device_features_sel = state.device_features_sel;
        transport.driver_features_sel = state.driver_features_sel;
        transport.driver_features = state.driver_features;
        transport.queue_sel = state.queue_sel;
        transport.queues.clone_from(&state.queues);
        // The device's host side may be another one; a driver that was reading the configuration must read it again.
        transport.config_generation = state.config_generation.wrapping_add(1);
        let irq = Arc::get_mut(&mut transport.irq).expect("the device is not active yet");
        irq.set_status(state.interrupt_status);
        if state.is_running() {
            transport.start()?;
            let queues = 0..transport.queue_count();
            if let Some(again) = &mut transport.again {
                queues.into_iter().try_for_each(|index| again.ask(index))?;
            }
        }
        transport.irq.repeat()?;
        Ok(transport)
    }

    fn check(&self, state: &TransportStateV1) -> Result<(), RestoreError> {
        if !state.status_is_possible() {
            return Err(impossible("the status skips a step"));
        }
        if state.status & FEATURES_OK != 0 && !self.features_fit(state.driver_features) {
            return Err(impossible("features were accepted that are not offered"));
        }
        if state.interrupt_status & !(VIRTIO_MMIO_INT_VRING | VIRTIO_MMIO_INT_CONFIG) != 0 {
            return Err(impossible("an interrupt has an unknown reason"));
        }
        if !state.queues.iter().map(|queue| queue.max_size).eq(self.queues.iter().map(|queue| queue.max_size)) {
            return Err(impossible("the queues are not those of the device"));
        }
        let event_idx = state.status & FEATURES_OK != 0 && state.driver_features & EVENT_IDX != 0;
        if state.is_running() && state.queues.iter().any(|queue| queue.ready && queue.event_idx != event_idx) {
            return Err(impossible("a queue works otherwise than negotiated"));
        }
        Ok(())
    }
}
