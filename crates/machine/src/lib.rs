//! `forkd machine`: a host with KVM for computers that have none.
//!
//! ```text
//! this computer                    QEMU (TCG)
//!   forkd ── 127.0.0.1:port ──>    Debian, kvm-amd, forkd-agent as PID 1
//!                                    / from an image, thrown away at the end
//!                                    /var/lib/forkd on data.raw, kept
//!                                      pushed/<digest>/<name>    what this computer brought
//! ```
//!
//! There is at most one machine per [`types::Dirs`]. It survives the forkd that started it and is found by the next
//! one; [`start`] joins it, or makes it anew if what it was made of has changed. Nothing inside reaches anything
//! outside. Whatever ends in the middle, a forkd or QEMU, the next [`start`] recovers, and the data disk stays.

mod boot;
mod connect;
mod console;
mod digest;
mod disk;
mod error;
mod extents;
mod inside;
mod launch;
mod layout;
mod lock;
mod process;
mod program;
mod push;
mod qemu;
mod start;
mod state;
mod status;
mod stop;
mod sys;
mod transfer;

pub use connect::Machine;
pub use error::MachineError;
pub use push::Push;
pub use start::start;
pub use status::{Running, Status, status};
pub use stop::{rm, stop};
