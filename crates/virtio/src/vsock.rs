//! Sockets between host and guest (virtio 1.2, 5.10), as unix sockets on the host.
//!
//! A host client connects to the device's socket and writes `CONNECT <port>\n`; once a guest process has accepted, it
//! reads `OK <host port>\n` and the connection is established; it is closed if nobody accepts. While no driver is
//! active, clients wait. A guest process that connects to port P of CID 2 reaches the unix socket `<socket>_P`, if the
//! device may connect to such; otherwise it is refused.
//!
//! Credit bounds what is held in either direction, so a slow reader slows down its own connection and no other.
//! Connections belong to the process: a restored device has none and tells the driver so (5.10.6.7). The driver then
//! closes all it has, so clients wait until it has done that: a new one would be taken for an old one.

mod connection;
mod guest;
mod hub;
mod packet;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use log::{debug, error, warn};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, getpid};
use serde::{Deserialize, Serialize};
use virtio_queue::{Queue, QueueT};

use self::hub::Hub;
use crate::device::read_bytes;
use crate::poll::Watch;
use crate::queue::{self, Handled, QueueError, QueueStateV1, Served, serve};
use crate::{
    ActivateError, Activation, Device, DeviceError, DeviceState, GuestMem, Interest, Interrupt, Kind, Readiness,
    RestoreError, Work,
};

const TX: u16 = 1;
const QUEUE_SIZE: u16 = 256;
const EVENT_QUEUE_SIZE: u16 = 16;
const LISTENER_TOKEN: u32 = 0;
/// Bounds memory and descriptors: each connection has one descriptor and at most one backlog.
const MAX_CONNECTIONS: usize = 1024;
/// How many packets are taken, or clients admitted, before the loop may look after something else.
const BATCH: usize = 64;
/// 0 to 2 have meanings of their own.
const FIRST_CID: u64 = 3;
/// The upper half of an address is reserved, and the largest one means "any".
const LAST_CID: u64 = u32::MAX as u64 - 1;
/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`.
const TRANSPORT_RESET: u32 = 0;

/// Why there is no vsock.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// The address cannot be a guest's.
    #[error("{cid} is not a guest's address; it must be from {FIRST_CID} to {LAST_CID}")]
    Cid {
        /// What was asked for.
        cid: u64,
    },
    /// The host's end cannot be made.
    #[error("cannot listen on {}: {source}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// What a vsock remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockStateV1 {
    /// The host port the next client gets.
    pub next_port: u32,
}

/// The sockets of one guest.
#[derive(Debug)]
pub struct Vsock {
    cid: u64,
    listener: Listener,
    max_connections: usize,
    next_port: u32,
    knows: Knows,
    active: Option<Active>,
}

/// What the driver knows of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    /// All there is to know.
    All,
    /// It must yet learn that they are gone.
    NotYet,
    /// It was told when this was the place of the next buffer for events. It puts one there once it has acted.
    Told(u16),
}

#[derive(Debug)]
struct Active {
    mem: GuestMem,
    irq: Arc<Interrupt>,
    rx: Queue,
    tx: Queue,
    event: Queue,
    hub: Hub,
    listener_watch: Watch,
    /// There are packets of the guest's to take, maybe once it has taken some of ours.
    tx_waits: bool,
    /// The host could not give us a client's descriptor; not tried again before something else has happened.
    accept_failed: bool,
}

impl Vsock {
    /// Listens on `socket`, which must not exist and is removed when the device is dropped.
    ///
    /// # Errors
    /// When the address cannot be a guest's, or the socket cannot be made.
    pub fn new(cid: u64, socket: PathBuf) -> Result<Self, VsockError> {
        let listener = Listener::bind(&socket).map_err(|source| VsockError::Listen { path: socket, source })?;
        Self::with(cid, listener)
    }

    /// Listens on a socket that never waits, listens already, and is somebody else's to remove. What the guest wants to
    /// reach on the host is refused.
    ///
    /// # Errors
    /// When the address cannot be a guest's.
    pub fn on(cid: u64, socket: OwnedFd) -> Result<Self, VsockError> {
        Self::with(cid, Listener { socket: socket.into(), file: None })
    }

    fn with(cid: u64, listener: Listener) -> Result<Self, VsockError> {
        if !(FIRST_CID..=LAST_CID).contains(&cid) {
            return Err(VsockError::Cid { cid });
        }
        Ok(Self {
            cid,
            listener,
            max_connections: MAX_CONNECTIONS,
            next_port: *Hub::PORTS.start(),
            knows: Knows::All,
            active: None,
        })
    }

    /// Does what can be done now: events and packets for the guest, then its own.
    fn work(&mut self) -> Result<Work, DeviceError> {
        let Some(active) = &mut self.active else { return Ok(Work::Done) };
        self.knows = active.announce_reset(self.knows)?;
        let mut filled = active.fill()?;
        if active.tx_waits && !active.hub.is_congested() {
            filled = active.take_packets()?;
        }
        active.listen(&self.listener, self.knows)?;
        Ok(filled)
    }
}

impl Active {
    /// Tells the driver that all connections are gone and its address may have changed, as soon as it has supplied a
    /// buffer for it; says what it knows now.
    fn announce_reset(&mut self, knows: Knows) -> Result<Knows, QueueError> {
        match knows {
            Knows::NotYet if self.event.ready() => {}
            Knows::Told(next) if queue::available(&self.event, &self.mem)? == next => return Ok(knows),
            // A driver that wants no events is not waited for.
            _ => return Ok(Knows::All),
        }
        let (since, next) = (self.event.next_used(), queue::available(&self.event, &self.mem)?);
        let Some(mut chain) = queue::pop(&mut self.event, &self.mem)? else {
            return Ok(Knows::NotYet);
        };
        let written = chain.writable.copy_from(&TRANSPORT_RESET.to_le_bytes());
        self.event.add_used(&self.mem, chain.head, u32::try_from(written).expect("4 bytes"))?;
        queue::notify(&mut self.event, &self.mem, &self.irq, since)?;
        if written < size_of_val(&TRANSPORT_RESET) {
            return Ok(Knows::NotYet);
        }
        let acted = queue::enable_notification_at(&mut self.event, &self.mem, next)?;
        Ok(if acted { Knows::All } else { Knows::Told(next) })
    }

    fn fill(&mut self) -> Result<Work, QueueError> {
        let since = self.rx.next_used();
        let work = self.hub.fill(&mut self.rx, &self.mem)?;
        queue::notify(&mut self.rx, &self.mem, &self.irq, since)?;
        Ok(work)
    }

    /// Takes the guest's packets, and gives it what they lead to.
    fn take_packets(&mut self) -> Result<Work, QueueError> {
        let Self { mem, irq, tx, hub, .. } = self;
        let served = serve(tx, mem, irq, BATCH, |chain| {
            if hub.is_congested() {
                return Handled::NotNow;
            }
            hub.packet(chain.readable);
            Handled::Used(0)
        })?;
        self.tx_waits = served != Served::All;
        let filled = self.fill()?;
        let resumes = self.tx_waits && !self.hub.is_congested();
        Ok(if resumes { Work::More } else { filled })
    }

    /// Listens for clients while there is room for them; without room, they wait in the kernel's queue.
    fn listen(&mut self, listener: &Listener, knows: Knows) -> io::Result<()> {
        let listens = knows == Knows::All && !self.hub.is_full() && !self.accept_failed;
        let wanted = listens.then_some(Interest::Read);
        self.listener_watch.set(listener.socket.as_fd(), wanted)
    }

    fn accept(&mut self, listener: &Listener) {
        for _ in 0..BATCH {
            if self.hub.is_full() {
                return;
            }
            // Not std's `accept`: its sockets wait, and the loop must not.
            match accept_with(&listener.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(client) => self.hub.admit(client),
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    warn!("a client could not be admitted: {error}");
                    self.accept_failed = true;
                    return;
                }
            }
        }
    }
}

impl Device for Vsock {
    fn kind(&self) -> Kind {
        Kind::Vsock
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE, QUEUE_SIZE, EVENT_QUEUE_SIZE]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_bytes(&self.cid.to_le_bytes(), offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {
        // The address is the host's to give.
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let Activation { mem, irq, queues, poller, .. } = activation;
        let [rx, tx, event] = <[Queue; 3]>::try_from(queues).expect("as many as queue_sizes");
        let listener_watch = Watch::new(Arc::clone(&poller), LISTENER_TOKEN);
        let mut hub = Hub::new(self.cid, self.listener.path(), self.max_connections, poller);
        hub.set_next_port(self.next_port);
        let mut active = Active { mem, irq, rx, tx, event, hub, listener_watch, tx_waits: false, accept_failed: false };
        active.listen(&self.listener, self.knows).map_err(|source| ActivateError::Poll { source })?;
        self.active = Some(active);
        Ok(())
    }

    fn reset(&mut self) {
        let Some(mut active) = self.active.take() else { return };
        self.next_port = active.hub.next_port();
        self.knows = Knows::All;
        active.hub.close();
        if let Err(error) = active.listener_watch.set(self.listener.socket.as_fd(), None) {
            error!("the loop did not let go of a listener: {error}");
        }
    }

    fn queue_notified(&mut self, queue: u16) -> Result<Work, DeviceError> {
        if let Some(active) = &mut self.active {
            active.tx_waits |= queue == TX;
            active.accept_failed = false;
        }
        self.work()
    }

    fn host_ready(&mut self, token: u32, ready: Readiness) -> Result<Work, DeviceError> {
        let Some(active) = &mut self.active else { return Ok(Work::Done) };
        if token == LISTENER_TOKEN {
            if self.knows == Knows::All {
                active.accept(&self.listener);
            }
        } else {
            active.accept_failed = false;
            active.hub.host_ready(token, ready);
        }
        self.work()
    }

    fn state(&self) -> DeviceState {
        let next_port = self.active.as_ref().map_or(self.next_port, |active| active.hub.next_port());
        DeviceState::Vsock(VsockStateV1 { next_port })
    }

    fn queue_states(&self) -> Vec<QueueStateV1> {
        let queues = self.active.iter().flat_map(|active| [&active.rx, &active.tx, &active.event]);
        queues.map(QueueStateV1::from).collect()
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), RestoreError> {
        let DeviceState::Vsock(VsockStateV1 { next_port }) = state else {
            return Err(RestoreError::Kind { expected: Kind::Vsock });
        };
        if !Hub::PORTS.contains(next_port) {
            return Err(RestoreError::Impossible { what: "the next port is not one of the host's clients" });
        }
        self.next_port = *next_port;
        self.knows = Knows::NotYet;
        Ok(())
    }
}

/// The device's socket, and its file if that is the device's own.
#[derive(Debug)]
struct Listener {
    socket: UnixListener,
    file: Option<OwnFile>,
}

/// A socket's file. It is removed on drop, though not by a process that only inherited it.
#[derive(Debug)]
struct OwnFile {
    path: PathBuf,
    owner: Pid,
}

impl Listener {
    fn bind(path: &PathBuf) -> io::Result<Self> {
        let socket = UnixListener::bind(path)?;
        let listener = Self { socket, file: Some(OwnFile { path: path.clone(), owner: getpid() }) };
        listener.socket.set_nonblocking(true)?;
        Ok(listener)
    }

    fn path(&self) -> Option<PathBuf> {
        self.file.as_ref().map(|file| file.path.clone())
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if getpid() == self.owner
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            debug!("{} was already gone: {error}", self.path.display());
        }
    }
}
