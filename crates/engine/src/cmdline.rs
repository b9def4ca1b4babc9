//! The guest kernel's command line; each word has its reason here and nowhere else.

use std::net::Ipv4Addr;

use net::Tap;

/// What the guest is told about its network: `forkd.net=<address>/<prefix>,<gateway>`, `forkd.dns=<address>`, and
/// `forkd.lines=<port>`, where its agent serves the gateway in lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestNetwork {
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) gateway: Ipv4Addr,
    pub(crate) name_server: Option<Ipv4Addr>,
    /// Only where it takes root to be the gateway: whoever connects may do everything in the guest.
    pub(crate) lines: Option<u16>,
}

impl From<&Tap> for GuestNetwork {
    fn from(tap: &Tap) -> Self {
        Self {
            address: tap.guest_ip,
            prefix: tap.prefix,
            gateway: tap.host_ip,
            name_server: tap.name_server,
            // What has a name server is a namespace of its own; a plain tap is beside every user of the host.
            lines: tap.name_server.map(|_| session::lines::PORT),
        }
    }
}

/// Words that every guest gets.
const COMMON: &[&str] = &[
    // The serial port is the only console; the VMM writes it to a file.
    "console=ttyS0",
    // Every character on the serial port is an exit from the guest: errors only. A panic is printed at any level.
    "loglevel=4",
    // After a panic reset at once, so that the VMM notices and reports it instead of a guest that just sits there.
    "panic=-1",
    // Reset through the keyboard controller's port, which the VMM watches: no firmware code in between.
    "reboot=k",
    // The kernel's cipher self-tests would be repeated in every guest for ciphers it hardly uses.
    "cryptomgr.notests",
    // All devices are virtio-mmio, announced by ACPI: no bus to scan.
    "pci=off",
];

/// Puts the command line together.
pub(crate) fn guest_cmdline(hostname: &str, network: Option<GuestNetwork>, append: Option<&str>) -> String {
    let mut words: Vec<String> = COMMON.iter().map(ToString::to_string).collect();
    words.push(format!("forkd.hostname={hostname}"));
    if let Some(GuestNetwork { address, prefix, gateway, name_server, lines }) = network {
        words.push(format!("forkd.net={address}/{prefix},{gateway}"));
        words.extend(name_server.map(|address| format!("forkd.dns={address}")));
        words.extend(lines.map(|port| format!("forkd.lines={port}")));
    }
    words.extend(append.map(String::from));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_named_only_where_there_is_one() {
        let without = guest_cmdline("vm-1", None, None);
        assert!(without.starts_with("console=ttyS0 ") && without.ends_with(" forkd.hostname=vm-1"), "{without}");
        assert!(!without.contains("forkd.net"), "{without}");
        let gateway = Ipv4Addr::new(10, 42, 7, 1);
        let network =
            GuestNetwork { address: [10, 42, 7, 2].into(), prefix: 24, gateway, name_server: None, lines: None };
        let with = guest_cmdline("vm-1", Some(network), None);
        assert!(with.ends_with(" forkd.net=10.42.7.2/24,10.42.7.1"), "{with}");
        let with = guest_cmdline(
            "vm-1",
            Some(GuestNetwork { name_server: Some(gateway), lines: Some(8888), ..network }),
            None,
        );
        assert!(with.ends_with(" forkd.net=10.42.7.2/24,10.42.7.1 forkd.dns=10.42.7.1 forkd.lines=8888"), "{with}");
    }

    #[test]
    fn the_users_words_come_last_and_so_win() {
        assert!(guest_cmdline("vm-1", None, Some("loglevel=7 nosmp")).ends_with(" loglevel=7 nosmp"));
    }

    #[test]
    fn a_stock_kernel_reads_all_of_it() {
        // x86 kernels cut the command line at COMMAND_LINE_SIZE.
        assert!(guest_cmdline(&"h".repeat(64), None, None).len() < 2048);
    }
}
