//! The thread that answers: one loop over everybody's sockets, with a bound on everything that waits.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::message::{self, Answer, Kind, MAX_MESSAGE, Outcome, Question};
use super::queue::{self, Queue};
use super::{Command, Upstream};
use crate::network::Network;
use crate::plan::{GUEST, Number};
use crate::policy::HostName;
use crate::site::Site;

/// How many questions of one sandbox are looked at before it is another's turn.
const BATCH: usize = 16;
/// How long one name server is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked who has waited too long.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const EVENTS: usize = 64;

/// For how long it is known whom to ask; that is a file of the host's.
const SERVERS_KNOWN: Duration = Duration::from_secs(1);

/// What a descriptor is, as epoll remembers it: a network's number, or a question's number beyond all of those.
const BELL: u64 = u64::MAX;

/// Everything the thread has.
#[derive(Debug)]
pub(super) struct Server {
    site: Site,
    upstream: Upstream,
    orders: Receiver<Command>,
    bell: Arc<OwnedFd>,
    epoll: OwnedFd,
    networks: HashMap<u16, Arc<Network>>,
    waiting: Queue<Waiting>,
    /// Whom to ask, and since when that is known.
    servers: Option<(Instant, Vec<SocketAddr>)>,
}

/// A question on its way.
#[derive(Debug)]
struct Waiting {
    network: Arc<Network>,
    asker: SocketAddr,
    question: Question,
    name: HostName,
    id: u16,
    socket: UdpSocket,
    until: Instant,
    /// Who is asked if this one says nothing.
    others: Vec<SocketAddr>,
}

impl Server {
    pub(super) fn new(
        site: Site,
        upstream: Upstream,
        orders: Receiver<Command>,
        bell: Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let (networks, waiting) = (HashMap::new(), Queue::new());
        Ok(Self { site, upstream, orders, bell, epoll, networks, waiting, servers: None })
    }

    pub(super) fn run(mut self) {
        loop {
            let mut ready = Vec::with_capacity(EVENTS);
            let tick = (!self.waiting.is_empty()).then_some(&TICK);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), tick) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return log::error!("the name server cannot wait: {error}"),
            }
            for event in ready {
                match event.data.u64() {
                    BELL => {
                        if !self.obey() {
                            return;
                        }
                    }
                    number if number >= queue::FIRST => self.hear(number),
                    number => self.listen(number),
                }
            }
            self.give_up_on_the_silent();
        }
    }

    /// Does what was ordered; false when that was to end.
    fn obey(&mut self) -> bool {
        let mut rung = [0; 8];
        match rustix::io::read(&self.bell, &mut rung) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => log::warn!("the name server's bell: {error}"),
        }
        while let Ok(command) = self.orders.try_recv() {
            match command {
                Command::Serve(network) => self.serve(network),
                Command::Forget(number, done) => {
                    self.forget(number);
                    drop(done);
                }
                Command::End => return false,
            }
        }
        true
    }

    fn serve(&mut self, network: Arc<Network>) {
        self.forget(network.number());
        let number = network.number().get();
        let data = epoll::EventData::new_u64(number.into());
        match epoll::add(&self.epoll, &*network.questions, data, epoll::EventFlags::IN) {
            Ok(()) => drop(self.networks.insert(number, network)),
            Err(error) => log::error!("{} has no name server: {error}", network.number().namespace()),
        }
    }

    fn forget(&mut self, number: Number) {
        self.waiting.forget(number);
        let Some(network) = self.networks.remove(&number.get()) else { return };
        if let Err(error) = epoll::delete(&self.epoll, &*network.questions) {
            log::warn!("{}: {error}", number.namespace());
        }
    }

    /// Takes some questions of one guest.
    fn listen(&mut self, number: u64) {
        let network = u16::try_from(number).ok().and_then(|number| self.networks.get(&number)).map(Arc::clone);
        let Some(network) = network else { return };
        let mut bytes = [0; MAX_MESSAGE];
        for _ in 0..BATCH {
            let (length, asker) = match network.questions.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An answer that could not be delivered; the next question may be another matter.
                Err(error) => return log::debug!("{}: {error}", network.number().namespace()),
            };
            if asker.ip() != GUEST {
                continue;
            }
            match Question::parse(&bytes[..length]) {
                Some(question) => self.consider(&network, asker, &question),
                None => network.names().malformed(),
            }
        }
    }

    /// Answers what can be answered at once, and asks for the rest.
    fn consider(&mut self, network: &Arc<Network>, asker: SocketAddr, question: &Question) {
        network.names().asked();
        let allowed = question.name.clone().filter(|name| network.egress().services_of(name).is_some());
        let outcome = match (allowed, question.kind) {
            (None, _) => Outcome::Refused,
            (Some(_), Kind::Other) => Outcome::Refused,
            (Some(_), Kind::Ipv6) => Outcome::Nothing,
            (Some(name), Kind::Ipv4) => match self.ask(network, asker, question, name) {
                Ok(()) => return,
                Err(error) => {
                    log::debug!("{}: {error}", network.number().namespace());
                    Outcome::Failed
                }
            },
        };
        if outcome == Outcome::Refused {
            network.names().refused(question.name.as_ref());
        }
        say(network, asker, &question.decline(outcome));
    }

    fn ask(
        &mut self,
        network: &Arc<Network>,
        asker: SocketAddr,
        question: &Question,
        name: HostName,
    ) -> io::Result<()> {
        if let Some(given_up) = self.waiting.make_room(network.number()).map_err(io::Error::other)? {
            say(&given_up.network, given_up.asker, &given_up.question.decline(Outcome::Failed));
        }
        let mut others = self.servers();
        others.reverse();
        let server = others.pop().ok_or_else(|| io::Error::other("the host has no name server"))?;
        let (id, socket) = inquire(server, &name)?;
        let (network, question, until) = (Arc::clone(network), question.clone(), Instant::now() + PATIENCE);
        self.wait_for(Waiting { network, asker, question, name, id, socket, until, others })
    }

    fn servers(&mut self) -> Vec<SocketAddr> {
        match &self.servers {
            Some((since, servers)) if since.elapsed() < SERVERS_KNOWN => servers.clone(),
            _ => self.servers.insert((Instant::now(), self.upstream.servers())).1.clone(),
        }
    }

    fn wait_for(&mut self, waiting: Waiting) -> io::Result<()> {
        let number = self.waiting.add(waiting.network.number(), waiting);
        let Some(Waiting { socket, .. }) = self.waiting.get(number) else { return Ok(()) };
        let added = epoll::add(&self.epoll, socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN);
        if added.is_err() {
            self.waiting.remove(number);
        }
        Ok(added?)
    }

    /// Somebody has answered a question of ours.
    fn hear(&mut self, number: u64) {
        let Some(waiting) = self.waiting.get(number) else { return };
        let mut bytes = [0; MAX_MESSAGE];
        let said = match waiting.socket.recv(&mut bytes) {
            Ok(length) => message::understand(&bytes[..length], waiting.id, &waiting.name),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // Nobody listens there: as good as silence, only sooner.
            Err(_) => return self.try_another(number),
        };
        // What answers no question of ours is not ours; the answer may still come.
        let Some(answer) = said else { return };
        if answer.addresses == Err(Outcome::Failed) && !waiting.others.is_empty() {
            return self.try_another(number);
        }
        if let Some(waiting) = self.waiting.remove(number) {
            self.pass_on(&waiting, answer);
        }
    }

    fn pass_on(&self, waiting: &Waiting, answer: Answer) {
        let Waiting { network, asker, question, name, .. } = waiting;
        let found = answer.addresses.and_then(|addresses| self.harmless(network, name, &addresses));
        let found = found.and_then(|addresses| match network.learn(name, &addresses, answer.ttl) {
            Ok(true) => Ok(addresses),
            Ok(false) => Err(Outcome::Refused),
            Err(error) => {
                log::warn!("{}: {name} cannot be opened: {error}", network.number().namespace());
                Err(Outcome::Failed)
            }
        });
        let bytes = match found {
            Ok(addresses) => question.answer(&addresses, answer.ttl),
            Err(outcome) => {
                if outcome == Outcome::Refused {
                    network.names().refused(Some(name));
                }
                question.decline(outcome)
            }
        };
        say(network, *asker, &bytes);
    }

    /// The addresses that a name may stand for: whoever answers for it must not be able to open the host.
    fn harmless(&self, network: &Network, name: &HostName, told: &[Ipv4Addr]) -> Result<Vec<Ipv4Addr>, Outcome> {
        let own = self.site.addresses().map_err(|error| {
            log::warn!("the host's addresses are not known: {error}");
            Outcome::Failed
        })?;
        let egress = network.egress();
        let harmless = |address: &&Ipv4Addr| !own.contains(address) && egress.may_mean(name, **address);
        let left: Vec<_> = told.iter().filter(harmless).copied().collect();
        if left.is_empty() { Err(Outcome::Refused) } else { Ok(left) }
    }

    fn give_up_on_the_silent(&mut self) {
        let now = Instant::now();
        self.waiting.those(|waiting| waiting.until <= now).into_iter().for_each(|number| self.try_another(number));
    }

    /// Asks the next name server, or says that nobody knows.
    fn try_another(&mut self, number: u64) {
        let Some(mut waiting) = self.waiting.remove(number) else { return };
        while let Some(server) = waiting.others.pop() {
            if let Ok((id, socket)) = inquire(server, &waiting.name) {
                let (network, asker, question) =
                    (Arc::clone(&waiting.network), waiting.asker, waiting.question.clone());
                let next = Waiting { id, socket, until: Instant::now() + PATIENCE, ..waiting };
                if let Err(error) = self.wait_for(next) {
                    log::debug!("{error}");
                    say(&network, asker, &question.decline(Outcome::Failed));
                }
                return;
            }
        }
        say(&waiting.network, waiting.asker, &waiting.question.decline(Outcome::Failed));
    }
}

/// Asks a name server: from a port and with a number that nobody can know who does not see the question.
fn inquire(server: SocketAddr, name: &HostName) -> io::Result<(u16, UdpSocket)> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    socket.connect(server)?;
    let mut id = [0; 2];
    rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()))?;
    let id = u16::from_ne_bytes(id);
    socket.send(&message::ask(id, name))?;
    Ok((id, socket))
}

/// A guest that does not read its answers loses them.
fn say(network: &Network, asker: SocketAddr, bytes: &[u8]) {
    if let Err(error) = network.questions.send_to(bytes, asker) {
        log::debug!("{}: {error}", network.number().namespace());
    }
}
