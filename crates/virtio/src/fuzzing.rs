//! The bodies of the fuzz targets: a device, a driver made of arbitrary bytes, and what must hold afterwards.
//!
//! The bytes are a program. Each step writes memory, a descriptor, a ring or a register, or plays the host's part;
//! so a short input reaches deep, and any input is a valid one. What must hold: no panic, no endless loop, and a
//! device whose driver resets it is as good as new.

mod host;
mod script;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::Buffers;
use crate::block::{self, Backend, Block, CowDisk, Layers};
use crate::net::Net;
use crate::rng::Rng;
use crate::vsock::Vsock;
use host::{Host, NetHost, NoHost, VsockHost};
use script::Script;

/// Arbitrary drivers of a disk.
///
/// # Panics
/// When something does not hold.
pub fn block(bytes: &[u8]) {
    let disk = CowDisk::create(file_of(64 << 10, &[]), Path::new("/dev/shm")).expect("a top in memory");
    Script::new(bytes).run(Box::new(Block::new(Box::new(disk), "fuzz")), &mut NoHost);
}

/// Arbitrary files as layers of a disk: as they are, or with a footer that fits them. One that is accepted makes a disk
/// that can be read, written and sealed.
///
/// # Panics
/// When something does not hold.
pub fn layers(bytes: &[u8]) {
    let [blocks, odd, forged, count, rest @ ..] = bytes else { return };
    let len = u64::from(*blocks) * 4096 + u64::from(*odd);
    let (image, layer, sealed) = (file_of(len, &[]), file_of(0, rest), file_of(0, &[]));
    if forged & 1 == 1 {
        let honest = rest.iter().map(|byte| u64::from(byte.count_ones())).sum();
        let tail = block::forge(len, rest, if forged & 2 == 2 { honest } else { (*count).into() });
        layer.set_len(0).expect("a temporary file");
        layer.write_all_at(&tail, len.div_ceil(4096) * 4096).expect("a temporary file");
    }
    let again = [&image, &layer].map(|file| file.try_clone().expect("a descriptor"));
    let Ok(layers) = Layers::open(vec![image, layer]) else { return };
    let mut disk = CowDisk::over(Arc::new(layers), Path::new("/dev/shm")).expect("a top in memory");
    let mut whole = vec![0; usize::try_from(len).expect("a small disk")];
    disk.read_at(Buffers::from(whole.as_mut_slice()), 0).expect("it was accepted");
    disk.write_at(Buffers::from(whole.as_mut_slice()), 0).expect("there is room");
    disk.write_layer(&sealed).expect("there is room");
    Layers::open(again.into_iter().chain([sealed]).collect()).expect("it was just made");
}

fn file_of(len: u64, bytes: &[u8]) -> File {
    let file = tempfile::tempfile_in("/dev/shm").expect("a temporary file");
    file.write_all_at(bytes, 0).expect("a temporary file");
    file.set_len(len.max(u64::try_from(bytes.len()).expect("a small file"))).expect("a sparse file");
    file
}

/// Arbitrary drivers of a network card, and arbitrary packets for them.
///
/// # Panics
/// When something does not hold.
pub fn net(bytes: &[u8]) {
    let (host, link) = NetHost::new();
    Script::new(bytes).run(Box::new(Net::without_offloads(link, [2; 6])), &mut { host });
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

/// Arbitrary accesses to registers, from the beginning: nothing is set up for the driver.
///
/// # Panics
/// When something does not hold.
pub fn mmio(bytes: &[u8]) {
    let (host, link) = NetHost::new();
    Script::new(bytes).run_from_reset(Box::new(Net::without_offloads(link, [2; 6])), &mut { host });
}
