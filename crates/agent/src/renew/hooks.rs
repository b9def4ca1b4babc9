//! What an image wants done after every fork: the executables of a directory, in the order of their names.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proto::guest::{ExecRequest, ExitStatus, RenewRequest};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::children::Child;
use crate::launch::{LaunchError, Launcher};
use crate::peer::time_left;
use crate::stdio::{self, Ours};

/// How long one hook may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long all of them may take.
const ALL_PATIENCE: Duration = Duration::from_secs(60);
/// More than any image needs; bounds what a directory can make us do.
const MAX_HOOKS: usize = 64;
/// How much of what a hook says last is kept for the error.
const LAST_WORDS: usize = 2 << 10;

/// Which hook failed, and how.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("cannot list the hooks in {}: {source}", directory.display())]
    List { directory: PathBuf, source: io::Error },
    #[error("there are more than {MAX_HOOKS} hooks in {}", directory.display())]
    TooMany { directory: PathBuf },
    #[error("hook {name}: {source}")]
    Launch { name: String, source: LaunchError },
    #[error("hook {name} was not done within {} ms{words}", limit.as_millis())]
    Late { name: String, limit: Duration, words: String },
    #[error("hook {name} ended with {}{words}", status.shell_code())]
    Failed { name: String, status: ExitStatus, words: String },
}

/// Runs them all, one after another; the first that fails is the last.
pub(crate) fn run(directory: &Path, launcher: &Launcher, request: &RenewRequest) -> Result<(), HookError> {
    let all_until = Instant::now() + ALL_PATIENCE;
    for hook in list(directory)? {
        let limit = PATIENCE.min(all_until.saturating_duration_since(Instant::now()));
        run_one(&hook, launcher, request, limit)?;
    }
    Ok(())
}

/// Hidden files and what nobody may execute are not hooks.
fn list(directory: &Path) -> Result<Vec<PathBuf>, HookError> {
    let failed = |source| HookError::List { directory: directory.into(), source };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut hooks = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let executable = |found: fs::Metadata| found.is_file() && found.permissions().mode() & 0o111 != 0;
        if !hidden && path.metadata().is_ok_and(executable) {
            hooks.push(path);
        }
        if hooks.len() > MAX_HOOKS {
            return Err(HookError::TooMany { directory: directory.into() });
        }
    }
    hooks.sort();
    Ok(hooks)
}

fn run_one(hook: &Path, launcher: &Launcher, request: &RenewRequest, limit: Duration) -> Result<(), HookError> {
    let name = hook.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let facts = [("FORKD_SANDBOX_ID", &request.sandbox_id), ("FORKD_GENERATION", &request.generation)];
    let exec = ExecRequest {
        argv: vec![hook.to_string_lossy().into_owned()],
        env: facts.map(|(name, value)| (name.into(), value.as_str().into())).into(),
        cwd: Some("/".into()),
        ..ExecRequest::default()
    };
    let (child, ours) = match launcher.launch_own(&exec) {
        Ok(launched) => launched,
        Err(source) => return Err(HookError::Launch { name, source }),
    };
    let mut said = Said::new(ours);
    let status = said.until_end(&child, Instant::now() + limit);
    child.kill();
    match status {
        Some(ExitStatus::Code(0)) => Ok(()),
        Some(status) => Err(HookError::Failed { name, status, words: said.words() }),
        None => Err(HookError::Late { name, limit, words: said.words() }),
    }
}

/// What a hook says, of which the end is kept.
struct Said {
    /// Standard output and standard error.
    streams: [Stream; 2],
}

struct Stream {
    pipe: Option<OwnedFd>,
    last: Vec<u8>,
}

impl Said {
    fn new(ours: Ours) -> Self {
        Self { streams: [ours.stdout, ours.stderr].map(|pipe| Stream { pipe, last: Vec::new() }) }
    }

    /// Listens until the hook has ended; nothing when it did not in time.
    fn until_end(&mut self, child: &Child, until: Instant) -> Option<ExitStatus> {
        while child.status().is_none() && Instant::now() < until {
            let ended = child.ended_fd();
            let pipes = self.streams.iter().filter_map(|stream| stream.pipe.as_ref());
            let mut fds = vec![PollFd::new(&ended, PollFlags::IN)];
            fds.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            match rustix::event::poll(&mut fds, Some(&time_left(until))) {
                Ok(_) | Err(Errno::INTR) => self.streams.iter_mut().for_each(Stream::listen),
                Err(_) => break,
            }
        }
        // What it said before it ended is in the pipes now.
        self.streams.iter_mut().for_each(Stream::listen);
        child.status()
    }

    /// Its complaints, or whatever else it said.
    fn words(&self) -> String {
        let texts = self.streams.each_ref().map(|stream| String::from_utf8_lossy(&stream.last));
        let said = texts.iter().rev().map(|text| text.trim()).find(|text| !text.is_empty());
        said.map_or_else(String::new, |text| format!(": {text}"))
    }
}

impl Stream {
    /// Reads what is there now. A pipe that has no writer left is closed, or poll would report it again and again.
    fn listen(&mut self) {
        let mut scratch = [0; 4096];
        let mut left = self.pipe.as_ref().map_or(0, stdio::capacity);
        while left > 0
            && let Some(pipe) = &self.pipe
        {
            match rustix::io::read(pipe, &mut scratch) {
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(0) | Err(_) => self.pipe = None,
                Ok(count) => {
                    left = left.saturating_sub(count);
                    self.last.extend_from_slice(&scratch[..count]);
                    self.last.drain(..self.last.len().saturating_sub(LAST_WORDS));
                }
            }
        }
    }
}
