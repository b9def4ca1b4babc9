//! A driver, an interrupt line and a loop: the surroundings of a device in tests and fuzzers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use virtio_bindings::virtio_mmio as reg;
use vm_memory::{Bytes, GuestAddress};

use crate::{Device, GuestMem, Interest, IrqLine, MmioTransport, Poller, Readiness};

/// How much memory the guest has, in two regions of equal size.
pub const MEMORY: u64 = 8 << 20;
/// Where queue 0 lies; the others follow at this distance.
pub const QUEUES: u64 = 0x1_0000;
/// Where memory begins that no queue uses.
pub const FREE: u64 = 0x10_0000;
/// Longer than any event takes to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Counts the interrupts.
#[derive(Clone, Debug, Default)]
pub struct Line(Arc<AtomicUsize>);

impl Line {
    /// How many there were since the last call.
    #[must_use]
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

impl IrqLine for Line {
    fn raise(&self) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// An epoll loop.
#[derive(Debug)]
pub struct Events {
    epoll: OwnedFd,
}

impl Events {
    fn new() -> Self {
        Self { epoll: epoll::create(CreateFlags::CLOEXEC).expect("an epoll instance") }
    }

    /// What is ready, after waiting for at most so long.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> Vec<(u32, Readiness)> {
        let mut events = Vec::with_capacity(64);
        let patience = patience.try_into().expect("a short time");
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)).expect("epoll works");
        events.iter().map(|event| (u32::try_from(event.data.u64()).expect("a token"), readiness(event.flags))).collect()
    }
}

fn readiness(flags: EventFlags) -> Readiness {
    Readiness {
        readable: flags.contains(EventFlags::IN),
        writable: flags.contains(EventFlags::OUT),
        hangup: flags.intersects(EventFlags::HUP | EventFlags::ERR),
    }
}

fn flags(interest: Interest) -> EventFlags {
    match interest {
        Interest::Read => EventFlags::IN,
        Interest::Write => EventFlags::OUT,
        Interest::ReadWrite => EventFlags::IN | EventFlags::OUT,
        Interest::Hangup => EventFlags::empty(),
    }
}

impl Poller for Events {
    fn add(&self, fd: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.into()), flags(interest))?)
    }

    fn modify(&self, fd: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token.into()), flags(interest))?)
    }

    fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd.as_fd())?)
    }
}

/// One element of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Where it lies.
    pub address: u64,
    /// How long it is.
    pub len: u32,
    /// Whether the device may write it.
    pub writable: bool,
}

/// The driver's end of a queue.
#[derive(Clone, Debug)]
pub struct DriverQueue {
    mem: GuestMem,
    base: u64,
    size: u16,
    next_descriptor: u16,
    available: u16,
    seen: u16,
}

impl DriverQueue {
    const AVAIL: u64 = 0x4000;
    const USED: u64 = 0x8000;

    fn new(mem: GuestMem, index: u16, size: u16) -> Self {
        let base = QUEUES * (u64::from(index) + 1);
        Self { mem, base, size, next_descriptor: 0, available: 0, seen: 0 }
    }

    fn write<T: vm_memory::ByteValued>(&self, value: T, offset: u64) {
        self.mem.write_obj(value, GuestAddress(self.base + offset)).expect("queues lie in memory");
    }

    fn read<T: vm_memory::ByteValued>(&self, offset: u64) -> T {
        self.mem.read_obj(GuestAddress(self.base + offset)).expect("queues lie in memory")
    }

    /// Writes a descriptor as it is.
    pub fn set_descriptor(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.write_descriptor(self.base, index, (address, len, flags, next));
    }

    fn write_descriptor(&self, table: u64, index: u16, (address, len, flags, next): (u64, u32, u16, u16)) {
        let bytes =
            [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        let place = GuestAddress(table + u64::from(index) * 16);
        self.mem.write_slice(&bytes, place).expect("tables lie in memory");
    }

    /// Makes a chain available, whatever it is; says its head.
    pub fn offer(&mut self, head: u16) -> u16 {
        self.write(head, Self::AVAIL + 4 + u64::from(self.available % self.size) * 2);
        self.set_available(self.available.wrapping_add(1));
        head
    }

    /// Sets the index of the available ring.
    pub fn set_available(&mut self, index: u16) {
        self.available = index;
        self.write(index, Self::AVAIL + 2);
        // Asks for an interrupt at every used chain, should indices decide.
        self.write(self.seen, Self::AVAIL + 4 + u64::from(self.size) * 2);
    }

    /// Makes a chain of these buffers available; says its head.
    pub fn add(&mut self, chain: &[Buffer]) -> u16 {
        let head = self.next_descriptor;
        let last = chain.len().checked_sub(1).expect("a chain is not empty");
        for (position, buffer) in chain.iter().enumerate() {
            let (index, next) = (self.next_descriptor, (self.next_descriptor + 1) % self.size);
            let flags = if position == last { 0 } else { NEXT } | if buffer.writable { WRITE } else { 0 };
            self.set_descriptor(index, buffer.address, buffer.len, flags, next);
            self.next_descriptor = next;
        }
        self.offer(head)
    }

    /// The same with the chain in a table of its own at `table`.
    pub fn add_indirect(&mut self, table: u64, chain: &[Buffer]) -> u16 {
        let last = chain.len().checked_sub(1).expect("a chain is not empty");
        for (index, buffer) in (0..).zip(chain) {
            let flags = if usize::from(index) == last { 0 } else { NEXT } | if buffer.writable { WRITE } else { 0 };
            self.write_descriptor(table, index, (buffer.address, buffer.len, flags, index + 1));
        }
        let head = self.next_descriptor;
        self.next_descriptor = (head + 1) % self.size;
        let len = u32::try_from(chain.len() * 16).expect("a short chain");
        self.set_descriptor(head, table, len, INDIRECT, 0);
        self.offer(head)
    }

    /// The next chain the device has given back, and how much of it was written.
    pub fn take_used(&mut self) -> Option<(u16, u32)> {
        if self.read::<u16>(Self::USED + 2) == self.seen {
            return None;
        }
        let slot = Self::USED + 4 + u64::from(self.seen % self.size) * 8;
        self.seen = self.seen.wrapping_add(1);
        let head = u16::try_from(self.read::<u32>(slot)).expect("the device gives back a head");
        Some((head, self.read(slot + 4)))
    }

    /// Whether the driver should notify, now that it has added a chain: by index if both sides agreed on that.
    #[must_use]
    pub fn wants_notification(&self, by_index: bool) -> bool {
        if by_index {
            let event: u16 = self.read(Self::USED + 4 + u64::from(self.size) * 8);
            event == self.available.wrapping_sub(1)
        } else {
            self.read::<u16>(Self::USED) & 1 == 0
        }
    }
}

/// A device with everything around it.
#[derive(Debug)]
pub struct Rig {
    /// Guest memory.
    pub mem: GuestMem,
    /// The device behind its registers.
    pub transport: MmioTransport,
    /// Its interrupt.
    pub line: Line,
    /// The loop.
    pub events: Arc<Events>,
    /// The driver's queues.
    pub queues: Vec<DriverQueue>,
    free: u64,
}

impl Rig {
    /// A device no driver has touched.
    #[must_use]
    pub fn new(device: Box<dyn Device>) -> Self {
        let ranges = [(GuestAddress(0), MEMORY / 2), (GuestAddress(MEMORY / 2), MEMORY / 2)];
        let ranges = ranges.map(|(start, len)| (start, usize::try_from(len).expect("a small memory")));
        let mem = GuestMem::from_ranges(&ranges).expect("memory");
        let (line, events) = (Line::default(), Arc::new(Events::new()));
        let sizes = device.queue_sizes().to_vec();
        let queues = (0..).zip(sizes).map(|(index, size)| DriverQueue::new(mem.clone(), index, size)).collect();
        let poller = Arc::clone(&events);
        let transport = MmioTransport::new(device, mem.clone(), Box::new(line.clone()), poller);
        Self { mem, transport, line, events, queues, free: FREE }
    }

    /// A device whose driver accepted all features and set up all queues.
    #[must_use]
    pub fn running(device: Box<dyn Device>) -> Self {
        Self::running_without(device, 0)
    }

    /// The same with some features not accepted.
    #[must_use]
    pub fn running_without(device: Box<dyn Device>, refused: u64) -> Self {
        let mut rig = Self::new(device);
        rig.negotiate(refused);
        for index in 0..rig.transport.queue_count() {
            rig.set_up_queue(index);
        }
        rig.set(reg::VIRTIO_MMIO_STATUS, 15);
        rig
    }

    /// Brings the driver up to FEATURES_OK.
    pub fn negotiate(&mut self, refused: u64) {
        self.set(reg::VIRTIO_MMIO_STATUS, 1);
        self.set(reg::VIRTIO_MMIO_STATUS, 3);
        for half in [0, 1] {
            self.set(reg::VIRTIO_MMIO_DEVICE_FEATURES_SEL, half);
            self.set(reg::VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
            let offered = self.get(reg::VIRTIO_MMIO_DEVICE_FEATURES);
            let refused = (refused >> (32 * half)) & u64::from(u32::MAX);
            self.set(reg::VIRTIO_MMIO_DRIVER_FEATURES, offered & !u32::try_from(refused).expect("masked"));
        }
        self.set(reg::VIRTIO_MMIO_STATUS, 11);
    }

    /// Configures a queue as large as it can be.
    pub fn set_up_queue(&mut self, index: u16) {
        let DriverQueue { base, size, .. } = self.queues[usize::from(index)];
        let low = |address| u32::try_from(address).expect("queues lie low");
        self.set(reg::VIRTIO_MMIO_QUEUE_SEL, index.into());
        self.set(reg::VIRTIO_MMIO_QUEUE_NUM, size.into());
        self.set(reg::VIRTIO_MMIO_QUEUE_DESC_LOW, low(base));
        self.set(reg::VIRTIO_MMIO_QUEUE_AVAIL_LOW, low(base + DriverQueue::AVAIL));
        self.set(reg::VIRTIO_MMIO_QUEUE_USED_LOW, low(base + DriverQueue::USED));
        self.set(reg::VIRTIO_MMIO_QUEUE_READY, 1);
    }

    /// Reads a register.
    #[must_use]
    pub fn get(&self, register: u32) -> u32 {
        let mut word = [0; 4];
        self.transport.read(register.into(), &mut word);
        u32::from_le_bytes(word)
    }

    /// Writes a register.
    pub fn set(&mut self, register: u32, value: u32) {
        self.transport.write(register.into(), &value.to_le_bytes());
    }

    /// Sets memory aside for the driver.
    pub fn alloc(&mut self, len: usize) -> u64 {
        let place = self.free;
        self.free += u64::try_from(len).expect("a small buffer");
        assert!(self.free <= MEMORY, "the guest is out of memory");
        place
    }

    /// A buffer the device may read, with these bytes.
    pub fn readable(&mut self, bytes: &[u8]) -> Buffer {
        let address = self.alloc(bytes.len());
        self.mem.write_slice(bytes, GuestAddress(address)).expect("it was set aside");
        Buffer { address, len: u32::try_from(bytes.len()).expect("a small buffer"), writable: false }
    }

    /// A buffer the device may write.
    pub fn writable(&mut self, len: usize) -> Buffer {
        let address = self.alloc(len);
        Buffer { address, len: u32::try_from(len).expect("a small buffer"), writable: true }
    }

    /// What is in a buffer now.
    #[must_use]
    pub fn bytes(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(buffer.len).expect("a small buffer")];
        self.mem.read_slice(&mut bytes, GuestAddress(buffer.address)).expect("it lies in memory");
        bytes
    }

    /// Notifies a queue.
    pub fn notify(&mut self, index: u16) {
        self.set(reg::VIRTIO_MMIO_QUEUE_NOTIFY, index.into());
    }

    /// Hands the device what is ready now; says how much there was.
    pub fn poll(&mut self) -> usize {
        self.wait(Duration::ZERO)
    }

    fn wait(&mut self, patience: Duration) -> usize {
        let ready = self.events.wait(patience);
        ready.iter().for_each(|(token, ready)| self.transport.host_ready(*token, *ready));
        ready.len()
    }

    /// Runs the loop until something holds.
    pub fn run_until<T>(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            if let Some(value) = holds(self) {
                return value;
            }
            assert!(self.wait(PATIENCE) > 0, "nothing happened while waiting until {what}");
        }
    }

    /// Runs the loop until it is quiet. A device that spins fails here.
    pub fn settle(&mut self) {
        let busy = (0..1000).all(|_| self.poll() > 0);
        assert!(!busy, "the device keeps the loop busy");
    }
}
