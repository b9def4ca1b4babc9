//! Everybody this process listens to: the connection it was started with, and those who come by its listening socket.
//!
//! Whoever talks nonsense or does not read is cut off; none of them can make the process wait or end it by accident.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use proto::control::{ControlError, ControlSocket, FromVmm, ToVmm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use virtio::Readiness;

use crate::reactor::{Reactor, Source};

/// More callers than this at once have to wait.
const MAX_CONNECTIONS: usize = 64;

/// When somebody waits outside and nobody leaves, it is tried again after so long.
const NEXT_TRY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The connections of a process.
#[derive(Debug)]
pub(crate) struct Controls {
    reactor: Arc<Reactor>,
    listener: Option<OwnedFd>,
    /// Somebody may have been left waiting there.
    waiting: bool,
    connections: Vec<Option<ControlSocket>>,
}

/// What a connection brought.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A message with its descriptors.
    Said(ToVmm, Vec<OwnedFd>),
    /// Nothing, after all.
    Nothing,
    /// Its end: the caller closed it, or was cut off.
    Gone,
}

impl Controls {
    /// Nobody yet.
    pub(crate) const fn new(reactor: Arc<Reactor>) -> Self {
        Self { reactor, listener: None, waiting: false, connections: Vec::new() }
    }

    /// Takes callers from this socket, which listens already and never blocks.
    pub(crate) fn listen(&mut self, listener: OwnedFd) -> io::Result<()> {
        self.reactor.watch_callers(&listener, Source::Listener)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Takes over a connection; its number.
    pub(crate) fn adopt(&mut self, socket: ControlSocket) -> io::Result<u32> {
        let free = self.connections.iter().position(Option::is_none);
        let place = free.unwrap_or(self.connections.len());
        let connection = u32::try_from(place).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.reactor.watch(&socket, Source::Control { connection })?;
        if free.is_none() {
            self.connections.push(None);
        }
        self.connections[place] = Some(socket);
        Ok(connection)
    }

    /// Waits until one of them, or of those who call, or the end of `asker` is to be heard of, and lists it in `ready`.
    /// Whatever else the reactor watches is left alone meanwhile.
    pub(crate) fn wait(
        &mut self,
        asker: Option<&ControlSocket>,
        ready: &mut Vec<(Source, Readiness)>,
    ) -> io::Result<()> {
        let connections = self.connections.iter().enumerate();
        let mut heard: Vec<_> = connections
            .filter_map(|(place, socket)| {
                let connection = u32::try_from(place).ok()?;
                Some((Source::Control { connection }, PollFd::new(socket.as_ref()?, PollFlags::IN)))
            })
            .collect();
        heard.extend(asker.map(|asker| (Source::Asker, PollFd::new(asker, PollFlags::RDHUP))));
        // Who could not be let in would be heard of all the time.
        let callers = self.listener.as_ref().filter(|_| !self.waiting);
        heard.extend(callers.map(|listener| (Source::Listener, PollFd::new(listener, PollFlags::IN))));
        let (sources, mut fds): (Vec<_>, Vec<_>) = heard.into_iter().unzip();
        match poll(&mut fds, self.waiting.then_some(&NEXT_TRY)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let heard = sources.into_iter().zip(fds).filter(|(_, fd)| !fd.revents().is_empty());
        ready.clear();
        ready.extend(heard.map(|(source, _)| (source, Readiness { readable: true, ..Readiness::default() })));
        if ready.is_empty() && self.waiting {
            ready.push((Source::Listener, Readiness::default()));
        }
        Ok(())
    }

    /// Lets in all who called. With too many inside already, callers wait in the queue of the socket until one has left; and
    /// so they do when the host has no descriptor for them, until one has left or the next one calls. That must neither end
    /// what runs here nor keep it busy.
    pub(crate) fn accept(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        self.waiting = true;
        while self.connections.iter().flatten().count() < MAX_CONNECTIONS {
            let accepted = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            let adopted = match accepted {
                Ok(socket) => self.adopt(socket.into()).map(|_| ()),
                Err(Errno::INTR | Errno::CONNABORTED) => Ok(()),
                Err(Errno::AGAIN) => {
                    self.waiting = false;
                    break;
                }
                Err(error) => Err(error.into()),
            };
            if let Err(error) = adopted {
                log::warn!("a caller was not let in: {error}");
                break;
            }
        }
        self.listener = Some(listener);
    }

    /// What a connection has to say.
    pub(crate) fn hear(&mut self, connection: u32) -> Heard {
        let Some(socket) = self.socket(connection) else { return Heard::Nothing };
        match socket.recv() {
            Ok(Some((message, fds))) => Heard::Said(message, fds),
            Ok(None) => self.cut(connection),
            Err(ControlError::Io { source }) if source.kind() == io::ErrorKind::WouldBlock => Heard::Nothing,
            Err(error) => {
                log::warn!("connection {connection} is cut off: {error}");
                self.cut(connection)
            }
        }
    }

    fn socket(&self, connection: u32) -> Option<&ControlSocket> {
        self.connections.get(usize::try_from(connection).ok()?)?.as_ref()
    }

    fn cut(&mut self, connection: u32) -> Heard {
        let place = usize::try_from(connection).ok().and_then(|place| self.connections.get_mut(place));
        if let Some(socket) = place.and_then(Option::take) {
            // Closing is not enough: children of a template share the connection, and an epoll forgets a file only when
            // nobody has it any more. Until then it would tell of the end without pause.
            if let Err(error) = self.reactor.forget(&socket) {
                log::error!("connection {connection} is still watched: {error}");
            }
        }
        if self.waiting {
            self.accept();
        }
        Heard::Gone
    }

    /// Tells one of them.
    pub(crate) fn tell(&mut self, connection: u32, event: &FromVmm) {
        self.hand(connection, event, &[]);
    }

    /// Tells one of them, and hands it something.
    pub(crate) fn hand(&mut self, connection: u32, event: &FromVmm, fds: &[BorrowedFd<'_>]) {
        let Some(socket) = self.socket(connection) else { return };
        if let Err(error) = socket.send(event, fds) {
            log::info!("connection {connection} was not told {event:?}: {error}");
            self.cut(connection);
        }
    }

    /// Tells all of them.
    pub(crate) fn tell_all(&mut self, event: &FromVmm) {
        for connection in 0..u32::try_from(self.connections.len()).unwrap_or(u32::MAX) {
            self.tell(connection, event);
        }
    }

    /// Keeps one connection and closes everything else, as a forked child must.
    pub(crate) fn keep_only(mut self, connection: u32) -> Option<ControlSocket> {
        let place = usize::try_from(connection).ok()?;
        self.connections.get_mut(place)?.take()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::path::Path;
    use std::process::Command;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use vmm_sys_util::eventfd::EventFd;

    use super::*;

    #[test]
    fn a_connection_that_was_cut_is_not_heard_of_again_though_others_have_it_open() {
        let reactor = Reactor::new().unwrap();
        let mut controls = Controls::new(Arc::clone(&reactor));
        let (ours, theirs) = ControlSocket::pair().unwrap();
        let childs = ours.as_fd().try_clone_to_owned().unwrap();
        let connection = controls.adopt(ours).unwrap();
        drop(theirs);
        assert!(matches!(controls.hear(connection), Heard::Gone));
        let wake = EventFd::new(0).unwrap();
        reactor.watch(&wake, Source::Events).unwrap();
        wake.write(1).unwrap();
        let mut ready = Vec::new();
        reactor.wait(&mut ready).unwrap();
        assert_eq!(ready.iter().map(|(source, _)| *source).collect::<Vec<_>>(), [Source::Events]);
        drop(childs);
    }

    /// Names what is ready.
    fn sources(reactor: &Reactor) -> Vec<Source> {
        let mut ready = Vec::new();
        reactor.wait(&mut ready).unwrap();
        ready.iter().map(|(source, _)| *source).collect()
    }

    fn socket() -> OwnedFd {
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn connect(socket: &OwnedFd, path: &Path) {
        rustix::net::connect(socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    }

    /// Run by the test below in a process of its own. By itself it does nothing.
    #[test]
    fn process_without_descriptors() {
        let Some(path) = std::env::var_os("VMM_LISTENS") else { return };
        let (path, reactor, wake) = (Path::new(&path), Reactor::new().unwrap(), EventFd::new(0).unwrap());
        reactor.watch(&wake, Source::Events).unwrap();
        let mut controls = Controls::new(Arc::clone(&reactor));
        controls.listen(proto::control::listen(path).unwrap()).unwrap();
        let (first, second) = (socket(), socket());
        let lowest_free = u64::try_from(socket().as_raw_fd()).unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest_free), ..before }).unwrap();
        connect(&first, path);
        assert_eq!(sources(&reactor), [Source::Listener]);
        controls.accept();
        assert_eq!(controls.connections.len(), 0);
        wake.write(1).unwrap();
        assert_eq!(sources(&reactor), [Source::Events], "who waits is not told of again and again");
        wake.read().unwrap();
        setrlimit(Resource::Nofile, before).unwrap();
        connect(&second, path);
        assert_eq!(sources(&reactor), [Source::Listener]);
        controls.accept();
        assert_eq!(controls.connections.iter().flatten().count(), 2, "the one who waited came in, too");
    }

    #[test]
    fn a_host_without_descriptors_is_waited_for_in_peace() {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "controls::tests::process_without_descriptors", "--test-threads", "1"])
            .env("VMM_LISTENS", dir.path().join("socket"))
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }

    #[test]
    fn those_who_give_orders_can_be_listened_to_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let reactor = Reactor::new().unwrap();
        let device = EventFd::new(1).unwrap();
        reactor.watch(&device, Source::Queue { device: 0, queue: 0 }).unwrap();
        let mut controls = Controls::new(Arc::clone(&reactor));
        controls.listen(proto::control::listen(&path).unwrap()).unwrap();
        let (asker, asking) = ControlSocket::pair().unwrap();
        let alone = |controls: &mut Controls| {
            let mut ready = Vec::new();
            controls.wait(Some(&asker), &mut ready).unwrap();
            ready.iter().map(|(source, _)| *source).collect::<Vec<_>>()
        };
        let caller = socket();
        connect(&caller, &path);
        assert_eq!(alone(&mut controls), [Source::Listener]);
        controls.accept();
        let caller = ControlSocket::from(caller);
        caller.send(&ToVmm::Resume, &[]).unwrap();
        assert_eq!(alone(&mut controls), [Source::Control { connection: 0 }]);
        assert!(matches!(controls.hear(0), Heard::Said(ToVmm::Resume, _)));
        drop(asking);
        assert_eq!(alone(&mut controls), [Source::Asker]);
    }

    #[test]
    fn too_many_callers_wait_until_one_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let reactor = Reactor::new().unwrap();
        let mut controls = Controls::new(Arc::clone(&reactor));
        controls.listen(proto::control::listen(&path).unwrap()).unwrap();
        let callers: Vec<_> = (0..=MAX_CONNECTIONS).map(|_| socket()).collect();
        callers.iter().for_each(|caller| connect(caller, &path));
        assert_eq!(sources(&reactor), [Source::Listener]);
        controls.accept();
        assert_eq!(controls.connections.iter().flatten().count(), MAX_CONNECTIONS);
        ControlSocket::from(callers.into_iter().next_back().unwrap()).send(&ToVmm::PowerButton, &[]).unwrap();
        controls.cut(0);
        assert!(
            matches!(controls.hear(0), Heard::Said(ToVmm::PowerButton, _)),
            "the last one has the first one's place"
        );
    }
}
