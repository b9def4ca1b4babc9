//! Blobs into the cache: each once, whoever asks for it, and continued where a connection broke.
//!
//! ```text
//! layers-v1/sha256-<hex>         whole, compared, synced
//! layers-v1/sha256-<hex>.part    what has come so far; who fetches holds its lock
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{FlockOperation, flock};
use types::progress::{Progress, Stage};

use super::http::{RegistryError, Session, transport};
use crate::manifest::Descriptor;

/// How often in a row nothing more may come before we give up.
const TRIES: u32 = 5;
const BUFFER: usize = 1 << 17;
/// No layer is longer.
const MAX_BLOB: u64 = 64 << 30;

/// The path of the blob in the cache, where it is put if it is missing.
pub(super) fn fetch(
    session: &Session<'_>,
    descriptor: &Descriptor,
    dir: &Path,
    progress: &dyn Progress,
) -> Result<PathBuf, RegistryError> {
    let digest = &descriptor.digest;
    let path = dir.join(format!("{}-{}", digest.algorithm(), digest.hex()));
    if path.is_file() {
        return Ok(path);
    }
    if descriptor.size > MAX_BLOB {
        let (host, what) = (session.endpoint.host.clone(), digest.to_string());
        return Err(RegistryError::TooLong { host, what, limit: MAX_BLOB });
    }
    let part = path.with_extension("part");
    let Some(mut file) = lock(&part, &path)? else { return Ok(path) };
    let stage = progress.stage(&format!("Pulling {}", &digest.hex()[..12]), Some(descriptor.size));
    receive(session, descriptor, &mut file, &part, &*stage)?;
    let failed = RegistryError::file(&part);
    let published = file.sync_all().and_then(|()| fs::rename(&part, &path)).and_then(|()| File::open(dir)?.sync_all());
    published.map_err(failed)?;
    Ok(path)
}

/// The part, when nobody else fetches it; nothing when somebody has done so meanwhile.
fn lock(part: &Path, path: &Path) -> Result<Option<File>, RegistryError> {
    loop {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(part);
        let file = file.map_err(RegistryError::file(part))?;
        let locked = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
        locked.map_err(|error| RegistryError::file(part)(error.into()))?;
        if path.is_file() {
            // Ours is either the finished one or one that was made since.
            return Ok(None);
        }
        // Somebody else may have finished and been cleaned up in between: then this name is another file.
        if part.is_file() {
            return Ok(Some(file));
        }
    }
}

/// Asks until all of it is there, and compares it.
fn receive(
    session: &Session<'_>,
    descriptor: &Descriptor,
    file: &mut File,
    part: &Path,
    stage: &dyn Stage,
) -> Result<(), RegistryError> {
    let host = || session.endpoint.host.clone();
    let mut have = file.metadata().map_err(RegistryError::file(part))?.len();
    if have > descriptor.size {
        have = restart(file, part)?;
    }
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
            return Err(RegistryError::Broken { host: host(), digest, expected, found: most });
        }
        thread::sleep(pause);
        pause = if is_more { session.settings.pause } else { pause * 2 };
    }
    let mut hasher = descriptor.digest.hasher();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| hasher.read(file));
    read.map_err(RegistryError::file(part))?;
    let found = hasher.finish();
    if found != descriptor.digest {
        // All of it is wrong: nothing to go on from.
        restart(file, part)?;
        return Err(RegistryError::Digest { host: host(), expected: descriptor.digest.clone(), found });
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
