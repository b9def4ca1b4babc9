//! The balloon (virtio 1.2, 5.5), of which only the reporting of free pages is offered: the driver names memory that the
//! guest has no use for, and the host has it back.
//!
//! Nothing is ever asked for: the balloon's size is zero. What is reported is hints of a stranger's, about its own memory
//! and no other; a guest that names pages it still uses loses what is in them.
//!
//! What must hold: memory is private to the process, and a page that is given back becomes again what lies behind the
//! mapping, whatever that is: zeroes, or the page of the image that a fork was made of. So what a VM sees of a page and what
//! a branch of it would find there stay the same, and the page table still says which pages are the VM's own. (It must not
//! become zero over an image: a branch would find the image's page.) That a free page changes under a guest is what it has
//! agreed to: a kernel that minds, because it fills free pages with a pattern, does not report any to a device that does not
//! know the pattern.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use virtio_queue::Queue;

use crate::queue::{Handled, QueueStateV1, Served, serve};
use crate::{
    ActivateError, Activation, Buffers, Device, DeviceError, DeviceState, GuestMem, Interrupt, Kind, Readiness,
    RestoreError, Work, sys,
};

/// `VIRTIO_BALLOON_F_REPORTING` (5.5.3).
const REPORTING: u64 = 1 << 5;
/// Inflating, deflating, reporting. The first two are there because drivers want them; a report has 32 pages.
const QUEUE_SIZES: [u16; 3] = [32, 32, 64];
/// Which of them reports.
const REPORTS: usize = 2;
/// The most that one report gives back: twice what Linux reports at once. What is beyond is kept, as it may be.
const MAX_REPORT: usize = 256 << 20;
/// How many reports are taken before the loop may look after something else.
const BATCH: usize = 4;

/// What a balloon remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalloonStateV1 {}

/// A balloon that stays empty.
#[derive(Debug, Default)]
pub struct Balloon {
    active: Option<Active>,
}

#[derive(Debug)]
struct Active {
    mem: GuestMem,
    irq: Arc<Interrupt>,
    queues: Vec<Queue>,
}

impl Balloon {
    /// One that no driver uses yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Gives back what is reported, up to a limit.
pub fn give_back(mut reported: Buffers<'_>) {
    for slice in reported.take(MAX_REPORT).slices() {
        if let Err(error) = sys::give_back(slice) {
            // The guest goes on with the page as it was.
            log::debug!("memory cannot be given back: {error}");
        }
    }
}

impl Device for Balloon {
    fn kind(&self) -> Kind {
        Kind::Balloon
    }

    fn features(&self) -> u64 {
        REPORTING
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn read_config(&self, _offset: u64, data: &mut [u8]) {
        // No page is wanted, and none has been taken.
        data.fill(0);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {
        // How many pages the driver says that it has given is of no interest.
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let Activation { mem, irq, queues, .. } = activation;
        self.active = Some(Active { mem, irq, queues });
        Ok(())
    }

    fn reset(&mut self) {
        self.active = None;
    }

    fn queue_notified(&mut self, queue: u16) -> Result<Work, DeviceError> {
        let Some(Active { mem, irq, queues }) = &mut self.active else { return Ok(Work::Done) };
        let Some(served) = queues.get_mut(usize::from(queue)) else { return Ok(Work::Done) };
        let reports = usize::from(queue) == REPORTS;
        let handle = |chain: crate::queue::Chain<'_>| {
            if reports {
                give_back(chain.writable);
            }
            Handled::Used(0)
        };
        match serve(served, mem, irq, BATCH, handle)? {
            Served::Limit => Ok(Work::More),
            Served::All | Served::NotNow => Ok(Work::Done),
        }
    }

    fn host_ready(&mut self, _token: u32, _ready: Readiness) -> Result<Work, DeviceError> {
        Ok(Work::Done)
    }

    fn state(&self) -> DeviceState {
        DeviceState::Balloon(BalloonStateV1 {})
    }

    fn queue_states(&self) -> Vec<QueueStateV1> {
        self.active.iter().flat_map(|active| active.queues.iter().map(QueueStateV1::from)).collect()
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), RestoreError> {
        match state {
            DeviceState::Balloon(BalloonStateV1 {}) => Ok(()),
            _ => Err(RestoreError::Kind { expected: Kind::Balloon }),
        }
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::Balloon;
    use crate::fuzzing;
    use crate::test_utils::{Buffer, FREE, Rig};

    const PAGE: u64 = 4096;

    fn rig() -> Rig {
        let rig = Rig::running(Box::new(Balloon::new()));
        rig.mem.write_slice(&vec![7; 64 << 10], GuestAddress(FREE)).unwrap();
        rig
    }

    fn byte(rig: &Rig, address: u64) -> u8 {
        rig.mem.read_obj(GuestAddress(address)).unwrap()
    }

    #[test]
    fn what_is_reported_is_given_back_and_nothing_beside_it() {
        let mut rig = rig();
        let pages = |first: u64, count: u32| Buffer { address: FREE + first * PAGE, len: count * 4096, writable: true };
        rig.queues[2].add(&[pages(1, 2), pages(5, 1)]);
        rig.notify(2);
        assert_eq!(rig.queues[2].take_used(), Some((0, 0)));
        let kept: Vec<u64> = (0..16).filter(|page| byte(&rig, FREE + page * PAGE) == 7).collect();
        assert_eq!(kept, [0, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn parts_of_pages_and_what_the_device_may_only_read_are_kept() {
        let mut rig = rig();
        rig.queues[2].add(&[Buffer { address: FREE + 100, len: 8192, writable: true }]);
        rig.queues[2].add(&[Buffer { address: FREE + 4 * PAGE, len: 4096, writable: false }]);
        rig.queues[2].add(&[Buffer { address: FREE + 5 * PAGE + 1, len: 4000, writable: true }]);
        rig.notify(2);
        assert_eq!([0, 1, 2, 4, 5].map(|page| byte(&rig, FREE + page * PAGE)), [7, 0, 7, 7, 7]);
        assert_eq!((byte(&rig, FREE + PAGE - 1), byte(&rig, FREE + 2 * PAGE)), (7, 7), "its neighbours are whole");
    }

    #[test]
    fn an_inflated_balloon_takes_nothing() {
        let mut rig = rig();
        for queue in [0, 1] {
            rig.queues[queue].add(&[Buffer { address: FREE, len: 4096, writable: false }]);
            rig.notify(u16::try_from(queue).unwrap());
            assert_eq!(rig.queues[queue].take_used(), Some((0, 0)));
        }
        assert_eq!(byte(&rig, FREE), 7);
    }

    #[test]
    fn any_driver_is_survived() {
        fuzzing::try_for_a_while(fuzzing::balloon);
    }
}
