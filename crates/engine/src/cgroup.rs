//! Control groups (cgroup v2): what holds a child to its limits from outside.
//!
//! ```text
//! <hierarchy>/forkd/        all of ours; stays
//!             forkd/<id>/   one child's: made before it, joined by it before all else, removed after it
//! ```
//!
//! A child's directory is there before its group and goes after it, so a group that is left behind is always found again
//! by the record in the directory.

mod device;
mod hits;
mod limits;
mod mounts;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::pidfd::Process;
use crate::process::timespec;

pub(crate) use device::Device;
pub use hits::Hits;
pub(crate) use hits::{hits, promised};
pub(crate) use limits::mib_to_bytes;
pub use limits::{
    CpuLimit, CpuWeight, DiskLimit, IoLimit, LimitError, Limits, MemoryLimit, PidsLimit, SwapLimit, Within,
};

const OURS: &str = "forkd";
/// A VMM has a thread for each vCPU and a few more; one that wants many is none.
const MAX_PIDS: u64 = 512;
/// In which a limited child gets its share of CPU time, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// How soon a group is tried again that is empty and still in somebody's way.
const PAUSE: Duration = Duration::from_millis(1);

/// Why limits cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no hierarchy.
    #[error(
        "limits need the cgroup v2 hierarchy, which is not mounted here; boot with \
         systemd.unified_cgroup_hierarchy=1, or `mount -t cgroup2 none /sys/fs/cgroup`"
    )]
    NoHierarchy,
    /// It is there, but not what limits this.
    #[error(
        "{} does not offer the {controller} controller, which this limit needs; if the old cgroup hierarchy has it, boot \
         with systemd.unified_cgroup_hierarchy=1, and if nobody has, with cgroup_enable={controller}", group.display()
    )]
    NoController {
        /// The group that should.
        group: PathBuf,
        /// What is missing.
        controller: &'static str,
    },
    /// What is read and written there cannot be limited.
    #[error("{} is on no disk of this host's (it may be in memory or on a network), so I/O cannot be limited", path.display())]
    NoDevice {
        /// The directory.
        path: PathBuf,
    },
    /// Groups are made by root, or by who was given a part of the hierarchy.
    #[error("this user may not change {}, which limits need; run forkd as root", path.display())]
    Denied {
        /// What must be changed.
        path: PathBuf,
    },
    /// A group that hands out controllers must not have processes of its own.
    #[error(
        "{} has processes of its own and so cannot limit groups below it; move them into a group of theirs, as a \
         container's init should", group.display()
    )]
    Occupied {
        /// Which group.
        group: PathBuf,
    },
    /// This process is in a group that cannot be seen from here.
    #[error(
        "forkd's own control group is not below any mounted cgroup v2 hierarchy, so what is made of a sandbox with limits \
         cannot leave that sandbox's; `mount -t cgroup2 none /sys/fs/cgroup` where forkd runs"
    )]
    NoHome,
    /// The system says no.
    #[error("cannot use the control group file {}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            CgroupError::Denied { path: path.into() }
        }
        _ => CgroupError::Io { path: path.into(), source },
    }
}

/// What limits what.
const MEMORY: &str = "memory";
const CPU: &str = "cpu";
const IO: &str = "io";
const PIDS: &str = "pids";

/// Where the children's groups are made.
#[derive(Debug)]
pub(crate) struct Groups {
    path: PathBuf,
    /// The disks whose I/O is limited, if any is.
    devices: Vec<Device>,
}

impl Groups {
    /// Makes sure that groups made there can be held to these limits. What is limited of I/O is that with the disks of
    /// these directories.
    pub(crate) fn prepare(limits: &[Limits], directories: &[PathBuf]) -> Result<Self, CgroupError> {
        let all = mounts::hierarchies().map_err(failed(Path::new("/proc/self/mountinfo")))?;
        let needed = controllers(limits);
        let offers = |root: &&PathBuf| {
            let listed = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            needed.iter().all(|controller| lists(&listed, controller))
        };
        let root = all.iter().find(offers).or_else(|| all.first()).ok_or(CgroupError::NoHierarchy)?;
        let devices = if needed.contains(&IO) { Device::of_all(directories)? } else { Vec::new() };
        Self::below(root, &needed, devices)
    }

    fn below(root: &Path, controllers: &[&'static str], devices: Vec<Device>) -> Result<Self, CgroupError> {
        hand_down(root, controllers)?;
        let path = root.join(OURS);
        match DirBuilder::new().create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&path)(error)),
            _ => {}
        }
        hand_down(&path, controllers)?;
        Ok(Self { path, devices })
    }

    /// Makes a group with these limits. The answer is where a process writes itself to join.
    pub(crate) fn make(&self, id: &str, limits: &Limits) -> Result<OwnedFd, CgroupError> {
        let path = self.path.join(id);
        DirBuilder::new().create(&path).map_err(failed(&path))?;
        self.limit(&path, limits)?;
        let procs = path.join("cgroup.procs");
        Ok(OpenOptions::new().write(true).open(&procs).map_err(failed(&procs))?.into())
    }

    fn limit(&self, path: &Path, limits: &Limits) -> Result<(), CgroupError> {
        limit_memory(path, limits)?;
        set(&path.join("pids.max"), &limits.pids.map_or(MAX_PIDS, Within::get).to_string())?;
        if let Some(cpu) = limits.cpu {
            // Thousandths of a CPU are as many thousandths of the period.
            set(&path.join("cpu.max"), &format!("{} {CPU_PERIOD_US}", cpu.get() * CPU_PERIOD_US / 1000))?;
        }
        if let Some(weight) = limits.cpu_weight {
            set(&path.join("cpu.weight"), &weight.get().to_string())?;
        }
        if limits.are_of_io() {
            for device in &self.devices {
                set(&path.join("io.max"), &device.line(limits))?;
            }
        }
        Ok(())
    }
}

fn limit_memory(path: &Path, limits: &Limits) -> Result<(), CgroupError> {
    if let Some(high) = limits.memory_high {
        set(&path.join("memory.high"), &high.bytes().to_string())?;
    }
    if let Some(limit) = limits.memory {
        set(&path.join("memory.max"), &limit.bytes().to_string())?;
        // A VM is all of its process or nothing.
        set(&path.join("memory.oom.group"), "1")?;
    }
    match limits.swap {
        Some(swap) => set(&path.join("memory.swap.max"), &mib_to_bytes(swap.get()).to_string()),
        None if limits.memory.is_some() => forbid_swap(&path.join("memory.swap.max")),
        None => Ok(()),
    }
}

/// What must be there to hold all of these. Every group bounds threads. What is written to disks is in memory first, and
/// the kernel knows whose it is only where memory is counted as well.
fn controllers(limits: &[Limits]) -> Vec<&'static str> {
    let wanted = |controller, is_wanted: fn(&Limits) -> bool| limits.iter().any(is_wanted).then_some(controller);
    let chosen = [
        wanted(MEMORY, |limits| limits.are_of_memory() || limits.are_of_io()),
        wanted(CPU, Limits::are_of_cpu),
        wanted(IO, Limits::are_of_io),
        Some(PIDS),
    ];
    chosen.into_iter().flatten().collect()
}

/// The group that this process is in. Who can write to its `cgroup.procs` could move anybody there, so nobody is given it.
#[derive(Debug)]
pub(crate) struct Home {
    procs: PathBuf,
    file: File,
}

impl Home {
    pub(crate) fn find() -> Result<Self, CgroupError> {
        let own = Path::new("/proc/self/cgroup");
        let own = fs::read_to_string(own).map_err(failed(own))?;
        let procs = home_in(&own, &mounts::hierarchies().map_err(failed(Path::new("/proc/self/mountinfo")))?)?;
        let file = OpenOptions::new().write(true).open(&procs).map_err(failed(&procs))?;
        Ok(Self { procs, file })
    }

    /// Moves a process here.
    pub(crate) fn take_in(mut self, process: &Process) -> Result<(), CgroupError> {
        match self.file.write_all(process.pid().to_string().as_bytes()) {
            // It is over, which is for others to notice.
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(()),
            moved => moved.map_err(failed(&self.procs)),
        }
    }
}

fn home_in(own: &str, hierarchies: &[PathBuf]) -> Result<PathBuf, CgroupError> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or(CgroupError::NoHome)?;
    let mut procs = hierarchies.iter().map(|root| root.join(own).join("cgroup.procs"));
    procs.find(|procs| procs.exists()).ok_or(CgroupError::NoHome)
}

/// Lets the groups below have the controllers.
fn hand_down(group: &Path, controllers: &[&'static str]) -> Result<(), CgroupError> {
    let (handed_down, offered) = (group.join("cgroup.subtree_control"), group.join("cgroup.controllers"));
    let handed = fs::read_to_string(&handed_down).map_err(failed(&handed_down))?;
    let missing: Vec<&'static str> = controllers.iter().copied().filter(|wanted| !lists(&handed, wanted)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let offers = fs::read_to_string(&offered).map_err(failed(&offered))?;
    if let Some(controller) = missing.iter().copied().find(|wanted| !lists(&offers, wanted)) {
        return Err(CgroupError::NoController { group: group.into(), controller });
    }
    let wish: Vec<String> = missing.iter().map(|controller| format!("+{controller}")).collect();
    match set(&handed_down, &wish.join(" ")) {
        Err(CgroupError::Io { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => {
            Err(CgroupError::Occupied { group: group.into() })
        }
        done => done,
    }
}

/// Whether a list of controllers has this one.
fn lists(text: &str, controller: &str) -> bool {
    text.split_ascii_whitespace().any(|word| word == controller)
}

/// Without creating it: a file that is not there is a limit that the system does not know.
fn set(file: &Path, value: &str) -> Result<(), CgroupError> {
    let opened = OpenOptions::new().write(true).open(file);
    opened.and_then(|mut opened| opened.write_all(value.as_bytes())).map_err(failed(file))
}

/// What is swapped out would not count. A system that cannot limit that must not have any swap.
fn forbid_swap(file: &Path) -> Result<(), CgroupError> {
    match set(file, "0") {
        Err(CgroupError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && !has_swap() => Ok(()),
        done => done,
    }
}

/// The list has a heading.
fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

/// The group of this child, if it is still there.
fn find(id: &str) -> io::Result<Option<PathBuf>> {
    // A record is a file, and could say anything.
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Ok(None);
    }
    Ok(mounts::hierarchies()?.into_iter().map(|root| root.join(OURS).join(id)).find(|group| group.is_dir()))
}

/// The number behind a word at the beginning of a line.
fn count(events: &str, word: &str) -> u64 {
    let number = |line: &str| line.split_once(' ').filter(|(name, _)| *name == word)?.1.trim().parse().ok();
    events.lines().find_map(number).unwrap_or_default()
}

/// Removes this child's group once nobody is in it; one that is gone already is no error.
pub(crate) fn remove(id: &str, patience: Duration) -> io::Result<()> {
    let Some(group) = find(id)? else { return Ok(()) };
    end_all(&group)?;
    let until = Instant::now() + patience;
    loop {
        match rustix::fs::rmdir(&group) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // A process leaves its group a moment after it has let go of all else.
            Err(Errno::BUSY) if Instant::now() < until => match wait_for_change(&group, until) {
                Err(error) if is_gone(&error) => return Ok(()),
                waited => waited?,
            },
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends whoever is still in a group: a VMM that was taken over can have hidden from everybody but the kernel.
fn end_all(group: &Path) -> io::Result<()> {
    let ended =
        OpenOptions::new().write(true).open(group.join("cgroup.kill")).and_then(|mut kill| kill.write_all(b"1"));
    match ended {
        // The group is gone, or the kernel is too old to do that.
        Err(error) if is_gone(&error) => Ok(()),
        ended => ended,
    }
}

/// Waits until somebody has entered or left.
fn wait_for_change(group: &Path, until: Instant) -> io::Result<()> {
    let mut events = File::open(group.join("cgroup.events"))?;
    let mut text = String::new();
    events.read_to_string(&mut text)?;
    let left = until.saturating_duration_since(Instant::now());
    let left = if count(&text, "populated") == 0 { left.min(PAUSE) } else { left };
    let mut changed = [PollFd::new(&events, PollFlags::PRI)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut changed, Some(&timespec(left))))?;
    Ok(())
}

/// Somebody else has removed the group.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files as in a group, without what the system does when they are written.
    fn group(path: &Path, controllers: &str, handed_down: &str) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("cgroup.controllers"), controllers).unwrap();
        fs::write(path.join("cgroup.subtree_control"), handed_down).unwrap();
    }

    #[test]
    fn the_controller_is_handed_down_where_it_is_not_yet() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "cpu memory pids\n", "cpu\n");
        let ours = root.path().join("forkd");
        group(&ours, "cpu memory pids\n", "cpu memory pids\n");
        let groups = Groups::below(root.path(), &[CPU, MEMORY, PIDS], Vec::new()).unwrap();
        assert_eq!(groups.path, ours);
        let written = |path: &Path| fs::read_to_string(path.join("cgroup.subtree_control")).unwrap();
        assert!(written(root.path()).starts_with("+memory +pids"));
        assert_eq!(written(&ours), "cpu memory pids\n", "it had been done");
    }

    #[test]
    fn a_host_that_cannot_limit_memory_is_told_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "cpuset cpu hugetlb memory_of_a_sort\n", "");
        let error = Groups::below(root.path(), &[CPU, MEMORY], Vec::new()).unwrap_err();
        assert!(matches!(&error, CgroupError::NoController { group, controller: MEMORY } if group == root.path()));
        assert!(error.to_string().contains("systemd.unified_cgroup_hierarchy=1"), "{error}");
        assert!(!root.path().join("forkd").exists());
    }

    #[test]
    fn a_limit_the_system_does_not_know_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let groups = Groups { path: root.path().into(), devices: Vec::new() };
        let limits = Limits { memory: Some(MemoryLimit::MIN), ..Limits::default() };
        let error = groups.make("sb-1", &limits).unwrap_err();
        assert!(matches!(&error, CgroupError::Io { path, .. } if path.ends_with("sb-1/memory.max")), "{error}");
    }

    #[test]
    fn each_limit_is_written_where_the_system_reads_it() {
        let root = tempfile::tempdir().unwrap();
        let limits: Limits = serde_json::from_str(
            r#"{"memory_mib":64,"memory_high_mib":32,"swap_mib":1,"cpu_millis":1500,"cpu_weight":50,"write_mib_per_sec":1}"#,
        )
        .unwrap();
        let devices = Device::of_all(&["/".into()]).unwrap_or_default();
        let groups = Groups { path: root.path().into(), devices };
        let files = ["memory.high", "memory.max", "memory.oom.group", "memory.swap.max", "pids.max", "cpu.max"];
        // As the system does: the files come with the group.
        let written = |files: &[&str]| {
            let path = root.path().join("sb-1");
            files.iter().map(|file| fs::read_to_string(path.join(file)).unwrap()).collect::<Vec<_>>()
        };
        assert!(groups.make("sb-1", &limits).is_err(), "without its files a group limits nothing");
        for file in files.iter().chain(&["cpu.weight", "io.max", "cgroup.procs"]) {
            fs::write(root.path().join("sb-1").join(file), "").unwrap();
        }
        groups.limit(&root.path().join("sb-1"), &limits).unwrap();
        assert_eq!(written(&files), ["33554432", "67108864", "1", "1048576", "512", "150000 100000"]);
        assert_eq!(written(&["cpu.weight"]), ["50"]);
        let fewer = Limits { pids: Some(64.try_into().unwrap()), ..Limits::default() };
        fs::write(root.path().join("sb-1/pids.max"), "").unwrap();
        groups.limit(&root.path().join("sb-1"), &fewer).unwrap();
        assert_eq!(written(&["pids.max"]), ["64"]);
        assert_eq!(controllers(&[limits]), [MEMORY, CPU, IO, PIDS]);
        assert_eq!(controllers(&[Limits::default()]), [PIDS]);
        let io = Limits { write: limits.write, ..Limits::default() };
        assert_eq!(controllers(&[io]), [MEMORY, IO, PIDS]);
    }

    #[test]
    fn a_group_that_cannot_be_joined_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let roots = [root.path().join("elsewhere"), root.path().to_owned()];
        group(&root.path().join("user/me"), "", "");
        let procs = root.path().join("user/me/cgroup.procs");
        fs::write(&procs, "").unwrap();
        assert_eq!(home_in("1:name=x:/user/me\n0::/user/me\n", &roots).unwrap(), procs);
        for (own, roots) in
            [("0::/user/you\n", &roots[..]), ("1:memory:/user/me\n", &roots[..]), ("0::/user/me\n", &[])]
        {
            assert!(matches!(home_in(own, roots), Err(CgroupError::NoHome)), "{own}");
        }
    }

    #[test]
    fn events_are_counted_by_their_whole_name() {
        let events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!((count(events, "oom_kill"), count(events, "oom"), count(events, "kill")), (2, 3, 0));
        for odd in ["", "oom_kill", "oom_kill x\n", "oom_kill -1"] {
            assert_eq!(count(odd, "oom_kill"), 0, "{odd}");
        }
    }

    #[test]
    fn a_record_cannot_name_what_is_not_ours() {
        for id in ["", "..", "../../x", "sb-1/..", "sb.1"] {
            assert_eq!(find(id).unwrap(), None, "{id}");
        }
        remove("sb-00000000-nobody", Duration::ZERO).unwrap();
        assert_eq!(hits("sb-00000000-nobody").unwrap(), Hits::default());
    }
}
