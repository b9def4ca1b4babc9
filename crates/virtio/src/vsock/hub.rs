//! All connections of one guest: who is connected to whom, and what the guest is still to be told.
//!
//! ```text
//!  host client --CONNECT 52--> greeting --> Connecting --RESPONSE--> Open     (REQUEST goes to the guest)
//!  Connecting --client gives up--> gone                                      (RST, if the guest has seen the REQUEST)
//!  guest --REQUEST port 7--> refused                                         (RST goes to the guest)
//!                      or --> connect to <socket>_7 -----------------> Open   (RESPONSE; no VM of ours: see below)
//!  Open --guest closed--> Draining --backlog empty--> gone                    (RST goes to the guest at once)
//!  Open --host closed, and all it sent is read--> gone                        (SHUTDOWN goes to the guest)
//! ```
//!
//! A VMM is handed its socket and knows no path, so a guest reaches nothing on the host. Only a device that made its
//! socket itself, as those of tests and of the fuzzer do, has places beside it where the guest's connections can go.
//!
//! Packets without data wait in one line and go first, so the guest gets them in the order they were made; connections
//! with data for the guest wait in a second line and take turns. When too many packets wait because the guest supplies
//! no buffers, nothing more is taken from it: that is the only brake needed, since each of its packets adds at most
//! one to the line, and each connection at most a few on its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use log::debug;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use virtio_queue::{Queue, QueueT};

use super::connection::{Burst, Connection, Flow, Phase};
use super::packet::{Header, Ports, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};
use crate::poll::Watch;
use crate::queue::{self, QueueError};
use crate::{GuestMem, Interest, Poller, Readiness, Work};

/// How many packets without data may wait before nothing more is taken from the guest.
const MAX_CONTROL: usize = 1024;
/// How many turns are made before the loop may look after something else.
const BATCH: usize = 32;
/// Ports of the host's clients begin here, far from those that services are given.
const FIRST_PORT: u32 = 1 << 30;
/// The one after it means "any".
const LAST_PORT: u32 = u32::MAX - 1;
/// 0 is the listener's.
const FIRST_TOKEN: u32 = 1;
/// The one after it is the transport's.
const LAST_TOKEN: u32 = u32::MAX - 1;
/// `CONNECT 4294967295\n` and some blanks.
const MAX_GREETING: usize = 32;
const BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// A host client that has not yet said where it wants to go.
#[derive(Debug)]
struct Greeting {
    socket: OwnedFd,
    watch: Watch,
    line: Vec<u8>,
}

/// What one turn of [`Hub::fill`] came to.
enum Turn {
    Taken,
    NoRoom,
    Idle,
}

#[derive(Debug)]
pub(super) struct Hub {
    cid: u64,
    max_connections: usize,
    /// What the sockets of the host's services are named after, if the guest may reach them.
    path: Option<PathBuf>,
    poller: Arc<dyn Poller>,
    greetings: BTreeMap<u32, Greeting>,
    connections: BTreeMap<u32, Connection>,
    by_ports: HashMap<Ports, u32>,
    /// Those of the connections that the guest asked for.
    from_guest: BTreeSet<u32>,
    /// Packets without data, for the guest.
    control: VecDeque<Header>,
    /// Connections with data for the guest.
    line: VecDeque<u32>,
    next_token: u32,
    next_port: u32,
}

impl Hub {
    /// Token 0 is left to the caller.
    pub(super) fn new(cid: u64, path: Option<PathBuf>, max_connections: usize, poller: Arc<dyn Poller>) -> Self {
        Self {
            cid,
            max_connections,
            path,
            poller,
            greetings: BTreeMap::new(),
            connections: BTreeMap::new(),
            by_ports: HashMap::new(),
            from_guest: BTreeSet::new(),
            control: VecDeque::new(),
            line: VecDeque::new(),
            next_token: FIRST_TOKEN,
            next_port: FIRST_PORT,
        }
    }
}

impl Hub {
    pub(super) const PORTS: RangeInclusive<u32> = FIRST_PORT..=LAST_PORT;

    /// Goes on counting ports where another hub ended.
    pub(super) const fn set_next_port(&mut self, port: u32) {
        self.next_port = port;
    }

    pub(super) const fn next_port(&self) -> u32 {
        self.next_port
    }

    /// Whether there is no place for another connection.
    pub(super) fn is_full(&self) -> bool {
        self.connections.len() + self.greetings.len() >= self.max_connections
    }

    /// Whether the guest may not ask for another connection. Half of the places are for the host's clients alone, so
    /// that no process in the guest can keep the host out of it.
    fn is_full_for_guest(&self) -> bool {
        self.is_full() || self.from_guest.len() >= self.max_connections / 2
    }

    /// Whether so much waits for the guest that nothing should be taken from it.
    pub(super) fn is_congested(&self) -> bool {
        self.control.len() >= MAX_CONTROL
    }

    /// Ends watching everything, before all sockets are closed.
    pub(super) fn close(&mut self) {
        let tokens: Vec<_> = self.greetings.keys().chain(self.connections.keys()).copied().collect();
        tokens.into_iter().for_each(|token| self.remove(token));
    }

    /// Takes in a host client.
    pub(super) fn admit(&mut self, socket: OwnedFd) {
        let token = self.new_token();
        let mut watch = self.watch(token);
        match watch.set(socket.as_fd(), Some(Interest::Read)) {
            Ok(()) => drop(self.greetings.insert(token, Greeting { socket, watch, line: Vec::new() })),
            Err(error) => debug!("a client cannot be watched: {error}"),
        }
    }

    /// A host socket is ready.
    pub(super) fn host_ready(&mut self, token: u32, ready: Readiness) {
        if self.greetings.contains_key(&token) {
            return self.hear_greeting(token);
        }
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.phase == Phase::Connecting && ready.hangup {
            return self.client_gave_up(token);
        }
        if ready.hangup {
            connection.notice_hangup();
        }
        if (ready.writable || ready.hangup)
            && let Err(error) = connection.flush()
        {
            self.host_refused(token, &error);
        }
        if ready.readable || ready.hangup {
            self.enqueue(token);
        }
        self.settle(token);
    }

    fn hear_greeting(&mut self, token: u32) {
        let Some(greeting) = self.greetings.get_mut(&token) else { return };
        match greeting.hear() {
            Ok(None) => {}
            Ok(Some(port)) => self.connect_to_guest(token, port),
            Err(error) => {
                debug!("a client was turned away: {error}");
                self.remove(token);
            }
        }
    }

    /// Turns a greeting into a connection that waits for the guest's answer.
    fn connect_to_guest(&mut self, token: u32, guest: u32) {
        let Some(Greeting { socket, watch, .. }) = self.greetings.remove(&token) else { return };
        let ports = Ports { host: self.new_port(guest), guest };
        self.insert(token, Connection::new(ports, Phase::Connecting, socket, watch));
        self.tell(token, op::REQUEST, 0);
        self.settle(token);
    }

    /// A client did not wait for the guest's answer. A guest that has not seen the question never will.
    fn client_gave_up(&mut self, token: u32) {
        let Some(Connection { ports: Ports { host, guest }, .. }) = self.connections.get(&token) else { return };
        let asks = |packet: &Header| (packet.op, packet.src_port, packet.dst_port) == (op::REQUEST, *host, *guest);
        match self.control.iter().position(asks) {
            Some(unseen) => drop(self.control.remove(unseen)),
            None => self.tell(token, op::RST, 0),
        }
        self.remove(token);
    }

    /// The guest wants to reach a host service.
    pub(super) fn connect_to_host(&mut self, ports: Ports, header: &Header) {
        if self.is_full_for_guest() {
            return self.refuse(header);
        }
        let Some(path) = &self.path else { return self.refuse(header) };
        let socket = match connect(path, ports.host) {
            Ok(socket) => socket,
            Err(error) => {
                debug!("the guest cannot reach host port {}: {error}", ports.host);
                return self.refuse(header);
            }
        };
        let token = self.new_token();
        let mut connection = Connection::new(ports, Phase::Open, socket, self.watch(token));
        connection.learn_credit(header);
        self.insert(token, connection);
        self.from_guest.insert(token);
        self.tell(token, op::RESPONSE, 0);
        self.settle(token);
    }

    /// Answers a packet that belongs to nothing, unless it is itself such an answer.
    pub(super) fn refuse(&mut self, header: &Header) {
        if header.op != op::RST {
            let answer = Header::to_guest(self.cid, header.ports_from_guest(), op::RST);
            self.control.push_back(Header { socket_type: header.socket_type, ..answer });
        }
    }

    /// Queues a packet without data.
    pub(super) fn tell(&mut self, token: u32, op: u16, flags: u32) {
        if let Some(connection) = self.connections.get_mut(&token) {
            let header = connection.header(self.cid, op);
            self.control.push_back(Header { flags, ..header });
        }
    }

    /// Ends a connection that cannot go on.
    pub(super) fn reset(&mut self, token: u32) {
        if self.connections.get(&token).is_some_and(|connection| connection.phase != Phase::Draining) {
            self.tell(token, op::RST, 0);
        }
        self.remove(token);
    }

    /// The guest has closed a connection: its ports are free, and what it sent still goes to the host.
    pub(super) fn guest_closed(&mut self, token: u32) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.phase = Phase::Draining;
        self.by_ports.remove(&connection.ports);
    }

    /// The host takes no more of what the guest sends.
    pub(super) fn host_refused(&mut self, token: u32, error: &io::Error) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let reads = connection.phase == Phase::Open && connection.from_host == Flow::Open;
        if reads && error.kind() == io::ErrorKind::BrokenPipe {
            connection.drop_backlog();
            self.tell(token, op::SHUTDOWN, SHUTDOWN_RECEIVE);
            self.settle(token);
        } else {
            debug!("a host socket failed: {error}");
            self.reset(token);
        }
    }

    /// The host has sent its last byte. If it is gone, too, that is the end of the connection.
    fn host_ended(&mut self, token: u32) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.from_host = Flow::Ended;
        connection.notice_hangup();
        if !connection.is_hung_up() {
            self.tell(token, op::SHUTDOWN, SHUTDOWN_SEND);
        }
    }

    /// Brings what follows from a connection's state into effect.
    pub(super) fn settle(&mut self, token: u32) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.phase == Phase::Draining && !connection.has_backlog() {
            return self.remove(token);
        }
        if connection.is_over() {
            self.tell(token, op::SHUTDOWN, BOTH);
            return self.remove(token);
        }
        if connection.must_ask_for_credit() {
            let header = connection.header(self.cid, op::CREDIT_REQUEST);
            self.control.push_back(header);
        }
        if connection.phase == Phase::Open && connection.must_tell_credit() {
            let header = connection.header(self.cid, op::CREDIT_UPDATE);
            self.control.push_back(header);
        }
        if let Err(error) = connection.update_watch() {
            debug!("a host socket cannot be watched: {error}");
            self.reset(token);
        }
    }

    /// Puts a connection into the line of those with data for the guest.
    fn enqueue(&mut self, token: u32) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.reads() && !connection.in_line {
            connection.in_line = true;
            self.line.push_back(token);
        }
    }

    /// Gives the guest what waits for it, as far as it has supplied buffers.
    pub(super) fn fill(&mut self, rx: &mut Queue, mem: &GuestMem) -> Result<Work, QueueError> {
        if !rx.ready() {
            return Ok(Work::Done);
        }
        rx.disable_notification(mem)?;
        for _ in 0..BATCH {
            match self.take_turn(rx, mem)? {
                Turn::Taken => {}
                Turn::Idle => return Ok(Work::Done),
                Turn::NoRoom if rx.enable_notification(mem)? => rx.disable_notification(mem)?,
                Turn::NoRoom => return Ok(Work::Done),
            }
        }
        Ok(Work::More)
    }

    fn take_turn(&mut self, rx: &mut Queue, mem: &GuestMem) -> Result<Turn, QueueError> {
        if let Some(header) = self.control.front() {
            let Some(mut chain) = queue::pop(rx, mem)? else { return Ok(Turn::NoRoom) };
            let mut written = 0;
            if chain.writable.len() >= Header::LEN {
                written = chain.writable.copy_from(&header.to_bytes());
                self.control.pop_front();
            }
            rx.add_used(mem, chain.head, u32::try_from(written).expect("a header's length"))?;
            return Ok(Turn::Taken);
        }
        let Some(token) = self.line.pop_front() else { return Ok(Turn::Idle) };
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(Turn::Taken) };
        connection.in_line = false;
        match connection.read(self.cid, rx, mem)? {
            Burst::Full => self.enqueue(token),
            Burst::NoRoom => {
                connection.in_line = true;
                self.line.push_front(token);
                return Ok(Turn::NoRoom);
            }
            Burst::NoCredit | Burst::Drained => {}
            Burst::Ended => self.host_ended(token),
            Burst::Failed(error) => {
                debug!("a host socket failed: {error}");
                self.reset(token);
            }
        }
        self.settle(token);
        Ok(Turn::Taken)
    }

    pub(super) fn connection(&mut self, token: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&token)
    }

    pub(super) fn find(&self, ports: Ports) -> Option<u32> {
        self.by_ports.get(&ports).copied()
    }

    pub(super) const fn cid(&self) -> u64 {
        self.cid
    }

    fn insert(&mut self, token: u32, connection: Connection) {
        self.by_ports.insert(connection.ports, token);
        self.connections.insert(token, connection);
    }

    fn remove(&mut self, token: u32) {
        self.from_guest.remove(&token);
        let mut unwatched = Ok(());
        if let Some(mut greeting) = self.greetings.remove(&token) {
            unwatched = greeting.watch.set(greeting.socket.as_fd(), None);
        }
        if let Some(mut connection) = self.connections.remove(&token) {
            unwatched = connection.unwatch();
            if self.find(connection.ports) == Some(token) {
                self.by_ports.remove(&connection.ports);
            }
        }
        if let Err(error) = unwatched {
            debug!("the loop did not let go of a socket: {error}");
        }
    }

    fn watch(&self, token: u32) -> Watch {
        Watch::new(Arc::clone(&self.poller), token)
    }

    /// A number that no descriptor has now. There are far fewer connections than numbers, so the search is short.
    fn new_token(&mut self) -> u32 {
        loop {
            let token = self.next_token;
            self.next_token = self.next_token.checked_add(1).filter(|next| *next <= LAST_TOKEN).unwrap_or(FIRST_TOKEN);
            if !self.greetings.contains_key(&token) && !self.connections.contains_key(&token) {
                return token;
            }
        }
    }

    /// A host port that is not connected to this guest port.
    fn new_port(&mut self, guest: u32) -> u32 {
        loop {
            let host = self.next_port;
            self.next_port = self.next_port.checked_add(1).filter(|next| *next <= LAST_PORT).unwrap_or(FIRST_PORT);
            if self.find(Ports { host, guest }).is_none() {
                return host;
            }
        }
    }
}

impl Greeting {
    /// The port in `CONNECT <port>\n`, once it is there. Nothing beyond the line is taken from the socket.
    fn hear(&mut self) -> io::Result<Option<u32>> {
        let mut bytes = [0; MAX_GREETING];
        let room = &mut bytes[..MAX_GREETING - self.line.len()];
        let peeked = match rustix::net::recv(&self.socket, &mut *room, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            other => other?.0,
        };
        let end = room[..peeked].iter().position(|byte| *byte == b'\n');
        let part = &mut room[..end.map_or(peeked, |end| end + 1)];
        let taken = rustix::net::recv(&self.socket, &mut *part, RecvFlags::DONTWAIT)?.0;
        self.line.extend_from_slice(&part[..taken]);
        if end.is_none() && taken > 0 && self.line.len() < MAX_GREETING {
            return Ok(None);
        }
        let port = std::str::from_utf8(&self.line).ok().and_then(|line| line.strip_suffix('\n'));
        let port = port.and_then(|line| line.trim_end().strip_prefix("CONNECT ")?.parse().ok());
        port.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Connects to the host service behind a port, without waiting.
fn connect(socket: &Path, port: u32) -> io::Result<OwnedFd> {
    let mut path = socket.as_os_str().to_owned();
    path.push(format!("_{port}"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}
