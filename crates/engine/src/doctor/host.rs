//! The machine itself: platform, processor, memory, disk space.

use std::fs;
use std::path::Path;

use types::Dirs;

use super::{Check, Verdict};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

pub(super) fn platform() -> Check {
    let uname = rustix::system::uname();
    let [system, release, machine] =
        [uname.sysname(), uname.release(), uname.machine()].map(|text| text.to_string_lossy().into_owned());
    let detail = format!("{system} {release} {machine}");
    if system == "Linux" && machine == "x86_64" {
        Check::pass("platform", detail)
    } else {
        Check::fail("platform", detail, "forkd runs on Linux on x86_64")
    }
}

pub(super) fn cpu() -> Check {
    match fs::read_to_string("/proc/cpuinfo") {
        Ok(text) => cpu_from(&text),
        Err(error) => Check::warn("cpu", format!("/proc/cpuinfo cannot be read: {error}"), "mount /proc"),
    }
}

fn cpu_from(cpuinfo: &str) -> Check {
    let field = |name: &str| {
        let value =
            |line: &str| line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, v)| v.trim().into());
        cpuinfo.lines().find_map(value).unwrap_or_else(|| String::from("unknown"))
    };
    let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let (vendor, model, flags) = (field("vendor_id"), field("model name"), field("flags"));
    let described = format!("{count} × {model} ({vendor})");
    match flags.split_whitespace().find(|flag| matches!(*flag, "vmx" | "svm")) {
        Some(flag) => Check::pass("cpu", format!("{described}, {flag}")),
        None => Check::warn(
            "cpu",
            format!("{described}, neither vmx nor svm"),
            "enable virtualisation in the firmware, or nested virtualisation in the hypervisor",
        ),
    }
}

pub(super) fn resources(dirs: &Dirs) -> Vec<Check> {
    vec![
        memory(),
        space("cache space", &dirs.cache, "free some, or set FORKD_HOME or XDG_CACHE_HOME to another disk"),
        space("data space", &dirs.data, "free some, or set FORKD_HOME or XDG_DATA_HOME to another disk"),
    ]
}

fn memory() -> Check {
    match fs::read_to_string("/proc/meminfo") {
        Ok(text) => memory_from(&text),
        Err(error) => Check::warn("memory", format!("/proc/meminfo cannot be read: {error}"), "mount /proc"),
    }
}

fn memory_from(meminfo: &str) -> Check {
    let kib = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (Some(total), Some(available)) = (kib("MemTotal"), kib("MemAvailable")) else {
        return Check::warn("memory", "/proc/meminfo does not say", "nothing to do; a VM that gets no memory says so");
    };
    let available = available.saturating_mul(1024);
    let detail = format!("{} of {} available", human(available), human(total.saturating_mul(1024)));
    graded("memory", detail, available, (GIB, 256 * MIB), "stop other programs, or use a machine with more memory")
}

fn space(name: &'static str, dir: &Path, fix: &str) -> Check {
    // The directory itself may not be there yet; it will be made in the first one above it that is.
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(existing) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let detail = format!("{} free for {}", human(free), dir.display());
            graded(name, detail, free, (5 * GIB, GIB), fix)
        }
        Err(error) => Check::fail(name, format!("{}: {error}", existing.display()), fix),
    }
}

/// Enough, scarce, or too little.
fn graded(name: &'static str, detail: String, bytes: u64, (enough, scarce): (u64, u64), fix: &str) -> Check {
    let verdict = match bytes {
        _ if bytes >= enough => return Check::pass(name, detail),
        _ if bytes >= scarce => Verdict::Warn,
        _ => Verdict::Fail,
    };
    Check { name, verdict, detail: format!("{detail}; {} would be enough", human(enough)), fix: Some(fix.into()) }
}

fn human(bytes: u64) -> String {
    let tenths = |unit: u64| (bytes / unit, (bytes % unit) * 10 / unit);
    if bytes >= GIB {
        let (whole, tenth) = tenths(GIB);
        format!("{whole}.{tenth} GiB")
    } else {
        format!("{} MiB", bytes / MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_without_the_flag_is_a_warning() {
        let with =
            "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: EPYC\nflags\t\t: fpu svm sse\nprocessor\t: 1\n";
        assert_eq!(cpu_from(with), Check::pass("cpu", "2 × EPYC (AuthenticAMD), svm"));
        let without = cpu_from(&with.replace(" svm", ""));
        assert_eq!(without.verdict, Verdict::Warn);
        assert!(without.detail.contains("neither vmx nor svm"));
    }

    #[test]
    fn space_is_graded_at_five_and_one_gib() {
        let verdict = |bytes| graded("disk", String::new(), bytes, (5 * GIB, GIB), "free some").verdict;
        assert_eq!(verdict(5 * GIB), Verdict::Pass);
        assert_eq!(verdict(5 * GIB - 1), Verdict::Warn);
        assert_eq!(verdict(GIB - 1), Verdict::Fail);
    }

    #[test]
    fn space_is_measured_where_the_directory_will_be() {
        let here = space("disk", Path::new("/nowhere/at/all"), "free some");
        assert!(here.detail.contains("for /nowhere/at/all"), "{here:?}");
    }

    #[test]
    fn memory_is_what_is_available() {
        let plenty = memory_from("MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n");
        assert_eq!(plenty, Check::pass("memory", "4.0 GiB of 8.0 GiB available"));
        assert_eq!(memory_from("MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n").verdict, Verdict::Fail);
        assert_eq!(memory_from("garbage").verdict, Verdict::Warn);
    }
}
