//! The host's end of a guest's network: one tap per VM, made with system calls alone.
//!
//! A tap is never persistent. It disappears with the last descriptor of it, so a VMM that is killed with its client
//! leaves no interface, address or route behind.

mod sys;
mod tap;

pub use tap::{GUEST_MAC, MTU, Tap, TapError, VNET_HEADER_LEN};
