//! The MMIO transport, version 2 (virtio 1.2, 4.2): registers in front of a device.
//!
//! ```text
//!            write 0, from anywhere
//!   Reset <------------------------------------------------------------+
//!     | ACKNOWLEDGE                                                    |
//!     | DRIVER                 driver features can be written          |
//!     | FEATURES_OK            refused unless they fit; queues can be  |
//!     |                        configured                              |
//!     | DRIVER_OK              the device is activated                 |
//!     v                                                                |
//!   Running ---- device or ring broken ----> NEEDS_RESET + interrupt --+
//! ```
//!
//! A register written at the wrong time, or in the wrong width, is ignored.

mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use log::{debug, error};
use rustix::event::{EventfdFlags, eventfd};
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio as reg;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

pub use self::state::TransportStateV1;
use crate::device::read_bytes;
use crate::poll::Watch;
use crate::queue::QueueStateV1;
use crate::{
    ActivateError, Activation, Device, DeviceError, GuestMem, Interest, Interrupt, IrqLine, Poller, Readiness, Work,
};

/// Where a driver writes a queue's number; an ioeventfd of 4 bytes matching the number can take the write's place.
pub const QUEUE_NOTIFY_OFFSET: u64 = reg::VIRTIO_MMIO_QUEUE_NOTIFY as u64;
/// How much address space the registers take.
pub const MMIO_SIZE: u64 = 0x1000;

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
/// `FKVD`; drivers only show it.
const VENDOR: u32 = u32::from_le_bytes(*b"FKVD");
const CONFIG: u64 = reg::VIRTIO_MMIO_CONFIG as u64;
/// The length of a shared memory region that does not exist.
const NO_SHARED_MEMORY: u32 = u32::MAX;

const ACKNOWLEDGE: u32 = VIRTIO_CONFIG_S_ACKNOWLEDGE;
const DRIVER: u32 = VIRTIO_CONFIG_S_DRIVER;
const DRIVER_OK: u32 = VIRTIO_CONFIG_S_DRIVER_OK;
const FEATURES_OK: u32 = VIRTIO_CONFIG_S_FEATURES_OK;
const NEEDS_RESET: u32 = VIRTIO_CONFIG_S_NEEDS_RESET;
const FAILED: u32 = VIRTIO_CONFIG_S_FAILED;

const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
/// What every device of ours can do.
const TRANSPORT_FEATURES: u64 = VERSION_1 | EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC;

/// The token of the transport's own descriptor; devices count theirs from 0.
const AGAIN_TOKEN: u32 = u32::MAX;

/// A device and its registers.
#[derive(Debug)]
pub struct MmioTransport {
    device: Box<dyn Device>,
    mem: GuestMem,
    irq: Arc<Interrupt>,
    poller: Arc<dyn Poller>,
    status: u32,
    device_features_sel: u32,
    driver_features_sel: u32,
    driver_features: u64,
    queue_sel: u32,
    /// What the driver configured. The positions in it are those at activation; the device has the current ones.
    queues: Vec<QueueStateV1>,
    config_generation: u32,
    again: Option<Again>,
}

impl MmioTransport {
    /// Puts registers in front of a device that no driver knows yet.
    #[must_use]
    pub fn new(device: Box<dyn Device>, mem: GuestMem, line: Box<dyn IrqLine>, poller: Arc<dyn Poller>) -> Self {
        let queues = device.queue_sizes().iter().map(|max| QueueStateV1::unused(*max)).collect();
        Self {
            device,
            mem,
            irq: Arc::new(Interrupt::new(line)),
            poller,
            status: 0,
            device_features_sel: 0,
            driver_features_sel: 0,
            driver_features: 0,
            queue_sel: 0,
            queues,
            config_generation: 0,
            again: None,
        }
    }

    /// How many queues the device has, and so how many ioeventfds it can use.
    #[must_use]
    pub fn queue_count(&self) -> u16 {
        u16::try_from(self.queues.len()).expect("a device has a handful of queues")
    }

    /// The guest reads; what cannot be read is zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        if let Some(offset) = offset.checked_sub(CONFIG) {
            return self.device.read_config(offset, data);
        }
        let value = if data.len() == 4 { self.read_register(offset) } else { 0 };
        read_bytes(&value.to_le_bytes(), 0, data);
    }

    /// The guest writes.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if let Some(offset) = offset.checked_sub(CONFIG) {
            self.device.write_config(offset, data);
        } else if let Ok(word) = data.try_into() {
            self.write_register(offset, u32::from_le_bytes(word));
        }
    }

    /// The driver has notified a queue.
    pub fn queue_notified(&mut self, index: u16) {
        if !self.is_running() || usize::from(index) >= self.queues.len() {
            return;
        }
        let result = self.device.queue_notified(index).and_then(|work| self.take_up(work, index..index + 1));
        self.fail_on(result);
    }

    /// A watched descriptor is ready.
    pub fn host_ready(&mut self, token: u32, ready: Readiness) {
        if !self.is_running() {
            return;
        }
        if token != AGAIN_TOKEN {
            let queues = 0..self.queue_count();
            let result = self.device.host_ready(token, ready).and_then(|work| self.take_up(work, queues));
            return self.fail_on(result);
        }
        match self.again.as_mut().map(Again::take) {
            Some(Ok(queues)) => queues.into_iter().for_each(|index| self.queue_notified(index)),
            Some(Err(error)) => self.fail_on(Err(DeviceError::from(error))),
            None => {}
        }
    }

    /// Arranges for unfinished work to be taken up again through the loop.
    fn take_up(&mut self, work: Work, mut queues: Range<u16>) -> Result<(), DeviceError> {
        match (work, &mut self.again) {
            (Work::More, Some(again)) => Ok(queues.try_for_each(|index| again.ask(index))?),
            _ => Ok(()),
        }
    }

    /// Whether the device is active.
    fn is_running(&self) -> bool {
        self.status & DRIVER_OK != 0 && self.status & NEEDS_RESET == 0
    }

    fn offered_features(&self) -> u64 {
        self.device.features() | TRANSPORT_FEATURES
    }

    fn features_fit(&self, features: u64) -> bool {
        features & !self.offered_features() == 0 && features & VERSION_1 != 0
    }

    fn selected(&self) -> Option<&QueueStateV1> {
        self.queues.get(usize::try_from(self.queue_sel).ok()?)
    }

    fn read_register(&self, offset: u64) -> u32 {
        let Ok(offset) = u32::try_from(offset) else { return 0 };
        match offset {
            reg::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            reg::VIRTIO_MMIO_VERSION => VERSION,
            reg::VIRTIO_MMIO_DEVICE_ID => self.device.kind().id(),
            reg::VIRTIO_MMIO_VENDOR_ID => VENDOR,
            reg::VIRTIO_MMIO_DEVICE_FEATURES => half(self.offered_features(), self.device_features_sel),
            reg::VIRTIO_MMIO_QUEUE_NUM_MAX => self.selected().map_or(0, |queue| queue.max_size.into()),
            reg::VIRTIO_MMIO_QUEUE_READY => self.selected().map_or(0, |queue| queue.ready.into()),
            reg::VIRTIO_MMIO_INTERRUPT_STATUS => self.irq.status(),
            reg::VIRTIO_MMIO_STATUS => self.status,
            reg::VIRTIO_MMIO_SHM_LEN_LOW..=reg::VIRTIO_MMIO_SHM_BASE_HIGH => NO_SHARED_MEMORY,
            reg::VIRTIO_MMIO_CONFIG_GENERATION => self.config_generation,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        let Ok(offset) = u32::try_from(offset) else { return };
        match offset {
            reg::VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_sel = value,
            reg::VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_sel = value,
            reg::VIRTIO_MMIO_DRIVER_FEATURES => self.write_driver_features(value),
            reg::VIRTIO_MMIO_QUEUE_SEL => self.queue_sel = value,
            reg::VIRTIO_MMIO_QUEUE_NOTIFY => {
                if let Ok(index) = u16::try_from(value) {
                    self.queue_notified(index);
                }
            }
            reg::VIRTIO_MMIO_INTERRUPT_ACK => self.irq.acknowledge(value),
            reg::VIRTIO_MMIO_STATUS => self.write_status(value),
            _ => self.write_queue_register(offset, value),
        }
    }

    fn write_driver_features(&mut self, value: u32) {
        if self.status & (DRIVER | FEATURES_OK) == DRIVER {
            set_half(&mut self.driver_features, self.driver_features_sel, value);
        }
    }

    /// Queues are configured between FEATURES_OK and DRIVER_OK (3.1.1), and only while they are not ready (4.2.2.2).
    fn write_queue_register(&mut self, offset: u32, value: u32) {
        if self.status & (FEATURES_OK | DRIVER_OK) != FEATURES_OK {
            return;
        }
        let Ok(index) = usize::try_from(self.queue_sel) else { return };
        let Some(queue) = self.queues.get_mut(index) else { return };
        if offset == reg::VIRTIO_MMIO_QUEUE_READY {
            queue.ready = value & 1 == 1;
            return;
        }
        if queue.ready {
            return;
        }
        match offset {
            // Zero is no size either, so what does not fit is refused at activation.
            reg::VIRTIO_MMIO_QUEUE_NUM => queue.size = u16::try_from(value).unwrap_or(0),
            reg::VIRTIO_MMIO_QUEUE_DESC_LOW => set_half(&mut queue.desc_table, 0, value),
            reg::VIRTIO_MMIO_QUEUE_DESC_HIGH => set_half(&mut queue.desc_table, 1, value),
            reg::VIRTIO_MMIO_QUEUE_AVAIL_LOW => set_half(&mut queue.avail_ring, 0, value),
            reg::VIRTIO_MMIO_QUEUE_AVAIL_HIGH => set_half(&mut queue.avail_ring, 1, value),
            reg::VIRTIO_MMIO_QUEUE_USED_LOW => set_half(&mut queue.used_ring, 0, value),
            reg::VIRTIO_MMIO_QUEUE_USED_HIGH => set_half(&mut queue.used_ring, 1, value),
            _ => {}
        }
    }

    /// The driver sets bits in order and never clears one, except all at once by writing 0 (2.1.1).
    fn write_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        let own = self.status & !NEEDS_RESET;
        if value & own != own {
            return debug!("{:?}: a driver tried to clear status bits", self.device.kind());
        }
        self.status |= value & (ACKNOWLEDGE | FAILED);
        if value & DRIVER != 0 && self.status & ACKNOWLEDGE != 0 {
            self.status |= DRIVER;
        }
        if value & !self.status & FEATURES_OK != 0 && self.status & DRIVER != 0 {
            self.accept_features();
        }
        if value & !self.status & DRIVER_OK != 0 && self.status & (FEATURES_OK | FAILED | NEEDS_RESET) == FEATURES_OK {
            self.status |= DRIVER_OK;
            let result = self.start();
            self.fail_on(result);
        }
    }

    fn accept_features(&mut self) {
        if self.features_fit(self.driver_features) {
            self.status |= FEATURES_OK;
            let event_idx = self.driver_features & EVENT_IDX != 0;
            self.queues.iter_mut().for_each(|queue| queue.event_idx = event_idx);
        } else {
            debug!("{:?}: features {:#x} were refused", self.device.kind(), self.driver_features);
        }
    }

    /// Hands the configured queues to the device.
    fn start(&mut self) -> Result<(), ActivateError> {
        let build = |(index, queue): (usize, &QueueStateV1)| {
            queue.build(&self.mem).map_err(|source| ActivateError::Queue { index, source })
        };
        let queues = self.queues.iter().enumerate().map(build).collect::<Result<_, _>>()?;
        let again = Again::new(&self.poller).map_err(|source| ActivateError::Poll { source })?;
        self.again = Some(again);
        self.device.activate(Activation {
            mem: self.mem.clone(),
            irq: Arc::clone(&self.irq),
            queues,
            features: self.driver_features,
            poller: Arc::clone(&self.poller),
        })
    }

    fn stop(&mut self) {
        self.device.reset();
        if let Some(Err(error)) = self.again.take().map(Again::close) {
            error!("{:?}: the loop did not let go of a descriptor: {error}", self.device.kind());
        }
    }

    fn reset(&mut self) {
        self.stop();
        self.irq.acknowledge(u32::MAX);
        self.status = 0;
        self.device_features_sel = 0;
        self.driver_features_sel = 0;
        self.driver_features = 0;
        self.queue_sel = 0;
        for queue in &mut self.queues {
            *queue = QueueStateV1::unused(queue.max_size);
        }
    }

    /// A device that fails stops, and says so if its driver believes it works (2.1.2).
    fn fail_on<E: Into<Failure>>(&mut self, result: Result<(), E>) {
        let Err(failure) = result else { return };
        error!("{:?} stops until its driver resets it: {}", self.device.kind(), failure.into());
        self.stop();
        self.status |= NEEDS_RESET;
        if let Err(error) = self.irq.signal_config() {
            error!("{:?}: the driver could not be told: {error}", self.device.kind());
        }
    }
}

/// Why a device stops.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Activate(#[from] ActivateError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The transport's wish to be called again for some queues, as an eventfd that is readable while there are any.
#[derive(Debug)]
struct Again {
    event: OwnedFd,
    watch: Watch,
    queues: Vec<u16>,
}

impl Again {
    fn new(poller: &Arc<dyn Poller>) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut watch = Watch::new(Arc::clone(poller), AGAIN_TOKEN);
        watch.set(event.as_fd(), Some(Interest::Read))?;
        Ok(Self { event, watch, queues: Vec::new() })
    }

    fn ask(&mut self, queue: u16) -> io::Result<()> {
        if !self.queues.contains(&queue) {
            self.queues.push(queue);
            rustix::io::write(&self.event, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn take(&mut self) -> io::Result<Vec<u16>> {
        match rustix::io::read(&self.event, &mut [0; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(std::mem::take(&mut self.queues)),
            Err(error) => Err(error.into()),
        }
    }

    fn close(mut self) -> io::Result<()> {
        self.watch.set(self.event.as_fd(), None)
    }
}

fn half(value: u64, selector: u32) -> u32 {
    match selector {
        0 => u32::try_from(value & u64::from(u32::MAX)).expect("masked to 32 bits"),
        1 => u32::try_from(value >> 32).expect("shifted to 32 bits"),
        _ => 0,
    }
}

fn set_half(value: &mut u64, selector: u32, part: u32) {
    let (low, high) = (u64::from(u32::MAX), u64::from(part));
    match selector {
        0 => *value = *value & !low | high,
        1 => *value = *value & low | high << 32,
        _ => {}
    }
}
