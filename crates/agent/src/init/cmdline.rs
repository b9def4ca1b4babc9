//! What the kernel's command line says to the agent: the words that begin with `forkd.`.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::lines::Door;

/// Why the command line cannot be obeyed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OptionsError {
    #[error("cannot read /proc/cmdline: {source}")]
    Read { source: io::Error },
    #[error("the kernel's command line says `{word}`; expected {expected}")]
    Word { word: String, expected: &'static str },
}

/// What the machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A sandbox: serves its host over vsock.
    Guest,
    /// An emulated host: serves TCP with a token, and runs VMs itself.
    Machine,
}

/// An address and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Net {
    pub(crate) address: Ipv4Addr,
    pub(crate) netmask: Ipv4Addr,
    pub(crate) gateway: Option<Ipv4Addr>,
}

/// A disk and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) device: PathBuf,
    pub(crate) target: PathBuf,
}

/// Everything the command line can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) role: Role,
    pub(crate) root: PathBuf,
    pub(crate) hostname: String,
    pub(crate) net: Option<Net>,
    pub(crate) dns: Vec<Ipv4Addr>,
    /// The port on which the gateway may speak in lines.
    pub(crate) lines: Option<u16>,
    pub(crate) data: Option<Data>,
}

impl Options {
    pub(crate) fn read() -> Result<Self, OptionsError> {
        fs::read_to_string("/proc/cmdline").map_err(|source| OptionsError::Read { source })?.parse()
    }

    /// Where those are served who speak in lines.
    pub(crate) fn door(&self) -> Option<Door> {
        let Net { address, gateway: Some(gateway), .. } = self.net.as_ref()? else { return None };
        Some(Door { at: (*address, self.lines?).into(), from: (*gateway).into() })
    }
}

impl FromStr for Options {
    type Err = OptionsError;

    fn from_str(cmdline: &str) -> Result<Self, OptionsError> {
        let mut options = Self {
            role: Role::Guest,
            root: "/dev/vda".into(),
            hostname: "forkd".into(),
            net: None,
            dns: Vec::new(),
            lines: None,
            data: None,
        };
        for word in cmdline.split_ascii_whitespace() {
            let Some((key, value)) = word.strip_prefix("forkd.").and_then(|rest| rest.split_once('=')) else {
                continue;
            };
            let wrong = |expected| OptionsError::Word { word: word.into(), expected };
            match key {
                "role" => options.role = parse_role(value).ok_or_else(|| wrong("guest or machine"))?,
                "root" => options.root = parse_path(value).ok_or_else(|| wrong("an absolute path"))?,
                "hostname" => options.hostname = parse_hostname(value).ok_or_else(|| wrong("1 to 64 characters"))?,
                "net" => options.net = Some(parse_net(value).ok_or_else(|| wrong("ADDRESS/PREFIX[,GATEWAY]"))?),
                "dns" => options.dns = parse_dns(value).ok_or_else(|| wrong("IP[,IP]"))?,
                "lines" => options.lines = Some(value.parse().map_err(|_| wrong("a port"))?),
                "data" => options.data = Some(parse_data(value).ok_or_else(|| wrong("DEVICE:DIRECTORY"))?),
                // A later host may say more to an agent that a snapshot has kept for years.
                _ => {}
            }
        }
        Ok(options)
    }
}

fn parse_role(value: &str) -> Option<Role> {
    match value {
        "guest" => Some(Role::Guest),
        "machine" => Some(Role::Machine),
        _ => None,
    }
}

fn parse_path(value: &str) -> Option<PathBuf> {
    value.starts_with('/').then(|| value.into())
}

fn parse_hostname(value: &str) -> Option<String> {
    (1..=64).contains(&value.len()).then(|| value.into())
}

fn parse_net(value: &str) -> Option<Net> {
    let (address, gateway) = match value.split_once(',') {
        Some((address, gateway)) => (address, Some(gateway.parse().ok()?)),
        None => (value, None),
    };
    let (address, prefix) = address.split_once('/')?;
    let prefix: u32 = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
    // Shifting by all 32 bits is the one shift an u32 cannot do.
    let netmask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
    Some(Net { address: address.parse().ok()?, netmask: Ipv4Addr::from_bits(netmask), gateway })
}

fn parse_dns(value: &str) -> Option<Vec<Ipv4Addr>> {
    value.split(',').map(|server| server.parse().ok()).collect()
}

fn parse_data(value: &str) -> Option<Data> {
    let (device, target) = value.split_once(':')?;
    Some(Data { device: parse_path(device)?, target: parse_path(target)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_means_a_guest_on_the_first_disk() {
        let options: Options = "console=ttyS0 quiet panic=-1 forkd forkd.later=x\n".parse().unwrap();
        assert_eq!((options.role, options.hostname.as_str()), (Role::Guest, "forkd"));
        assert_eq!(options.root, PathBuf::from("/dev/vda"));
        assert!(options.net.is_none() && options.dns.is_empty() && options.data.is_none());
    }

    #[test]
    fn every_word_is_understood() {
        let options: Options = "forkd.role=machine forkd.root=/dev/vdc forkd.hostname=box forkd.dns=1.1.1.1,8.8.8.8 \
             forkd.net=10.42.0.2/24,10.42.0.1 forkd.lines=8888 forkd.data=/dev/vdb:/var/lib/forkd"
            .parse()
            .unwrap();
        let net = Net {
            address: Ipv4Addr::new(10, 42, 0, 2),
            netmask: Ipv4Addr::new(255, 255, 255, 0),
            gateway: Some(Ipv4Addr::new(10, 42, 0, 1)),
        };
        let expected = Options {
            role: Role::Machine,
            root: "/dev/vdc".into(),
            hostname: "box".into(),
            net: Some(net),
            dns: vec![Ipv4Addr::new(1, 1, 1, 1), Ipv4Addr::new(8, 8, 8, 8)],
            lines: Some(8888),
            data: Some(Data { device: "/dev/vdb".into(), target: "/var/lib/forkd".into() }),
        };
        assert_eq!(options, expected);
        let door = options.door().unwrap();
        assert_eq!((door.at, door.from), ("10.42.0.2:8888".parse().unwrap(), Ipv4Addr::new(10, 42, 0, 1).into()));
        for without in
            ["forkd.lines=8888", "forkd.net=10.42.0.2/24,10.42.0.1", "forkd.lines=8888 forkd.net=10.42.0.2/24"]
        {
            assert!(without.parse::<Options>().unwrap().door().is_none(), "{without}");
        }
    }

    #[test]
    fn a_prefix_becomes_a_mask() {
        let mask = |prefix: u32| parse_net(&format!("10.0.0.1/{prefix}")).unwrap().netmask.octets();
        assert_eq!(mask(0), [0, 0, 0, 0]);
        assert_eq!(mask(30), [255, 255, 255, 252]);
        assert_eq!(mask(32), [255, 255, 255, 255]);
    }

    #[test]
    fn a_word_that_makes_no_sense_is_named() {
        for word in [
            "forkd.role=king",
            "forkd.root=vda",
            "forkd.hostname=",
            "forkd.net=10.0.0.1",
            "forkd.net=10.0.0.1/33",
            "forkd.net=10.0.0.1/24,gate",
            "forkd.dns=",
            "forkd.dns=1.1.1.1,x",
            "forkd.lines=x",
            "forkd.lines=65536",
            "forkd.data=/dev/vdb",
            "forkd.data=/dev/vdb:lib",
        ] {
            let error = word.parse::<Options>().unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
