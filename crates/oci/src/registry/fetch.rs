//! Blobs into the cache: each once, whoever asks for it, and continued where a connection broke.
//!
//! ```text
//! layers-v1/sha256-<hex>         whole, compared, synced
//! layers-v1/sha256-<hex>.part    what has come so far; who fetches holds its lock
//! ```
//!
//! A disk may have lost since what was compared then. What is short enough to be a document is compared each time, and the
//! rest before a disk is made of it ([`drop_if_damaged`]).

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{FlockOperation, flock};
use types::progress::{Progress, Stage};

use super::http::{RegistryError, Session, transport};
use crate::blob::Blob;
use crate::digest::Digest;
use crate::manifest::{Descriptor, MAX_DOCUMENT};

/// How often in a row nothing more may come before we give up.
const TRIES: u32 = 5;
const BUFFER: usize = 1 << 17;

/// A blob in the cache.
pub(super) struct Fetched {
    pub(super) path: PathBuf,
    /// It was there already, and was not compared with its digest again.
    pub(super) is_old: bool,
}

/// The blob in the cache, where it is put if it is missing.
pub(super) fn fetch(
    session: &Session<'_>,
    descriptor: &Descriptor,
    dir: &Path,
    progress: &dyn Progress,
) -> Result<Fetched, RegistryError> {
    let digest = &descriptor.digest;
    let path = dir.join(format!("{}-{}", digest.algorithm(), digest.hex()));
    let is_there = || is_there(&path, descriptor).map_err(RegistryError::file(&path));
    if is_there()? {
        return Ok(Fetched { path, is_old: descriptor.size > MAX_DOCUMENT });
    }
    let part = path.with_extension("part");
    let Some(mut file) = lock(&part, is_there)? else { return Ok(Fetched { path, is_old: false }) };
    let stage = progress.stage(&format!("Pulling {}", &digest.hex()[..12]), Some(descriptor.size));
    receive(session, descriptor, &mut file, &part, &*stage)?;
    let failed = RegistryError::file(&part);
    let published = file.sync_all().and_then(|()| fs::rename(&part, &path)).and_then(|()| File::open(dir)?.sync_all());
    published.map_err(failed)?;
    Ok(Fetched { path, is_old: false })
}

/// Whether the cache has it, as far as that is told at once.
fn is_there(path: &Path, descriptor: &Descriptor) -> io::Result<bool> {
    let blob = match Blob::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        blob => blob?,
    };
    let is_right = blob.len() == descriptor.size
        && (blob.len() > MAX_DOCUMENT || blob.digest(&descriptor.digest)? == descriptor.digest);
    if !is_right {
        log::warn!("{} is damaged and is fetched anew", path.display());
    }
    Ok(is_right)
}

/// Takes a blob out of the cache that is not what its digest says; true when it was so.
pub(super) fn drop_if_damaged(path: &Path, digest: &Digest) -> io::Result<bool> {
    if Blob::open(path)?.digest(digest)? == *digest {
        return Ok(false);
    }
    log::warn!("{} is damaged and is dropped", path.display());
    fs::remove_file(path).map(|()| true)
}

/// Parts that nobody fetches any more, and what they take: looked at, or removed.
pub(super) fn leftovers(dir: &Path, remove: bool) -> io::Result<Vec<(String, u64)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut left = Vec::new();
    for entry in entries {
        let part = entry?.path();
        if part.extension().is_none_or(|end| end != "part") {
            continue;
        }
        let file = match File::open(&part) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        // Who fetched it may have given it its name since.
        if is_free && is_named(&file, &part)? {
            let name = part.file_name().unwrap_or_default().to_string_lossy().into_owned();
            left.push((name, file.metadata()?.blocks() * 512));
            if remove {
                fs::remove_file(&part)?;
            }
        }
    }
    left.sort();
    Ok(left)
}

/// The part, when nobody else fetches it; nothing when somebody has done so meanwhile.
fn lock(part: &Path, is_there: impl Fn() -> Result<bool, RegistryError>) -> Result<Option<File>, RegistryError> {
    loop {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(part);
        let file = file.map_err(RegistryError::file(part))?;
        let locked = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
        locked.map_err(|error| RegistryError::file(part)(error.into()))?;
        let is_named = is_named(&file, part).map_err(RegistryError::file(part))?;
        if is_there()? {
            // Whoever fetched it has renamed theirs, so one of this name is new, and empty.
            if is_named {
                fs::remove_file(part).map_err(RegistryError::file(part))?;
            }
            return Ok(None);
        }
        // While we waited it may have been renamed or removed, and somebody may hold another of its name.
        if is_named {
            return Ok(Some(file));
        }
    }
}

/// Whether the open file is still the one that has this name.
fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks until all of it is there and is what it should be.
fn receive(
    session: &Session<'_>,
    descriptor: &Descriptor,
    file: &mut File,
    part: &Path,
    stage: &dyn Stage,
) -> Result<(), RegistryError> {
    let mut have = file.metadata().map_err(RegistryError::file(part))?.len();
    if have > descriptor.size {
        have = restart(file, part)?;
    }
    loop {
        complete(session, descriptor, file, part, have, stage)?;
        let mut hasher = descriptor.digest.hasher();
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| hasher.read(file));
        read.map_err(RegistryError::file(part))?;
        let (expected, found) = (&descriptor.digest, hasher.finish());
        if found == *expected {
            return Ok(());
        }
        // All of it is wrong: nothing to go on from.
        restart(file, part)?;
        if have == 0 {
            return Err(RegistryError::Digest {
                host: session.endpoint.host.clone(),
                expected: expected.clone(),
                found,
            });
        }
        // Who sent the rest did not send the beginning: that was another server, or was lost on our disk.
        log::info!("what was there of {expected} was not its beginning; it is fetched as a whole");
        have = 0;
    }
}

/// Asks until all of it is there.
fn complete(
    session: &Session<'_>,
    descriptor: &Descriptor,
    file: &mut File,
    part: &Path,
    mut have: u64,
    stage: &dyn Stage,
) -> Result<(), RegistryError> {
    // Only what was never there before counts: a server may send the same again and again.
    let mut most = have;
    let mut tries = 0;
    let mut pause = session.settings.pause;
    while have < descriptor.size {
        match ask(session, descriptor, file, part, &mut have, stage) {
            Ok(()) if have == descriptor.size => break,
            Ok(()) => {}
            Err(error) if !is_passing(&error) => return Err(error),
            Err(error) => log::debug!("{}: {error}", descriptor.digest),
        }
        let is_more = have > most;
        most = most.max(have);
        tries = if is_more { 0 } else { tries + 1 };
        if tries == TRIES {
            let (expected, digest) = (descriptor.size, descriptor.digest.clone());
            return Err(RegistryError::Broken { host: session.endpoint.host.clone(), digest, expected, found: most });
        }
        thread::sleep(pause);
        pause = if is_more { session.settings.pause } else { pause * 2 };
    }
    Ok(())
}

/// One request for the rest.
fn ask(
    session: &Session<'_>,
    descriptor: &Descriptor,
    file: &mut File,
    part: &Path,
    have: &mut u64,
    stage: &dyn Stage,
) -> Result<(), RegistryError> {
    let what = format!("blobs/{}", descriptor.digest);
    let range = format!("bytes={have}-");
    let headers = [("range", range.as_str())];
    let answer = match session.get(&what, if *have == 0 { &[] } else { &headers }) {
        // It has no such rest: what we have is not of this.
        Err(RegistryError::Status { status: 416, .. }) => {
            *have = restart(file, part)?;
            return Ok(());
        }
        answer => answer?,
    };
    if begins_elsewhere(&answer, *have) {
        *have = restart(file, part)?;
        return Ok(());
    }
    if answer.status() != 206 && *have > 0 {
        *have = restart(file, part)?;
    }
    file.seek(SeekFrom::Start(*have)).map_err(RegistryError::file(part))?;
    // One byte more tells that it does not end where it should.
    let mut body = answer.into_body().into_reader().take(descriptor.size - *have + 1);
    let mut buffer = vec![0; BUFFER];
    loop {
        let len = match body.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(transport(session.endpoint, ureq::Error::Io(error))),
        };
        if *have + len as u64 > descriptor.size {
            restart(file, part)?;
            let host = session.endpoint.host.clone();
            return Err(RegistryError::TooLong { host, what, limit: descriptor.size });
        }
        file.write_all(&buffer[..len]).map_err(RegistryError::file(part))?;
        *have += len as u64;
        stage.advance(*have);
    }
}

/// Whether an answer is a part that says that it is another than was asked for.
fn begins_elsewhere<B>(answer: &ureq::http::Response<B>, from: u64) -> bool {
    let range = answer.headers().get("content-range").and_then(|range| range.to_str().ok());
    answer.status() == 206 && range.is_some_and(|range| !range.trim().starts_with(&format!("bytes {from}-")))
}

fn restart(file: &mut File, part: &Path) -> Result<u64, RegistryError> {
    file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(RegistryError::file(part))
}

/// Whether asking again may help.
fn is_passing(error: &RegistryError) -> bool {
    match error {
        RegistryError::Transport { source, .. } => matches!(
            **source,
            ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_)
        ),
        RegistryError::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_that_nobody_fetches_are_left_over() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["sha256-whole", "sha256-dead.part", "sha256-busy.part"] {
            fs::write(at(name), "text").unwrap();
        }
        let busy = lock(&at("sha256-busy.part"), || Ok(false)).unwrap().unwrap();
        let names =
            |remove| leftovers(dir.path(), remove).unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!((names(false), names(true)), (vec!["sha256-dead.part".into()], vec!["sha256-dead.part".into()]));
        assert!(at("sha256-whole").exists() && at("sha256-busy.part").exists() && !at("sha256-dead.part").exists());
        drop(busy);
        assert_eq!(names(true), ["sha256-busy.part"]);
        assert_eq!(leftovers(&at("none"), true).unwrap(), []);
    }

    #[test]
    fn only_the_file_that_still_has_the_name_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("x.part");
        let first = lock(&part, || Ok(false)).unwrap().unwrap();
        let (sender, waiting) = std::sync::mpsc::channel();
        let second = {
            let part = part.clone();
            thread::spawn(move || {
                let looked = std::cell::Cell::new(false);
                let locked = lock(&part, || {
                    if !looked.replace(true) {
                        sender.send(()).unwrap();
                    }
                    Ok(false)
                });
                locked.unwrap().unwrap()
            })
        };
        // Whether it waits for the first or comes later, what it gets has the name.
        thread::sleep(std::time::Duration::from_millis(50));
        fs::remove_file(&part).unwrap();
        fs::write(&part, "another's").unwrap();
        drop(first);
        waiting.recv().unwrap();
        assert!(is_named(&second.join().unwrap(), &part).unwrap());
        // What was made in vain does not stay.
        assert!(lock(&part, || Ok(true)).unwrap().is_none());
        assert!(!part.exists());
    }
}
