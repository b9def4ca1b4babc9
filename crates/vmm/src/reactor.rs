//! The loop's ears: one epoll, where each source is named by a plain number.
//!
//! ```text
//! bits 63..48  which kind of source      bits 47..32  which device      bits 31..0  queue, or the device's own token
//! ```

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use virtio::{Interest, Poller, Readiness};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Where an event came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Somebody wants to connect.
    Listener,
    /// Somebody connected said something or went away.
    Control {
        /// Which connection.
        connection: u32,
    },
    /// Whoever asked for this VM went away.
    Asker,
    /// A vCPU saw the end.
    Events,
    /// The guest notified a device's queue.
    Queue {
        /// Which device.
        device: u16,
        /// Which of its queues.
        queue: u16,
    },
    /// Something on the host's side of a device is ready.
    Host {
        /// Which device.
        device: u16,
        /// What the device called it.
        token: u32,
    },
}

impl Source {
    fn to_number(self) -> u64 {
        let (kind, device, token) = match self {
            Self::Control { connection } => (0, 0, connection),
            Self::Listener => (4, 0, 0),
            Self::Asker => (5, 0, 0),
            Self::Events => (1, 0, 0),
            Self::Queue { device, queue } => (2, device, u32::from(queue)),
            Self::Host { device, token } => (3, device, token),
        };
        (kind << 48) | (u64::from(device) << 32) | u64::from(token)
    }

    fn from_number(number: u64) -> Option<Self> {
        let [t0, t1, t2, t3, d0, d1, kind, 0] = number.to_le_bytes() else { return None };
        let (device, token) = (u16::from_le_bytes([d0, d1]), u32::from_le_bytes([t0, t1, t2, t3]));
        match kind {
            0 => Some(Self::Control { connection: token }),
            4 => Some(Self::Listener),
            5 => Some(Self::Asker),
            1 => Some(Self::Events),
            2 => Some(Self::Queue { device, queue: u16::from_le_bytes([t0, t1]) }),
            3 => Some(Self::Host { device, token }),
            _ => None,
        }
    }
}

/// The epoll everything is registered with.
#[derive(Debug)]
pub(crate) struct Reactor {
    epoll: Epoll,
}

impl Reactor {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { epoll: Epoll::new()? }))
    }

    /// Watches a descriptor for reading.
    pub(crate) fn watch(&self, fd: &impl AsRawFd, source: Source) -> io::Result<()> {
        let event = EpollEvent::new(EventSet::IN, source.to_number());
        self.epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)
    }

    /// Watches a listening socket: each new caller is told of once, whether or not it is let in then.
    pub(crate) fn watch_callers(&self, fd: &impl AsRawFd, source: Source) -> io::Result<()> {
        let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, source.to_number());
        self.epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)
    }

    /// Watches a connection for its end only; what is said on it is for somebody else.
    pub(crate) fn watch_end(&self, fd: &impl AsRawFd, source: Source) -> io::Result<()> {
        let event = EpollEvent::new(EventSet::READ_HANG_UP, source.to_number());
        self.epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)
    }

    /// Watches a descriptor no longer.
    pub(crate) fn forget(&self, fd: &impl AsRawFd) -> io::Result<()> {
        self.epoll.ctl(ControlOperation::Delete, fd.as_raw_fd(), EpollEvent::default())
    }

    /// Waits until something is ready and lists it in `ready`.
    pub(crate) fn wait(&self, ready: &mut Vec<(Source, Readiness)>) -> io::Result<()> {
        self.wait_for(-1, ready)
    }

    /// Lists in `ready` what is ready now.
    pub(crate) fn look(&self, ready: &mut Vec<(Source, Readiness)>) -> io::Result<()> {
        self.wait_for(0, ready)
    }

    fn wait_for(&self, milliseconds: i32, ready: &mut Vec<(Source, Readiness)>) -> io::Result<()> {
        let mut events = [EpollEvent::default(); 64];
        let count = match self.epoll.wait(milliseconds, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        ready.clear();
        for event in &events[..count] {
            let set = event.event_set();
            let readiness = Readiness {
                readable: set.contains(EventSet::IN),
                writable: set.contains(EventSet::OUT),
                hangup: set.intersects(EventSet::HANG_UP | EventSet::ERROR | EventSet::READ_HANG_UP),
            };
            ready.extend(Source::from_number(event.data()).map(|source| (source, readiness)));
        }
        Ok(())
    }
}

/// The reactor as one device sees it.
#[derive(Debug)]
pub(crate) struct DevicePoller {
    reactor: Arc<Reactor>,
    device: u16,
}

impl DevicePoller {
    /// For device number `device`.
    pub(crate) const fn new(reactor: Arc<Reactor>, device: u16) -> Self {
        Self { reactor, device }
    }

    fn control(&self, operation: ControlOperation, fd: BorrowedFd<'_>, token: u32, set: EventSet) -> io::Result<()> {
        let source = Source::Host { device: self.device, token };
        self.reactor.epoll.ctl(operation, fd.as_raw_fd(), EpollEvent::new(set, source.to_number()))
    }
}

fn event_set(interest: Interest) -> EventSet {
    match interest {
        Interest::Read => EventSet::IN,
        Interest::Write => EventSet::OUT,
        Interest::ReadWrite => EventSet::IN | EventSet::OUT,
        Interest::Hangup => EventSet::empty(),
    }
}

impl Poller for DevicePoller {
    fn add(&self, fd: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()> {
        self.control(ControlOperation::Add, fd, token, event_set(interest))
    }

    fn modify(&self, fd: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()> {
        self.control(ControlOperation::Modify, fd, token, event_set(interest))
    }

    fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(ControlOperation::Delete, fd, 0, EventSet::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_its_number() {
        let sources = [
            Source::Listener,
            Source::Asker,
            Source::Control { connection: 7 },
            Source::Events,
            Source::Queue { device: 10, queue: 2 },
            Source::Host { device: 65535, token: u32::MAX },
        ];
        for source in sources {
            assert_eq!(Source::from_number(source.to_number()), Some(source));
        }
        assert_eq!(Source::from_number(u64::MAX), None);
    }

    #[test]
    fn a_ready_descriptor_is_told_with_its_name() {
        let reactor = Reactor::new().unwrap();
        let fd = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
        reactor.watch(&fd, Source::Queue { device: 3, queue: 1 }).unwrap();
        let mut ready = Vec::new();
        reactor.look(&mut ready).unwrap();
        assert!(ready.is_empty());
        fd.write(1).unwrap();
        reactor.look(&mut ready).unwrap();
        assert_eq!(ready[0].0, Source::Queue { device: 3, queue: 1 });
        assert!(ready[0].1.readable);
    }
}
