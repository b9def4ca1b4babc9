//! The header in front of every packet (virtio 1.2, 5.10.6).
//!
//! Read and written as bytes, wherever its descriptors cut it. (The `virtio-vsock` crate knows only packets of one or
//! two descriptors; Linux sends more of them for a large or zero-copy payload.)

use crate::Buffers;

/// The host's address.
pub(super) const HOST_CID: u64 = 2;
/// The only kind of socket we know.
pub(super) const TYPE_STREAM: u16 = 1;
/// In a shutdown: the sender will receive no more.
pub(super) const SHUTDOWN_RECEIVE: u32 = 1;
/// In a shutdown: the sender will send no more.
pub(super) const SHUTDOWN_SEND: u32 = 2;

/// What a packet means.
pub(super) mod op {
    pub(in crate::vsock) const REQUEST: u16 = 1;
    pub(in crate::vsock) const RESPONSE: u16 = 2;
    pub(in crate::vsock) const RST: u16 = 3;
    pub(in crate::vsock) const SHUTDOWN: u16 = 4;
    pub(in crate::vsock) const RW: u16 = 5;
    pub(in crate::vsock) const CREDIT_UPDATE: u16 = 6;
    pub(in crate::vsock) const CREDIT_REQUEST: u16 = 7;
}

/// Names a connection, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ports {
    pub(super) host: u32,
    pub(super) guest: u32,
}

/// `struct virtio_vsock_hdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) src_cid: u64,
    pub(super) dst_cid: u64,
    pub(super) src_port: u32,
    pub(super) dst_port: u32,
    pub(super) len: u32,
    pub(super) socket_type: u16,
    pub(super) op: u16,
    pub(super) flags: u32,
    pub(super) buf_alloc: u32,
    pub(super) fwd_cnt: u32,
}

impl Header {
    pub(super) const LEN: usize = 44;

    /// The header at the front of a packet, if the packet is long enough to have one.
    pub(super) fn take(packet: &mut Buffers<'_>) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        (packet.copy_to(&mut bytes) == Self::LEN).then(|| Self::from_bytes(&bytes))
    }

    fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let mut rest = &bytes[..];
        Self {
            src_cid: u64::from_le_bytes(cut(&mut rest)),
            dst_cid: u64::from_le_bytes(cut(&mut rest)),
            src_port: u32::from_le_bytes(cut(&mut rest)),
            dst_port: u32::from_le_bytes(cut(&mut rest)),
            len: u32::from_le_bytes(cut(&mut rest)),
            socket_type: u16::from_le_bytes(cut(&mut rest)),
            op: u16::from_le_bytes(cut(&mut rest)),
            flags: u32::from_le_bytes(cut(&mut rest)),
            buf_alloc: u32::from_le_bytes(cut(&mut rest)),
            fwd_cnt: u32::from_le_bytes(cut(&mut rest)),
        }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let words = [self.src_cid, self.dst_cid].map(u64::to_le_bytes).concat();
        let addresses = [self.src_port, self.dst_port, self.len].map(u32::to_le_bytes).concat();
        let meaning = [self.socket_type, self.op].map(u16::to_le_bytes).concat();
        let credit = [self.flags, self.buf_alloc, self.fwd_cnt].map(u32::to_le_bytes).concat();
        [words, addresses, meaning, credit].concat()
    }

    /// A packet to the guest with nothing but a meaning.
    pub(super) fn to_guest(cid: u64, ports: Ports, op: u16) -> Self {
        Self {
            src_cid: HOST_CID,
            dst_cid: cid,
            src_port: ports.host,
            dst_port: ports.guest,
            socket_type: TYPE_STREAM,
            op,
            ..Self::default()
        }
    }

    /// The connection a packet from the guest belongs to.
    pub(super) const fn ports_from_guest(&self) -> Ports {
        Ports { host: self.dst_port, guest: self.src_port }
    }
}

fn cut<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, after) = rest.split_first_chunk().expect("the header's fields add up to its length");
    *rest = after;
    *first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let mut bytes: Vec<u8> = (0..44).collect();
        let header = Header::take(&mut Buffers::from(bytes.as_mut_slice())).unwrap();
        assert_eq!(header.dst_cid, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!((header.socket_type, header.op), (0x1d1c, 0x1f1e));
        assert_eq!(header.fwd_cnt, 0x2b2a_2928);
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(Header::take(&mut Buffers::from(&mut bytes[..43])), None);
    }
}
