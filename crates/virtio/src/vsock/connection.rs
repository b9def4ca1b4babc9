//! One connection: a host socket, what is on its way to it, and who may send how much.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use virtio_queue::{Queue, QueueT};

use super::packet::{Header, Ports, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};
use crate::poll::Watch;
use crate::queue::{self, QueueError};
use crate::{Buffers, GuestMem, Interest, sys};

/// How much of the guest's data we hold for a host socket that is not being read. Announced to the guest, which must
/// not send more; two of Linux's largest packets, so that one can be sent while the other is forwarded.
pub(super) const BACKLOG: u32 = 128 << 10;
/// How many of the guest's buffers are filled by one read. Linux's have 4 KiB.
const BURST: usize = 16;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The guest has been asked.
    Connecting,
    /// Data flows.
    Open,
    /// The guest has closed it; what it sent before still goes to the host.
    Draining,
}

/// Whether data still flows in a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// It does.
    Open,
    /// Only what is in the backlog.
    Ending,
    /// No more.
    Ended,
}

/// What came of reading the host socket.
#[derive(Debug)]
pub(super) enum Burst {
    /// All buffers at hand were filled; there may be more.
    Full,
    /// All there was has been read.
    Drained,
    /// The guest takes no more at present.
    NoCredit,
    /// The guest has no buffer at hand.
    NoRoom,
    /// The host will send no more.
    Ended,
    /// The socket is broken.
    Failed(io::Error),
}

/// Counters of both directions. All of them wrap.
#[derive(Debug, Default)]
struct Credit {
    /// The guest's buffer, and how much of what we sent it has taken.
    guest_buffer: u32,
    guest_taken: u32,
    sent: u32,
    /// What we received, gave to the host, and told the guest of.
    received: u32,
    forwarded: u32,
    told: u32,
    asked: bool,
}

impl Credit {
    /// How much the guest can take. Nonsensical counters give nothing.
    const fn available(&self) -> u32 {
        self.guest_buffer.saturating_sub(self.sent.wrapping_sub(self.guest_taken))
    }

    const fn held(&self) -> u32 {
        self.received.wrapping_sub(self.forwarded)
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ports: Ports,
    pub(super) phase: Phase,
    pub(super) from_host: Flow,
    pub(super) to_host: Flow,
    /// In the line of those that have data for the guest and wait for room.
    pub(super) in_line: bool,
    /// The host's end is closed.
    hung_up: bool,
    socket: OwnedFd,
    watch: Watch,
    credit: Credit,
    backlog: VecDeque<u8>,
    /// The directions the guest has shut down.
    guest_ended: u32,
}

impl Connection {
    pub(super) fn new(ports: Ports, phase: Phase, socket: OwnedFd, watch: Watch) -> Self {
        Self {
            ports,
            phase,
            from_host: Flow::Open,
            to_host: Flow::Open,
            in_line: false,
            hung_up: false,
            socket,
            watch,
            credit: Credit::default(),
            backlog: VecDeque::new(),
            guest_ended: 0,
        }
    }

    /// A packet to the guest; every one tells it how much it may send.
    pub(super) fn header(&mut self, cid: u64, op: u16) -> Header {
        self.credit.told = self.credit.forwarded;
        Header { buf_alloc: BACKLOG, fwd_cnt: self.credit.forwarded, ..Header::to_guest(cid, self.ports, op) }
    }

    /// Learns from a packet how much the guest can take.
    pub(super) fn learn_credit(&mut self, header: &Header) {
        self.credit.guest_buffer = header.buf_alloc;
        self.credit.guest_taken = header.fwd_cnt;
        self.credit.asked &= self.credit.available() == 0;
    }

    /// Whether the guest should be asked for credit: once each time it runs out.
    pub(super) fn must_ask_for_credit(&mut self) -> bool {
        self.reads() && self.credit.available() == 0 && !std::mem::replace(&mut self.credit.asked, true)
    }

    /// Whether the guest should be told how much was forwarded, because it may soon believe the backlog to be full.
    pub(super) const fn must_tell_credit(&self) -> bool {
        self.credit.forwarded.wrapping_sub(self.credit.told) >= BACKLOG / 2
    }

    /// Says something to the host before the guest's data begins. The socket is new, so there is room.
    pub(super) fn greet(&self, text: &str) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.socket, text.as_bytes(), flags)? {
            count if count == text.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Takes data from the guest: at once to the host what it takes, the rest into the backlog.
    ///
    /// `false` when the guest sent more than it was allowed to.
    pub(super) fn accept(&mut self, mut payload: Buffers<'_>) -> io::Result<bool> {
        let Ok(len) = u32::try_from(payload.len()) else { return Ok(false) };
        if self.to_host == Flow::Ending || len > BACKLOG.saturating_sub(self.credit.held()) {
            return Ok(false);
        }
        self.credit.received = self.credit.received.wrapping_add(len);
        if self.to_host == Flow::Ended {
            self.credit.forwarded = self.credit.received;
            return Ok(true);
        }
        if self.backlog.is_empty() && !payload.is_empty() {
            let count = or_later(sys::send(self.socket.as_fd(), &payload))?;
            payload.skip(count);
            self.count_forwarded(count);
        }
        let mut rest = vec![0; payload.len()];
        payload.copy_to(&mut rest);
        self.backlog.extend(rest);
        Ok(true)
    }

    /// The guest will receive or send no more; `true` once it will do neither.
    pub(super) fn guest_shut_down(&mut self, flags: u32) -> io::Result<bool> {
        self.guest_ended |= flags & (SHUTDOWN_RECEIVE | SHUTDOWN_SEND);
        if flags & SHUTDOWN_RECEIVE != 0 && self.from_host == Flow::Open {
            self.from_host = Flow::Ended;
            rustix::net::shutdown(&self.socket, Shutdown::Read)?;
        }
        if flags & SHUTDOWN_SEND != 0 && self.to_host == Flow::Open {
            self.to_host = Flow::Ending;
            self.flush()?;
        }
        Ok(self.guest_ended == SHUTDOWN_RECEIVE | SHUTDOWN_SEND)
    }

    /// Whether data from the host is of use to the guest.
    pub(super) fn reads(&self) -> bool {
        self.phase == Phase::Open && self.from_host == Flow::Open
    }

    /// Gives the host what it takes of the backlog.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.backlog.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = rustix::net::send(&self.socket, self.backlog.as_slices().0, flags).map_err(io::Error::from);
            let count = or_later(sent)?;
            if count == 0 {
                return Ok(());
            }
            self.backlog.drain(..count);
            self.count_forwarded(count);
        }
        self.backlog = VecDeque::new();
        if self.to_host == Flow::Ending {
            self.to_host = Flow::Ended;
            rustix::net::shutdown(&self.socket, Shutdown::Write)?;
        }
        Ok(())
    }

    /// The host reads no more: what waits for it is dropped.
    pub(super) fn drop_backlog(&mut self) {
        self.to_host = Flow::Ended;
        self.backlog = VecDeque::new();
        self.credit.forwarded = self.credit.received;
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    fn count_forwarded(&mut self, count: usize) {
        let count = u32::try_from(count).expect("no more than was received");
        self.credit.forwarded = self.credit.forwarded.wrapping_add(count);
    }

    /// Reads from the host straight into the guest's buffers, as many as one call can fill.
    pub(super) fn read(&mut self, cid: u64, rx: &mut Queue, mem: &GuestMem) -> Result<Burst, QueueError> {
        if !self.reads() {
            return Ok(Burst::Drained);
        }
        if self.hung_up
            && let Some(end) = self.peek_end()
        {
            return Ok(end);
        }
        let credit = usize::try_from(self.credit.available()).unwrap_or(usize::MAX);
        if credit == 0 {
            return Ok(Burst::NoCredit);
        }
        let slots = take_slots(rx, mem, credit)?;
        if slots.is_empty() {
            return Ok(Burst::NoRoom);
        }
        let mut all = Buffers::default();
        slots.iter().for_each(|slot| all.append(slot.data.clone()));
        let result = sys::read(self.socket.as_fd(), &all);
        let count = *result.as_ref().unwrap_or(&0);
        let mut rest = count;
        for mut slot in slots {
            if rest == 0 {
                queue::unpop(rx);
                continue;
            }
            let part = rest.min(slot.data.len());
            rest -= part;
            let len = u32::try_from(part).expect("bounded by the guest's credit");
            self.credit.sent = self.credit.sent.wrapping_add(len);
            let header = Header { len, ..self.header(cid, op::RW) };
            slot.header.copy_from(&header.to_bytes());
            rx.add_used(mem, slot.head, len + HEADER_LEN)?;
        }
        Ok(match result {
            Ok(0) => Burst::Ended,
            Ok(_) if count == all.len() => Burst::Full,
            Ok(_) => Burst::Drained,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Burst::Drained,
            Err(error) => Burst::Failed(error),
        })
    }

    /// Watches the host socket for what can be made use of, and for the host's going away: a client may give up while
    /// it waits for the guest's answer, and leave while the guest takes nothing.
    pub(super) fn update_watch(&mut self) -> io::Result<()> {
        let connecting = self.phase == Phase::Connecting;
        let reads = self.reads() && !self.in_line && self.credit.available() > 0;
        let useful = Interest::in_either((reads, self.has_backlog())).filter(|_| !connecting);
        self.watch.set(self.socket.as_fd(), useful.or((!self.hung_up).then_some(Interest::Hangup)))
    }

    /// Finds out whether the host's end is closed, and not only shut down for sending. It is then no longer watched
    /// for, or it would be told for ever.
    pub(super) fn notice_hangup(&mut self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        self.hung_up |= polled.is_err() || fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
    }

    /// Whether the host is gone and has nothing more to say.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Open && self.hung_up && self.from_host != Flow::Open
    }

    pub(super) const fn is_hung_up(&self) -> bool {
        self.hung_up
    }

    /// How the host ended, unless there is still something to be read. Needs neither room nor credit.
    fn peek_end(&self) -> Option<Burst> {
        match rustix::net::recv(&self.socket, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => Some(Burst::Ended),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
            Err(error) => Some(Burst::Failed(error.into())),
        }
    }

    /// Ends watching, before the socket is closed.
    pub(super) fn unwatch(&mut self) -> io::Result<()> {
        self.watch.set(self.socket.as_fd(), None)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "44")]
const HEADER_LEN: u32 = Header::LEN as u32;

/// One of the guest's buffers, cut into its parts.
struct Slot<'m> {
    head: u16,
    header: Buffers<'m>,
    data: Buffers<'m>,
}

/// Takes buffers from the guest with room for at most `limit` bytes of data.
fn take_slots<'m>(rx: &mut Queue, mem: &'m GuestMem, limit: usize) -> Result<Vec<Slot<'m>>, QueueError> {
    let (mut slots, mut left) = (Vec::new(), limit);
    for _ in 0..rx.size() {
        if left == 0 || slots.len() == BURST {
            break;
        }
        let Some(mut chain) = queue::pop(rx, mem)? else { break };
        if chain.writable.len() > Header::LEN {
            let header = chain.writable.take(Header::LEN);
            let data = chain.writable.take(left);
            left -= data.len();
            slots.push(Slot { head: chain.head, header, data });
        } else if slots.is_empty() {
            // Too small for any data. Behind others it waits for its turn: what is put back must be the last taken.
            rx.add_used(mem, chain.head, 0)?;
        } else {
            queue::unpop(rx);
            break;
        }
    }
    Ok(slots)
}

/// Counts "not now" as nothing done.
fn or_later(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
