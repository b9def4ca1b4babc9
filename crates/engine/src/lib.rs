//! The verbs on VMs: blocking calls, one file each, without a terminal and without printing.
//!
//! ```text
//! doctor   what this machine can do           place   where VMs run here
//! boot     VMM process + agent = Vm           exec    a process in a Vm
//! ```
//!
//! A [`Vm`] is a guard: when it is dropped, its process, its directory and its network are gone.

#![forbid(unsafe_code)]

mod boot;
mod cancel;
mod cmdline;
mod console;
pub mod doctor;
mod exec;
pub mod place;
mod probe;
mod probe_memory;
mod process;
mod programs;
mod vm;
mod vmdir;

pub use boot::{BootError, BootSpec, boot};
pub use cancel::Cancel;
pub use net::{Tap, TapError};
pub use probe::{KvmVerdict, Probe};
pub use process::ProcessError;
pub use programs::{Program, ProgramError, on_path};
pub use proto::control::Outcome;
pub use vm::{BootTimings, Stopper, Vm};
pub use vmdir::VmDirError;
