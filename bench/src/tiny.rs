//! A VM whose guest is a dozen instructions, driven through the control protocol as the engine drives real ones: what
//! is left when it is spawned is forkd's own work, without a kernel, an agent or an engine.
//!
//! ```text
//! freeze      boots the guest, freezes it, keeps the files
//! Template    a `forkd-vmm template` with these files
//! Brood       children of one request, all alive; dropping it ends them
//! Source      one child that writes its memory all the time, to be branched
//! ```
//!
//! Every wait has an end: a VM that does not do what it should is an error, not a hang.

mod brood;
mod freeze;
mod guest;
mod process;
mod source;
mod template;
mod wait;
mod writer;

pub use brood::{Brood, Timing};
pub use freeze::{Frozen, Shape, freeze, freeze_writer};
pub use source::{Branch, Source};
pub use template::{Logging, Template, Written};
pub use writer::Report;
