//! Which limits a child has hit, and how much memory all of them may still come to need.

use std::fs;
use std::io;
use std::path::Path;

use super::{OURS, count, find, mounts};

/// Which limits a child has hit since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each limit is hit or not, whatever the others are")]
pub struct Hits {
    /// It needed more memory than it may have, and was ended.
    pub oom_killed: bool,
    /// It wanted more CPU time than it may have, or memory, and was made to wait.
    pub throttled: bool,
    /// It wanted to write more to its disks than it may, and got errors.
    pub disk_full: bool,
    /// Its VMM wanted more processes or threads than it may have, and did not get them.
    pub pids_limited: bool,
}

/// What this child's group says; what is not limited says nothing.
pub(crate) fn hits(id: &str) -> io::Result<Hits> {
    find(id)?.map_or_else(|| Ok(Hits::default()), |group| in_group(&group))
}

fn in_group(group: &Path) -> io::Result<Hits> {
    let memory = read_if_there(&group.join("memory.events"))?;
    let cpu = read_if_there(&group.join("cpu.stat"))?;
    let pids = read_if_there(&group.join("pids.events"))?;
    Ok(Hits {
        oom_killed: count(&memory, "oom_kill") > 0,
        throttled: count(&cpu, "nr_throttled") > 0 || count(&memory, "high") > 0,
        disk_full: false,
        pids_limited: count(&pids, "max") > 0,
    })
}

/// What all children with a limit of memory do not use of it yet, in bytes. One group that goes meanwhile promises
/// nothing.
pub(crate) fn promised() -> io::Result<u64> {
    mounts::hierarchies()?.iter().map(|root| promised_below(&root.join(OURS))).sum()
}

fn promised_below(ours: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(ours) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut sum = 0_u64;
    for entry in entries {
        let group = entry?.path();
        if !group.is_dir() {
            continue;
        }
        // One without a limit says `max`, which promises nothing.
        let Ok(limit) = read_if_there(&group.join("memory.max"))?.trim().parse::<u64>() else { continue };
        // What is cached for it does not count: the host would give that up for others.
        let used = count(&read_if_there(&group.join("memory.stat"))?, "anon");
        sum = sum.saturating_add(limit.saturating_sub(used));
    }
    Ok(sum)
}

/// A group that is gone, and one that does not limit this, say nothing.
fn read_if_there(file: &Path) -> io::Result<String> {
    match fs::read_to_string(file) {
        Err(error) if super::is_gone(&error) => Ok(String::new()),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(path: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(path).unwrap();
        files.iter().for_each(|(name, text)| fs::write(path.join(name), text).unwrap());
    }

    #[test]
    fn each_way_of_hitting_a_limit_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let of = |files: &[(&str, &str)]| {
            let path = dir.path().join(files.len().to_string());
            group(&path, files);
            let hits = in_group(&path).unwrap();
            fs::remove_dir_all(&path).unwrap();
            hits
        };
        assert_eq!(of(&[]), Hits::default());
        let calm = [("memory.events", "high 0\noom_kill 0\n"), ("cpu.stat", "usage_usec 9\nnr_throttled 0\n")];
        assert_eq!(of(&calm), Hits::default());
        assert_eq!(of(&[("cpu.stat", "nr_throttled 3\n")]), Hits { throttled: true, ..Hits::default() });
        assert_eq!(of(&[("memory.events", "high 1\n")]), Hits { throttled: true, ..Hits::default() });
        assert_eq!(of(&[("pids.events", "max 2\n")]), Hits { pids_limited: true, ..Hits::default() });
        let killed = Hits { oom_killed: true, ..Hits::default() };
        assert_eq!(of(&[("memory.events", "high 0\noom_kill 1\n")]), killed);
    }

    #[test]
    fn a_promise_is_what_is_not_used_yet() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(promised_below(&dir.path().join("none")).unwrap(), 0);
        group(&dir.path().join("a"), &[("memory.max", "1000\n"), ("memory.stat", "anon 300\nfile 600\n")]);
        group(&dir.path().join("b"), &[("memory.max", "max\n"), ("memory.stat", "anon 300\n")]);
        group(&dir.path().join("c"), &[("memory.max", "50\n"), ("memory.stat", "anon 70\n")]);
        group(&dir.path().join("d"), &[]);
        fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        assert_eq!(promised_below(dir.path()).unwrap(), 700);
    }
}
