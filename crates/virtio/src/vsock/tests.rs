mod restore;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tempfile::TempDir;
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_CONFIG, VIRTIO_MMIO_STATUS};

use super::connection::BACKLOG;
use super::packet::{HOST_CID, Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM, op};
use super::*;
use vm_memory::{Bytes, GuestAddress};

use crate::Buffers;
use crate::fuzzing;
use crate::test_utils::{Buffer, Rig};

const RX: u16 = 0;
const CID: u64 = 42;
const PORT: u32 = 1717;
const CREDIT: u32 = 256 << 10;
const BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// A guest's kernel, as far as it has sockets.
struct Guest {
    rig: Rig,
    dir: TempDir,
    room: Vec<Buffer>,
    scratch: Buffer,
}

impl Guest {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Vsock)) -> Self {
        Self::made(change, 0)
    }

    /// One that does not accept some features.
    fn without(refused: u64) -> Self {
        Self::made(|_| {}, refused)
    }

    fn made(change: impl FnOnce(&mut Vsock), refused: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut device = Vsock::new(CID, dir.path().join("v")).unwrap();
        change(&mut device);
        Self::of(device, dir, refused)
    }

    /// The driver of a device that listens in this directory.
    fn of(device: Vsock, dir: TempDir, refused: u64) -> Self {
        let mut rig = Rig::running_without(Box::new(device), refused);
        let scratch = rig.readable(&vec![0; 130 << 10]);
        Self { rig, dir, room: Vec::new(), scratch }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("v")
    }

    /// Supplies receive buffers of 4 KiB, as Linux does.
    fn supply(&mut self, count: usize) {
        for _ in 0..count {
            let buffer = self.rig.writable(4096);
            let head = self.rig.queues[0].add(&[buffer]);
            assert_eq!(usize::from(head), self.room.len());
            self.room.push(buffer);
        }
        self.rig.notify(RX);
    }

    /// The next packet, if there is one now; its buffer is supplied again.
    fn poll_packet(&mut self) -> Option<(Header, Vec<u8>)> {
        let (head, len) = self.rig.queues[0].take_used()?;
        let mut bytes = self.rig.bytes(&self.room[usize::from(head)]);
        bytes.truncate(usize::try_from(len).unwrap());
        self.rig.queues[0].offer(head);
        self.rig.notify(RX);
        let header = Header::take(&mut Buffers::from(bytes.as_mut_slice())).unwrap();
        assert_eq!((header.src_cid, header.dst_cid, header.socket_type), (HOST_CID, CID, TYPE_STREAM));
        assert_eq!(usize::try_from(header.len).unwrap(), bytes.len() - Header::LEN);
        Some((header, bytes.split_off(Header::LEN)))
    }

    /// The next packet; the loop runs until it is there.
    fn packet(&mut self) -> (Header, Vec<u8>) {
        loop {
            if let Some(packet) = self.poll_packet() {
                return packet;
            }
            assert!(self.rig.poll() > 0 || !self.rig.events.wait(Duration::from_secs(20)).is_empty(), "no packet came");
        }
    }

    fn expect(&mut self, op: u16) -> Header {
        let (header, _) = self.packet();
        assert_eq!(header.op, op, "{header:?}");
        header
    }

    fn assert_silent(&mut self) {
        self.rig.settle();
        assert_eq!(self.poll_packet(), None);
    }

    fn send(&mut self, header: Header, payload: &[u8]) {
        let header = Header { len: u32::try_from(payload.len()).unwrap(), ..header };
        let bytes = [header.to_bytes(), payload.to_vec()].concat();
        self.rig.mem.write_slice(&bytes, GuestAddress(self.scratch.address)).unwrap();
        let len = u32::try_from(bytes.len()).unwrap();
        self.rig.queues[1].add(&[Buffer { len, ..self.scratch }]);
        self.rig.notify(TX);
    }

    fn say(&mut self, host: u32, op: u16, payload: &[u8]) {
        self.send(from_guest(host, op), payload);
    }

    /// Sends as much as credit allows to a host that reads nothing; says how much that was, and what.
    fn fill_up(&mut self, header: Header) -> (u32, Vec<u8>) {
        let (mut sent, mut told) = (0_u32, 0_u32);
        let chunk = pattern(16 << 10);
        loop {
            while let Some((heard, _)) = self.poll_packet() {
                assert_eq!(heard.src_port, header.dst_port);
                assert!([op::CREDIT_UPDATE, op::CREDIT_REQUEST].contains(&heard.op), "{heard:?}");
                told = heard.fwd_cnt;
            }
            if sent - told + (16 << 10) > BACKLOG {
                return (sent, chunk);
            }
            self.send(header, &chunk);
            sent += 16 << 10;
            assert!(sent < 64 << 20, "an unread socket takes data without end");
        }
    }

    /// A client of guest port 1717 whose connection the guest has accepted; its host port.
    fn client(&mut self) -> (UnixStream, u32) {
        let mut client = UnixStream::connect(self.socket()).unwrap();
        writeln!(client, "CONNECT {PORT}").unwrap();
        let request = self.expect(op::REQUEST);
        assert_eq!((request.dst_port, request.buf_alloc), (PORT, BACKLOG));
        self.say(request.src_port, op::RESPONSE, &[]);
        assert_eq!(line(&mut client), format!("OK {}\n", request.src_port));
        (client, request.src_port)
    }
}

fn from_guest(host: u32, op: u16) -> Header {
    Header {
        src_cid: CID,
        dst_cid: HOST_CID,
        src_port: PORT,
        dst_port: host,
        socket_type: TYPE_STREAM,
        op,
        buf_alloc: CREDIT,
        ..Header::default()
    }
}

/// Reads one line and nothing after it.
fn line(client: &mut UnixStream) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 31 + at / 4096) % 256).unwrap()).collect()
}

#[test]
fn a_driver_sees_its_address_and_others_are_refused() {
    let guest = Guest::new();
    let mut cid = [0; 8];
    guest.rig.transport.read(VIRTIO_MMIO_CONFIG.into(), &mut cid);
    assert_eq!(u64::from_le_bytes(cid), CID);
    for cid in [0, 2, u32::MAX.into(), 1 << 32] {
        let error = Vsock::new(cid, guest.dir.path().join("x")).unwrap_err();
        assert!(matches!(error, VsockError::Cid { .. }), "{error}");
    }
    assert!(matches!(Vsock::new(3, guest.socket()), Err(VsockError::Listen { .. })), "it is taken");
}

#[test]
fn a_client_reaches_the_guest_and_bytes_flow_both_ways() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (mut client, port) = guest.client();
    client.write_all(b"hello guest").unwrap();
    assert_eq!(guest.packet().1, b"hello guest");
    guest.say(port, op::RW, b"hello host");
    let mut bytes = [0; 10];
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello host");
}

#[test]
fn a_client_is_closed_when_nobody_accepts() {
    let mut guest = Guest::new();
    guest.supply(8);
    let mut client = UnixStream::connect(guest.socket()).unwrap();
    writeln!(client, "CONNECT {PORT}").unwrap();
    let request = guest.expect(op::REQUEST);
    guest.say(request.src_port, op::RST, &[]);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    guest.assert_silent();
}

#[test]
fn a_client_that_gives_up_waiting_makes_room_for_the_next() {
    let mut guest = Guest::with(|device| device.max_connections = 1);
    let ask = |guest: &Guest| {
        let mut client = UnixStream::connect(guest.socket()).unwrap();
        writeln!(client, "CONNECT {PORT}").unwrap();
        client
    };
    // The guest has no buffers yet: it hears nothing of clients that come and go.
    for _ in 0..3 {
        let client = ask(&guest);
        guest.rig.settle();
        drop(client);
        guest.rig.settle();
    }
    guest.supply(4);
    guest.assert_silent();
    // It hears of one, does not answer, and is told that there is no hurry any more.
    let client = ask(&guest);
    let first = guest.expect(op::REQUEST);
    drop(client);
    assert_eq!(guest.expect(op::RST).src_port, first.src_port);
    guest.say(first.src_port, op::RESPONSE, &[]);
    assert_eq!(guest.expect(op::RST).src_port, first.src_port);
    let (_client, second) = guest.client();
    assert_ne!(second, first.src_port);
}

#[test]
fn a_greeting_may_come_in_pieces_and_be_followed_by_data() {
    let mut guest = Guest::new();
    guest.supply(8);
    let mut client = UnixStream::connect(guest.socket()).unwrap();
    for piece in ["CON", "NECT 17", "17\nearly "] {
        client.write_all(piece.as_bytes()).unwrap();
        guest.rig.settle();
    }
    let request = guest.expect(op::REQUEST);
    client.write_all(b"data").unwrap();
    guest.assert_silent();
    guest.say(request.src_port, op::RESPONSE, &[]);
    assert_eq!(guest.packet().1, b"early data");
}

#[test]
fn a_client_that_talks_nonsense_is_closed() {
    let mut guest = Guest::new();
    for nonsense in ["HELLO\n", "CONNECT \n", "CONNECT 4294967296\n", "CONNECT -1\n", &"C".repeat(32), "\n"] {
        let mut client = UnixStream::connect(guest.socket()).unwrap();
        client.write_all(nonsense.as_bytes()).unwrap();
        guest.rig.settle();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{nonsense:?}");
    }
    let silent = UnixStream::connect(guest.socket()).unwrap();
    guest.rig.settle();
    drop(silent);
    guest.rig.settle();
}

#[test]
fn the_guest_reaches_a_service_and_learns_when_there_is_none() {
    let mut guest = Guest::new();
    guest.supply(8);
    let service = UnixListener::bind(guest.dir.path().join("v_80")).unwrap();
    guest.say(80, op::REQUEST, &[]);
    guest.expect(op::RESPONSE);
    let (mut served, _) = service.accept().unwrap();
    guest.say(80, op::RW, b"GET");
    let mut bytes = [0; 3];
    served.read_exact(&mut bytes).unwrap();
    served.write_all(b"200").unwrap();
    assert_eq!(guest.packet().1, b"200");
    guest.say(81, op::REQUEST, &[]);
    assert_eq!(guest.expect(op::RST).src_port, 81);
    guest.say(80, op::REQUEST, &[]);
    assert_eq!(guest.expect(op::RST).src_port, 80, "one connection cannot be opened twice");
    assert_eq!(served.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_payload_may_be_cut_anywhere() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (mut client, port) = guest.client();
    let payload = pattern(9000);
    let header = Header { len: 9000, ..from_guest(port, op::RW) };
    let bytes = [header.to_bytes(), payload.clone()].concat();
    let cuts = [0, 10, 44, 45, 4096, 9044];
    let chain: Vec<_> = cuts.windows(2).map(|cut| guest.rig.readable(&bytes[cut[0]..cut[1]])).collect();
    guest.rig.queues[1].add(&chain);
    guest.rig.notify(TX);
    let mut read = vec![0; 9000];
    client.read_exact(&mut read).unwrap();
    assert_eq!(read, payload);
}

#[test]
fn the_host_sends_no_more_than_the_guest_can_take() {
    let mut guest = Guest::new();
    guest.supply(32);
    let (mut client, port) = guest.client();
    guest.send(Header { buf_alloc: 10_000, ..from_guest(port, op::CREDIT_UPDATE) }, &[]);
    client.write_all(&pattern(25_000)).unwrap();
    let mut received = Vec::new();
    while received.len() < 10_000 {
        received.extend(guest.packet().1);
    }
    guest.expect(op::CREDIT_REQUEST);
    // An answer without credit does not lead to another question.
    guest.send(Header { buf_alloc: 10_000, ..from_guest(port, op::CREDIT_UPDATE) }, &[]);
    guest.assert_silent();
    for taken in [10_000, 20_000] {
        guest.send(Header { buf_alloc: 10_000, fwd_cnt: taken, ..from_guest(port, op::CREDIT_UPDATE) }, &[]);
        let limit = usize::try_from(taken).unwrap() + 10_000;
        while received.len() < limit.min(25_000) {
            let (header, bytes) = guest.packet();
            assert!(header.op != op::RW || !bytes.is_empty());
            received.extend(bytes);
        }
        assert!(received.len() <= limit);
    }
    assert_eq!(received, pattern(25_000));
    // Counters that make no sense give no credit, and no more than that.
    guest.send(Header { buf_alloc: 10, fwd_cnt: u32::MAX, ..from_guest(port, op::CREDIT_UPDATE) }, &[]);
    guest.expect(op::CREDIT_REQUEST);
    client.write_all(b"x").unwrap();
    guest.assert_silent();
}

#[test]
fn a_socket_read_to_its_last_byte_does_not_hold_up_the_loop() {
    let mut guest = Guest::new();
    guest.supply(64);
    let (mut client, _) = guest.client();
    // As much as one read fills: only the next one shows that there is no more.
    let all = pattern(16 * (4096 - Header::LEN));
    client.write_all(&all).unwrap();
    guest.rig.settle();
    let received: Vec<u8> = std::iter::from_fn(|| guest.poll_packet()).flat_map(|(_, bytes)| bytes).collect();
    assert_eq!(received, all);
}

#[test]
fn a_slow_host_reader_holds_up_nobody_else() {
    let mut guest = Guest::new();
    guest.supply(32);
    let ((mut slow, slow_port), (mut fast, fast_port)) = (guest.client(), guest.client());
    let (sent, chunk) = guest.fill_up(from_guest(slow_port, op::RW));
    guest.say(fast_port, op::RW, b"quick");
    let mut bytes = [0; 5];
    fast.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"quick");
    assert_eq!(guest.rig.events.wait(Duration::ZERO), [], "nothing spins");
    // The reader wakes up: everything arrives, and the guest is told.
    let mut read = vec![0; usize::try_from(sent).unwrap()];
    slow.set_nonblocking(true).unwrap();
    let mut done = 0;
    while done < read.len() {
        match slow.read(&mut read[done..]) {
            Ok(count) => done += count,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        guest.rig.settle();
    }
    assert!(read.chunks(16 << 10).all(|part| part == chunk));
    assert_eq!(guest.expect(op::CREDIT_UPDATE).src_port, slow_port);
}

#[test]
fn a_guest_that_sends_more_than_it_may_is_cut_off() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (_client, port) = guest.client();
    let header = Header { len: BACKLOG + 1, ..from_guest(port, op::RW) };
    let head = guest.rig.readable(&header.to_bytes());
    let data = Buffer { len: BACKLOG + 1, ..guest.scratch };
    guest.rig.queues[1].add(&[head, data]);
    guest.rig.notify(TX);
    guest.expect(op::RST);
    let (_client, port) = guest.client();
    let lying = guest.rig.readable(&Header { len: 1, ..from_guest(port, op::RW) }.to_bytes());
    guest.rig.queues[1].add(&[lying]);
    guest.rig.notify(TX);
    guest.expect(op::RST);
}

#[test]
fn each_side_can_shut_down_its_half() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (mut client, port) = guest.client();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(guest.packet().1, b"question");
    assert_eq!(guest.expect(op::SHUTDOWN).flags, SHUTDOWN_SEND);
    guest.say(port, op::RW, b"answer");
    guest.send(Header { flags: SHUTDOWN_SEND, ..from_guest(port, op::SHUTDOWN) }, &[]);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"answer");
    guest.send(Header { flags: BOTH, ..from_guest(port, op::SHUTDOWN) }, &[]);
    guest.expect(op::RST);
    guest.assert_silent();
}

#[test]
fn a_guest_that_receives_no_more_can_still_send() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (mut client, port) = guest.client();
    guest.send(Header { flags: SHUTDOWN_RECEIVE, ..from_guest(port, op::SHUTDOWN) }, &[]);
    assert_eq!(client.write_all(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    guest.say(port, op::RW, b"still here");
    let mut bytes = [0; 10];
    client.read_exact(&mut bytes).unwrap();
    guest.assert_silent();
}

#[test]
fn a_client_that_leaves_ends_the_connection_after_its_last_byte() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (mut client, port) = guest.client();
    client.write_all(b"bye").unwrap();
    drop(client);
    assert_eq!(guest.packet().1, b"bye");
    assert_eq!(guest.expect(op::SHUTDOWN).flags, BOTH);
    guest.say(port, op::RW, b"hello?");
    guest.expect(op::RST);
    guest.say(port, op::RST, &[]);
    guest.assert_silent();
}

#[test]
fn what_a_client_sent_before_leaving_arrives_though_the_guest_talks() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (mut client, port) = guest.client();
    guest.send(Header { buf_alloc: 0, ..from_guest(port, op::CREDIT_UPDATE) }, &[]);
    guest.expect(op::CREDIT_REQUEST);
    client.write_all(b"last words").unwrap();
    drop(client);
    guest.send(Header { buf_alloc: 0, ..from_guest(port, op::RW) }, b"anybody?");
    assert_eq!(guest.expect(op::SHUTDOWN).flags, SHUTDOWN_RECEIVE);
    guest.say(port, op::CREDIT_UPDATE, &[]);
    assert_eq!(guest.packet().1, b"last words");
    assert_eq!(guest.expect(op::SHUTDOWN).flags, BOTH);
}

#[test]
fn a_client_that_leaves_while_the_guest_takes_nothing_makes_room_for_the_next() {
    let mut guest = Guest::with(|device| device.max_connections = 1);
    guest.supply(8);
    let (client, port) = guest.client();
    guest.send(Header { buf_alloc: 0, ..from_guest(port, op::CREDIT_UPDATE) }, &[]);
    guest.expect(op::CREDIT_REQUEST);
    drop(client);
    assert_eq!(guest.expect(op::SHUTDOWN).flags, BOTH);
    let (mut client, port) = guest.client();
    // What it sent before is not thrown away, and is not asked for again and again either.
    guest.send(Header { buf_alloc: 0, ..from_guest(port, op::CREDIT_UPDATE) }, &[]);
    guest.expect(op::CREDIT_REQUEST);
    client.write_all(b"last words").unwrap();
    drop(client);
    guest.assert_silent();
    guest.say(port, op::CREDIT_UPDATE, &[]);
    assert_eq!(guest.packet().1, b"last words");
    assert_eq!(guest.expect(op::SHUTDOWN).flags, BOTH);
    guest.client();
}

#[test]
fn a_client_that_has_sent_all_and_then_leaves_is_missed_though_the_guest_is_silent() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (client, port) = guest.client();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(guest.expect(op::SHUTDOWN).flags, SHUTDOWN_SEND);
    guest.assert_silent();
    drop(client);
    assert_eq!(guest.expect(op::SHUTDOWN).flags, BOTH);
    guest.say(port, op::RST, &[]);
    guest.assert_silent();
}

#[test]
fn a_client_that_leaves_with_a_backlog_and_no_credit_is_missed() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (client, port) = guest.client();
    guest.fill_up(Header { buf_alloc: 0, ..from_guest(port, op::RW) });
    drop(client);
    assert_eq!(guest.expect(op::SHUTDOWN).flags, SHUTDOWN_RECEIVE);
    // It left without having read all.
    assert_eq!(guest.expect(op::RST).src_port, port);
    guest.assert_silent();
}

#[test]
fn what_the_guest_sent_before_closing_reaches_a_slow_host() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (mut client, port) = guest.client();
    rustix::net::sockopt::set_socket_recv_buffer_size(&client, 1).unwrap();
    let all = pattern(100_000);
    guest.say(port, op::RW, &all);
    guest.send(Header { flags: BOTH, ..from_guest(port, op::SHUTDOWN) }, &[]);
    let (mut header, _) = guest.packet();
    if header.op == op::CREDIT_UPDATE {
        (header, _) = guest.packet();
    }
    assert_eq!(header.op, op::RST, "the guest's ports are free at once");
    client.set_nonblocking(true).unwrap();
    let mut read = Vec::new();
    guest.rig.run_until("all has arrived", |rig| {
        loop {
            rig.poll();
            match client.read_to_end(&mut read) {
                Ok(_) => return Some(()),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    });
    assert_eq!(read, all);
}

#[test]
fn much_data_passes_unharmed_both_ways() {
    let mut guest = Guest::new();
    guest.supply(64);
    let (client, port) = guest.client();
    let all = pattern(4 << 20);
    let (mut reader, mut writer) = (client.try_clone().unwrap(), client);
    let (to_guest, expected) = (all.clone(), all.clone());
    let sender = std::thread::spawn(move || writer.write_all(&to_guest).unwrap());
    let receiver = std::thread::spawn(move || {
        let mut read = vec![0; expected.len()];
        reader.read_exact(&mut read).unwrap();
        assert!(read == expected);
    });
    let (mut received, mut sent, mut told, mut packets) = (Vec::new(), 0, 0, 0);
    // The last bytes may wait in the device for the reader.
    while received.len() < all.len() || !receiver.is_finished() {
        while let Some((header, bytes)) = guest.poll_packet() {
            packets += usize::from(header.op == op::RW);
            received.extend(bytes);
            // The client may be done and gone before its thread counts as finished.
            if header.op != op::RST {
                told = usize::try_from(header.fwd_cnt).unwrap();
            }
        }
        let taken = u32::try_from(received.len()).unwrap();
        let room = (BACKLOG as usize - (sent - told)).min(60_000).min(all.len() - sent);
        let header = Header { fwd_cnt: taken, ..from_guest(port, if room > 0 { op::RW } else { op::CREDIT_UPDATE }) };
        guest.send(header, &all[sent..sent + room]);
        sent += room;
        guest.rig.poll();
    }
    assert!(received == all);
    assert!(packets < 2 * all.len() / 4052, "{packets} packets are not full ones");
    sender.join().unwrap();
    receiver.join().unwrap();
}

#[test]
fn without_buffers_packets_wait_and_the_guest_is_held_back() {
    let mut guest = Guest::new();
    for _ in 0..1100 {
        guest.say(9, op::RW, b"");
    }
    guest.rig.settle();
    let taken = std::iter::from_fn(|| guest.rig.queues[1].take_used()).count();
    assert_eq!(taken, 1024, "one answer for each packet, and no more than fit in the line");
    guest.supply(16);
    let answers = (0..1100).map(|_| guest.expect(op::RST)).count();
    assert_eq!(answers, 1100);
    guest.assert_silent();
}

#[test]
fn packets_from_elsewhere_and_of_unknown_kinds_are_turned_away() {
    let mut guest = Guest::new();
    guest.supply(8);
    guest.send(Header { src_cid: 7, ..from_guest(80, op::REQUEST) }, &[]);
    guest.send(Header { dst_cid: 5, ..from_guest(80, op::REQUEST) }, &[]);
    guest.assert_silent();
    let short = guest.rig.readable(&[0; 43]);
    guest.rig.queues[1].add(&[short]);
    guest.rig.notify(TX);
    guest.assert_silent();
    let (mut client, port) = guest.client();
    guest.say(port, 99, &[]);
    guest.expect(op::RST);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn nobody_is_interrupted_for_nothing() {
    for refused in [0, 1 << 29] {
        let dir = tempfile::tempdir().unwrap();
        let device = Vsock::new(CID, dir.path().join("v")).unwrap();
        let mut rig = Rig::running_without(Box::new(device), refused);
        let ignored = rig.readable(&from_guest(9, op::RST).to_bytes());
        rig.queues[1].add(&[ignored]);
        rig.notify(TX);
        assert_eq!(rig.line.take(), 1, "the packet was taken");
        (0..3).for_each(|queue| rig.notify(queue));
        assert_eq!(rig.line.take(), 0);
    }
}

#[test]
fn a_datagram_is_answered_in_kind() {
    let mut guest = Guest::new();
    guest.supply(8);
    guest.send(Header { socket_type: 3, ..from_guest(80, op::RW) }, &[]);
    guest.rig.settle();
    let (head, len) = guest.rig.queues[0].take_used().unwrap();
    assert_eq!(len, 44);
    let bytes = guest.rig.bytes(&guest.room[usize::from(head)]);
    assert_eq!((bytes[28], bytes[30]), (3, 3), "type 3, RST");
}

#[test]
fn there_is_a_limit_to_connections_and_clients_wait_beyond_it() {
    let mut guest = Guest::with(|device| device.max_connections = 2);
    guest.supply(8);
    let _service = UnixListener::bind(guest.dir.path().join("v_80")).unwrap();
    let (first, _) = guest.client();
    let _second = guest.client();
    guest.say(80, op::REQUEST, &[]);
    guest.expect(op::RST);
    let mut third = UnixStream::connect(guest.socket()).unwrap();
    writeln!(third, "CONNECT {PORT}").unwrap();
    guest.assert_silent();
    drop(first);
    guest.expect(op::SHUTDOWN);
    guest.expect(op::REQUEST);
}

#[test]
fn the_guest_leaves_places_for_clients() {
    let mut guest = Guest::with(|device| device.max_connections = 4);
    guest.supply(8);
    let services: Vec<_> =
        (80..83).map(|port| UnixListener::bind(guest.dir.path().join(format!("v_{port}"))).unwrap()).collect();
    for (port, answer) in [(80, op::RESPONSE), (81, op::RESPONSE), (82, op::RST)] {
        guest.say(port, op::REQUEST, &[]);
        guest.expect(answer);
    }
    services[2].set_nonblocking(true).unwrap();
    assert!(services[2].accept().is_err(), "a service does not see who is turned away");
    let _clients = [guest.client(), guest.client()];
    guest.say(80, op::RST, &[]);
    guest.say(82, op::REQUEST, &[]);
    guest.expect(op::RESPONSE);
}

#[test]
fn a_reset_closes_everything_and_the_next_driver_starts_afresh() {
    let mut guest = Guest::new();
    guest.supply(8);
    let (mut client, _) = guest.client();
    guest.rig.set(VIRTIO_MMIO_STATUS, 0);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let _waits = UnixStream::connect(guest.socket()).unwrap();
    assert_eq!(guest.rig.events.wait(Duration::ZERO), []);
}

#[test]
fn a_device_without_a_path_listens_and_reaches_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let handed = UnixListener::bind(&path).unwrap();
    handed.set_nonblocking(true).unwrap();
    let device = Vsock::on(CID, handed.into()).unwrap();
    let _service = UnixListener::bind(dir.path().join("v_80")).unwrap();
    let mut guest = Guest::of(device, dir, 0);
    guest.supply(8);
    guest.say(80, op::REQUEST, &[]);
    guest.expect(op::RST);
    let _client = guest.client();
    drop(guest.rig);
    assert!(path.exists(), "it is somebody else's");
}

#[test]
fn the_socket_goes_with_the_device_but_not_with_a_copy_in_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let mut inherited = Vsock::new(CID, path.clone()).unwrap();
    inherited.listener.file.as_mut().unwrap().owner = Pid::INIT;
    drop(inherited);
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();
    drop(Vsock::new(CID, path.clone()).unwrap());
    assert!(!path.exists());
}

#[test]
fn any_driver_is_survived() {
    fuzzing::try_for_a_while(fuzzing::vsock);
}
