//! The network card (virtio 1.2, 5.1): a receive queue, a transmit queue, a tap.
//!
//! Packets pass with the 12-byte header the tap and the driver share. Receiving goes through one bounce buffer, which
//! holds a packet that found no room until the driver supplies some; meanwhile the tap is not read, so the host's
//! queue fills up and drops, and nothing spins. Transmitting goes straight from guest memory; a tap that is full is
//! waited for, and any other error costs one packet, as a cable would.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use log::{debug, error};
use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MRG_RXBUF,
};
use virtio_queue::{Queue, QueueT};

use crate::device::read_bytes;
use crate::poll::Watch;
use crate::queue::{self, Chain, Handled, QueueError, QueueStateV1, Served, serve};
use crate::{
    ActivateError, Activation, Buffers, Device, DeviceError, DeviceState, GuestMem, Interest, Interrupt, Kind,
    Readiness, RestoreError, Work, sys,
};

const TX: u16 = 1;
const QUEUE_SIZE: u16 = 256;
const TAP_TOKEN: u32 = 0;
/// `struct virtio_net_hdr_v1`.
const HEADER_LEN: usize = 12;
/// Where the header says over how many buffers the packet is spread.
const NUM_BUFFERS: usize = 10;
/// The largest packet a tap takes or gives: an unsegmented IP packet of 64 KiB, its Ethernet and VLAN headers, ours.
const MAX_PACKET: usize = HEADER_LEN + 18 + (64 << 10);
/// How many packets pass in one direction before the loop may look after something else.
const BATCH: usize = 64;

const MERGE: u64 = 1 << VIRTIO_NET_F_MRG_RXBUF;
/// Packets the driver leaves unfinished; the tap completes them by itself.
const HOST_OFFLOADS: u64 = 1 << VIRTIO_NET_F_CSUM | 1 << VIRTIO_NET_F_HOST_TSO4 | 1 << VIRTIO_NET_F_HOST_TSO6;
/// Packets the tap may leave unfinished, by the flag that allows it to.
const GUEST_OFFLOADS: [(u32, libc::c_uint); 3] = [
    (VIRTIO_NET_F_GUEST_CSUM, libc::TUN_F_CSUM),
    (VIRTIO_NET_F_GUEST_TSO4, libc::TUN_F_TSO4),
    (VIRTIO_NET_F_GUEST_TSO6, libc::TUN_F_TSO6),
];

/// What a network card remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetStateV1 {
    /// The hardware address the driver has seen.
    pub mac: [u8; 6],
}

/// A network card.
#[derive(Debug)]
pub struct Net {
    tap: OwnedFd,
    mac: [u8; 6],
    offloads: Offloads,
    active: Option<Active>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offloads {
    Tap,
    None,
    /// Offered, and nobody is told.
    #[cfg(any(test, feature = "test-utils"))]
    Untold,
}

#[derive(Debug)]
struct Active {
    mem: GuestMem,
    irq: Arc<Interrupt>,
    rx: Queue,
    tx: Queue,
    watch: Watch,
    merge: bool,
    packet: Packet,
    reading: Reading,
    /// The tap is full; the first chain of the transmit queue waits for it.
    tx_waits: bool,
}

/// The bounce buffer.
#[derive(Debug)]
struct Packet {
    bytes: Box<[u8]>,
    len: usize,
}

/// Whether the tap is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// When it is ready.
    Ready,
    /// Not before the driver shows a sign of life: there is no room for the packet at hand, or the tap is broken.
    Paused,
}

impl Net {
    /// A card on a tap: non-blocking, with `IFF_VNET_HDR` and a header of 12 bytes. Which unfinished packets it may
    /// give (`TUNSETOFFLOAD`) is set once a driver has said what it can take.
    #[must_use]
    pub fn new(tap: OwnedFd, mac: [u8; 6]) -> Self {
        Self { tap, mac, offloads: Offloads::Tap, active: None }
    }

    /// A card on anything that keeps packets apart, such as a datagram socket: every packet is complete.
    #[must_use]
    pub fn without_offloads(link: OwnedFd, mac: [u8; 6]) -> Self {
        Self { offloads: Offloads::None, ..Self::new(link, mac) }
    }

    /// A card that offers what one on a tap does, on anything that keeps packets apart. Nobody is told which unfinished
    /// packets it may give, so it may give any.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn with_offloads(link: OwnedFd, mac: [u8; 6]) -> Self {
        Self { offloads: Offloads::Untold, ..Self::new(link, mac) }
    }

    fn set_offloads(&self, features: u64) -> io::Result<()> {
        let chosen = GUEST_OFFLOADS.iter().filter(|(feature, _)| features & 1 << feature != 0);
        let flags = chosen.fold(0, |flags, (_, flag)| flags | flag);
        if self.offloads == Offloads::Tap { sys::set_tap_offload(self.tap.as_fd(), flags) } else { Ok(()) }
    }

    /// Moves packets from the tap to the driver, beginning with the one that waits.
    fn receive(&mut self) -> Result<(), DeviceError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        active.reading = Reading::Ready;
        let since = active.rx.next_used();
        for _ in 0..BATCH {
            if active.packet.len == 0 {
                match active.packet.fetch(&self.tap) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        debug!("the tap cannot be read: {error}");
                        active.reading = Reading::Paused;
                        break;
                    }
                }
            }
            if !active.deliver()? {
                active.reading = Reading::Paused;
                break;
            }
            active.packet.len = 0;
        }
        queue::notify(&mut active.rx, &active.mem, &active.irq, since)?;
        Ok(())
    }

    fn transmit(&mut self) -> Result<Work, DeviceError> {
        let Some(Active { mem, irq, tx, tx_waits, .. }) = &mut self.active else { return Ok(Work::Done) };
        let served = serve(tx, mem, irq, BATCH, |chain| send(&self.tap, &chain))?;
        *tx_waits = served == Served::NotNow;
        Ok(if served == Served::Limit { Work::More } else { Work::Done })
    }

    fn update_watch(&mut self) -> io::Result<()> {
        let Some(active) = &mut self.active else { return Ok(()) };
        let wanted = Interest::in_either((active.reading == Reading::Ready, active.tx_waits));
        active.watch.set(self.tap.as_fd(), wanted)
    }
}

/// Writes one packet to the tap.
fn send(tap: &OwnedFd, chain: &Chain<'_>) -> Handled {
    let packet = &chain.readable;
    if !(HEADER_LEN..=MAX_PACKET).contains(&packet.len()) {
        debug!("a packet of {} bytes was dropped", packet.len());
        return Handled::Used(0);
    }
    match sys::write(tap.as_fd(), packet) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Handled::NotNow,
        Err(error) => {
            debug!("a packet was dropped: {error}");
            Handled::Used(0)
        }
        Ok(_) => Handled::Used(0),
    }
}

impl Packet {
    fn new() -> Self {
        Self { bytes: vec![0; MAX_PACKET].into(), len: 0 }
    }

    /// Reads one packet. What is too short to be one counts as an error: it is what a closed socket gives for ever.
    fn fetch(&mut self, tap: &OwnedFd) -> io::Result<()> {
        let count = rustix::io::read(tap, &mut *self.bytes)?;
        if count < HEADER_LEN {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.len = count;
        Ok(())
    }

    /// Copies the packet into chains that have room for it; says what was used of each.
    fn scatter(&mut self, chains: Vec<(u16, Buffers<'_>)>) -> Vec<(u16, u32)> {
        let count = u16::try_from(chains.len()).expect("at most a queue of them");
        self.bytes[NUM_BUFFERS..HEADER_LEN].copy_from_slice(&count.to_le_bytes());
        let mut rest = &self.bytes[..self.len];
        let copy = |(head, mut buffers): (u16, Buffers<'_>)| {
            let (part, after) = rest.split_at(buffers.copy_from(rest));
            rest = after;
            (head, u32::try_from(part.len()).expect("at most MAX_PACKET"))
        };
        chains.into_iter().map(copy).collect()
    }
}

impl Active {
    /// Hands the packet to the driver, or drops it if it can never fit; `false` when the driver must supply room first,
    /// in which case it will notify.
    fn deliver(&mut self) -> Result<bool, QueueError> {
        let limit = if self.merge { self.rx.size().into() } else { 1 };
        // Each round but the last finds more chains than the one before, unless the driver plays tricks.
        for _ in 0..=limit {
            let (chains, room) = gather(&mut self.rx, &self.mem, self.packet.len, limit)?;
            if room >= self.packet.len {
                let used = self.packet.scatter(chains);
                queue::add_used_together(&mut self.rx, &self.mem, &self.irq, &used)?;
                return Ok(true);
            }
            if chains.len() == limit {
                let unused: Vec<_> = chains.iter().map(|(head, _)| (*head, 0)).collect();
                queue::add_used_together(&mut self.rx, &self.mem, &self.irq, &unused)?;
                break;
            }
            // Asked before the chains are put back: what the driver adds *after them* is what matters.
            let more = self.rx.ready() && self.rx.enable_notification(&self.mem)?;
            chains.iter().for_each(|_| queue::unpop(&mut self.rx));
            if !more {
                return Ok(false);
            }
        }
        debug!("a packet of {} bytes was dropped: it does not fit", self.packet.len);
        Ok(true)
    }
}

/// Takes up to `limit` chains until they have room for `len` bytes, or there are no more; says how much room.
fn gather<'m>(
    rx: &mut Queue,
    mem: &'m GuestMem,
    len: usize,
    limit: usize,
) -> Result<(Vec<(u16, Buffers<'m>)>, usize), QueueError> {
    let (mut chains, mut room) = (Vec::new(), 0);
    if rx.ready() {
        rx.disable_notification(mem)?;
    }
    while room < len && chains.len() < limit {
        let Some(chain) = queue::pop(rx, mem)? else { break };
        room += chain.writable.len();
        chains.push((chain.head, chain.writable));
    }
    Ok((chains, room))
}

impl Device for Net {
    fn kind(&self) -> Kind {
        Kind::Net
    }

    fn features(&self) -> u64 {
        let plain = 1 << VIRTIO_NET_F_MAC | MERGE;
        if self.offloads == Offloads::None {
            return plain;
        }
        GUEST_OFFLOADS.iter().fold(plain | HOST_OFFLOADS, |all, (feature, _)| all | 1 << feature)
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE, QUEUE_SIZE]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_bytes(&self.mac, offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {
        // The hardware address is read-only for a driver of this version.
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let Activation { mem, irq, queues, features, poller } = activation;
        self.set_offloads(features).map_err(|source| ActivateError::Offload { source })?;
        let [rx, tx] = <[Queue; 2]>::try_from(queues).expect("as many as queue_sizes");
        self.active = Some(Active {
            mem,
            irq,
            rx,
            tx,
            watch: Watch::new(poller, TAP_TOKEN),
            merge: features & MERGE != 0,
            packet: Packet::new(),
            reading: Reading::Ready,
            tx_waits: false,
        });
        self.update_watch().map_err(|source| ActivateError::Poll { source })
    }

    fn reset(&mut self) {
        if let Some(mut active) = self.active.take()
            && let Err(error) = active.watch.set(self.tap.as_fd(), None)
        {
            error!("the loop did not let go of a tap: {error}");
        }
    }

    fn queue_notified(&mut self, queue: u16) -> Result<Work, DeviceError> {
        if self.active.as_ref().is_some_and(|active| active.reading == Reading::Paused) {
            self.receive()?;
        }
        let work = if queue == TX { self.transmit()? } else { Work::Done };
        self.update_watch()?;
        Ok(work)
    }

    fn host_ready(&mut self, _token: u32, ready: Readiness) -> Result<Work, DeviceError> {
        let Some(active) = &self.active else { return Ok(Work::Done) };
        let (reads, writes) = (active.reading == Reading::Ready, active.tx_waits);
        if reads && (ready.readable || ready.hangup) {
            self.receive()?;
        }
        let mut work = Work::Done;
        if writes && (ready.writable || ready.hangup) {
            work = self.transmit()?;
        }
        // A hangup is reported for ever, whatever is asked for.
        if let Some(active) = self.active.as_mut().filter(|_| ready.hangup) {
            active.reading = Reading::Paused;
        }
        self.update_watch()?;
        Ok(work)
    }

    fn state(&self) -> DeviceState {
        DeviceState::Net(NetStateV1 { mac: self.mac })
    }

    fn queue_states(&self) -> Vec<QueueStateV1> {
        self.active.iter().flat_map(|active| [&active.rx, &active.tx]).map(QueueStateV1::from).collect()
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), RestoreError> {
        let DeviceState::Net(NetStateV1 { mac }) = state else {
            return Err(RestoreError::Kind { expected: Kind::Net });
        };
        // The driver keeps the address it found at first, so the card must.
        self.mac = *mac;
        Ok(())
    }
}
