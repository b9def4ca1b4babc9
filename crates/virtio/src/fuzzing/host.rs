//! The host's part, played by arbitrary bytes.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use tempfile::TempDir;

use super::script::Script;

/// The guest's address.
pub(super) const CID: u64 = 3;
/// The one service on the host.
const SERVICE: u32 = 7;
/// How many clients there are at most.
const MAX_CLIENTS: usize = 8;

/// What is on the other side of a device.
pub(super) trait Host {
    /// Something a good driver could send, with details from the script.
    fn well_formed(&mut self, script: &mut Script<'_>) -> Vec<u8>;

    /// Something happens on the host.
    fn act(&mut self, script: &mut Script<'_>);
}

/// Nothing is there.
#[derive(Debug)]
pub(super) struct NoHost;

impl Host for NoHost {
    /// A disk's request.
    fn well_formed(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let kind = u32::from(script.byte() % 12);
        let sector = u64::from(script.byte());
        [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), script.some(512)].concat()
    }

    fn act(&mut self, _script: &mut Script<'_>) {}
}

/// The other end of a cable.
#[derive(Debug)]
pub(super) struct NetHost {
    peer: Option<OwnedFd>,
}

impl NetHost {
    pub(super) fn new() -> (Self, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let (peer, link) = pair.expect("a pair of sockets");
        (Self { peer: Some(peer) }, link)
    }
}

impl Host for NetHost {
    fn well_formed(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let (header, len) = (script.take::<12>(), usize::from(script.short() % 2000));
        [&header[..], &vec![script.byte(); len]].concat()
    }

    fn act(&mut self, script: &mut Script<'_>) {
        let Some(peer) = &self.peer else { return };
        match script.byte() {
            0 => self.peer = None,
            1..128 => {
                let packet = vec![1; usize::from(script.short())];
                // A full cable drops packets.
                rustix::net::send(peer, &packet, SendFlags::NOSIGNAL).unwrap_or_default();
            }
            _ => drop(rustix::net::recv(peer, &mut [0; 4096][..], RecvFlags::empty())),
        }
    }
}

/// Clients of the guest and a service for it.
#[derive(Debug)]
pub(super) struct VsockHost {
    dir: TempDir,
    service: UnixListener,
    clients: Vec<UnixStream>,
}

impl VsockHost {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let service = UnixListener::bind(dir.path().join(format!("s_{SERVICE}"))).expect("a new socket");
        service.set_nonblocking(true).expect("a socket can be non-blocking");
        Self { dir, service, clients: Vec::new() }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// A new client, unless too many wait already.
    fn connect(&self) -> Option<UnixStream> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let client = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let client = client.expect("a socket");
        let address = SocketAddrUnix::new(self.socket()).expect("a short path");
        rustix::net::connect(&client, &address).ok().map(|()| client.into())
    }

    fn adopt(&mut self, client: UnixStream) {
        client.set_nonblocking(true).expect("a socket can be non-blocking");
        self.clients.push(client);
        if self.clients.len() > MAX_CLIENTS {
            self.clients.remove(0);
        }
    }

    /// One client reads, writes, shuts down or leaves; what fails is as if it had not been tried.
    fn use_client(&mut self, script: &mut Script<'_>) {
        let count = self.clients.len().max(1);
        let which = usize::from(script.byte()) % count;
        let Some(client) = self.clients.get_mut(which) else { return };
        match script.byte() % 4 {
            0 => drop(self.clients.remove(which)),
            1 => client.shutdown(std::net::Shutdown::Write).unwrap_or_default(),
            2 => drop(client.write(&vec![3; usize::from(script.short())])),
            _ => drop(client.read(&mut vec![0; usize::from(script.short())])),
        }
    }
}

impl Host for VsockHost {
    fn well_formed(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let (op, flags) = (u16::from(script.byte() % 9), u32::from(script.byte() % 4));
        // The service, the first clients, or nobody.
        let host = match script.byte() % 8 {
            0 => 9,
            1..4 => SERVICE,
            number => (1 << 30) + u32::from(number) - 4,
        };
        let guest = 50 + u32::from(script.byte() % 4);
        let len = u32::from(script.short() % 5000);
        let credit = [flags, u32::from(script.short()), u32::from(script.byte())].map(u32::to_le_bytes).concat();
        let addresses = [CID, 2].map(u64::to_le_bytes).concat();
        let ports = [guest, host, len].map(u32::to_le_bytes).concat();
        let meaning = [1, op].map(u16::to_le_bytes).concat();
        let payload = vec![5; usize::try_from(len).expect("a small packet")];
        [addresses, ports, meaning, credit, payload].concat()
    }

    fn act(&mut self, script: &mut Script<'_>) {
        match script.byte() % 4 {
            0 => {
                if let Some(mut client) = self.connect() {
                    let port = 50 + script.byte() % 4;
                    let greeting = if script.byte() == 0 { script.some(40).to_vec() } else { connect_to(port) };
                    // A new socket has room for a line.
                    drop(client.write(&greeting));
                    self.adopt(client);
                }
            }
            1 => {
                if let Ok((client, _)) = self.service.accept() {
                    self.adopt(client);
                }
            }
            _ => self.use_client(script),
        }
    }
}

fn connect_to(port: u8) -> Vec<u8> {
    format!("CONNECT {port}\n").into_bytes()
}
