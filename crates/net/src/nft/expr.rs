//! What a rule is made of: expressions that load a part of the packet into a register, compare it, and decide.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::netlink::Attributes;
use crate::policy::{Protocol, Service};

const TCP: u8 = 6;
const UDP: u8 = 17;
const INTERFACE_NAME: usize = 16;
const COUNTER_OBJECT: u32 = 1;
const STATE_ESTABLISHED: u32 = 2;
const STATE_RELATED: u32 = 4;
const STATUS_REDIRECTED: u32 = 32;

/// A register of four bytes; those of a key lie side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reg(u32);

impl Reg {
    pub(crate) const A: Self = Self(8);
    pub(crate) const B: Self = Self(9);
    pub(crate) const C: Self = Self(10);
    /// What a rule decides.
    const VERDICT: Self = Self(0);
}

/// From where a part of the packet is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base {
    Link = 0,
    Network = 1,
    Transport = 2,
}

/// How two values are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compare {
    Equal = 0,
    NotEqual = 1,
    AtMost = 3,
    AtLeast = 5,
}

/// What becomes of a packet, or where it is looked at next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Accept,
    Drop,
    Jump(&'static str),
    Goto(&'static str),
}

impl Verdict {
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
        }
    }
}

/// How a packet that is refused is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    /// By an ICMP message: not allowed by whoever runs this.
    Prohibited,
    /// By ending the TCP connection.
    Reset,
}

/// A rule: its expressions, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    list: Attributes,
}

impl Rule {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(super) const fn expressions(&self) -> &Attributes {
        &self.list
    }

    fn with(mut self, name: &str, data: &Attributes) -> Self {
        let expression = Attributes::default().put_str(1, name).put_all(2, data);
        self.list = self.list.put_all(1, &expression);
        self
    }

    pub(crate) fn meta(self, key: u32, to: Reg) -> Self {
        self.with("meta", &Attributes::default().put_be32(1, to.0).put_be32(2, key))
    }

    pub(crate) fn load(self, base: Base, offset: u32, length: u32, to: Reg) -> Self {
        let data = Attributes::default().put_be32(1, to.0).put_be32(2, base as u32);
        self.with("payload", &data.put_be32(3, offset).put_be32(4, length))
    }

    pub(crate) fn compare(self, how: Compare, value: &[u8]) -> Self {
        let data = Attributes::default().put_be32(1, Reg::A.0).put_be32(2, how as u32);
        self.with("cmp", &data.put_all(3, &Attributes::default().put(1, value)))
    }

    fn mask(self, mask: [u8; 4]) -> Self {
        let value = |value: [u8; 4]| Attributes::default().put(1, &value);
        let data = Attributes::default().put_be32(1, Reg::A.0).put_be32(2, Reg::A.0).put_be32(3, 4);
        self.with("bitwise", &data.put_all(4, &value(mask)).put_all(5, &value([0; 4])))
    }

    pub(crate) fn incoming(self, name: &str) -> Self {
        self.meta(6, Reg::A).compare(Compare::Equal, &interface(name))
    }

    pub(crate) fn outgoing(self, name: &str) -> Self {
        self.meta(7, Reg::A).compare(Compare::Equal, &interface(name))
    }

    /// From any interface whose name begins like that.
    pub(crate) fn incoming_any(self, prefix: &str) -> Self {
        self.meta(6, Reg::A).compare(Compare::Equal, prefix.as_bytes())
    }

    /// From one bridge, or from one bridge to another.
    pub(crate) fn between_bridges(self) -> Self {
        let bridge = interface("bridge");
        self.meta(26, Reg::A).compare(Compare::Equal, &bridge).meta(27, Reg::A).compare(Compare::Equal, &bridge)
    }

    pub(crate) fn outgoing_any(self, how: Compare, prefix: &str) -> Self {
        self.meta(7, Reg::A).compare(how, prefix.as_bytes())
    }

    /// IPv4, in chains that see both.
    pub(crate) fn ipv4(self) -> Self {
        self.meta(15, Reg::A).compare(Compare::Equal, &[2])
    }

    pub(crate) fn source(self, how: Compare, address: Ipv4Addr) -> Self {
        self.load(Base::Network, 12, 4, Reg::A).compare(how, &address.octets())
    }

    pub(crate) fn source_in(self, network: Ipv4Net) -> Self {
        self.load(Base::Network, 12, 4, Reg::A).within(network)
    }

    pub(crate) fn to(self, network: Ipv4Net) -> Self {
        self.load(Base::Network, 16, 4, Reg::A).within(network)
    }

    fn within(self, network: Ipv4Net) -> Self {
        let masked = if network.prefix_len() == 32 { self } else { self.mask(network.netmask().octets()) };
        masked.compare(Compare::Equal, &network.network().octets())
    }

    /// The destination's address is in that set.
    pub(crate) fn destination_in(self, set: &str) -> Self {
        self.load(Base::Network, 16, 4, Reg::A).member_of(set)
    }

    /// Source and destination are a pair of that set.
    pub(crate) fn pair_in(self, set: &str) -> Self {
        self.load(Base::Network, 12, 4, Reg::A).load(Base::Network, 16, 4, Reg::B).member_of(set)
    }

    /// Its source, and where its connection went to before somebody redirected it, are a pair of that set.
    pub(crate) fn asked_pair_in(self, set: &str) -> Self {
        let asked = Attributes::default().put_be32(1, Reg::B.0).put_be32(2, 20).put(3, &[0]);
        self.load(Base::Network, 12, 4, Reg::A).with("ct", &asked).member_of(set)
    }

    fn member_of(self, set: &str) -> Self {
        self.with("lookup", &Attributes::default().put_str(1, set).put_be32(2, Reg::A.0))
    }

    pub(crate) fn tcp(self) -> Self {
        self.meta(16, Reg::A).compare(Compare::Equal, &[TCP])
    }

    pub(crate) fn udp(self) -> Self {
        self.meta(16, Reg::A).compare(Compare::Equal, &[UDP])
    }

    pub(crate) fn udp_to(self, port: u16) -> Self {
        self.udp().port(port, port)
    }

    pub(crate) fn udp_from(self, port: u16) -> Self {
        self.udp().load(Base::Transport, 0, 2, Reg::A).compare(Compare::Equal, &port.to_be_bytes())
    }

    fn port(self, first: u16, last: u16) -> Self {
        let loaded = self.load(Base::Transport, 2, 2, Reg::A);
        if first == last {
            return loaded.compare(Compare::Equal, &first.to_be_bytes());
        }
        loaded.compare(Compare::AtLeast, &first.to_be_bytes()).compare(Compare::AtMost, &last.to_be_bytes())
    }

    /// The rules that together are this one for that service: one for each protocol it has.
    pub(crate) fn for_service(self, service: Service) -> Vec<Self> {
        let protocols: &[u8] = match (service.protocol, service.ports) {
            (Some(Protocol::Tcp), _) => &[TCP],
            (Some(Protocol::Udp), _) => &[UDP],
            (None, Some(_)) => &[TCP, UDP],
            (None, None) => return vec![self],
        };
        let of = |protocol: &u8| {
            let rule = self.clone().meta(16, Reg::A).compare(Compare::Equal, &[*protocol]);
            service.ports.map_or_else(|| rule.clone(), |(first, last)| rule.clone().port(first, last))
        };
        protocols.iter().map(of).collect()
    }

    /// Of a connection that both sides have spoken on, or that belongs to one.
    pub(crate) fn established(self) -> Self {
        let states = (STATE_ESTABLISHED | STATE_RELATED).to_ne_bytes();
        self.with("ct", &Attributes::default().put_be32(1, Reg::A.0).put_be32(2, 0))
            .mask(states)
            .compare(Compare::NotEqual, &[0; 4])
    }

    /// Of a connection whose destination was translated.
    pub(crate) fn redirected(self) -> Self {
        self.with("ct", &Attributes::default().put_be32(1, Reg::A.0).put_be32(2, 2))
            .mask(STATUS_REDIRECTED.to_ne_bytes())
            .compare(Compare::NotEqual, &[0; 4])
    }

    /// Of a connection that has that mark.
    pub(crate) fn marked(self, mark: u32) -> Self {
        self.with("ct", &Attributes::default().put_be32(1, Reg::A.0).put_be32(2, 3))
            .compare(Compare::Equal, &mark.to_ne_bytes())
    }

    /// Gives the connection that mark.
    pub(crate) fn set_mark(self, mark: u32) -> Self {
        self.value(&mark.to_ne_bytes(), Reg::A).with("ct", &Attributes::default().put_be32(2, 3).put_be32(4, Reg::A.0))
    }

    /// The kernel remembers no connection for it.
    pub(crate) fn untracked(self) -> Self {
        self.with("notrack", &Attributes::default())
    }

    /// More connections than so many.
    pub(crate) fn connections_over(self, count: u32) -> Self {
        self.with("connlimit", &Attributes::default().put_be32(1, count).put_be32(2, 1))
    }

    /// More packets in a second than so many.
    pub(crate) fn packets_over(self, rate: u32) -> Self {
        let data = Attributes::default().put_be64(1, rate.into()).put_be64(2, 1);
        self.with("limit", &data.put_be32(3, rate.div_ceil(10)).put_be32(4, 0).put_be32(5, 1))
    }

    pub(crate) fn count(self, counter: &str) -> Self {
        self.with("objref", &Attributes::default().put_be32(1, COUNTER_OBJECT).put_str(2, counter))
    }

    /// Notes destination, protocol and port in that set, and how often.
    pub(crate) fn note_port(self, set: &str) -> Self {
        self.load(Base::Transport, 2, 2, Reg::C).note_rest(set)
    }

    /// The same of what has no port.
    pub(crate) fn note(self, set: &str) -> Self {
        self.value(&[0; 4], Reg::C).note_rest(set)
    }

    fn note_rest(self, set: &str) -> Self {
        let loaded = self.load(Base::Network, 16, 4, Reg::A).meta(16, Reg::B);
        let counter = Attributes::default().put_str(1, "counter").put_all(2, &Attributes::default());
        let data = Attributes::default().put_str(1, set).put_be32(3, 1).put_be32(4, Reg::A.0);
        loaded.with("dynset", &data.put_all(7, &counter))
    }

    fn value(self, value: &[u8], to: Reg) -> Self {
        let data = Attributes::default().put_be32(1, to.0);
        self.with("immediate", &data.put_all(2, &Attributes::default().put(1, value)))
    }

    /// Translates the source address.
    pub(crate) fn translate_source(self, address: Ipv4Addr) -> Self {
        let data = Attributes::default().put_be32(1, 0).put_be32(2, 2).put_be32(3, Reg::A.0);
        self.value(&address.octets(), Reg::A).with("nat", &data)
    }

    /// Translates the source address to that of the interface.
    pub(crate) fn masquerade(self) -> Self {
        self.with("masq", &Attributes::default())
    }

    pub(crate) fn refuse(self, code: Code) -> Self {
        match code {
            Code::Prohibited => self.with("reject", &Attributes::default().put_be32(1, 2).put(2, &[3])),
            Code::Reset => self.with("reject", &Attributes::default().put_be32(1, 1)),
        }
    }

    pub(crate) fn then(self, verdict: Verdict) -> Self {
        let code = Attributes::default().put(1, &verdict.code().to_be_bytes());
        let code = match verdict {
            Verdict::Jump(chain) | Verdict::Goto(chain) => code.put_str(2, chain),
            Verdict::Accept | Verdict::Drop => code,
        };
        let data = Attributes::default().put_all(2, &code);
        self.with("immediate", &Attributes::default().put_be32(1, Reg::VERDICT.0).put_all(2, &data))
    }
}

fn interface(name: &str) -> [u8; INTERFACE_NAME] {
    let mut padded = [0; INTERFACE_NAME];
    for (to, from) in padded.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    padded
}
