//! The connections that the kernel remembers (`ctnetlink`): listed by who began them, and forgotten.

use std::io;
use std::net::Ipv4Addr;

use super::{GENERIC_LEN, Nft};
use crate::netlink::{Attributes, Message, find};

const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
/// `nfgenmsg` of IPv4.
const IPV4: [u8; 4] = [2, 0, 0, 0];
const ANY: [u8; 4] = [0; 4];

const ORIGINAL: u16 = 1;
const ADDRESSES: u16 = 1;
const SOURCE: u16 = 1;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const BY_SOURCE: u32 = 1;

impl Nft {
    /// Forgets every connection of the namespace.
    pub(crate) fn forget_connections(&mut self) -> io::Result<()> {
        self.socket.ask(Message::new(DELETE, 0, &ANY))
    }

    /// Forgets the connections that this address began.
    pub(crate) fn forget_connections_of(&mut self, source: Ipv4Addr) -> io::Result<()> {
        for original in self.connections_of(source)? {
            match self.socket.ask(Message::new(DELETE, 0, &IPV4).put_nested(ORIGINAL, &original)) {
                // It ended by itself in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// The connections that this address began, each as the kernel describes its beginning.
    pub(crate) fn connections_of(&mut self, source: Ipv4Addr) -> io::Result<Vec<Vec<u8>>> {
        let address = Attributes::default().put(SOURCE, &source.octets());
        let original = Attributes::default().put_all(ADDRESSES, &address);
        let filter = Attributes::default().put(FILTER_ORIGINAL, &BY_SOURCE.to_ne_bytes());
        let ask = Message::new(GET, 0, &IPV4).put_all(ORIGINAL, &original).put_all(FILTER, &filter);
        let mut connections = Vec::new();
        self.socket.list(ask, GENERIC_LEN, |body| {
            let original = find(body, ORIGINAL);
            // Looked at again: a kernel that knows no filter lists all of them.
            let began = original.and_then(|tuple| find(tuple, ADDRESSES)).and_then(|addresses| find(addresses, SOURCE));
            if began == Some(&source.octets()) {
                connections.extend(original.map(<[u8]>::to_vec));
            }
        })?;
        Ok(connections)
    }
}
