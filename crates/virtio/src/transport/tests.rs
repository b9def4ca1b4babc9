use serde_json::json;
use virtio_bindings::virtio_mmio::*;

use super::*;
use crate::RestoreError;
use crate::rng::Rng;
use crate::test_utils::Rig;

const STATUS: u32 = VIRTIO_MMIO_STATUS;

fn running() -> Rig {
    Rig::running(Box::new(Rng::new()))
}

fn restored(rig: &Rig, state: &TransportStateV1) -> Result<MmioTransport, RestoreError> {
    let (line, poller) = (Box::new(rig.line.clone()), Arc::clone(&rig.events));
    MmioTransport::restore(Box::new(Rng::new()), rig.mem.clone(), line, poller, state)
}

#[test]
fn a_driver_finds_what_it_looks_for() {
    let rig = Rig::new(Box::new(Rng::new()));
    assert_eq!(rig.get(VIRTIO_MMIO_MAGIC_VALUE), 0x7472_6976);
    assert_eq!(rig.get(VIRTIO_MMIO_VERSION), 2);
    assert_eq!(rig.get(VIRTIO_MMIO_DEVICE_ID), 4);
    assert_eq!(rig.get(VIRTIO_MMIO_QUEUE_NUM_MAX), 64);
    assert_eq!(rig.get(VIRTIO_MMIO_SHM_LEN_LOW), u32::MAX);
    assert_eq!(rig.transport.queue_count(), 1);
}

#[test]
fn steps_are_taken_in_order_or_not_at_all() {
    let mut rig = Rig::new(Box::new(Rng::new()));
    for early in [DRIVER, FEATURES_OK, DRIVER_OK] {
        rig.set(STATUS, early);
        assert_eq!(rig.get(STATUS), 0);
    }
    rig.negotiate(0);
    assert_eq!(rig.get(STATUS), 11);
    rig.set(STATUS, 3);
    assert_eq!(rig.get(STATUS), 11, "bits cannot be cleared one by one");
    rig.set_up_queue(0);
    rig.set(STATUS, 15);
    assert_eq!(rig.get(STATUS), 15);
    rig.set(STATUS, 0);
    assert_eq!((rig.get(STATUS), rig.get(VIRTIO_MMIO_QUEUE_READY)), (0, 0));
}

#[test]
fn features_must_fit() {
    let mut rig = Rig::new(Box::new(Rng::new()));
    rig.negotiate(VERSION_1);
    assert_eq!(rig.get(STATUS), 3, "a legacy driver is refused");
    rig.set(STATUS, 0);
    rig.set(STATUS, 3);
    rig.set(VIRTIO_MMIO_DRIVER_FEATURES, 1 << 7);
    rig.set(VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
    rig.set(VIRTIO_MMIO_DRIVER_FEATURES, 1);
    rig.set(STATUS, 11);
    assert_eq!(rig.get(STATUS), 3, "what is not offered is refused");
    rig.set(STATUS, 0);
    rig.negotiate(0);
    rig.set(VIRTIO_MMIO_DRIVER_FEATURES, 0);
    assert!(rig.transport.features_fit(rig.transport.driver_features), "what is accepted cannot be changed");
}

#[test]
fn a_misplaced_queue_asks_for_a_reset() {
    let mut rig = Rig::new(Box::new(Rng::new()));
    let break_it: [(u32, u32); 5] = [
        (VIRTIO_MMIO_QUEUE_NUM, 3),
        (VIRTIO_MMIO_QUEUE_NUM, 1 << 16),
        (VIRTIO_MMIO_QUEUE_DESC_LOW, 8),
        (VIRTIO_MMIO_QUEUE_AVAIL_HIGH, 1),
        (VIRTIO_MMIO_QUEUE_USED_LOW, u32::MAX - 3),
    ];
    for (register, value) in break_it {
        rig.negotiate(0);
        rig.set_up_queue(0);
        rig.set(VIRTIO_MMIO_QUEUE_READY, 0);
        rig.set(register, value);
        rig.set(VIRTIO_MMIO_QUEUE_READY, 1);
        rig.set(STATUS, 15);
        assert_eq!(rig.get(STATUS), 15 | NEEDS_RESET, "{register:#x} = {value:#x}");
        assert_eq!(rig.get(VIRTIO_MMIO_INTERRUPT_STATUS), VIRTIO_MMIO_INT_CONFIG);
        assert_eq!(rig.line.take(), 1);
        rig.notify(0);
        rig.set(STATUS, 0);
    }
    assert_eq!(rig.get(VIRTIO_MMIO_INTERRUPT_STATUS), 0);
}

#[test]
fn a_broken_ring_stops_the_device_until_it_is_reset() {
    let mut rig = running();
    rig.queues[0].set_available(65);
    rig.notify(0);
    assert_eq!(rig.get(STATUS), 15 | NEEDS_RESET);
    assert_eq!(rig.line.take(), 1);
    rig.queues[0].set_available(0);
    rig.notify(0);
    assert_eq!(rig.line.take(), 0);
    rig.set(STATUS, 0);
    assert_eq!(rig.get(STATUS), 0);
}

#[test]
fn odd_widths_and_places_are_harmless() {
    let mut rig = running();
    for offset in 0..MMIO_SIZE {
        for len in [1, 2, 3, 8] {
            rig.transport.write(offset, &[0xff; 8][..len]);
            let mut bytes = [7; 8];
            rig.transport.read(offset, &mut bytes[..len]);
            assert!(bytes[..len].iter().all(|byte| *byte == 0));
        }
    }
    assert_eq!(rig.get(STATUS), 15);
}

#[test]
fn registers_of_a_running_queue_do_not_move() {
    let mut rig = running();
    let before = rig.transport.state();
    rig.set(VIRTIO_MMIO_QUEUE_READY, 0);
    rig.set(VIRTIO_MMIO_QUEUE_DESC_LOW, 0x9000);
    rig.set(VIRTIO_MMIO_QUEUE_NUM, 2);
    assert_eq!(rig.transport.state(), before);
}

#[test]
fn a_state_survives_being_written_down() {
    let mut rig = running();
    let chain = [rig.writable(16)];
    rig.queues[0].add(&chain);
    rig.notify(0);
    let state = rig.transport.state();
    assert_eq!((state.queues[0].next_avail, state.queues[0].next_used), (1, 1));
    let text = serde_json::to_string(&state).unwrap();
    let read: TransportStateV1 = serde_json::from_str(&text).unwrap();
    assert_eq!(read, state);
    let again = restored(&rig, &read).unwrap().state();
    assert_eq!(again, TransportStateV1 { config_generation: 1, ..state });
}

#[test]
fn what_was_under_way_arrives_after_a_restore() {
    let mut rig = running();
    let chains = [rig.writable(16), rig.writable(16)];
    rig.queues[0].add(&chains[..1]);
    rig.notify(0);
    assert_eq!(rig.line.take(), 1);
    // Available, and its notification lost with the process.
    rig.queues[0].add(&chains[1..]);
    let state = rig.transport.state();
    rig.transport = restored(&rig, &state).unwrap();
    assert_eq!(rig.line.take(), 1, "an interrupt that was not acknowledged is repeated");
    rig.poll();
    assert_eq!(rig.queues[0].take_used(), Some((0, 16)));
    assert_eq!(rig.queues[0].take_used(), Some((1, 16)));
    assert_ne!(rig.bytes(&chains[1]), [0; 16]);
}

#[test]
fn an_unfinished_configuration_is_restored_as_it_is() {
    let mut rig = Rig::new(Box::new(Rng::new()));
    rig.negotiate(0);
    rig.set(VIRTIO_MMIO_QUEUE_DESC_LOW, 0x7);
    let state = rig.transport.state();
    let transport = restored(&rig, &state).unwrap();
    assert_eq!(transport.state().queues, state.queues);
}

#[test]
fn restore_refuses_any_one_broken_field() {
    let rig = running();
    let good = serde_json::to_value(rig.transport.state()).unwrap();
    let broken = [
        ("/status", json!(4)),
        ("/status", json!(0x115)),
        ("/driver_features", json!(1)),
        ("/driver_features", json!(VERSION_1 | 1 << 5)),
        ("/interrupt_status", json!(4)),
        ("/queues", json!([])),
        ("/queues/0/max_size", json!(128)),
        ("/queues/0/max_size", json!(0)),
        ("/queues/0/size", json!(0)),
        ("/queues/0/size", json!(3)),
        ("/queues/0/size", json!(128)),
        ("/queues/0/event_idx", json!(false)),
        ("/queues/0/desc_table", json!(0x1_0001)),
        ("/queues/0/desc_table", json!(u64::MAX - 15)),
        ("/queues/0/avail_ring", json!(1)),
        ("/queues/0/avail_ring", json!(1_u64 << 40)),
        ("/queues/0/used_ring", json!(2)),
        ("/queues/0/used_ring", json!(0x7f_fffc)),
        ("/device", json!({"net": {"mac": [0, 0, 0, 0, 0, 0]}})),
    ];
    for (field, value) in broken {
        let mut state = good.clone();
        *state.pointer_mut(field).unwrap() = value.clone();
        let state = serde_json::from_value(state).unwrap();
        assert!(restored(&rig, &state).is_err(), "{field} = {value} was accepted");
    }
    restored(&rig, &serde_json::from_value(good).unwrap()).unwrap();
}

#[test]
fn hostile_positions_stop_the_device_and_nothing_else() {
    let mut rig = running();
    let mut state = rig.transport.state();
    state.queues[0].next_avail = 0x8000;
    state.queues[0].next_used = 0xffff;
    rig.transport = restored(&rig, &state).unwrap();
    rig.notify(0);
    assert_eq!(rig.get(STATUS), 15 | NEEDS_RESET);
}

/// A line that cannot be raised.
#[derive(Debug)]
struct Cut;

impl IrqLine for Cut {
    fn raise(&self) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn a_cut_interrupt_line_stops_the_device() {
    let mut rig = running();
    let chain = [rig.writable(16)];
    rig.queues[0].add(&chain);
    let state = rig.transport.state();
    let poller = Arc::clone(&rig.events);
    let line: Box<dyn IrqLine> = Box::new(Cut);
    rig.transport = MmioTransport::restore(Box::new(Rng::new()), rig.mem.clone(), line, poller, &state).unwrap();
    rig.notify(0);
    assert_eq!(rig.get(STATUS), 15 | NEEDS_RESET);
}

#[test]
fn any_access_is_survived() {
    crate::fuzzing::try_for_a_while(crate::fuzzing::mmio);
}
