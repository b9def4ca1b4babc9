//! What everybody may name: sizes, counts and names that were checked once and stay checked.
//!
//! A leaf: no I/O, no unsafe. If you hold one of these, it is in range and safe to put in a path or a command line.

#![forbid(unsafe_code)]

mod dirs;
mod interpreter;
mod name;
pub mod progress;
mod size;
mod tag;
mod vcpu;

/// The format of the state file that a VMM of this build writes and reads.
pub const STATE_FORMAT: u32 = 2;
/// The oldest that can still be read.
pub const OLDEST_STATE_FORMAT: u32 = 1;

pub use dirs::{Dirs, DirsError};
pub use interpreter::{Interpreter, ModuleError, ModuleName, Modules};
pub use name::{NameError, RecipeName};
pub use size::{GuestMemorySize, SizeError, parse_bytes};
pub use tag::{Tag, TagError};
pub use vcpu::{VcpuCount, VcpuCountError};
