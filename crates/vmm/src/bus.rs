//! Who answers at an address: ports, and one page of registers per virtio device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use virtio::{MMIO_SIZE, MmioTransport};

use crate::layout::VIRTIO_MMIO;
use crate::ports::Ports;

/// A device behind its registers, shared by the vCPUs (registers) and the loop (queues).
pub(crate) type SharedTransport = Arc<Mutex<MmioTransport>>;

/// Locks a transport. A panic under the lock aborts the process in a release build, so poison is a test's concern.
pub(crate) fn lock(transport: &SharedTransport) -> MutexGuard<'_, MmioTransport> {
    transport.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the vCPUs see of the machine.
#[derive(Debug)]
pub(crate) struct Bus {
    /// Everything behind a port.
    pub(crate) ports: Ports,
    virtio: Vec<SharedTransport>,
}

impl Bus {
    /// A bus with devices in the order of their register pages.
    pub(crate) const fn new(ports: Ports, virtio: Vec<SharedTransport>) -> Self {
        Self { ports, virtio }
    }

    /// The guest reads device memory. Nothing there reads as all ones.
    pub(crate) fn read(&self, address: u64, data: &mut [u8]) {
        match self.find(address) {
            Some((transport, offset)) => lock(transport).read(offset, data),
            None => data.fill(0xff),
        }
    }

    /// The guest writes device memory. Nothing there ignores it.
    pub(crate) fn write(&self, address: u64, data: &[u8]) {
        if let Some((transport, offset)) = self.find(address) {
            lock(transport).write(offset, data);
        }
    }

    fn find(&self, address: u64) -> Option<(&SharedTransport, u64)> {
        let offset = address.checked_sub(VIRTIO_MMIO)?;
        let index = usize::try_from(offset / MMIO_SIZE).ok()?;
        Some((self.virtio.get(index)?, offset % MMIO_SIZE))
    }
}
