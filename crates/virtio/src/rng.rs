//! The source of randomness (virtio 1.2, 5.4): fills the driver's buffers from the host's generator. It remembers
//! nothing, so two guests restored from one state get different bytes.

use std::sync::Arc;

use log::warn;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use virtio_queue::Queue;

use crate::queue::{Handled, QueueStateV1, Served, serve};
use crate::{
    ActivateError, Activation, Buffers, Device, DeviceError, DeviceState, GuestMem, Interrupt, Kind, Readiness,
    RestoreError, Work,
};

const QUEUE_SIZE: u16 = 64;
/// A chain can name the same memory many times over; this bounds the time one of them takes. A short answer is legal.
const MAX_REQUEST: usize = 64 << 10;
/// How many requests are answered before the loop may look after something else.
const BATCH: usize = 16;
/// How much is fetched at once: never cut short by a signal up to 256 bytes, and a page needs few calls.
const CHUNK: usize = 256;

/// What a source of randomness remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RngStateV1 {}

/// A source of randomness.
#[derive(Debug, Default)]
pub struct Rng {
    active: Option<Active>,
}

#[derive(Debug)]
struct Active {
    mem: GuestMem,
    irq: Arc<Interrupt>,
    queue: Queue,
}

impl Rng {
    /// A source that no driver uses yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Fills the buffers up to the limit; says how much was filled.
fn fill(buffers: &mut Buffers<'_>) -> u32 {
    let mut todo = buffers.take(MAX_REQUEST);
    let mut done = 0;
    while !todo.is_empty() {
        let mut bytes = [0; CHUNK];
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(count) => done += todo.copy_from(&bytes[..count]),
            Err(error) => {
                warn!("the host has no randomness to give: {error}");
                break;
            }
        }
    }
    u32::try_from(done).expect("at most MAX_REQUEST")
}

impl Device for Rng {
    fn kind(&self) -> Kind {
        Kind::Rng
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn read_config(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {
        // The device has no configuration.
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let Activation { mem, irq, mut queues, .. } = activation;
        self.active = queues.pop().map(|queue| Active { mem, irq, queue });
        Ok(())
    }

    fn reset(&mut self) {
        self.active = None;
    }

    fn queue_notified(&mut self, _queue: u16) -> Result<Work, DeviceError> {
        let Some(Active { mem, irq, queue }) = &mut self.active else { return Ok(Work::Done) };
        match serve(queue, mem, irq, BATCH, |mut chain| Handled::Used(fill(&mut chain.writable)))? {
            Served::Limit => Ok(Work::More),
            Served::All | Served::NotNow => Ok(Work::Done),
        }
    }

    fn host_ready(&mut self, _token: u32, _ready: Readiness) -> Result<Work, DeviceError> {
        Ok(Work::Done)
    }

    fn state(&self) -> DeviceState {
        DeviceState::Rng(RngStateV1 {})
    }

    fn queue_states(&self) -> Vec<QueueStateV1> {
        self.active.iter().map(|active| QueueStateV1::from(&active.queue)).collect()
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), RestoreError> {
        match state {
            DeviceState::Rng(RngStateV1 {}) => Ok(()),
            _ => Err(RestoreError::Kind { expected: Kind::Rng }),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::Rng;
    use crate::fuzzing;
    use crate::test_utils::{Buffer, FREE, Rig};

    #[test]
    fn all_buffers_are_filled_and_differ() {
        let mut rig = Rig::running(Box::new(Rng::new()));
        let chain = [rig.writable(7), rig.writable(1000), rig.writable(32)];
        rig.queues[0].add(&chain);
        rig.notify(0);
        assert_eq!(rig.queues[0].take_used(), Some((0, 1039)));
        let bytes = rig.bytes(&chain[1]);
        assert_ne!(bytes[..500], bytes[500..]);
        assert_ne!(rig.bytes(&chain[2]), [0; 32]);
    }

    #[test]
    fn a_greedy_driver_gets_a_short_answer() {
        let mut rig = Rig::running(Box::new(Rng::new()));
        let whole = Buffer { address: FREE, len: 6 << 20, writable: true };
        rig.queues[0].add(&[whole; 60]);
        rig.queues[0].add(&[Buffer { writable: false, ..whole }]);
        rig.notify(0);
        assert_eq!(rig.queues[0].take_used(), Some((0, 64 << 10)));
        assert_eq!(rig.queues[0].take_used(), Some((60, 0)));
    }

    #[test]
    fn any_driver_is_survived() {
        fuzzing::try_for_a_while(fuzzing::rng);
    }
}
