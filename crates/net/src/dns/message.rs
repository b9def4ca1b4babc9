//! What is said between a guest, us and the host's name server: only what is understood is passed on, in words of ours.
//!
//! Both sides are hostile: a guest asks what it likes, and whoever answers for a name may be in league with it.

use std::net::Ipv4Addr;
use std::time::Duration;

use simple_dns::rdata::{OPT, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question as Asked, RCODE, ResourceRecord, TYPE};

use crate::policy::HostName;

/// The longest message that is read: what UDP carries unbroken nearly everywhere.
pub const MAX_MESSAGE: usize = 1232;
/// The most addresses of one answer: with the longest name they fit into 512 bytes, which every program reads.
pub const MAX_ADDRESSES: usize = 12;
/// The most records of one message: the shortest have 11 bytes.
const MAX_RECORDS: u16 = 112;
/// How many names may stand for each other before there is an address.
const MAX_ALIASES: usize = 16;
/// For how long an answer is good, whatever it says of itself: long enough to connect, and not for ever.
pub const TTL: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(3600));

/// A guest's question.
#[derive(Clone, Debug)]
pub struct Question {
    id: u16,
    asked: Asked<'static>,
    /// What is asked for, if it can be a host.
    pub name: Option<HostName>,
    /// What about it.
    pub kind: Kind,
}

/// What is asked about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its IPv4 addresses.
    Ipv4,
    /// Its IPv6 addresses.
    Ipv6,
    /// Anything else.
    Other,
}

/// Why there is no address in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There are none.
    Nothing,
    /// There is no such name.
    NoSuchName,
    /// It may not be asked for.
    Refused,
    /// It could not be found out.
    Failed,
}

/// What a name server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Where the name is, or why there is nothing.
    pub addresses: Result<Vec<Ipv4Addr>, Outcome>,
    /// For how long.
    pub ttl: Duration,
}

impl Question {
    /// A guest's message, if it is one question.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let packet = parse(bytes)?;
        let [asked] = packet.questions.as_slice() else { return None };
        if packet.has_flags(PacketFlag::RESPONSE) || packet.opcode() != simple_dns::OPCODE::StandardQuery {
            return None;
        }
        let kind = match (&asked.qtype, &asked.qclass) {
            (QTYPE::TYPE(TYPE::A), QCLASS::CLASS(CLASS::IN)) => Kind::Ipv4,
            (QTYPE::TYPE(TYPE::AAAA), QCLASS::CLASS(CLASS::IN)) => Kind::Ipv6,
            _ => Kind::Other,
        };
        let name = host_name(&asked.qname);
        Some(Self { id: packet.id(), asked: asked.clone().into_owned(), name, kind })
    }

    /// The answer without an address.
    #[must_use]
    pub fn decline(&self, outcome: Outcome) -> Vec<u8> {
        let code = match outcome {
            Outcome::Nothing => RCODE::NoError,
            Outcome::NoSuchName => RCODE::NameError,
            Outcome::Refused => RCODE::Refused,
            Outcome::Failed => RCODE::ServerFailure,
        };
        write(&self.reply(code))
    }

    /// The answer: these addresses, for so long.
    #[must_use]
    pub fn answer(&self, addresses: &[Ipv4Addr], ttl: Duration) -> Vec<u8> {
        let mut packet = self.reply(RCODE::NoError);
        let seconds = u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX);
        for address in addresses.iter().take(MAX_ADDRESSES) {
            let data = RData::A((*address).into());
            packet.answers.push(ResourceRecord::new(self.asked.qname.clone(), CLASS::IN, seconds, data));
        }
        write(&packet)
    }

    fn reply(&self, code: RCODE) -> Packet<'_> {
        let mut packet = Packet::new_reply(self.id);
        packet.set_flags(PacketFlag::RECURSION_DESIRED | PacketFlag::RECURSION_AVAILABLE);
        *packet.rcode_mut() = code;
        packet.questions.push(self.asked.clone());
        packet
    }
}

/// The question to the host's name server.
#[must_use]
pub fn ask(id: u16, name: &HostName) -> Vec<u8> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let asked = Asked::new(Name::new_unchecked(name.as_str()), TYPE::A.into(), CLASS::IN.into(), false);
    packet.questions.push(asked);
    let size = u16::try_from(MAX_MESSAGE).expect("it is a constant");
    *packet.opt_mut() = Some(OPT { opt_codes: Vec::new(), udp_packet_size: size, version: 0 });
    write(&packet)
}

/// What the name server says to question `id` for `name`; nothing when it says something else.
#[must_use]
pub fn understand(bytes: &[u8], id: u16, name: &HostName) -> Option<Answer> {
    let packet = parse(bytes)?;
    let [asked] = packet.questions.as_slice() else { return None };
    let is_answer = packet.has_flags(PacketFlag::RESPONSE) && packet.id() == id;
    if !is_answer || asked.qtype != QTYPE::TYPE(TYPE::A) || host_name(&asked.qname).as_ref() != Some(name) {
        return None;
    }
    let none = |outcome| Answer { addresses: Err(outcome), ttl: TTL.0 };
    Some(match packet.rcode() {
        RCODE::NoError => found(&packet, name),
        RCODE::NameError => none(Outcome::NoSuchName),
        _ => none(Outcome::Failed),
    })
}

/// Follows the name through its aliases and takes the addresses of all of them.
fn found(packet: &Packet<'_>, name: &HostName) -> Answer {
    let mut names = vec![name.as_str().to_owned()];
    let mut ttl = TTL.1;
    let lower = |name: &Name<'_>| name.to_string().to_ascii_lowercase();
    let seconds = |record: &ResourceRecord<'_>| Duration::from_secs(record.ttl.into());
    for _ in 0..MAX_ALIASES {
        let last = names.last().map(String::as_str).unwrap_or_default();
        let alias = packet.answers.iter().find_map(|record| match &record.rdata {
            RData::CNAME(alias) if lower(&record.name) == last => Some((lower(&alias.0), seconds(record))),
            _ => None,
        });
        let Some((alias, valid)) = alias.filter(|(alias, _)| !names.contains(alias)) else { break };
        ttl = ttl.min(valid);
        names.push(alias);
    }
    let mut addresses = Vec::new();
    for record in &packet.answers {
        if let (RData::A(address), true) = (&record.rdata, names.contains(&lower(&record.name))) {
            let address = Ipv4Addr::from_bits(address.address);
            if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
                ttl = ttl.min(seconds(record));
            }
        }
    }
    let addresses = if addresses.is_empty() { Err(Outcome::Nothing) } else { Ok(addresses) };
    Answer { addresses, ttl: ttl.max(TTL.0) }
}

/// A message that is no longer than we read, and does not claim to have more in it than that can be.
fn parse(bytes: &[u8]) -> Option<Packet<'_>> {
    let counts = bytes.get(4..12)?.chunks_exact(2).map(|count| u16::from_be_bytes([count[0], count[1]]));
    if bytes.len() > MAX_MESSAGE || counts.into_iter().any(|count| count > MAX_RECORDS) {
        return None;
    }
    Packet::parse(bytes).ok()
}

fn host_name(name: &Name<'_>) -> Option<HostName> {
    HostName::new(&name.to_string())
}

fn write(packet: &Packet<'_>) -> Vec<u8> {
    // Nothing is said when it cannot be written, which no message of ours can cause.
    packet.build_bytes_vec_compressed().unwrap_or_default()
}

#[cfg(test)]
mod tests;
