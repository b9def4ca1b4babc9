//! What becomes of connections when a device is restored.

use super::*;
use crate::MmioTransport;

const EVENT: u16 = 2;

impl Guest {
    /// Supplies buffers for events, as Linux does, with something in them.
    fn supply_events(&mut self, count: usize) -> Vec<Buffer> {
        let buffers: Vec<_> = (0..count).map(|_| self.rig.writable(4)).collect();
        for buffer in &buffers {
            self.rig.mem.write_slice(&[9; 4], GuestAddress(buffer.address)).unwrap();
            self.rig.queues[2].add(&[*buffer]);
        }
        self.rig.notify(EVENT);
        buffers
    }

    /// Puts another device in place of the one the driver knows, as in another process; the old one is returned.
    fn restored(&mut self, cid: u64) -> MmioTransport {
        let state = self.rig.transport.state();
        self.dir = tempfile::tempdir().unwrap();
        let device = Box::new(Vsock::new(cid, self.socket()).unwrap());
        let (line, poller) = (Box::new(self.rig.line.clone()), Arc::clone(&self.rig.events));
        let transport = MmioTransport::restore(device, self.rig.mem.clone(), line, poller, &state).unwrap();
        std::mem::replace(&mut self.rig.transport, transport)
    }

    fn client_waits(&mut self) -> UnixStream {
        let mut client = UnixStream::connect(self.socket()).unwrap();
        writeln!(client, "CONNECT {PORT}").unwrap();
        self.assert_silent();
        client
    }
}

#[test]
fn the_driver_learns_that_connections_are_gone_once_it_can_hear_it() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (_client, port) = guest.client();
    let _source = guest.restored(43);
    guest.rig.settle();
    let events = guest.supply_events(1);
    assert_eq!(guest.rig.queues[2].take_used(), Some((0, 4)));
    assert_eq!(guest.rig.bytes(&events[0]), [0; 4]);
    let mut cid = [0; 8];
    guest.rig.transport.read(VIRTIO_MMIO_CONFIG.into(), &mut cid);
    assert_eq!(u64::from_le_bytes(cid), 43, "the address is the new host's to give");
    let restored = guest.rig.transport.state().device;
    assert_eq!(restored, DeviceState::Vsock(VsockStateV1 { next_port: port + 1 }));
}

#[test]
fn a_state_with_an_impossible_port_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut device = Vsock::new(CID, dir.path().join("v")).unwrap();
    for next_port in [0, 80, u32::MAX] {
        device.restore(&DeviceState::Vsock(VsockStateV1 { next_port })).unwrap_err();
    }
}

#[test]
fn the_driver_learns_it_though_nothing_else_happens() {
    for refused in [0, 1 << 29] {
        let mut guest = Guest::without(refused);
        let events = guest.supply_events(8);
        let _source = guest.restored(CID);
        assert_eq!(guest.rig.line.take(), 0);
        // No queue is notified and no client comes: only the loop runs.
        guest.rig.settle();
        assert_eq!(guest.rig.queues[2].take_used(), Some((0, 4)));
        assert_eq!(guest.rig.bytes(&events[0]), [0; 4]);
        assert_eq!(guest.rig.line.take(), 1);
        guest.rig.notify(EVENT);
        assert_eq!(guest.rig.queues[2].take_used(), None, "once is enough");
    }
}

#[test]
fn clients_wait_until_the_driver_has_closed_its_old_connections() {
    for refused in [0, 1 << 29] {
        let mut guest = Guest::without(refused);
        guest.supply(8);
        guest.supply_events(8);
        let _source = guest.restored(CID);
        let mut client = guest.client_waits();
        let (head, _) = guest.rig.queues[2].take_used().unwrap();
        guest.rig.notify(EVENT);
        guest.assert_silent();
        // The driver has acted and supplies the buffer again.
        guest.rig.queues[2].offer(head);
        assert!(guest.rig.queues[2].wants_notification(refused == 0), "or we would never know");
        guest.rig.notify(EVENT);
        let request = guest.expect(op::REQUEST);
        guest.say(request.src_port, op::RESPONSE, &[]);
        assert_eq!(line(&mut client), format!("OK {}\n", request.src_port));
    }
}

#[test]
fn a_device_restored_again_before_it_could_speak_still_speaks() {
    let mut guest = Guest::new();
    guest.supply(8);
    let _first = guest.restored(CID);
    guest.rig.settle();
    let _second = guest.restored(CID);
    let _client = guest.client_waits();
    guest.supply_events(1);
    assert_eq!(guest.rig.queues[2].take_used(), Some((0, 4)));
    guest.rig.queues[2].offer(0);
    guest.rig.notify(EVENT);
    guest.expect(op::REQUEST);
}
