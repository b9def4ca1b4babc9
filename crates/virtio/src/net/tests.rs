use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_CONFIG, VIRTIO_MMIO_STATUS};

use super::*;
use crate::fuzzing;
use crate::test_utils::{Buffer, FREE, MEMORY, Rig};

const RX: u16 = 0;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap()
}

fn card(refused: u64) -> (Rig, OwnedFd) {
    let (link, peer) = pair();
    (Rig::running_without(Box::new(Net::without_offloads(link, MAC)), refused), peer)
}

fn packet(len: usize) -> Vec<u8> {
    [vec![0; HEADER_LEN], (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()].concat()
}

fn push(peer: &OwnedFd, bytes: &[u8]) {
    assert_eq!(send(peer, bytes, SendFlags::NOSIGNAL).unwrap(), bytes.len());
}

fn pull(peer: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 70_000];
    let count = recv(peer, &mut *bytes, RecvFlags::empty()).ok()?.0;
    bytes.truncate(count);
    Some(bytes)
}

#[test]
fn a_driver_sees_the_address() {
    let (rig, _peer) = card(0);
    let mut mac = [0; 6];
    rig.transport.read(VIRTIO_MMIO_CONFIG.into(), &mut mac);
    assert_eq!(mac, MAC);
}

#[test]
fn offloads_are_offered_only_on_a_tap_and_set_on_it() {
    let offloads = 1 << VIRTIO_NET_F_GUEST_TSO4 | HOST_OFFLOADS;
    let (link, _peer) = pair();
    assert_eq!(Net::without_offloads(link, MAC).features() & offloads, 0);
    let (not_a_tap, _peer) = pair();
    let net = Net::new(not_a_tap, MAC);
    assert_eq!(net.features() & offloads, offloads);
    let rig = Rig::running(Box::new(net));
    assert_eq!(rig.get(VIRTIO_MMIO_STATUS), 15 | 64, "a socket refuses the ioctl");
}

#[test]
fn a_packet_goes_out_from_any_layout() {
    let (mut rig, peer) = card(0);
    let bytes = packet(3000);
    let parts = [&bytes[..5], &bytes[5..12], &bytes[12..13], &bytes[13..]].map(|part| rig.readable(part));
    rig.queues[1].add(&parts);
    rig.notify(TX);
    assert_eq!(rig.queues[1].take_used(), Some((0, 0)));
    assert_eq!(pull(&peer), Some(bytes));
    assert_eq!(rig.line.take(), 1);
}

#[test]
fn a_packet_comes_in_over_as_many_buffers_as_it_needs() {
    let (mut rig, peer) = card(0);
    let across = Buffer { address: MEMORY / 2 - 100, len: 1000, writable: true };
    let buffers = [rig.writable(100), across, rig.writable(5000), rig.writable(500)];
    for buffer in buffers {
        rig.queues[0].add(&[buffer]);
    }
    push(&peer, &packet(3000));
    rig.settle();
    let used: Vec<_> = (0..4).filter_map(|_| rig.queues[0].take_used()).collect();
    assert_eq!(used, [(0, 100), (1, 1000), (2, 1912)]);
    let mut bytes: Vec<u8> = buffers.iter().flat_map(|buffer| rig.bytes(buffer)).collect();
    bytes.truncate(3012);
    assert_eq!(bytes[NUM_BUFFERS..HEADER_LEN], [3, 0]);
    assert_eq!(bytes[HEADER_LEN..], packet(3000)[HEADER_LEN..]);
    assert!(rig.line.take() > 0);
}

#[test]
fn a_driver_without_merging_gets_whole_packets_only() {
    let (mut rig, peer) = card(MERGE);
    let small = [rig.writable(100)];
    let large = [rig.writable(12), rig.writable(1600)];
    rig.queues[0].add(&small);
    rig.queues[0].add(&large);
    push(&peer, &packet(1000));
    push(&peer, &packet(1500));
    rig.settle();
    assert_eq!(rig.queues[0].take_used(), Some((0, 0)), "the first packet is dropped");
    assert_eq!(rig.queues[0].take_used(), Some((1, 1512)));
    assert_eq!(rig.bytes(&large[0])[NUM_BUFFERS..], [1, 0]);
    assert_eq!(rig.bytes(&large[1])[..1500], packet(1500)[HEADER_LEN..]);
}

#[test]
fn without_room_the_tap_is_left_alone_until_there_is_some() {
    for refused in [0, 1 << 29] {
        let (mut rig, peer) = card(refused);
        (0..3_u8).for_each(|first| push(&peer, &[&[0; 12][..], &[first; 2000]].concat()));
        rig.settle();
        assert_eq!(rig.events.wait(Duration::ZERO), [], "the loop is quiet though the tap is readable");
        let small = [rig.writable(600)];
        rig.queues[0].add(&small);
        assert!(rig.queues[0].wants_notification(refused == 0));
        rig.notify(RX);
        rig.settle();
        assert_eq!(rig.queues[0].take_used(), None, "600 bytes are not enough");
        let large = [rig.writable(6000)];
        rig.queues[0].add(&large);
        assert!(rig.queues[0].wants_notification(refused == 0), "the driver must tell of what it adds");
        rig.notify(RX);
        rig.settle();
        assert_eq!(rig.queues[0].take_used(), Some((0, 600)));
        assert_eq!(rig.queues[0].take_used(), Some((1, 1412)));
        for first in 1..3 {
            let buffer = rig.writable(4096);
            rig.queues[0].add(&[buffer]);
            rig.notify(RX);
            rig.settle();
            rig.queues[0].take_used().unwrap();
            assert_eq!(rig.bytes(&buffer)[12], first);
        }
    }
}

#[test]
fn a_full_tap_is_waited_for() {
    let (link, peer) = pair();
    rustix::net::sockopt::set_socket_send_buffer_size(&link, 8192).unwrap();
    let mut rig = Rig::running(Box::new(Net::without_offloads(link, MAC)));
    for number in 0..250_u32 {
        let buffer = rig.readable(&[&[0; 12][..], &number.to_le_bytes(), &[0; 1000]].concat());
        rig.queues[1].add(&[buffer]);
    }
    rig.notify(TX);
    rig.settle();
    assert_eq!(rig.events.wait(Duration::ZERO), []);
    let mut sent = std::iter::from_fn(|| rig.queues[1].take_used()).count();
    assert!(sent < 50, "{sent} packets fit into 8 KiB");
    let mut received = Vec::new();
    while received.len() < 250 {
        while let Some(bytes) = pull(&peer) {
            received.push(u32::from_le_bytes(bytes[12..16].try_into().unwrap()));
        }
        rig.settle();
        sent += std::iter::from_fn(|| rig.queues[1].take_used()).count();
        assert!(sent >= received.len());
    }
    assert_eq!(received, (0..250).collect::<Vec<_>>());
}

#[test]
fn a_lost_peer_costs_packets_and_nothing_else() {
    let (mut rig, peer) = card(0);
    drop(peer);
    let room = rig.writable(2000);
    rig.queues[0].add(&[room]);
    rig.settle();
    let out = rig.readable(&packet(100));
    rig.queues[1].add(&[out]);
    rig.notify(TX);
    rig.settle();
    assert_eq!(rig.queues[1].take_used(), Some((0, 0)));
    assert_eq!(rig.get(VIRTIO_MMIO_STATUS), 15);
}

#[test]
fn packets_of_impossible_size_are_dropped() {
    let (mut rig, peer) = card(0);
    let short = rig.readable(&[0; 11]);
    let piece = Buffer { address: FREE, len: 60_000, writable: false };
    rig.queues[1].add(&[short]);
    rig.queues[1].add(&[piece, piece]);
    let wrong = rig.writable(100);
    rig.queues[1].add(&[wrong]);
    rig.notify(TX);
    assert_eq!((0..3).filter_map(|_| rig.queues[1].take_used()).count(), 3);
    assert_eq!(pull(&peer), None);
}

#[test]
fn a_restored_card_keeps_its_address_and_its_place() {
    let (mut rig, peer) = card(0);
    let first = rig.writable(2000);
    rig.queues[0].add(&[first]);
    push(&peer, &packet(50));
    rig.settle();
    assert_eq!(rig.queues[0].take_used(), Some((0, 62)));
    let state = rig.transport.state();
    let (link, peer) = pair();
    let device = Box::new(Net::without_offloads(link, [9; 6]));
    let (line, poller) = (Box::new(rig.line.clone()), Arc::clone(&rig.events));
    rig.transport = crate::MmioTransport::restore(device, rig.mem.clone(), line, poller, &state).unwrap();
    let mut mac = [0; 6];
    rig.transport.read(VIRTIO_MMIO_CONFIG.into(), &mut mac);
    assert_eq!(mac, MAC);
    let second = rig.writable(2000);
    rig.queues[0].add(&[second]);
    push(&peer, &packet(70));
    rig.settle();
    assert_eq!(rig.queues[0].take_used(), Some((1, 82)));
}

#[test]
fn a_reset_card_leaves_the_loop() {
    let (mut rig, peer) = card(0);
    push(&peer, &packet(70));
    rig.set(VIRTIO_MMIO_STATUS, 0);
    assert_eq!(rig.events.wait(Duration::ZERO), []);
}

#[test]
fn any_driver_is_survived() {
    fuzzing::try_for_a_while(fuzzing::net);
}
