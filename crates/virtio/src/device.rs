//! What a device is to a transport.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use virtio_queue::Queue;

use crate::balloon::BalloonStateV1;
use crate::block::BlockStateV1;
use crate::net::NetStateV1;
use crate::poll::{Poller, Readiness};
use crate::queue::{QueueError, QueueStateV1};
use crate::rng::RngStateV1;
use crate::vsock::VsockStateV1;
use crate::{GuestMem, Interrupt};

/// The kinds of device, by their numbers in the specification (chapter 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A network card.
    Net = 1,
    /// A disk.
    Block = 2,
    /// A source of randomness.
    Rng = 4,
    /// A balloon.
    Balloon = 5,
    /// Sockets between host and guest.
    Vsock = 19,
}

impl Kind {
    /// The number a driver looks for.
    #[must_use]
    pub const fn id(self) -> u32 {
        self as u32
    }
}

/// What a device gets when its driver is ready.
#[derive(Debug)]
pub struct Activation {
    /// Guest memory.
    pub mem: GuestMem,
    /// The device's interrupt.
    pub irq: Arc<Interrupt>,
    /// One queue for each of [`Device::queue_sizes`]; one the driver did not enable is not `ready`.
    pub queues: Vec<Queue>,
    /// The features both sides agreed on.
    pub features: u64,
    /// Where to watch host descriptors.
    pub poller: Arc<dyn Poller>,
}

/// Why a device could not begin to work.
#[derive(Debug, thiserror::Error)]
pub enum ActivateError {
    /// A descriptor could not be watched.
    #[error("a host descriptor cannot be watched: {source}")]
    Poll {
        /// What the system says.
        source: io::Error,
    },
    /// The tap does not do what was negotiated.
    #[error("the tap refused the negotiated offloads: {source}")]
    Offload {
        /// What the system says.
        source: io::Error,
    },
    /// A queue is misplaced.
    #[error("queue {index} cannot be used: {source}")]
    Queue {
        /// Which one.
        index: usize,
        /// What is wrong with it.
        source: virtio_queue::Error,
    },
}

/// Why a device cannot go on until its driver resets it.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A queue is unusable.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A descriptor could not be watched.
    #[error("a host descriptor cannot be watched: {source}")]
    Poll {
        /// What the system says.
        #[from]
        source: io::Error,
    },
}

/// Why a saved state cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// It is the state of something else.
    #[error("the state is of a different device than the {expected:?} it was given to")]
    Kind {
        /// The device at hand.
        expected: Kind,
    },
    /// No driver can bring a device into this state.
    #[error("the state cannot be: {what}")]
    Impossible {
        /// What contradicts what.
        what: &'static str,
    },
    /// The host offers something else than when the state was saved.
    #[error("the state does not fit this host: {what} was {saved} and is {found}")]
    Host {
        /// What differs.
        what: &'static str,
        /// Its value in the state.
        saved: u64,
        /// Its value here.
        found: u64,
    },
    /// The device did not begin to work.
    #[error(transparent)]
    Activate(#[from] ActivateError),
    /// An interrupt could not be repeated, or the loop not be woken.
    #[error("the host refused: {source}")]
    Io {
        /// What the system says.
        #[from]
        source: io::Error,
    },
}

/// Whether a call finished what there was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Work {
    /// Nothing is left; an event will come when there is more.
    Done,
    /// More is waiting; the transport notifies the queue again soon, or all of them after a host descriptor was ready.
    More,
}

/// What a device itself remembers, beside its queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// A disk.
    Block(BlockStateV1),
    /// A network card.
    Net(NetStateV1),
    /// Sockets.
    Vsock(VsockStateV1),
    /// A source of randomness.
    Rng(RngStateV1),
    /// A balloon.
    Balloon(BalloonStateV1),
}

/// A device, without its registers.
///
/// Between `activate` and `reset` it owns its queues and serves them; outside of that it does nothing. All calls come
/// from one thread at a time, and none waits for anything but the disk.
pub trait Device: Send + Debug {
    /// Which device it is.
    fn kind(&self) -> Kind;

    /// The features it offers, beside those of the transport and the rings.
    fn features(&self) -> u64;

    /// The most entries of each queue; powers of two.
    fn queue_sizes(&self) -> &[u16];

    /// Reads its configuration; what lies beyond it reads as zero.
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// Writes its configuration.
    fn write_config(&mut self, offset: u64, data: &[u8]);

    /// Begins to work.
    ///
    /// # Errors
    /// When the host does not play along; the device stays inactive.
    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError>;

    /// Ends working and forgets the driver. Harmless on an inactive device.
    fn reset(&mut self);

    /// The driver has put something into a queue.
    ///
    /// # Errors
    /// When the device must be reset to go on.
    fn queue_notified(&mut self, queue: u16) -> Result<Work, DeviceError>;

    /// A watched descriptor is ready. May be late: the token may be of a descriptor watched no longer.
    ///
    /// # Errors
    /// When the device must be reset to go on.
    fn host_ready(&mut self, token: u32, ready: Readiness) -> Result<Work, DeviceError>;

    /// What the device remembers.
    fn state(&self) -> DeviceState;

    /// Its queues as they are; nothing when it is inactive.
    fn queue_states(&self) -> Vec<QueueStateV1>;

    /// Takes over a saved state, before `activate`. The state is not to be trusted.
    ///
    /// # Errors
    /// When it is of another device or does not fit this one.
    fn restore(&mut self, state: &DeviceState) -> Result<(), RestoreError>;
}

/// Reads from a configuration space that is given as bytes.
pub(crate) fn read_bytes(config: &[u8], offset: u64, data: &mut [u8]) {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(config.len());
    let count = data.len().min(config.len() - start);
    data[..count].copy_from_slice(&config[start..start + count]);
    data[count..].fill(0);
}
