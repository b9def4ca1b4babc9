//! The network as the command line wants it.

use std::fmt::Write;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use super::cmdline::Net;
use crate::sys::Interface;

pub(crate) fn bring_up_loopback() -> io::Result<()> {
    Interface::named("lo")?.bring_up()
}

/// Gives the first card its address and its way out.
pub(crate) fn configure(net: &Net) -> io::Result<()> {
    let card = Interface::named("eth0")?;
    card.set_address(net.address, net.netmask)?;
    card.bring_up()?;
    net.gateway.map_or(Ok(()), |gateway| card.add_default_route(gateway))
}

/// Replaces `resolv.conf`. By renaming: images ship it as a link into a directory that only their own init makes.
pub(crate) fn write_resolv_conf(etc: &Path, servers: &[Ipv4Addr]) -> io::Result<()> {
    let mut text = String::new();
    for server in servers {
        writeln!(text, "nameserver {server}").map_err(io::Error::other)?;
    }
    let staged = etc.join(".resolv.conf.forkd");
    fs::write(&staged, text)?;
    fs::rename(staged, etc.join("resolv.conf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dangling_link_is_replaced_by_a_file() {
        let etc = tempfile::tempdir().unwrap();
        let path = etc.path().join("resolv.conf");
        std::os::unix::fs::symlink("../run/nowhere/stub.conf", &path).unwrap();
        write_resolv_conf(etc.path(), &[Ipv4Addr::new(10, 0, 2, 3), Ipv4Addr::new(1, 1, 1, 1)]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "nameserver 10.0.2.3\nnameserver 1.1.1.1\n");
        assert!(path.symlink_metadata().unwrap().is_file());
    }
}
