//! The bodies of the fuzz targets: a device, a driver made of arbitrary bytes, and what must hold afterwards.
//!
//! The bytes are a program. Each step writes memory, a descriptor, a ring or a register, or plays the host's part;
//! so a short input reaches deep, and any input is a valid one. What must hold: no panic, no endless loop, and a
//! device whose driver resets it is as good as new.

mod host;
mod script;
#[cfg(test)]
mod trial;

use std::path::Path;

use crate::balloon::Balloon;
use crate::block::{Block, CowDisk};
use crate::net::Net;
use crate::rng::Rng;
use crate::vsock::Vsock;
use host::{Host, NetHost, NoHost, VsockHost};
use script::Script;
#[cfg(test)]
pub(crate) use trial::try_for_a_while;

/// Arbitrary drivers of a disk.
///
/// # Panics
/// When something does not hold.
pub fn block(bytes: &[u8]) {
    let memory = Path::new("/dev/shm");
    let image = tempfile::tempfile_in(memory).expect("a file in memory");
    image.set_len(64 << 10).expect("a sparse file");
    let disk = CowDisk::create(image, memory).expect("a top in memory");
    Script::new(bytes).run(Box::new(Block::new(Box::new(disk), "fuzz")), &mut NoHost);
}

/// Arbitrary drivers of a network card that offers offloads or none, and arbitrary packets for them.
///
/// # Panics
/// When something does not hold.
pub fn net(bytes: &[u8]) {
    let (host, link) = NetHost::new();
    let mut script = Script::new(bytes);
    let card = if script.byte() < 128 { Net::without_offloads } else { Net::with_offloads };
    script.run(Box::new(card(link, [2; 6])), &mut { host });
}

/// Arbitrary drivers of a vsock, and arbitrary clients and services on the host.
///
/// # Panics
/// When something does not hold.
pub fn vsock(bytes: &[u8]) {
    let mut host = VsockHost::new();
    let device = Vsock::new(host::CID, host.socket()).expect("a socket in a new directory");
    Script::new(bytes).run(Box::new(device), &mut host);
}

/// Arbitrary drivers of a source of randomness.
///
/// # Panics
/// When something does not hold.
pub fn rng(bytes: &[u8]) {
    Script::new(bytes).run(Box::new(Rng::new()), &mut NoHost);
}

/// Arbitrary drivers of a balloon.
///
/// # Panics
/// When something does not hold.
pub fn balloon(bytes: &[u8]) {
    Script::new(bytes).run(Box::new(Balloon::new()), &mut NoHost);
}

/// Arbitrary accesses to registers, from the beginning: nothing is set up for the driver.
///
/// # Panics
/// When something does not hold.
pub fn mmio(bytes: &[u8]) {
    let (host, link) = NetHost::new();
    Script::new(bytes).run_from_reset(Box::new(Net::with_offloads(link, [2; 6])), &mut { host });
}
