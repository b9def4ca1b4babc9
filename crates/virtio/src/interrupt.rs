//! How a device gets the guest's attention.

use std::fmt::Debug;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING};

/// An edge-triggered interrupt line into the guest.
pub trait IrqLine: Send + Sync + Debug {
    /// Sends one edge.
    ///
    /// # Errors
    /// When the host cannot deliver it.
    fn raise(&self) -> io::Result<()>;
}

/// The line of a device and the register that says why it was raised.
#[derive(Debug)]
pub struct Interrupt {
    status: AtomicU32,
    line: Box<dyn IrqLine>,
}

impl Interrupt {
    pub(crate) fn new(line: Box<dyn IrqLine>) -> Self {
        Self { status: AtomicU32::new(0), line }
    }

    /// Takes over the register of a saved interrupt.
    pub(crate) fn set_status(&mut self, status: u32) {
        *self.status.get_mut() = status;
    }

    /// The device has returned buffers.
    ///
    /// # Errors
    /// When the host cannot deliver it.
    pub fn signal_queue(&self) -> io::Result<()> {
        self.signal(VIRTIO_MMIO_INT_VRING)
    }

    /// The device's configuration or status has changed.
    ///
    /// # Errors
    /// When the host cannot deliver it.
    pub fn signal_config(&self) -> io::Result<()> {
        self.signal(VIRTIO_MMIO_INT_CONFIG)
    }

    /// The reason is visible before the edge arrives, so a guest that acknowledges an older one cannot miss this one.
    fn signal(&self, reason: u32) -> io::Result<()> {
        self.status.fetch_or(reason, Ordering::SeqCst);
        self.line.raise()
    }

    /// Repeats the edge of an interrupt that the guest has not acknowledged yet.
    pub(crate) fn repeat(&self) -> io::Result<()> {
        if self.status() == 0 { Ok(()) } else { self.line.raise() }
    }

    pub(crate) fn status(&self) -> u32 {
        self.status.load(Ordering::SeqCst)
    }

    pub(crate) fn acknowledge(&self, reasons: u32) {
        self.status.fetch_and(!reasons, Ordering::SeqCst);
    }
}
