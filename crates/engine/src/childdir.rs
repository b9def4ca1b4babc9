//! The directory of a forked child while the child is being made: gone when dropped, unless it is kept.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;
use store::Parent;

use crate::caller;
use crate::cgroup::{self, Limits};
use crate::child::{Child, RecordV1};
use crate::pidfd::Process;
use crate::random::{hex, random};
use crate::vmdir::{CHILD_PREFIX, Guarded, VmDirError, remove};

/// How long a killed process may take to be gone, and to be out of its group.
pub(crate) const DEATH_PATIENCE: Duration = Duration::from_secs(10);

/// What is known of a child before it has a name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) limits: Limits,
    /// Whether it shall have a control group.
    pub(crate) has_group: bool,
    pub(crate) owner: Option<&'a str>,
}

/// A directory for a child that is not ready yet.
#[derive(Debug)]
pub(crate) struct ChildDir {
    child: Child,
    /// A shared lock, as the child's own.
    _lock: File,
    kept: bool,
}

impl ChildDir {
    /// Makes a directory for each, with new ids and the records that tell who they are.
    pub(crate) fn create_many(run: &Path, parent: &Parent, wanted: &[Wanted<'_>]) -> Result<Vec<Self>, VmDirError> {
        let all = Guarded::enter(run)?;
        wanted.iter().map(|wanted| Self::create(&all, parent, *wanted)).collect()
    }

    fn create(all: &Guarded, parent: &Parent, wanted: Wanted<'_>) -> Result<Self, VmDirError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let failed = |source| VmDirError::Io { path: CHILD_PREFIX.into(), source };
        let id = format!("{CHILD_PREFIX}{:08x}-{}", now.as_secs(), hex(&random::<4>().map_err(failed)?));
        let (path, lock) = all.make(&id, FlockOperation::LockShared)?;
        let created_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let (tag, snapshot) = (parent.tag.clone(), parent.id.clone());
        let Wanted { limits, has_group, owner } = wanted;
        let owner = owner.map(str::to_owned);
        let record = RecordV1 { id, tag, snapshot, created_unix_ms, limits, has_group, owner };
        let made = Self { child: Child::new(record, path.clone()), _lock: lock, kept: false };
        made.child.write_record().map_err(|source| VmDirError::Io { path, source })?;
        Ok(made)
    }

    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    pub(crate) fn path(&self) -> &Path {
        self.child.path()
    }

    /// The directory is the child's from here on.
    pub(crate) fn keep(mut self) -> Child {
        self.kept = true;
        self.child.clone()
    }

    /// Ends the child, of which this is the process if one is known, and removes the directory.
    ///
    /// A child that was asked for and never heard of may still come: it is looked for under a name it does not know, so
    /// that it can neither be missed nor, a moment later, find its directory and go on.
    pub(crate) fn discard(self, process: Option<&Process>) {
        let ended = match process {
            Some(process) => end(process),
            None => self.end_unknown(),
        };
        if let Err(error) = ended {
            log::warn!("{} may still run: {error}", self.child.id());
        }
    }

    fn end_unknown(&self) -> io::Result<()> {
        let hidden = hidden_name(self.path());
        fs::rename(self.path(), &hidden)?;
        let caller = caller::call(&hidden.join("control.sock"))?;
        if let Some(process) = caller.map(|caller| Process::of_listener(&caller)).transpose()?.flatten() {
            end(&process)?;
        }
        bury(&hidden, DEATH_PATIENCE)
    }
}

/// Swept with all others should we be killed.
fn hidden_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{CHILD_PREFIX}gone-{}", name.trim_start_matches(CHILD_PREFIX)))
}

/// Removes what is left of a child: first its control group, because the directory is where that is known from.
pub(crate) fn bury(path: &Path, patience: Duration) -> io::Result<()> {
    match Child::read_record(path) {
        Ok(Some(record)) if record.has_group => cgroup::remove(&record.id, patience)?,
        Ok(_) => {}
        Err(error) => log::warn!("whether {} had a control group is not known: {error}", path.display()),
    }
    remove(path)
}

fn end(process: &Process) -> io::Result<()> {
    process.kill()?;
    if process.wait(Instant::now() + DEATH_PATIENCE)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

impl Drop for ChildDir {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = bury(self.path(), DEATH_PATIENCE)
        {
            log::warn!("{} is left behind: {error}", self.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parent() -> Parent {
        Parent { tag: "pyagent".parse().unwrap(), id: "1".into() }
    }

    #[test]
    fn ids_differ_and_say_when() {
        let run = tempfile::tempdir().unwrap();
        let dirs = ChildDir::create_many(run.path(), &parent(), &[Wanted::default(); 50]).unwrap();
        let ids: BTreeSet<_> = dirs.iter().map(|dir| dir.child().id().to_owned()).collect();
        assert_eq!(ids.len(), 50);
        assert!(ids.iter().all(|id| id.len() == "sb-".len() + 8 + 1 + 8), "{ids:?}");
        drop(dirs);
        assert_eq!(fs::read_dir(run.path().join("vms")).unwrap().count(), 1, "only the lock is left");
    }

    #[test]
    fn whoever_looks_disturbs_nobody_who_makes() {
        let run = tempfile::tempdir().unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        let dirs = fs::read_dir(run.path().join("vms")).into_iter().flatten();
                        dirs.for_each(|dir| drop(crate::vmdir::is_held(&dir.unwrap().path())));
                    }
                });
            }
            let made = || ChildDir::create_many(run.path(), &parent(), &[Wanted::default(); 50]);
            let all: Result<Vec<_>, _> = (0..20).map(|_| made().map(drop)).collect();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            all.unwrap();
        });
    }

    #[test]
    fn a_child_holds_its_directory_by_itself() {
        let run = tempfile::tempdir().unwrap();
        let dir = ChildDir::create_many(run.path(), &parent(), &[Wanted::default()]).unwrap().remove(0);
        let path = dir.path().to_owned();
        let child = File::open(&path).unwrap();
        crate::vmdir::lock(&child, FlockOperation::NonBlockingLockShared).unwrap();
        dir.keep();
        Guarded::enter(run.path()).unwrap().sweep().unwrap();
        assert!(path.exists(), "the child lives");
        drop(child);
        Guarded::enter(run.path()).unwrap().sweep().unwrap();
        assert!(!path.exists(), "nobody holds it");
    }

    #[test]
    fn a_child_that_was_never_heard_of_is_found_and_ended() {
        let run = tempfile::tempdir().unwrap();
        let dir = ChildDir::create_many(run.path(), &parent(), &[Wanted::default()]).unwrap().remove(0);
        // A process that listens there: python, because the listener's process is what is looked for.
        let script = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                      s.bind(sys.argv[1]); s.listen(8); print('listens', flush=True); sys.stdin.read()";
        let mut child = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(dir.path().join("control.sock"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).unwrap();
        assert_eq!(line, "listens\n");
        dir.discard(None);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
        assert_eq!(fs::read_dir(run.path().join("vms")).unwrap().count(), 1, "only the lock is left");
    }
}
