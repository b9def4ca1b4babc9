//! How the programs of a container image are to be run, as a file on its disk says: it was made from the image's own
//! configuration when the disk was. A guest without the file is a plain one.
//!
//! What a request says comes first, then this, then what is usual. Commands, kept processes and the interpreter follow
//! it; what the agent runs for itself does not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use proto::guest::ExecRequest;
use rustix::fs::OFlags;
use serde::Deserialize;

use crate::console::say;

const PLACE: &str = "/etc/forkd/image.json";
/// More is not read; no image has more to say.
const MAX_FILE: u64 = 1 << 20;

/// What the file says. What is empty says nothing.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ImageRun {
    env: Vec<String>,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    working_dir: String,
    user: String,
}

impl ImageRun {
    /// As the file is now. One that makes no sense is as good as none: a guest must not lock itself.
    pub(crate) fn read() -> Self {
        read(Path::new(PLACE)).unwrap_or_else(|error| {
            say(format_args!("{PLACE} is not used: {error}"));
            Self::default()
        })
    }

    /// The request, with what it leaves open.
    pub(crate) fn complete(&self, request: &ExecRequest) -> ExecRequest {
        let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let mut request = request.clone();
        if request.argv.is_empty() {
            request.argv = [&self.entrypoint[..], &self.cmd].concat();
        }
        request.cwd = request.cwd.or_else(|| said(&self.working_dir));
        // Nobody needs to be looked up to be who the agent is; but root may be of another group.
        let is_root = |name: &str| matches!(name, "root" | "0" | "");
        let is_other = |user: &String| !user.split(':').all(is_root);
        request.user = request.user.or_else(|| said(&self.user).filter(is_other));
        request
    }

    /// Its variables; what is not one is left out.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        let pairs = self.env.iter().filter_map(|line| line.split_once('='));
        let sound = pairs.filter(|(name, value)| !name.is_empty() && !name.contains('\0') && !value.contains('\0'));
        sound.map(|(name, value)| (name.into(), value.into())).collect()
    }
}

fn read(path: &Path) -> io::Result<ImageRun> {
    // Whatever it is, opening it does not wait: a pipe would have every command wait for who writes to it.
    let opened = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = match opened {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(ImageRun::default());
        }
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_request_comes_first_and_then_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.json");
        assert_eq!(read(&path).unwrap(), ImageRun::default());
        let text = r#"{"env": ["A=1=2", "broken", "=x", "N=\u0000"], "entrypoint": ["serve"], "cmd": ["--all"],
                       "working_dir": "/app", "user": "app:web", "other": 1}"#;
        fs::write(&path, text).unwrap();
        let image = read(&path).unwrap();
        assert_eq!(image.env(), BTreeMap::from([("A".into(), "1=2".into())]));
        let empty = image.complete(&ExecRequest::default());
        assert_eq!(empty.argv, ["serve", "--all"]);
        assert_eq!((empty.cwd.as_deref(), empty.user.as_deref()), (Some("/app"), Some("app:web")));
        let said = ExecRequest {
            argv: vec!["id".into()],
            cwd: Some("/".into()),
            user: Some("root".into()),
            ..ExecRequest::default()
        };
        assert_eq!(image.complete(&said), said);
        let asked = |user: &str| {
            let image = ImageRun { user: user.into(), ..ImageRun::default() };
            image.complete(&ExecRequest::default()).user
        };
        for agent in ["", "0", "root", "root:", "0:0", "root:root"] {
            assert_eq!(asked(agent), None, "{agent}");
        }
        for other in ["root:www-data", "0:1000", "1000:0"] {
            assert_eq!(asked(other).as_deref(), Some(other));
        }
    }

    #[test]
    fn a_file_that_makes_no_sense_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.json");
        for text in ["", "7", "{\"env\": 1}", "{\"user\": null}"] {
            fs::write(&path, text).unwrap();
            assert!(read(&path).is_err(), "{text}");
        }
        assert!(read(dir.path()).is_err(), "a directory");
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(read(&pipe).is_err(), "a pipe that nobody writes to");
    }
}
