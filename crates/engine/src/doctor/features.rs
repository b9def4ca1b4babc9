//! What the host's kernel offers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use super::{Check, netfilter};

const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

pub(super) fn all() -> Vec<Check> {
    vec![cgroups(), network_namespaces(), tun(), nftables(), pagemap()]
}

fn cgroups() -> Check {
    let fix = "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 on /sys/fs/cgroup";
    match fs::read_to_string("/sys/fs/cgroup/cgroup.controllers") {
        Ok(text) => cgroups_from(&text),
        Err(_) => Check::warn("cgroup v2", "/sys/fs/cgroup is not a cgroup v2 hierarchy; VMs have no limits", fix),
    }
}

fn cgroups_from(controllers: &str) -> Check {
    let offered: Vec<&str> = controllers.split_whitespace().collect();
    let missing: Vec<&str> = CONTROLLERS.into_iter().filter(|name| !offered.contains(name)).collect();
    if missing.is_empty() {
        return Check::pass("cgroup v2", format!("controllers {}", offered.join(" ")));
    }
    let detail = format!("without the controllers {}", missing.join(" "));
    Check::warn("cgroup v2", detail, "enable them on the kernel's command line, or delegate them to this user")
}

fn network_namespaces() -> Check {
    if Path::new("/proc/self/ns/net").exists() {
        Check::pass("netns", "network namespaces")
    } else {
        Check::warn("netns", "the kernel has no network namespaces", "use a kernel with CONFIG_NET_NS")
    }
}

fn tun() -> Check {
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Check::pass("tun", "/dev/net/tun opens"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Check::warn(
            "tun",
            "/dev/net/tun may not be opened; VMs have no network",
            "run as root, or with CAP_NET_ADMIN",
        ),
        Err(error) => Check::warn("tun", format!("/dev/net/tun: {error}; VMs have no network"), "`modprobe tun`"),
    }
}

fn nftables() -> Check {
    match netfilter::has_nftables() {
        Ok(true) => forwarding(net::not_forwarded().ok().flatten()),
        Ok(false) => Check::warn("nftables", "the kernel does not know nftables", "`modprobe nf_tables`"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Check::warn("nftables", "only root may ask", "run as root, or with CAP_NET_ADMIN")
        }
        Err(error) => Check::warn("nftables", format!("the kernel cannot be asked: {error}"), "`modprobe nfnetlink`"),
    }
}

/// A host that did not forward before it had to for sandboxes forwards nothing else, which others may come to miss.
fn forwarding(not_forwarded: Option<u64>) -> Check {
    match not_forwarded {
        None | Some(0) => Check::pass("nftables", "the kernel answers"),
        Some(packets) => Check::warn(
            "nftables",
            format!("{packets} packets of others were not forwarded: this host forwards for sandboxes only"),
            "if they are wanted: `nft delete chain inet forkd others; nft delete counter inet forkd others`",
        ),
    }
}

fn pagemap() -> Check {
    let mut entry = [0; 8];
    match File::open("/proc/self/pagemap").and_then(|mut file| file.read_exact(&mut entry)) {
        Ok(()) => Check::pass("pagemap", "/proc/self/pagemap is readable"),
        Err(error) => {
            let detail = format!("/proc/self/pagemap: {error}; what a VM changed cannot be told");
            Check::warn("pagemap", detail, "use a kernel with CONFIG_PROC_PAGE_MONITOR")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn what_others_miss_is_said_with_how_to_give_it_to_them() {
        assert_eq!((forwarding(None).verdict, forwarding(Some(0)).verdict), (Verdict::Pass, Verdict::Pass));
        let missed = forwarding(Some(7));
        assert!(missed.verdict == Verdict::Warn && missed.detail.starts_with("7 packets"), "{missed:?}");
        assert!(missed.fix.is_some_and(|fix| fix.contains("inet forkd others")));
    }

    #[test]
    fn a_missing_controller_is_named() {
        assert_eq!(cgroups_from("cpuset cpu io memory pids\n").verdict, Verdict::Pass);
        let some = cgroups_from("cpuset io memory\n");
        assert_eq!((some.verdict, some.detail.as_str()), (Verdict::Warn, "without the controllers cpu pids"));
    }
}
