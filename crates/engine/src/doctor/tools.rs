//! The programs forkd is made of and those of the distribution that it calls.

use super::Check;
use crate::place::{EMULATOR, Place};
use crate::programs::{Program, on_path};

pub(super) fn all(place: Option<&Place>) -> Vec<Check> {
    vec![agent(), image_tools(), kernel_tools(), emulator(place)]
}

fn agent() -> Check {
    match Program::Agent.find() {
        Ok(path) => Check::pass("agent", path.display().to_string()),
        Err(error) => Check::fail("agent", error.to_string(), "build or install forkd-agent"),
    }
}

fn image_tools() -> Check {
    let bootstrap = ["mmdebstrap", "debootstrap"].into_iter().find(|name| on_path(name).is_some());
    let missing: Vec<&str> =
        [(bootstrap.is_none()).then_some("mmdebstrap"), on_path("mke2fs").is_none().then_some("e2fsprogs")]
            .into_iter()
            .flatten()
            .collect();
    match bootstrap {
        Some(bootstrap) if missing.is_empty() => Check::pass("image tools", format!("{bootstrap}, mke2fs")),
        _ => needed("image tools", "images cannot be built", &missing),
    }
}

fn kernel_tools() -> Check {
    let missing: Vec<&str> = [("apt-get", "apt"), ("dpkg-deb", "dpkg")]
        .into_iter()
        .filter(|(tool, _)| on_path(tool).is_none())
        .map(|(_, package)| package)
        .collect();
    if missing.is_empty() {
        Check::pass("kernel tools", "apt-get, dpkg-deb")
    } else {
        needed("kernel tools", "no guest kernel can be fetched; the host's own or --kernel is needed", &missing)
    }
}

fn emulator(place: Option<&Place>) -> Check {
    match (on_path(EMULATOR), place) {
        (Some(path), _) => Check::pass("qemu", path.display().to_string()),
        (None, Some(Place::Local)) => Check::skip("qemu", "not installed, and not needed where KVM is usable"),
        (None, _) => needed("qemu", "there can be no emulated host", &["qemu-system-x86"]),
    }
}

fn needed(name: &'static str, detail: &str, packages: &[&str]) -> Check {
    Check::warn(name, detail, format!("`apt-get install {}`", packages.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn what_is_missing_is_named_by_its_package() {
        let check = needed("image tools", "images cannot be built", &["mmdebstrap", "e2fsprogs"]);
        assert_eq!(check.verdict, Verdict::Warn);
        assert_eq!(check.fix.as_deref(), Some("`apt-get install mmdebstrap e2fsprogs`"));
    }
}
