//! Getting a pack from a server, in as many pieces as the network makes of it.
//!
//! ```text
//! <dir>/<name of the address>.part     what has come so far; who holds its flock downloads
//! <dir>/<name of the address>.json     which version of the file that is, as the server calls it, and how long it is
//! ```
//!
//! A download that ended early goes on where it was if the server still has the same file (`If-Range`), now or in
//! another process. A server that does not say what version it sends begins anew each time.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use types::progress::{Progress, Silent, Stage};
use ureq::Body;
use ureq::http::{HeaderMap, Response};

use crate::http::{Client, HttpError, broken, expect_success, public, refusal};
use crate::manifest::Sha256;
use crate::pace::{Pace, Summed};
use crate::room;

/// How often in a row nothing may come of it.
const MAX_FAILURES: u32 = 5;
/// How often at all.
const MAX_TRIES: u32 = 200;
const MAX_NOTE: u64 = 64 << 10;
const CHUNK: usize = 128 << 10;
/// What is left of a disk for others, whatever a server has to send.
const RESERVE: u64 = 256 << 20;
/// How much may come before it is looked at how much room is left.
const LOOK_EVERY: u64 = 16 << 20;

/// Why a pack did not come.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The server does not hand it out, or the network is too bad.
    #[error("the pack cannot be downloaded")]
    Http(#[from] HttpError),
    /// Somebody else is at it.
    #[error("another forkd is downloading {url}; wait for it")]
    Busy {
        /// What.
        url: String,
    },
    /// It is not what the hub says.
    #[error("what {url} hands out is not what the hub lists: {problem}; tell who keeps the hub")]
    Other {
        /// Who.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// What comes cannot be kept.
    #[error("cannot keep the download in {}", path.display())]
    Keep {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is not enough room.
    #[error(
        "what {url} hands out does not fit on the disk of {}: {free} bytes are free, of which {RESERVE} are left to others; \
         make room, perhaps with `forkd gc`",
        dir.display()
    )]
    Space {
        /// Who.
        url: String,
        /// How much there is.
        free: u64,
        /// Where.
        dir: PathBuf,
    },
    /// Nobody wants it any more.
    #[error("the download was called off; the next one goes on where it was")]
    Cancelled,
}

/// What is known of a file beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Its length.
    pub size: Option<u64>,
    /// Its sum.
    pub sha256: Option<Sha256>,
}

/// A file that has come. It stays, for the next who asks for it, until it is not needed any more.
#[derive(Debug)]
pub struct Downloaded {
    /// From its beginning.
    pub file: File,
    part: PathBuf,
    note: PathBuf,
}

impl Downloaded {
    /// Removes it.
    ///
    /// # Errors
    /// When the system says no.
    pub fn remove(self) -> Result<(), DownloadError> {
        for path in [&self.note, &self.part] {
            match fs::remove_file(path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(DownloadError::Keep { path: path.clone(), source });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Which file it is that came in part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// The server's name for this version of it.
    validator: Option<String>,
    /// Its length.
    total: Option<u64>,
}

/// Gets a file into a directory, or the rest of it.
///
/// # Errors
/// When the server does not hand it out, in spite of asking again where that may help, or hands out another one.
pub fn download(
    client: &Client,
    url: &str,
    checked: &Checked,
    dir: &Path,
    progress: &dyn Progress,
    cancelled: &dyn Fn() -> bool,
) -> Result<Downloaded, DownloadError> {
    run(Download::open(client, url, checked, dir, progress, cancelled)?)
}

fn run(mut download: Download<'_>) -> Result<Downloaded, DownloadError> {
    let (client, url) = (download.client, download.url);
    let (mut failures, mut pause) = (0, client.pause);
    for _ in 0..MAX_TRIES {
        let before = download.len;
        let error = match download.go_on() {
            Ok(()) => return download.finish(),
            Err(error) => error,
        };
        if download.len > before {
            (failures, pause) = (0, client.pause);
        }
        failures += 1;
        match &error {
            DownloadError::Http(http) if http.is_passing() && failures < MAX_FAILURES => {
                log::debug!("{error}: {http}; asking again in {pause:?}");
            }
            _ => return download.give_up(error),
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(15));
    }
    Err(HttpError::Status { url: public(url), status: 408, words: "it came in too many pieces".into() }.into())
}

struct Download<'a> {
    client: &'a Client,
    url: &'a str,
    checked: &'a Checked,
    progress: &'a dyn Progress,
    cancelled: &'a dyn Fn() -> bool,
    stage: Box<dyn Stage>,
    /// How many bytes are free where it goes.
    free: fn(&Path) -> io::Result<u64>,
    file: File,
    part: PathBuf,
    note_path: PathBuf,
    note: Note,
    /// How much of it is here.
    len: u64,
}

impl<'a> Download<'a> {
    fn open(
        client: &'a Client,
        url: &'a str,
        checked: &'a Checked,
        dir: &Path,
        progress: &'a dyn Progress,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, DownloadError> {
        let sum = sha2::Sha256::digest(url.as_bytes());
        let name: String = sum.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let (part, note_path) = (dir.join(format!("{name}.part")), dir.join(format!("{name}.json")));
        let failed = |source| DownloadError::Keep { path: part.clone(), source };
        fs::create_dir_all(dir).map_err(failed)?;
        let options = File::options().read(true).write(true).create(true).truncate(false).open(&part);
        let file = options.map_err(failed)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(DownloadError::Busy { url: public(url) });
        }
        let note = read_note(&note_path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let (stage, free) = (Box::new(Silent), room::free);
        Ok(Self { client, url, checked, progress, cancelled, stage, free, file, part, note_path, note, len })
    }

    /// Asks for what is missing and takes what comes.
    fn go_on(&mut self) -> Result<(), DownloadError> {
        if (self.cancelled)() {
            return Err(DownloadError::Cancelled);
        }
        let range = format!("bytes={}-", self.len);
        let validator = self.note.validator.clone().filter(|_| self.len > 0);
        let answer = match &validator {
            Some(validator) => self.client.get(self.url, &[("range", &range), ("if-range", validator)])?,
            None => self.client.get(self.url, &[])?,
        };
        match answer.status().as_u16() {
            416 if self.note.total == Some(self.len) => return Ok(()),
            206 if validator.is_some() && self.continues(answer.headers()) => {}
            // It does not go on where we are: from the beginning, then.
            206 | 416 => {
                self.restart(Note::default())?;
                return Err(refusal(self.url, answer)).map_err(|error| match error {
                    HttpError::Status { url, words, .. } => HttpError::Status { url, status: 408, words }.into(),
                    error => error.into(),
                });
            }
            _ => {
                let answer = expect_success(self.url, answer)?;
                self.restart(Note { validator: validator_of(answer.headers()), total: length_of(answer.headers()) })?;
                return self.take(answer);
            }
        }
        self.take(answer)
    }

    /// Whether a part begins where we are, in the file that we have the beginning of.
    fn continues(&self, headers: &HeaderMap) -> bool {
        let range = headers.get("content-range").and_then(|value| value.to_str().ok());
        let parsed = range.and_then(|range| range.strip_prefix("bytes ")?.split_once('/'));
        let Some((range, total)) = parsed else { return false };
        let start = range.split_once('-').and_then(|(start, _)| start.parse().ok());
        start == Some(self.len) && self.note.total.is_none_or(|known| total.parse() == Ok(known))
    }

    /// Forgets what has come; what comes now is of this version.
    fn restart(&mut self, note: Note) -> Result<(), DownloadError> {
        self.file.set_len(0).map_err(self.failed())?;
        (self.len, self.note) = (0, note);
        let text = serde_json::to_vec(&self.note).expect("a note is plain data");
        fs::write(&self.note_path, text).map_err(self.failed())
    }

    fn take(&mut self, answer: Response<Body>) -> Result<(), DownloadError> {
        if let (Some(total), Some(size)) = (self.note.total, self.checked.size)
            && total != size
        {
            return Err(self.other(format!("it has {total} bytes instead of {size}")));
        }
        self.has_room(self.note.total.unwrap_or_default().saturating_sub(self.len))?;
        self.stage = self.progress.stage(&format!("Downloading {}", public(self.url)), self.note.total);
        self.stage.advance(self.len);
        let most = self.checked.size.or(self.note.total).unwrap_or(u64::MAX);
        let mut body = answer.into_body().into_with_config().limit(u64::MAX).reader();
        self.file.seek(SeekFrom::Start(self.len)).map_err(self.failed())?;
        let mut chunk = vec![0; CHUNK];
        let mut looked_at = self.len;
        loop {
            let count = body.read(&mut chunk).map_err(|source| broken(self.url, source))?;
            if count == 0 {
                break;
            }
            if self.len.saturating_add(count as u64) > most {
                return Err(self.other(format!("it has more than {most} bytes")));
            }
            self.file.write_all(&chunk[..count]).map_err(self.failed())?;
            self.len += count as u64;
            if self.len - looked_at >= LOOK_EVERY {
                self.has_room(0)?;
                looked_at = self.len;
            }
            self.stage.advance(self.len);
            if (self.cancelled)() {
                return Err(DownloadError::Cancelled);
            }
        }
        match self.note.total {
            Some(total) if self.len < total => Err(broken(self.url, io::ErrorKind::UnexpectedEof.into()).into()),
            _ => Ok(()),
        }
    }

    /// Whether so much more can come and others still have room.
    fn has_room(&self, needed: u64) -> Result<(), DownloadError> {
        let dir = self.part.parent().unwrap_or(&self.part);
        let free = (self.free)(dir).map_err(self.failed())?;
        if needed.saturating_add(RESERVE) > free {
            return Err(DownloadError::Space { url: public(self.url), free, dir: dir.into() });
        }
        Ok(())
    }

    /// Compares what has come with what should.
    fn finish(mut self) -> Result<Downloaded, DownloadError> {
        if let Some(size) = self.checked.size.filter(|size| *size != self.len) {
            let error = self.other(format!("it has {} bytes instead of {size}", self.len));
            return self.give_up(error);
        }
        self.file.rewind().map_err(self.failed())?;
        if let Some(expected) = self.checked.sha256 {
            let pace = Pace::new(self.progress.stage("Checking what has come", Some(self.len)), self.cancelled);
            let mut summed = Summed::new(&self.file, &pace);
            io::copy(&mut summed, &mut io::sink()).map_err(self.failed())?;
            let (_, found) = summed.finish();
            if found != expected {
                drop(pace);
                let error = self.other(format!("its SHA-256 is {found} instead of {expected}"));
                return self.give_up(error);
            }
            drop(pace);
            self.file.rewind().map_err(self.failed())?;
        }
        Ok(Downloaded { file: self.file, part: self.part, note: self.note_path })
    }

    /// What is another one, or finds no room, does not stay. What came in part does.
    fn give_up(self, error: DownloadError) -> Result<Downloaded, DownloadError> {
        let useless =
            matches!(error, DownloadError::Other { .. } | DownloadError::Keep { .. } | DownloadError::Space { .. });
        if self.len == 0 || useless {
            Downloaded { file: self.file, part: self.part, note: self.note_path }.remove()?;
        }
        Err(error)
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> DownloadError + use<> {
        let path = self.part.clone();
        move |source| DownloadError::Keep { path, source }
    }

    fn other(&self, problem: String) -> DownloadError {
        DownloadError::Other { url: public(self.url), problem }
    }
}

/// Downloads that ended early and that nobody goes on with now: their names, and what they take. They may be removed.
///
/// # Errors
/// When the directory cannot be read, or one cannot be removed.
pub fn leftovers(dir: &Path, remove: bool) -> Result<Vec<(String, u64)>, DownloadError> {
    let failed = |source| DownloadError::Keep { path: dir.into(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries.collect::<Result<Vec<_>, _>>().map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut left = Vec::new();
    for part in entries.iter().map(fs::DirEntry::path).filter(|path| path.extension().is_some_and(|it| it == "part")) {
        let file = match File::open(&part) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let name = part.file_name().unwrap_or_default().to_string_lossy().into_owned();
        left.push((name, file.metadata().map_err(failed)?.blocks() * 512));
        if remove {
            Downloaded { file, note: part.with_extension("json"), part }.remove()?;
        }
    }
    Ok(left)
}

/// A note that cannot be understood is none: the download begins anew.
fn read_note(path: &Path) -> io::Result<Note> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_NOTE).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

/// What `If-Range` can be asked with: an entity tag that is not a weak one, or a date.
fn validator_of(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(String::from);
    text("etag").filter(|tag| !tag.starts_with("W/")).or_else(|| text("last-modified"))
}

fn length_of(headers: &HeaderMap) -> Option<u64> {
    headers.get("content-length")?.to_str().ok()?.parse().ok()
}
