//! The kernel's packet filter, spoken to directly: what `nft` would say, for exactly the rules we have.
//!
//! There is no crate for it that neither runs the `nft` program nor links a C library nor is under a licence that ours
//! does not go with; and what we need of it is one table, its chains and sets, and a dozen expressions
//! (`linux/netfilter/nf_tables.h` has every number here). A change is one transaction: packets see all of it or nothing.

mod connections;
mod expr;

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

pub(crate) use expr::{Base, Code, Compare, Reg, Rule, Verdict};

use crate::netlink::{Attributes, CREATE, Message, Socket, attributes, find};

/// The name of our table, in every namespace.
pub(crate) const TABLE: &str = "forkd";

const SUBSYSTEM: u16 = 10 << 8;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const DELETE_RULE: u16 = SUBSYSTEM | 8;
const NEW_SET: u16 = SUBSYSTEM | 9;
const GET_SET: u16 = SUBSYSTEM | 10;
const DELETE_SET: u16 = SUBSYSTEM | 11;
const NEW_ELEMENT: u16 = SUBSYSTEM | 12;
const GET_ELEMENT: u16 = SUBSYSTEM | 13;
const DELETE_ELEMENT: u16 = SUBSYSTEM | 14;
const NEW_OBJECT: u16 = SUBSYSTEM | 18;
const GET_OBJECT: u16 = SUBSYSTEM | 19;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const APPEND: u16 = 0x800;

/// `nfgenmsg`: family, version, resource.
const INET: [u8; 4] = Family::Inet.header();
const ANY: [u8; 4] = [0; 4];
const FOR_TABLES: [u8; 4] = [0, 0, 0, 10];
pub(crate) const GENERIC_LEN: usize = 4;

const LIST_ELEMENT: u16 = 1;
const DATA_VALUE: u16 = 1;
const COUNTER_OBJECT: u32 = 1;

const SET_TIMEOUT: u32 = 16;
const SET_EVALUATED: u32 = 32;
const SET_CONCATENATED: u32 = 128;

/// The most elements that one message carries: its attributes are shorter than 64 KiB.
const ELEMENTS: usize = 1000;

/// What a table sees. There is one of ours in each family that has a need for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4 and IPv6, in all places but the very first.
    #[default]
    Inet = 1,
    /// Everything that one interface receives, ARP and what has no name included.
    Device = 5,
}

impl Family {
    const fn header(self) -> [u8; 4] {
        [self as u8, 0, 0, 0]
    }
}

/// Where a base chain is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook {
    pub(crate) number: u32,
    pub(crate) priority: i32,
    /// `filter` or `nat`.
    pub(crate) kind: &'static str,
    pub(crate) policy: Verdict,
    /// The one interface, for a table of [`Family::Device`].
    pub(crate) device: Option<&'static str>,
}

impl Hook {
    pub(crate) const PREROUTING: u32 = 0;
    pub(crate) const INPUT: u32 = 1;
    pub(crate) const FORWARD: u32 = 2;
    pub(crate) const OUTPUT: u32 = 3;
    pub(crate) const POSTROUTING: u32 = 4;
    /// Of a table of [`Family::Device`].
    pub(crate) const INGRESS: u32 = 0;
    /// Before connections are followed.
    pub(crate) const BEFORE_CONNECTIONS: i32 = -300;
    /// Where others translate source addresses.
    pub(crate) const AFTER_ROUTING: i32 = 100;
}

/// What a set holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetKind {
    /// The types of the parts, for whoever lists it with `nft`.
    types: &'static [u32],
    /// In bytes, each part.
    lengths: &'static [u32],
    flags: u32,
    /// How many it holds at most.
    size: u32,
    timeout: Option<Duration>,
}

impl SetKind {
    const ADDRESS: u32 = 7;
    const PROTOCOL: u32 = 12;
    const SERVICE: u32 = 13;

    /// Addresses, each for a time of its own.
    pub(crate) const fn addresses(size: u32) -> Self {
        Self { types: &[Self::ADDRESS], lengths: &[4], flags: SET_TIMEOUT, size, timeout: None }
    }

    /// Pairs of addresses.
    pub(crate) const fn pairs(size: u32) -> Self {
        let types = &[Self::ADDRESS, Self::ADDRESS];
        Self { types, lengths: &[4, 4], flags: SET_CONCATENATED, size, timeout: None }
    }

    /// Address, protocol and port, filled by rules, each forgotten some time after it was last seen.
    pub(crate) const fn attempts(size: u32, timeout: Duration) -> Self {
        let types = &[Self::ADDRESS, Self::PROTOCOL, Self::SERVICE];
        let flags = SET_TIMEOUT | SET_EVALUATED | SET_CONCATENATED;
        Self { types, lengths: &[4, 4, 4], flags, size, timeout: Some(timeout) }
    }
}

/// One change of the table, complete or not at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transaction {
    messages: Vec<Message>,
    sets: u32,
    family: Family,
}

impl Transaction {
    /// What follows is about the table of that family.
    pub(crate) const fn about(&mut self, family: Family) {
        self.family = family;
    }

    fn push(&mut self, kind: u16, flags: u16, attributes: impl FnOnce(Message) -> Message) {
        self.messages.push(attributes(Message::new(kind, flags, &self.family.header())));
    }

    /// The table, which stays as it is if there is one.
    pub(crate) fn table(&mut self) {
        self.push(NEW_TABLE, CREATE, |message| message.put_str(1, TABLE));
    }

    /// The table anew, whether or not there was one.
    pub(crate) fn replace_table(&mut self) {
        for (kind, flags) in [(NEW_TABLE, CREATE), (DELETE_TABLE, 0), (NEW_TABLE, CREATE)] {
            self.push(kind, flags, |message| message.put_str(1, TABLE));
        }
    }

    pub(crate) fn counter(&mut self, name: &str) {
        self.push(NEW_OBJECT, CREATE, |message| {
            let zero = Attributes::default().put_be64(1, 0).put_be64(2, 0);
            message.put_str(1, TABLE).put_str(2, name).put(3, &COUNTER_OBJECT.to_be_bytes()).put_all(4, &zero)
        });
    }

    pub(crate) fn chain(&mut self, name: &str) {
        self.push(NEW_CHAIN, CREATE, |message| message.put_str(1, TABLE).put_str(3, name));
    }

    pub(crate) fn base_chain(&mut self, name: &str, hook: Hook) {
        let place = Attributes::default().put_be32(1, hook.number).put(2, &hook.priority.to_be_bytes());
        let place = match hook.device {
            Some(device) => place.put_str(3, device),
            None => place,
        };
        self.push(NEW_CHAIN, CREATE, |message| {
            let message = message.put_str(1, TABLE).put_str(3, name).put_all(4, &place);
            message.put(5, &hook.policy.code().to_be_bytes()).put_str(7, hook.kind)
        });
    }

    /// The chain without its rules.
    pub(crate) fn flush(&mut self, chain: &str) {
        self.push(DELETE_RULE, 0, |message| message.put_str(1, TABLE).put_str(2, chain));
    }

    pub(crate) fn rule(&mut self, chain: &str, rule: &Rule) {
        let flags = CREATE | APPEND;
        self.push(NEW_RULE, flags, |message| {
            message.put_str(1, TABLE).put_str(2, chain).put_all(4, rule.expressions())
        });
    }

    pub(crate) fn set(&mut self, name: &str, kind: SetKind) {
        self.sets += 1;
        let kind_of_key = kind.types.iter().fold(0, |all, part| all << 6 | part);
        let mut description = Attributes::default().put_be32(1, kind.size);
        if kind.flags & SET_CONCATENATED != 0 {
            let part = |length: &u32| Attributes::default().put_be32(1, *length);
            let parts = kind.lengths.iter().fold(Attributes::default(), |all, length| all.put_all(1, &part(length)));
            description = description.put_all(2, &parts);
        }
        let number = self.sets;
        self.push(NEW_SET, CREATE, |message| {
            let message = message.put_str(1, TABLE).put_str(2, name).put(3, &kind.flags.to_be_bytes());
            let message = message.put(4, &kind_of_key.to_be_bytes());
            let message = message.put(5, &kind.lengths.iter().sum::<u32>().to_be_bytes());
            let message = message.put_all(9, &description).put(10, &number.to_be_bytes());
            match kind.timeout {
                Some(timeout) => message.put(11, &millis(timeout).to_be_bytes()),
                None => message,
            }
        });
    }

    pub(crate) fn remove_set(&mut self, name: &str) {
        self.push(DELETE_SET, 0, |message| message.put_str(1, TABLE).put_str(2, name));
    }

    /// Puts something into a set: what was there already stays as it is.
    pub(crate) fn add(&mut self, set: &str, key: &[u8], timeout: Option<Duration>) {
        self.add_all(set, &[(key, timeout)]);
    }

    /// The same of many at a time.
    pub(crate) fn add_all<K: AsRef<[u8]>>(&mut self, set: &str, elements: &[(K, Option<Duration>)]) {
        for some in elements.chunks(ELEMENTS) {
            self.elements(NEW_ELEMENT, CREATE, set, some);
        }
    }

    /// Takes something out of a set; what is not there fails all of it.
    pub(crate) fn remove(&mut self, set: &str, key: &[u8]) {
        self.elements(DELETE_ELEMENT, 0, set, &[(key, None)]);
    }

    fn elements<K: AsRef<[u8]>>(&mut self, kind: u16, flags: u16, set: &str, elements: &[(K, Option<Duration>)]) {
        let list = elements.iter().fold(Attributes::default(), |list, (key, timeout)| {
            let element = Attributes::default().put_all(1, &Attributes::default().put(DATA_VALUE, key.as_ref()));
            let element = match timeout {
                Some(timeout) => element.put_be64(4, millis(*timeout)),
                None => element,
            };
            list.put_all(LIST_ELEMENT, &element)
        });
        self.push(kind, flags, |message| message.put_str(1, TABLE).put_str(2, set).put_all(3, &list));
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The packet filter of one namespace.
#[derive(Debug)]
pub(crate) struct Nft {
    socket: Socket,
}

/// Something in a set, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    /// Until it is forgotten.
    pub(crate) left: Option<Duration>,
    pub(crate) packets: u64,
}

impl Nft {
    /// That of the namespace this thread is in.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Some(rustix::net::netlink::NETFILTER))? })
    }

    /// Makes one change.
    pub(crate) fn commit(&mut self, transaction: Transaction) -> io::Result<()> {
        let frame = (Message::new(BATCH_BEGIN, 0, &FOR_TABLES), Message::new(BATCH_END, 0, &FOR_TABLES));
        self.socket.ask_framed(transaction.messages, Some(frame))
    }

    /// The named counters of our tables: packets and bytes of each.
    pub(crate) fn counters(&mut self) -> io::Result<Vec<(String, u64, u64)>> {
        let mut counters = Vec::new();
        let ask = Message::new(GET_OBJECT, 0, &ANY).put_str(1, TABLE);
        self.socket.list(ask, GENERIC_LEN, |body| counters.extend(read_counter(body)))?;
        Ok(counters)
    }

    /// What is in a set.
    pub(crate) fn elements(&mut self, set: &str) -> io::Result<Vec<Element>> {
        let mut elements = Vec::new();
        let ask = Message::new(GET_ELEMENT, 0, &INET).put_str(1, TABLE).put_str(2, set);
        self.socket.list(ask, GENERIC_LEN, |body| {
            let list = find(body, 3).unwrap_or_default();
            elements.extend(attributes(list).filter_map(|(_, element)| read_element(element)));
        })?;
        Ok(elements)
    }

    /// The names of all sets of the table.
    pub(crate) fn sets(&mut self) -> io::Result<Vec<String>> {
        let mut sets = Vec::new();
        let ask = Message::new(GET_SET, 0, &INET).put_str(1, TABLE);
        self.socket.list(ask, GENERIC_LEN, |body| sets.extend(find(body, 2).and_then(text)))?;
        Ok(sets)
    }

    /// Whether there is such a thing here; [`io::ErrorKind::NotFound`] is no.
    pub(crate) fn has_table(&mut self) -> io::Result<bool> {
        const GET_TABLE: u16 = SUBSYSTEM | 1;
        match self.socket.ask(Message::new(GET_TABLE, 0, &INET).put_str(1, TABLE)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    std::ffi::CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok().map(Into::into)
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

fn read_counter(body: &[u8]) -> Option<(String, u64, u64)> {
    let data = find(body, 4)?;
    Some((find(body, 2).and_then(text)?, find(data, 2).and_then(number)?, find(data, 1).and_then(number)?))
}

fn read_element(element: &[u8]) -> Option<Element> {
    let key = find(find(element, 1)?, DATA_VALUE)?.to_vec();
    let left = find(element, 5).and_then(number).map(Duration::from_millis);
    // The counter each element has, beside the only expression it can have.
    let counter = find(element, 7).and_then(|expression| find(expression, 2));
    Some(Element { key, left, packets: counter.and_then(|data| find(data, 2)).and_then(number).unwrap_or(0) })
}

/// The key of an address.
pub(crate) const fn address_key(address: Ipv4Addr) -> [u8; 4] {
    address.octets()
}

/// The address of a key.
pub(crate) fn address_of(key: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(key).ok().map(Ipv4Addr::from)
}

/// The key of two.
pub(crate) fn pair_key(one: Ipv4Addr, two: Ipv4Addr) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&one.octets());
    key[4..].copy_from_slice(&two.octets());
    key
}
