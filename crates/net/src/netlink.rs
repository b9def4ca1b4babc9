//! Netlink, as much of it as networks need: messages with attributes, requests that are acknowledged, lists.
//!
//! ```text
//! message    len u32, type u16, flags u16, seq u32, port u32; then a family's own header; then attributes
//! attribute  len u16, type u16, value, zeroes to a multiple of 4; a nested one holds attributes
//! ```
//!
//! The kernel works on a request while it is sent, so the answer is there when `send` returns. It is trusted, but its
//! answers are read like anybody's: with lengths that are checked.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACK: u16 = 4;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const DUMP: u16 = 0x300;

const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NESTED: u16 = 0x8000;
/// The two bits of an attribute's type that are flags.
const TYPE_MASK: u16 = 0x3FFF;
/// The largest piece the kernel sends of a list.
const BUFFER: usize = 64 << 10;
/// The most pieces of a list that are read: far more than any list of ours has.
const MAX_PIECES: usize = 4096;
/// Up to here a request fits into what every socket may send at once; for more, it is given room.
const ORDINARY: usize = 100 << 10;
const LARGEST: usize = 8 << 20;
/// Guards against a kernel that never answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// A message that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message of that type, with its family's own header.
    pub(crate) fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { bytes }
    }

    pub(crate) fn put(mut self, kind: u16, value: &[u8]) -> Self {
        attribute(&mut self.bytes, kind, value);
        self
    }

    pub(crate) fn put_str(self, kind: u16, value: &str) -> Self {
        self.put(kind, &terminated(value))
    }

    pub(crate) fn put_all(self, kind: u16, attributes: &Attributes) -> Self {
        self.put_nested(kind, &attributes.bytes)
    }

    /// Attributes as the kernel wrote them.
    pub(crate) fn put_nested(self, kind: u16, attributes: &[u8]) -> Self {
        self.put(kind | NESTED, attributes)
    }

    /// The message with its length, ready to be sent.
    fn finish(mut self, seq: u32, more_flags: u16) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("messages of ours are a few pages at most");
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | more_flags;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&seq.to_ne_bytes());
        self.bytes
    }
}

/// Attributes that will be nested in another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    bytes: Vec<u8>,
}

impl Attributes {
    /// Attributes behind a header of another kind.
    pub(crate) fn behind(header: &[u8]) -> Self {
        Self { bytes: header.to_vec() }
    }

    pub(crate) fn put(mut self, kind: u16, value: &[u8]) -> Self {
        attribute(&mut self.bytes, kind, value);
        self
    }

    pub(crate) fn put_str(self, kind: u16, value: &str) -> Self {
        self.put(kind, &terminated(value))
    }

    /// Netfilter's numbers are in network order, unlike those of routing.
    pub(crate) fn put_be32(self, kind: u16, value: u32) -> Self {
        self.put(kind, &value.to_be_bytes())
    }

    pub(crate) fn put_be64(self, kind: u16, value: u64) -> Self {
        self.put(kind, &value.to_be_bytes())
    }

    pub(crate) fn put_all(self, kind: u16, attributes: &Self) -> Self {
        self.put(kind | NESTED, &attributes.bytes)
    }
}

fn terminated(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("attributes of ours are shorter than 64 KiB");
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The attributes in some bytes, until their end or the first that is malformed.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_at_checked(4)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]])).checked_sub(4)?;
        let value = rest.get(..length)?;
        bytes = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([head[2], head[3]]) & TYPE_MASK, value))
    })
}

/// The value of the first attribute of that type.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A connection to the kernel. It speaks of the network namespace that its thread was in when it was opened.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    seq: u32,
}

/// One message of an answer: its type, its sequence number, and what follows the header.
struct Answer<'a> {
    kind: u16,
    seq: u32,
    body: &'a [u8],
}

impl Socket {
    /// To routing, or to the protocol given.
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { fd, seq: 0 })
    }

    /// Sends one request and learns whether it was done.
    pub(crate) fn ask(&mut self, message: Message) -> io::Result<()> {
        self.ask_all([message])
    }

    /// Sends requests in one piece; the first that fails is the error. Only the last is acknowledged when all is well.
    pub(crate) fn ask_all(&mut self, messages: impl IntoIterator<Item = Message>) -> io::Result<()> {
        self.ask_framed(messages, None)
    }

    /// The same, between two messages that make a transaction of them: all of it is done, or nothing.
    pub(crate) fn ask_framed(
        &mut self,
        messages: impl IntoIterator<Item = Message>,
        frame: Option<(Message, Message)>,
    ) -> io::Result<()> {
        self.drain()?;
        let mut bytes = Vec::new();
        let (begin, end) = frame.unzip();
        if let Some(begin) = begin {
            bytes.extend(begin.finish(self.next(), 0));
        }
        let mut messages = messages.into_iter().peekable();
        let mut last = self.seq;
        while let Some(message) = messages.next() {
            last = self.next();
            bytes.extend(message.finish(last, if messages.peek().is_none() { ACK } else { 0 }));
        }
        if let Some(end) = end {
            bytes.extend(end.finish(self.next(), 0));
        }
        if bytes.len() > ORDINARY {
            sockopt::set_socket_send_buffer_size_force(&self.fd, LARGEST)?;
        }
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, &bytes, SendFlags::empty()))?;
        self.acknowledged(last)
    }

    /// Reads everything the kernel has answered. A transaction that fails as a whole says so after the last message.
    fn acknowledged(&self, last: u32) -> io::Result<()> {
        let (mut done, mut failed) = (false, None);
        while let Some(bytes) = self.read(RecvFlags::DONTWAIT)? {
            for answer in answers(&bytes) {
                let Some(status) = answer.status() else { continue };
                if status != 0 {
                    failed = failed.or(Some(io::Error::from_raw_os_error(status)));
                }
                done |= answer.seq == last;
            }
        }
        match failed {
            Some(error) => Err(error),
            None if done => Ok(()),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel did not acknowledge a request")),
        }
    }

    /// Asks for a list and shows each of its messages: the body behind the family's header of `skip` bytes.
    pub(crate) fn list(&mut self, message: Message, skip: usize, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.drain()?;
        let seq = self.next();
        let bytes = message.finish(seq, DUMP);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, &bytes, SendFlags::empty()))?;
        for _ in 0..MAX_PIECES {
            let bytes = self.read(RecvFlags::empty())?.ok_or(io::ErrorKind::TimedOut)?;
            for answer in answers(&bytes).filter(|answer| answer.seq == seq) {
                match answer.status() {
                    Some(0) => return Ok(()),
                    Some(status) => return Err(io::Error::from_raw_os_error(status)),
                    None => each(answer.body.get(skip..).unwrap_or_default()),
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "a list of the kernel's does not end"))
    }

    const fn next(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    /// Forgets what is left of an answer that was given up.
    fn drain(&self) -> io::Result<()> {
        for _ in 0..MAX_PIECES {
            if self.read(RecvFlags::DONTWAIT)?.is_none() {
                return Ok(());
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel does not stop answering"))
    }

    fn read(&self, flags: RecvFlags) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; BUFFER];
        match rustix::io::retry_on_intr(|| rustix::net::recv(&self.fd, &mut bytes, flags)) {
            Ok((length, _)) => {
                bytes.truncate(length);
                Ok(Some(bytes))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Answer<'_> {
    /// The errno of an error or of the end of a list, 0 for none; nothing for any other message.
    fn status(&self) -> Option<i32> {
        if self.kind != ERROR && self.kind != DONE {
            return None;
        }
        let code = self.body.get(..4).and_then(|code| code.try_into().ok());
        Some(code.map_or(0, i32::from_ne_bytes).wrapping_neg())
    }
}

fn answers(mut bytes: &[u8]) -> impl Iterator<Item = Answer<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.get(..HEADER)?;
        let word = |at: usize| header[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
        let length = usize::try_from(word(0)?).ok()?;
        let body = bytes.get(HEADER..length)?;
        let answer = Answer { kind: u16::from_ne_bytes([header[4], header[5]]), seq: word(8)?, body };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(answer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let inner = Attributes::default().put_be32(1, 7).put_str(2, "odd");
        let outer = Attributes::default().put(9, b"abcde").put_all(3, &inner);
        assert_eq!(find(&outer.bytes, 9), Some(&b"abcde"[..]));
        let nested = find(&outer.bytes, 3).unwrap();
        assert_eq!(find(nested, 1), Some(&7_u32.to_be_bytes()[..]));
        assert_eq!(find(nested, 2), Some(&b"odd\0"[..]));
        assert_eq!(find(nested, 4), None);
    }

    #[test]
    fn what_is_cut_short_ends_and_never_panics() {
        let outer = Attributes::default().put(9, b"abcde").put(3, b"x");
        for length in 0..outer.bytes.len() {
            assert!(attributes(&outer.bytes[..length]).count() <= 2);
        }
        for length in [0_u16, 1, 3, 200] {
            let mut bytes = outer.bytes.clone();
            bytes[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes(&bytes).count(), 0);
        }
        let message = Message::new(ERROR, 0, &[0; 4]).finish(1, 0);
        assert_eq!(answers(&message).count(), 1);
        for length in 0..message.len() {
            assert_eq!(answers(&message[..length]).count(), 0);
        }
    }

    #[test]
    fn the_kernel_says_what_is_wrong() {
        let mut socket = Socket::open(Some(rustix::net::netlink::NETFILTER)).unwrap();
        // There is no subsystem of that number.
        let error = socket.ask(Message::new(0xFF << 8, 0, &[0; 4])).unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error}");
    }
}
