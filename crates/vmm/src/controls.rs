//! Everybody this process listens to: the connection it was started with, and those who come by its listening socket.
//!
//! Whoever talks nonsense or does not read is cut off; none of them can make the process wait or end it by accident.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use proto::control::{ControlError, ControlSocket, FromVmm, ToVmm};
use rustix::net::SocketFlags;

use crate::reactor::{Reactor, Source};

/// More callers than this at once have to wait.
const MAX_CONNECTIONS: usize = 64;

/// The connections of a process.
#[derive(Debug)]
pub(crate) struct Controls {
    reactor: Arc<Reactor>,
    listener: Option<OwnedFd>,
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
        Self { reactor, listener: None, connections: Vec::new() }
    }

    /// Takes callers from this socket, which listens already.
    pub(crate) fn listen(&mut self, listener: OwnedFd) -> io::Result<()> {
        self.reactor.watch(&listener, Source::Listener)?;
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

    /// Lets the next caller in. With too many inside already, it waits in the queue of the socket until one has left; and
    /// so it does when the host has no descriptor for it, which must not end what runs here.
    pub(crate) fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let accepted = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let adopted = match accepted {
            Ok(socket) => self.adopt(socket.into()).and_then(|_| self.watch_listener_if(Room::Left)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = adopted {
            log::warn!("a caller was not let in: {error}");
        }
    }

    fn watch_listener_if(&self, room: Room) -> io::Result<()> {
        let full = self.connections.iter().flatten().count() >= MAX_CONNECTIONS;
        match (&self.listener, room, full) {
            (Some(listener), Room::Left, true) => self.reactor.forget(listener),
            (Some(listener), Room::Made, true) => self.reactor.watch(listener, Source::Listener),
            _ => Ok(()),
        }
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
        // Room is made before the place is empty: the count decides whether the listener was forgotten.
        if let Err(error) = self.watch_listener_if(Room::Made) {
            log::error!("nobody can connect any more: {error}");
        }
        let place = usize::try_from(connection).ok().and_then(|place| self.connections.get_mut(place));
        if let Some(socket) = place.and_then(Option::take) {
            // Closing is not enough: children of a template share the connection, and an epoll forgets a file only when
            // nobody has it any more. Until then it would tell of the end without pause.
            if let Err(error) = self.reactor.forget(&socket) {
                log::error!("connection {connection} is still watched: {error}");
            }
        }
        Heard::Gone
    }

    /// Tells one of them.
    pub(crate) fn tell(&mut self, connection: u32, event: &FromVmm) {
        let Some(socket) = self.socket(connection) else { return };
        if let Err(error) = socket.send(event, &[]) {
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

/// A place among the connections was taken or is about to be given back.
#[derive(Clone, Copy)]
enum Room {
    Left,
    Made,
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

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
}
