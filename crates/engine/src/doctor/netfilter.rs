//! Asks the kernel for the generation of its nftables rules: the cheapest question that only nftables answers.
//!
//! ```text
//! request  nlmsghdr{len 20, type NFNL_SUBSYS_NFTABLES<<8 | NFT_MSG_GETGEN, flags REQUEST} nfgenmsg{0, 0, 0}
//! answer   type 10<<8 | NFT_MSG_NEWGEN, or NLMSG_ERROR with an errno
//! ```

use std::io;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};

const NFT_MSG_NEWGEN: u8 = 15;
const NFT_MSG_GETGEN: u8 = 16;
const NFNL_SUBSYS_NFTABLES: u8 = 10;
const NLMSG_ERROR: [u8; 2] = [2, 0];
const NLM_F_REQUEST: u8 = 1;
const REQUEST_LEN: usize = 20;

pub(super) fn has_nftables() -> io::Result<bool> {
    let protocol = Some(netlink::NETFILTER);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    // The kernel answers before `send` returns; this only guards against one that never would.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(std::time::Duration::from_secs(1)))?;
    let mut request = [0; REQUEST_LEN];
    request[0] = REQUEST_LEN.to_le_bytes()[0];
    request[4..8].copy_from_slice(&[NFT_MSG_GETGEN, NFNL_SUBSYS_NFTABLES, NLM_F_REQUEST, 0]);
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    read_answer(&answer[..length])
}

fn read_answer(answer: &[u8]) -> io::Result<bool> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = answer.get(4..6).ok_or_else(malformed)?;
    if kind == [NFT_MSG_NEWGEN, NFNL_SUBSYS_NFTABLES] {
        return Ok(true);
    }
    if kind != NLMSG_ERROR {
        return Err(malformed());
    }
    let code: [u8; 4] = answer.get(16..20).and_then(|code| code.try_into().ok()).ok_or_else(malformed)?;
    match Errno::from_raw_os_error(i32::from_le_bytes(code).wrapping_neg()) {
        // No such subsystem.
        Errno::INVAL | Errno::OPNOTSUPP => Ok(false),
        errno => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_answer(errno: i32) -> Vec<u8> {
        let mut answer = vec![36, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        answer.extend_from_slice(&(-errno).to_le_bytes());
        answer
    }

    #[test]
    fn an_unknown_subsystem_is_no_and_a_missing_right_is_an_error() {
        assert!(!read_answer(&error_answer(22)).unwrap());
        assert_eq!(read_answer(&error_answer(1)).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(read_answer(&[20, 0, 0, 0, 15, 10, 0, 0]).unwrap());
        for short in [&[][..], &[1, 2, 3], &error_answer(22)[..18]] {
            assert_eq!(read_answer(short).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn the_kernel_gives_an_answer_that_is_understood() {
        match has_nftables() {
            Ok(_) => {}
            // A kernel without netfilter at all, or a user without the right, says so.
            Err(error) => assert_ne!(error.kind(), io::ErrorKind::InvalidData, "{error}"),
        }
    }
}
