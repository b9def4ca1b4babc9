//! One JSON line for each request, appended: who did what to what, and what came of it. No bodies, no secrets.
//!
//! A log that was moved away is written to until SIGHUP, then a new one is begun.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use api::Code;
use serde::Serialize;

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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workspace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<Code>,
}

/// The log.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<File>,
}

impl Audit {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        Ok(Self { path: path.into(), file: Mutex::new(append_to(path)?) })
    }

    /// Goes on in a new file if this one was moved away.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = append_to(&self.path)?;
        Ok(())
    }

    /// Appends a line, whole. One that cannot be written is told to whoever reads the daemon's log.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let written = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes)
        });
        if let Err(error) = written {
            log::error!("request {} is missing in the audit log: {error}", line.request_id);
        }
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
            sandbox: None,
            tag: None,
            workspace: None,
            code: None,
        }
    }

    #[test]
    fn a_moved_log_is_followed_by_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log/audit.log"), dir.path().join("moved"));
        let audit = Audit::open(&path).unwrap();
        audit.write(&line("1"));
        std::fs::rename(&path, &moved).unwrap();
        audit.write(&line("2"));
        audit.reopen().unwrap();
        audit.write(&line("3"));
        let ids = |path: &Path| -> Vec<String> {
            let text = std::fs::read_to_string(path).unwrap();
            let values = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            values.map(|value| value["request_id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!((ids(&moved), ids(&path)), (vec!["1".into(), "2".into()], vec!["3".into()]));
    }

    #[test]
    fn a_time_is_whole_seconds_of_utc() {
        let text = timestamp();
        assert!(text.len() == "2026-01-01T00:00:00Z".len() && text.ends_with('Z'), "{text}");
    }
}
