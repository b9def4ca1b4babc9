//! The wire formats: host to guest agent ([`guest`]), engine to VMM process ([`control`]).
//!
//! Types and framing only. Who connects to what, and when to give up, is decided by the callers; [`codec::Decoder`]
//! never waits, so threads, an async daemon and a fuzzer can all use it.

#![forbid(unsafe_code)]

pub mod codec;
pub mod control;
pub mod guest;
