//! What guests do that take all they can get, and what is held against each of them.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;

use anyhow::{Context, Result};
use engine::{Egress, Limits, NetworkLimits};

/// The host's ports that are flooded: nobody can open 100 000 connections to less than four.
pub(super) const PORTS: [u16; 4] = [7000, 7001, 7002, 7003];

/// What is held against it: half of a CPU, and little of what it wants.
const MEMORY_MIB: u64 = 32;
pub(super) const CPU_MILLIS: u64 = 500;
const DISK_MIB: u64 = 32;
pub(super) const PACKETS_PER_SECOND: u32 = 200;
pub(super) const CONNECTIONS: u32 = 128;

/// Somebody who takes all there is of something.
#[derive(Clone, Copy, Debug)]
pub struct Offence {
    /// What it is called.
    pub name: &'static str,
    /// What the guest's shell runs; `$HOST` is an address of the host's.
    pub(super) script: &'static str,
    /// What stops it.
    pub limit: Limit,
}

/// What somebody can be stopped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Its share of the CPU: it has to wait.
    Cpu,
    /// Its memory: it is ended.
    Memory,
    /// Its disk: it gets errors.
    Disk,
    /// Its packets: those that are too many are dropped.
    Packets,
    /// Its connections: those that are too many are not made.
    Connections,
}

/// All of them. The guest is Debian without anything: a shell, and Perl's smallest part.
pub const OFFENCES: [Offence; 6] = [
    // Its processes are the guest's own; what the host has to give for them is time.
    Offence { name: "fork bomb", script: "bomb() { bomb & bomb & wait; }; bomb", limit: Limit::Cpu },
    Offence { name: "CPU spinner", script: "while :; do :; done", limit: Limit::Cpu },
    Offence { name: "memory hog", script: "tail /dev/zero", limit: Limit::Memory },
    Offence {
        name: "disk filler",
        script: "while :; do dd if=/dev/zero of=/root/filler bs=1M oflag=direct,append conv=notrunc; done",
        limit: Limit::Disk,
    },
    Offence {
        name: "packet flood",
        script: r#"perl -MSocket -e '
            socket(my $s, PF_INET, SOCK_DGRAM, 0);
            my $to = sockaddr_in(7000, inet_aton($ENV{HOST}));
            while (1) { send($s, "x", 0, $to) }'"#,
        limit: Limit::Packets,
    },
    Offence {
        name: "100 000 connections",
        script: r#"ulimit -n 110000; perl -MSocket -e '
            my @open;
            for my $n (1 .. 100000) {
                socket(my $s, PF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0) or last;
                connect($s, sockaddr_in(7000 + $n % 4, inet_aton($ENV{HOST})));
                push @open, $s;
            }
            sleep'"#,
        limit: Limit::Connections,
    },
];

impl Limit {
    /// What an offender is held to.
    pub(super) fn held(self) -> Result<(Limits, NetworkLimits)> {
        let mut limits = Limits { cpu: Some(CPU_MILLIS.try_into()?), ..Limits::default() };
        let mut network = NetworkLimits::default();
        match self {
            Self::Cpu => {}
            Self::Memory => limits.memory = Some(MEMORY_MIB.try_into()?),
            Self::Disk => limits.disk = Some(DISK_MIB.try_into()?),
            Self::Packets => network.packets_per_second = NonZeroU32::new(PACKETS_PER_SECOND),
            Self::Connections => network.connections = NonZeroU32::new(CONNECTIONS).context("a limit")?,
        }
        Ok((limits, network))
    }
}

/// The host's end of an uplink, which nobody reaches who does not name it.
pub(super) fn reach(host: Ipv4Addr) -> Result<Egress> {
    let [first, .., last] = PORTS;
    Ok(format!("{host}:{first}-{last},udp:{host}:{first}-{last}").parse()?)
}
