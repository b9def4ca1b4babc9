//! Virtio devices and the MMIO transport that shows them to a guest.
//!
//! A device knows queues, guest memory, an interrupt and a poller; the transport knows registers; neither knows KVM.
//! So every device runs in a unit test and in a fuzzer, on any machine.
//!
//! ```text
//!  vCPU threads                              the loop thread
//!     | read, write                             | queue_notified, host_ready
//!     v                                         v
//!  +----------------- MmioTransport (one Mutex) -----------------+
//!  | registers, status machine --activate--> Box<dyn Device>     |
//!  +------------------------------------------------|------------+
//!                   guest memory, IrqLine, Poller <-+-> host file, tap, sockets
//! ```
//!
//! What must hold:
//! - The guest is hostile. Every length and index of its making is bounded before it is used; a malformed chain is
//!   returned unused, a broken ring makes its device ask for a reset. Neither panics, loops or ends the VMM.
//! - No call blocks on anything but the disk, and each does a bounded amount of work; what is left over is taken up
//!   again through the loop.
//! - What a device is made of on the host (files, sockets, memory, interrupt) is an argument; what the guest made of
//!   it is plain data ([`TransportStateV1`]). One state can therefore be restored a thousand times.
//! - Dropping a device touches neither the poller nor files of another process, so the child of a `fork(2)` can drop
//!   what it inherited without disturbing its parent.

mod buffers;
mod device;
mod interrupt;
mod poll;
mod queue;
mod sys;
mod transport;

pub mod balloon;
pub mod block;
#[cfg(any(test, feature = "test-utils"))]
pub mod fuzzing;
pub mod net;
pub mod rng;
#[cfg(any(test, feature = "test-utils"))]
pub mod test_utils;
pub mod vsock;

pub use buffers::Buffers;
pub use device::{ActivateError, Activation, Device, DeviceError, DeviceState, Kind, RestoreError, Work};
pub use interrupt::{Interrupt, IrqLine};
pub use poll::{Interest, Poller, Readiness};
pub use queue::{QueueError, QueueStateV1};
pub use transport::{MMIO_SIZE, MmioTransport, QUEUE_NOTIFY_OFFSET, TransportStateV1};
pub use virtio_queue::Queue;

/// Guest memory; a clone refers to the same memory.
pub type GuestMem = vm_memory::GuestMemoryMmap;
