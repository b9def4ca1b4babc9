//! The directory of a forked child while the child is being made: gone when dropped, unless it is kept.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proto::control::{CONTROL, Outfit, STATE, VmUid};
use rustix::fs::FlockOperation;
use store::{Manifest, Parent};

use crate::caller;
use crate::cgroup::{self, Limits};
use crate::child::{Child, RecordV1};
use crate::pidfd::{Alleged, Process};
use crate::random::{hex, random};
use crate::vmdir::{CHILD_PREFIX, Guarded, VmDirError, lock, remove, remove_file};

/// How long a killed process may take to be gone, and to be out of its group.
pub(crate) const DEATH_PATIENCE: Duration = Duration::from_secs(10);

/// What is known of a child before it has a name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) limits: Limits,
    /// Whether it shall have a control group.
    pub(crate) has_group: bool,
    pub(crate) owner: Option<&'a str>,
    /// As whom it shall run, if as somebody else than who makes it.
    pub(crate) uid: Option<VmUid>,
    /// How many of its disks it writes to.
    pub(crate) tops: u8,
    /// What is to be known of its snapshot when that is gone.
    pub(crate) base: Option<&'a Manifest>,
}

/// A directory for a child that is not ready yet.
#[derive(Debug)]
pub(crate) struct ChildDir {
    child: Child,
    /// Its state, with a shared lock, as the child is handed it.
    state: File,
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
        let path = all.make(&id)?;
        let state = new_state(&path).map_err(|source| VmDirError::Io { path: path.clone(), source })?;
        let created_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let (tag, snapshot) = (parent.tag.clone(), parent.id.clone());
        let Wanted { limits, has_group, owner, uid, tops, base } = wanted;
        let (owner, base) = (owner.map(str::to_owned), base.cloned().map(Box::new));
        let record = RecordV1 { id, tag, snapshot, created_unix_ms, limits, has_group, owner, uid, tops, base };
        let made = Self { child: Child::new(record, path.clone()), state, kept: false };
        made.child.write_record().map_err(|source| VmDirError::Io { path, source })?;
        Ok(made)
    }

    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    pub(crate) fn path(&self) -> &Path {
        self.child.path()
    }

    /// What the child is handed, with tops below `tops`.
    pub(crate) fn outfit(&self, tops: &Path) -> io::Result<Outfit> {
        let made = (0..self.child.tops()).map(|_| tempfile::tempfile_in(tops)).collect::<Result<_, _>>()?;
        Outfit::make(self.path(), self.state.try_clone()?.into(), made)
    }

    /// The directory is the child's from here on.
    pub(crate) fn keep(mut self) -> Child {
        self.kept = true;
        self.child.clone()
    }

    /// Ends the child, of which this is the process if one is known, and removes the directory. One that only was said to
    /// be its process is left alone, and who listens for the child is ended.
    ///
    /// A child that was asked for and never heard of may still come. One that comes looks for the name of its state once
    /// it can be called: so the name goes first, and it can neither be missed nor, a moment later, go on.
    pub(crate) fn discard(self, process: Option<&Alleged>) {
        let ended = match process.map(Alleged::proven).transpose() {
            Ok(Some(Some(process))) => end(process),
            Ok(Some(None) | None) => self.end_unknown(),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            log::warn!("{} may still run: {error}", self.child.id());
        }
    }

    fn end_unknown(&self) -> io::Result<()> {
        remove_file(&self.path().join(STATE))?;
        let caller = caller::call(&self.path().join(CONTROL))?;
        let of = |caller| Process::of_listener(&caller, self.child.uid());
        if let Some(process) = caller.map(of).transpose()?.flatten() {
            end(&process)?;
        }
        Ok(())
    }
}

/// A new file for what a child says of itself, held as the child will hold it.
fn new_state(dir: &Path) -> io::Result<File> {
    let state = File::options().read(true).write(true).create_new(true).open(dir.join(STATE))?;
    lock(&state, FlockOperation::LockShared)?;
    Ok(state)
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
    use std::fs;

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
        let child = dir.outfit(run.path()).unwrap().into_fds().remove(0);
        dir.keep();
        crate::vmdir::sweep(run.path(), |_| false).unwrap();
        assert!(path.exists(), "the child lives");
        drop(child);
        crate::vmdir::sweep(run.path(), |_| false).unwrap();
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
