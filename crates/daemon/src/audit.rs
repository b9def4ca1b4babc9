//! One JSON line for each request, appended: who did what to what, and what came of it. No bodies, no secrets. What
//! sandboxes were refused has lines, too.
//!
//! A request is answered when its line is written. A log that was moved away is written to until SIGHUP, then a new one is begun.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use api::Code;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::subject::Names;

/// A request that was answered.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    pub(crate) ts: String,
    pub(crate) method: &'a str,
    /// Without the query.
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    pub(crate) latency_us: u64,
    pub(crate) ua: Option<&'a str>,
    /// The token's name.
    pub(crate) actor: Option<&'a str>,
    pub(crate) remote: &'a str,
    pub(crate) request_id: &'a str,
    #[serde(flatten)]
    pub(crate) names: Written,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<Code>,
}

/// What it was about: one sandbox by `sandbox`, several that were made by `sandboxes`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Written {
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sandboxes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<String>,
}

impl From<Names> for Written {
    fn from(Names { mut sandboxes, tag, workspace }: Names) -> Self {
        let sandbox = if sandboxes.len() == 1 { sandboxes.pop() } else { None };
        Self { sandbox, sandboxes, tag, workspace }
    }
}

/// How many lines may wait to be written.
const BACKLOG: usize = 1024;
/// How many lines are written at once.
const BATCH: usize = 256;
/// How long what waits may take to be written when the daemon ends.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// How often is looked whether there is room then.
const ROOM_PAUSE: Duration = Duration::from_millis(10);

/// What the thread that writes is asked for.
#[derive(Debug)]
enum Job {
    /// A line, with its end; something for the daemon's own log; dropped when the line is written.
    Line { bytes: Vec<u8>, complaint: Option<String>, written: Option<oneshot::Sender<Infallible>> },
    /// Go on in a new file if this one was moved away.
    Reopen(std::sync::mpsc::Sender<io::Result<()>>),
    /// Dropped when all before it is written.
    Flush(std::sync::mpsc::Sender<Infallible>),
}

/// The log. One thread writes it, so that a slow disk holds up no more than the requests whose lines it is.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    jobs: mpsc::Sender<Job>,
}

/// Room for one more line.
#[derive(Debug)]
pub(crate) struct Room<'a>(mpsc::Permit<'a, Job>);

impl Audit {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let (jobs, asked) = mpsc::channel(BACKLOG);
        let writer = Writer { path: path.into(), file: append_to(path)? };
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(asked))?;
        Ok(Self { jobs })
    }

    /// Goes on in a new file if this one was moved away. Blocks.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        let (say, done) = std::sync::mpsc::channel();
        self.jobs.blocking_send(Job::Reopen(say)).map_err(io::Error::other)?;
        done.recv().map_err(io::Error::other)?
    }

    /// Waits until all there is to write is written, and not for ever. Blocks.
    pub(crate) fn flush(&self) {
        let until = Instant::now() + LAST_PATIENCE;
        let (say, done) = std::sync::mpsc::channel();
        let mut asked = self.jobs.try_send(Job::Flush(say));
        while let Err(TrySendError::Full(job)) = asked {
            if Instant::now() > until {
                return log::error!("the last lines are missing in the audit log");
            }
            std::thread::sleep(ROOM_PAUSE);
            asked = self.jobs.try_send(job);
        }
        let left = until.saturating_duration_since(Instant::now());
        if asked.is_err() || done.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            log::error!("the last lines are missing in the audit log");
        }
    }

    /// Has something written that was no request.
    pub(crate) fn note(&self, what: &impl Serialize) {
        let job = Job::Line { bytes: text(what), complaint: None, written: None };
        if self.jobs.try_send(job).is_err() {
            log::error!("what a sandbox was refused is missing in the audit log");
        }
    }

    /// Waits for room; `None` when nobody writes any more.
    pub(crate) async fn room(&self) -> Option<Room<'_>> {
        self.jobs.reserve().await.ok().map(Room)
    }

    /// Has a line written that nobody waits for.
    pub(crate) fn write_later(&self, line: &Line<'_>) {
        let job = Job::Line { bytes: text(line), complaint: None, written: None };
        match (self.jobs.try_send(job), Handle::try_current()) {
            (Ok(()), _) => {}
            (Err(TrySendError::Full(job)), Ok(runtime)) => {
                let jobs = self.jobs.clone();
                runtime.spawn(async move {
                    if jobs.send(job).await.is_err() {
                        log::error!("a request is missing in the audit log");
                    }
                });
            }
            _ => log::error!("request {} is missing in the audit log", line.request_id),
        }
    }
}

impl Room<'_> {
    /// Has a line written, and the complaint into the daemon's own log; whoever waits learns when.
    pub(crate) fn write(self, line: &Line<'_>, complaint: Option<String>) -> impl Future<Output = ()> + use<> {
        let (say, written) = oneshot::channel::<Infallible>();
        self.0.send(Job::Line { bytes: text(line), complaint, written: Some(say) });
        // Who cannot write says so in the daemon's log.
        async { drop(written.await) }
    }
}

fn text(line: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("a line can be written as JSON");
    bytes.push(b'\n');
    bytes
}

/// The thread's side.
struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    fn run(mut self, mut asked: mpsc::Receiver<Job>) {
        let mut jobs = Vec::with_capacity(BATCH);
        while asked.blocking_recv_many(&mut jobs, BATCH) > 0 {
            let mut lines = Vec::new();
            let mut waiting = Vec::new();
            for job in jobs.drain(..) {
                match job {
                    Job::Line { bytes, complaint, written } => {
                        lines.extend(bytes);
                        waiting.extend(written);
                        if let Some(complaint) = complaint {
                            log::error!("{complaint}");
                        }
                    }
                    Job::Reopen(say) => {
                        self.append(&mut lines);
                        let opened = append_to(&self.path).map(|file| self.file = file);
                        drop(say.send(opened));
                    }
                    Job::Flush(say) => {
                        self.append(&mut lines);
                        drop(say);
                    }
                }
            }
            self.append(&mut lines);
            drop(waiting);
        }
    }

    /// Appends lines, whole. What cannot be written is told to whoever reads the daemon's log.
    fn append(&mut self, lines: &mut Vec<u8>) {
        if let Err(error) = self.file.write_all(lines) {
            log::error!("{} bytes are missing in the audit log: {error}", lines.len());
        }
        lines.clear();
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// Now, as RFC 3339 in UTC and whole seconds.
pub(crate) fn timestamp() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(request_id: &str) -> Line<'_> {
        Line {
            ts: timestamp(),
            method: "GET",
            path: "/v1/x\"\n",
            status: 200,
            latency_us: 1,
            ua: None,
            actor: Some("ci"),
            remote: "127.0.0.1:1",
            request_id,
            names: Written::default(),
            code: None,
        }
    }

    #[test]
    fn a_moved_log_is_followed_by_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log/audit.log"), dir.path().join("moved"));
        let audit = Audit::open(&path).unwrap();
        audit.write_later(&line("1"));
        audit.flush();
        std::fs::rename(&path, &moved).unwrap();
        audit.write_later(&line("2"));
        audit.reopen().unwrap();
        audit.write_later(&line("3"));
        audit.flush();
        let ids = |path: &Path| -> Vec<String> {
            let text = std::fs::read_to_string(path).unwrap();
            let values = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            values.map(|value| value["request_id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!((ids(&moved), ids(&path)), (vec!["1".into(), "2".into()], vec!["3".into()]));
    }

    #[tokio::test]
    async fn more_lines_than_may_wait_are_all_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::open(&path).unwrap();
        for n in 0..3 * BACKLOG {
            audit.write_later(&line(&n.to_string()));
        }
        // All that came before the last one that is waited for, or is still on its way in.
        audit.room().await.unwrap().write(&line("last"), None).await;
        tokio::task::spawn_blocking(move || drop(audit)).await.unwrap();
        let all = || std::fs::read_to_string(&path).unwrap().lines().count();
        for _ in 0..1000 {
            if all() == 3 * BACKLOG + 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} lines were written", all());
    }

    #[test]
    fn a_time_is_whole_seconds_of_utc() {
        let text = timestamp();
        assert!(text.len() == "2026-01-01T00:00:00Z".len() && text.ends_with('Z'), "{text}");
    }
}
