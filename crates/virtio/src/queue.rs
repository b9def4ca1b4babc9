//! Taking chains from a queue and giving them back.

use std::io;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueState, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

use crate::{Buffers, GuestMem, Interrupt};

/// Flags and index in front of the used ring's entries.
const USED_RING_HEADER: u64 = 4;
/// Head and length of a used chain, 4 bytes each.
const USED_ENTRY: u64 = 8;

/// Why a queue can no longer be used.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The driver's ring is not one.
    #[error("the driver broke a queue: {source}")]
    Ring {
        /// What is wrong with it.
        source: virtio_queue::Error,
    },
    /// The driver could not be told.
    #[error("an interrupt could not be delivered: {source}")]
    Interrupt {
        /// What the system says.
        #[from]
        source: io::Error,
    },
}

impl From<virtio_queue::Error> for QueueError {
    fn from(source: virtio_queue::Error) -> Self {
        Self::Ring { source }
    }
}

/// A queue as plain data: what the driver configured and how far both sides are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueStateV1 {
    /// The most entries the device offers.
    pub max_size: u16,
    /// The entries the driver chose.
    pub size: u16,
    /// Whether the driver enabled the queue.
    pub ready: bool,
    /// Whether notifications are suppressed by index.
    pub event_idx: bool,
    /// The next available entry to take.
    pub next_avail: u16,
    /// The next used entry to fill.
    pub next_used: u16,
    /// Guest address of the descriptor table.
    pub desc_table: u64,
    /// Guest address of the available ring.
    pub avail_ring: u64,
    /// Guest address of the used ring.
    pub used_ring: u64,
}

impl QueueStateV1 {
    /// A queue that no driver has touched.
    pub(crate) const fn unused(max_size: u16) -> Self {
        Self {
            max_size,
            size: max_size,
            ready: false,
            event_idx: false,
            next_avail: 0,
            next_used: 0,
            desc_table: 0,
            avail_ring: 0,
            used_ring: 0,
        }
    }

    /// The queue itself, if it lies in memory as the specification wants it.
    pub(crate) fn build(self, mem: &GuestMem) -> Result<Queue, virtio_queue::Error> {
        if !self.ready {
            return Queue::new(self.max_size);
        }
        let queue = Queue::try_from(QueueState::from(self))?;
        if queue.is_valid(mem) { Ok(queue) } else { Err(virtio_queue::Error::FindMemoryRegion) }
    }
}

impl From<QueueStateV1> for QueueState {
    fn from(state: QueueStateV1) -> Self {
        Self {
            max_size: state.max_size,
            next_avail: state.next_avail,
            next_used: state.next_used,
            event_idx_enabled: state.event_idx,
            size: state.size,
            ready: state.ready,
            desc_table: state.desc_table,
            avail_ring: state.avail_ring,
            used_ring: state.used_ring,
        }
    }
}

impl From<&Queue> for QueueStateV1 {
    fn from(queue: &Queue) -> Self {
        let state = queue.state();
        Self {
            max_size: state.max_size,
            size: state.size,
            ready: state.ready,
            event_idx: state.event_idx_enabled,
            next_avail: state.next_avail,
            next_used: state.next_used,
            desc_table: state.desc_table,
            avail_ring: state.avail_ring,
            used_ring: state.used_ring,
        }
    }
}

/// A chain the driver made available. A malformed one has no buffers at all, so that whatever a device does with a
/// chain that is too short is also what it does with a broken one.
#[derive(Debug)]
pub(crate) struct Chain<'m> {
    pub(crate) head: u16,
    pub(crate) readable: Buffers<'m>,
    pub(crate) writable: Buffers<'m>,
}

impl<'m> Chain<'m> {
    fn new(descriptors: DescriptorChain<&GuestMem>, mem: &'m GuestMem, queue_size: u16) -> Self {
        let head = descriptors.head_index();
        let (readable, writable) = Self::collect(descriptors, mem, queue_size).unwrap_or_default();
        Self { head, readable, writable }
    }

    /// `None` for a chain that leaves guest memory, is longer than the queue (2.7.5.3.1), mixes its directions
    /// (2.7.4.2) or ends in the middle.
    fn collect(
        descriptors: DescriptorChain<&GuestMem>,
        mem: &'m GuestMem,
        queue_size: u16,
    ) -> Option<(Buffers<'m>, Buffers<'m>)> {
        let (mut readable, mut writable) = (Buffers::default(), Buffers::default());
        let mut whole = false;
        for (count, descriptor) in descriptors.enumerate() {
            if count >= usize::from(queue_size) || (!descriptor.is_write_only() && !writable.is_empty()) {
                return None;
            }
            let (to, access) = if descriptor.is_write_only() {
                (&mut writable, Permissions::Write)
            } else {
                (&mut readable, Permissions::Read)
            };
            let len = usize::try_from(descriptor.len()).ok()?;
            for slice in GuestMemory::get_slices(mem, descriptor.addr(), len, access).ok()? {
                to.push(slice.ok()?);
            }
            whole = !descriptor.has_next();
        }
        whole.then_some((readable, writable))
    }
}

/// Takes the next chain, if the driver has made one available.
pub(crate) fn pop<'m>(queue: &mut Queue, mem: &'m GuestMem) -> Result<Option<Chain<'m>>, QueueError> {
    if !queue.ready() {
        return Ok(None);
    }
    let size = queue.size();
    Ok(queue.iter(mem)?.next().map(|descriptors| Chain::new(descriptors, mem, size)))
}

/// The place in the available ring that the driver fills next.
pub(crate) fn available(queue: &Queue, mem: &GuestMem) -> Result<u16, QueueError> {
    Ok(queue.avail_idx(mem, Ordering::Acquire)?.0)
}

/// Asks the driver to notify when it fills this place of the available ring, though there may be chains before it that
/// were not taken; says whether it has filled it already.
pub(crate) fn enable_notification_at(queue: &mut Queue, mem: &GuestMem, place: u16) -> Result<bool, QueueError> {
    // The library asks for the place after those that were taken.
    let next = queue.next_avail();
    queue.set_next_avail(place);
    let filled = queue.enable_notification(mem);
    queue.set_next_avail(next);
    Ok(filled?)
}

/// Puts the last taken chain back to the front.
pub(crate) fn unpop(queue: &mut Queue) {
    queue.go_to_previous_position();
}

/// Gives back several chains that only make sense together: the driver sees all of them or none.
///
/// The library publishes one at a time, and a driver on another CPU would find half a packet. So all but the last are
/// put into the ring by hand and the last one publishes them. It counts as one, so the interrupt is not left to
/// [`notify`]'s arithmetic.
pub(crate) fn add_used_together(
    queue: &mut Queue,
    mem: &GuestMem,
    irq: &Interrupt,
    chains: &[(u16, u32)],
) -> Result<(), QueueError> {
    let Some(((last_head, last_len), others)) = chains.split_last() else { return Ok(()) };
    for (head, len) in others {
        let slot = u64::from(queue.next_used() % queue.size());
        let offset = USED_RING_HEADER + slot * USED_ENTRY;
        let address = queue.used_ring().checked_add(offset).ok_or(virtio_queue::Error::AddressOverflow)?;
        let entry = [u32::from(*head), *len].map(u32::to_le_bytes).concat();
        mem.write_slice(&entry, GuestAddress(address)).map_err(virtio_queue::Error::GuestMemory)?;
        queue.set_next_used(queue.next_used().wrapping_add(1));
    }
    queue.add_used(mem, *last_head, *last_len)?;
    if !others.is_empty() {
        irq.signal_queue()?;
    }
    Ok(())
}

/// Interrupts the driver if chains were given back since the used ring was at `since`, and it wants to know.
pub(crate) fn notify(queue: &mut Queue, mem: &GuestMem, irq: &Interrupt, since: u16) -> Result<(), QueueError> {
    if queue.next_used() != since && queue.needs_notification(mem)? {
        irq.signal_queue()?;
    }
    Ok(())
}

/// What became of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handled {
    /// It goes back to the driver with so many bytes written.
    Used(u32),
    /// It stays in front of the queue; the device will come back for it.
    NotNow,
}

/// Why [`serve`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The queue is empty; the driver will notify.
    All,
    /// `limit` chains were handled and there may be more; the driver will not notify.
    Limit,
    /// The handler said [`Handled::NotNow`]; the driver will not notify.
    NotNow,
}

/// Handles chains until the queue is empty, `limit` is reached or the handler wants to stop.
pub(crate) fn serve<'m>(
    queue: &mut Queue,
    mem: &'m GuestMem,
    irq: &Interrupt,
    limit: usize,
    mut handle: impl FnMut(Chain<'m>) -> Handled,
) -> Result<Served, QueueError> {
    if !queue.ready() {
        return Ok(Served::All);
    }
    let (since, mut done) = (queue.next_used(), 0);
    let served = 'serving: loop {
        queue.disable_notification(mem)?;
        while done < limit {
            let Some(chain) = pop(queue, mem)? else { break };
            let head = chain.head;
            match handle(chain) {
                Handled::Used(len) => queue.add_used(mem, head, len)?,
                Handled::NotNow => {
                    unpop(queue);
                    break 'serving Served::NotNow;
                }
            }
            done += 1;
        }
        if done == limit {
            break Served::Limit;
        }
        if !queue.enable_notification(mem)? {
            break Served::All;
        }
    };
    notify(queue, mem, irq, since)?;
    Ok(served)
}
