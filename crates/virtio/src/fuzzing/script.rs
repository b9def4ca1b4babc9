//! A driver made of arbitrary bytes.

use std::sync::Arc;

use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_STATUS, VIRTIO_MMIO_VERSION};
use vm_memory::{Bytes, GuestAddress};

use super::Host;
use crate::test_utils::{FREE, MEMORY, Rig};
use crate::{Device, MMIO_SIZE};

/// Enough for any interesting order of events.
const MAX_STEPS: usize = 200;
/// After each step, the loop goes round so many times at most.
const ROUNDS: usize = 4;

/// Bytes, read from the front; zeroes when they are used up.
#[derive(Debug)]
pub(super) struct Script<'a> {
    bytes: &'a [u8],
}

impl<'a> Script<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let count = N.min(self.bytes.len());
        let (first, rest) = self.bytes.split_at(count);
        taken[..count].copy_from_slice(first);
        self.bytes = rest;
        taken
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(super) fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    /// So many bytes, or as many as are left.
    pub(super) fn some(&mut self, count: usize) -> &'a [u8] {
        let (first, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        first
    }

    /// An address, mostly a sensible one.
    fn address(&mut self) -> u64 {
        match self.byte() {
            0 => u64::from_le_bytes(self.take()),
            1 => MEMORY - u64::from(self.byte()),
            2 => MEMORY / 2 - u64::from(self.byte()),
            _ => FREE + u64::from(self.short()) * 16,
        }
    }

    /// Runs against a device that is set up as a good driver would.
    pub(super) fn run(self, device: Box<dyn Device>, host: &mut dyn Host) {
        let rig = Rig::running(device);
        assert_eq!(rig.get(VIRTIO_MMIO_STATUS), 15);
        self.steps(rig, host);
    }

    /// Runs against a device that no driver has touched.
    pub(super) fn run_from_reset(self, device: Box<dyn Device>, host: &mut dyn Host) {
        self.steps(Rig::new(device), host);
    }

    fn steps(mut self, mut rig: Rig, host: &mut dyn Host) {
        for _ in 0..MAX_STEPS {
            if self.bytes.is_empty() {
                break;
            }
            self.step(&mut rig, host);
            (0..ROUNDS).take_while(|_| rig.poll() > 0).count();
        }
        // What was made of the device can be written down, and a reset brings it back.
        let state = rig.transport.state();
        assert_eq!(state.queues.len(), rig.queues.len());
        rig.set(VIRTIO_MMIO_STATUS, 0);
        assert_eq!((rig.get(VIRTIO_MMIO_STATUS), rig.get(VIRTIO_MMIO_VERSION)), (0, 2));
        assert_eq!(rig.events.wait(std::time::Duration::ZERO), [], "a reset device leaves the loop");
        assert_eq!(Arc::strong_count(&rig.events), 2, "a reset device lets go of the loop");
    }

    fn step(&mut self, rig: &mut Rig, host: &mut dyn Host) {
        let queue = usize::from(self.byte()) % rig.queues.len();
        let index = u16::try_from(queue).expect("a handful");
        match self.byte() % 10 {
            0..=2 => {
                let slot = self.short() % 256;
                let (address, len) = (self.address(), self.length());
                let (flags, next) = (u16::from(self.byte()), u16::from(self.byte()));
                rig.queues[queue].set_descriptor(slot, address, len, flags, next);
            }
            3 => {
                let head = u16::from(self.byte());
                rig.queues[queue].offer(head);
            }
            4 => rig.notify(index),
            5 => {
                let (address, count) = (self.address(), self.byte());
                let bytes = self.some(count.into());
                // What does not fit in memory is not written.
                rig.mem.write(bytes, GuestAddress(address)).unwrap_or_default();
            }
            6 => {
                let packet = host.well_formed(self);
                let buffer = (FREE + u64::from(self.short()) * 16).min(MEMORY - 0x1_0000);
                rig.mem.write_slice(&packet, GuestAddress(buffer)).expect("it lies in memory");
                let len = u32::try_from(packet.len()).expect("a small packet");
                rig.queues[queue].set_descriptor(0, buffer, len, 1, 1);
                rig.queues[queue].set_descriptor(1, buffer + u64::from(len), 4096, 2, 0);
                rig.queues[queue].offer(0);
                rig.notify(index);
            }
            7 => {
                let (offset, len) = (u64::from(self.short()) % MMIO_SIZE, usize::from(self.byte() % 9));
                let mut bytes = [0; 8];
                rig.transport.read(offset, &mut bytes[..len.min(8)]);
                rig.transport.write(offset, &self.take::<8>()[..len.min(8)]);
            }
            8 => match self.byte() {
                // Steps of a good driver, in any order.
                0 => rig.negotiate(0),
                1 => rig.set_up_queue(index),
                2 => rig.set(VIRTIO_MMIO_STATUS, 15),
                register => rig.set(u32::from(register % 64) * 4, self.word()),
            },
            _ => host.act(self),
        }
    }

    fn length(&mut self) -> u32 {
        match self.byte() {
            0 => self.word(),
            1 => 1,
            _ => self.short().into(),
        }
    }
}
