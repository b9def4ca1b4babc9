//! Digests of local files, computed once per content.
//!
//! The digest is SHA-256 over the length, whether the file is executable, and every 64 KiB block that is not all
//! zeroes, with its place. So holes cost nothing, and a file's digest does not depend on where its holes are.
//!
//! What was computed is remembered by device and inode, and counts while size and times are the same.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::MachineError;
use crate::layout::Layout;
use crate::state::replace;

const BLOCK: u64 = 64 << 10;
/// More files than anybody pushes; the ones not asked for longest are forgotten.
const MAX_ENTRIES: usize = 512;
/// A larger file is not one of ours.
const MAX_CACHE: u64 = 1 << 20;
/// The system's clock for files moves in steps; a file changed twice within one looks unchanged.
const CLOCK_STEP: Duration = Duration::from_secs(1);

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
    device: u64,
    inode: u64,
}

impl Version {
    pub(crate) fn of(meta: &Metadata) -> Self {
        Self {
            size: meta.size(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
            device: meta.dev(),
            inode: meta.ino(),
        }
    }

    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    fn key(&self) -> String {
        format!("{}:{}", self.device, self.inode)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    version: Version,
    digest: String,
    used_unix_s: u64,
}

/// The digests known, and the file they are remembered in.
#[derive(Debug)]
pub(crate) struct Digests<'a> {
    layout: &'a Layout,
    known: BTreeMap<String, Entry>,
    changed: bool,
}

impl<'a> Digests<'a> {
    /// What is remembered. A cache that cannot be read or understood remembers nothing.
    pub(crate) fn load(layout: &'a Layout) -> Self {
        let path = layout.digests();
        let small = fs::metadata(&path).is_ok_and(|meta| meta.len() <= MAX_CACHE);
        let known = small.then(|| fs::read(&path).ok()).flatten();
        let known = known.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { layout, known, changed: false }
    }

    /// The file's digest and the version it is of.
    pub(crate) fn of(&mut self, path: &Path) -> Result<(String, Version), MachineError> {
        let failed = |source| MachineError::Io { doing: "read", path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(failed(io::Error::other("it is not a plain file")));
        }
        let version = Version::of(&meta);
        let now = SystemTime::now();
        let used_unix_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if let Some(entry) = self.known.get_mut(&version.key()).filter(|entry| entry.version == version) {
            entry.used_unix_s = used_unix_s;
            return Ok((entry.digest.clone(), version));
        }
        let digest = compute(&file, &meta).map_err(failed)?;
        if Version::of(&file.metadata().map_err(failed)?) != version {
            return Err(MachineError::Changed { path: path.into() });
        }
        let settled = meta.modified().is_ok_and(|then| now.duration_since(then).is_ok_and(|age| age > CLOCK_STEP));
        if settled {
            self.known.insert(version.key(), Entry { version, digest: digest.clone(), used_unix_s });
            self.changed = true;
        }
        Ok((digest, version))
    }

    /// Remembers what is new.
    pub(crate) fn save(mut self) -> Result<(), MachineError> {
        if !self.changed {
            return Ok(());
        }
        while self.known.len() > MAX_ENTRIES {
            let oldest = self.known.iter().min_by_key(|(_, entry)| entry.used_unix_s).map(|(key, _)| key.clone());
            oldest.map(|key| self.known.remove(&key));
        }
        self.layout.create_cache()?;
        let path = self.layout.digests();
        let json = serde_json::to_vec(&self.known).map_err(io::Error::from);
        json.and_then(|json| replace(&path, &json)).map_err(MachineError::io("write", &path))
    }
}

fn compute(file: &File, meta: &Metadata) -> io::Result<String> {
    let length = meta.len();
    let mut hasher = Sha256::new();
    hasher.update(length.to_le_bytes());
    hasher.update([u8::from(meta.mode() & 0o111 != 0)]);
    let mut block = vec![0; usize::try_from(BLOCK).map_err(io::Error::other)?];
    let mut offset = 0;
    while let Some((data, end)) = next_data(file, offset)? {
        offset = data - data % BLOCK;
        while offset < end.min(length) {
            let here = usize::try_from(BLOCK.min(length - offset)).map_err(io::Error::other)?;
            file.read_exact_at(&mut block[..here], offset)?;
            if block[..here].iter().any(|byte| *byte != 0) {
                hasher.update(offset.to_le_bytes());
                hasher.update(&block[..here]);
            }
            offset += BLOCK;
        }
        if offset >= length {
            break;
        }
    }
    Ok(hasher.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a String does not fail");
        hex
    }))
}

/// Where the next data at or after an offset begins and ends.
pub(crate) fn next_data(file: &File, offset: u64) -> io::Result<Option<(u64, u64)>> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(begin) => Ok(Some((begin, rustix::fs::seek(file, SeekFrom::Hole(begin))?))),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;
    use crate::state::tests::layout;

    fn digest(path: &Path) -> String {
        let file = File::open(path).unwrap();
        let meta = file.metadata().unwrap();
        compute(&file, &meta).unwrap()
    }

    fn age(path: &Path, seconds: u64) {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn content_length_and_mode_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut seen = Vec::new();
        for content in [&b""[..], b"\0", b"\0\0", b"a", b"a\0"] {
            fs::write(&path, content).unwrap();
            seen.push(digest(&path));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        seen.push(digest(&path));
        let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), 6, "{seen:?}");
    }

    #[test]
    fn a_known_file_is_not_read_again_until_it_changes() {
        let (_home, layout) = layout();
        let path = layout.run.join("f");
        fs::write(&path, "one").unwrap();
        age(&path, 60);
        let mut digests = Digests::load(&layout);
        let (first, version) = digests.of(&path).unwrap();
        digests.known.get_mut(&version.key()).unwrap().digest = "remembered".into();
        digests.save().unwrap();
        assert_eq!(Digests::load(&layout).of(&path).unwrap().0, "remembered");
        fs::write(&path, "two").unwrap();
        age(&path, 30);
        let second = Digests::load(&layout).of(&path).unwrap().0;
        assert!(second != first && second != "remembered");
        fs::write(layout.digests(), "{garbage").unwrap();
        assert_eq!(Digests::load(&layout).of(&path).unwrap().0, second);
    }

    #[test]
    fn a_file_just_written_is_not_remembered() {
        let (_home, layout) = layout();
        let path = layout.run.join("f");
        fs::write(&path, "one").unwrap();
        let mut digests = Digests::load(&layout);
        digests.of(&path).unwrap();
        assert!(digests.known.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn holes_and_written_zeroes_are_the_same(
            pieces in prop::collection::vec((0_u64..40, 1_usize..9000), 0..6),
            tail in 0_u64..3 * BLOCK,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (sparse, dense) = (dir.path().join("sparse"), dir.path().join("dense"));
            let file = File::create(&sparse).unwrap();
            for (place, length) in pieces {
                file.write_all_at(&vec![7; length], place * 10_000).unwrap();
            }
            file.set_len(file.metadata().unwrap().len() + tail).unwrap();
            fs::write(&dense, fs::read(&sparse).unwrap()).unwrap();
            prop_assert_eq!(digest(&sparse), digest(&dense));
        }
    }
}
