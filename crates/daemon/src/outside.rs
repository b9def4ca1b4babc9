//! Images for a daemon that cannot build any, such as one in an emulated host that reaches no network: whoever started it
//! builds them and brings them.
//!
//! ```text
//! daemon                          builder, outside
//! listens on a socket    <──────  connects, and waits
//! CreateSnapshot, a recipe ────>  builds, brings
//!                        <──────  Progress, Progress, ..., then the same with files instead of the recipe, or why not
//! ```
//!
//! Each says a line of JSON at a time, and a connection is for one recipe. What a request asks for besides is the
//! daemon's business alone. Neither believes the other more than it must: a builder takes names of recipes and no paths.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use api::{Code, CreateSnapshot};
use image::Recipe;
use serde::{Deserialize, Serialize};
use types::RecipeName;
use types::progress::{Progress, Stage};

use crate::error::{ApiError, chain};
use crate::serve::{ServeError, failed};
use crate::work::relay;

#[cfg(test)]
mod tests;

/// How long it may take until a builder waits.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);
/// How often is looked whether anybody still wants it.
const LOOK: Duration = Duration::from_millis(500);
/// Oftener than that, nobody wants to know how far a stage is.
const PACE: Duration = Duration::from_millis(100);
/// The longest line: a request with all its labels.
const MAX_LINE: u64 = 1 << 20;

/// What a builder says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Progress(api::Progress),
    Built(Box<CreateSnapshot>),
    /// There is no such recipe.
    Refused(String),
    Failed(String),
}

/// The daemon's side.
#[derive(Debug)]
pub(crate) struct Outside(UnixListener);

impl Outside {
    pub(crate) fn listen(path: &Path) -> Result<Self, ServeError> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", path)(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed("listen on", path))?;
        listener.set_nonblocking(true).map_err(failed("listen on", path))?;
        Ok(Self(listener))
    }

    /// The same request with files instead of the recipe.
    pub(crate) fn build(
        &self,
        asked: &CreateSnapshot,
        progress: &dyn Progress,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<CreateSnapshot, ApiError> {
        let lost =
            |error| ApiError::internal(format!("who builds images went away: {error}")).with_code(Code::VmFailed);
        check(asked)?;
        let builder = self.builder(cancelled)?;
        let mut line = serde_json::to_vec(asked).map_err(|error| ApiError::internal(error.to_string()))?;
        line.push(b'\n');
        builder.set_read_timeout(Some(LOOK)).and_then(|()| (&builder).write_all(&line)).map_err(lost)?;
        let mut reader = BufReader::new(&builder);
        let mut show = relay(progress);
        loop {
            let line = read_line(&mut reader, cancelled).map_err(lost)?;
            match serde_json::from_slice(&line).map_err(|error| lost(error.into()))? {
                Said::Progress(told) => show(told),
                Said::Built(built) => return Ok(*built),
                Said::Refused(why) => return Err(ApiError::invalid(why)),
                Said::Failed(why) => return Err(ApiError::internal(why).with_code(Code::VmFailed)),
            }
        }
    }

    /// One that waits.
    fn builder(&self, cancelled: &dyn Fn() -> bool) -> Result<UnixStream, ApiError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.0.accept() {
                Ok((stream, _)) => {
                    let ready = stream.set_nonblocking(false).map(|()| stream);
                    return ready.map_err(|error| ApiError::internal(error.to_string()));
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(ApiError::internal(format!("who builds images cannot be reached: {error}")));
                }
                Err(_) if Instant::now() > until || cancelled() => {
                    let message = "nobody is there who builds images; try again";
                    return Err(ApiError::internal(message).with_code(Code::VmFailed));
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

/// What a builder can build, by its name.
fn check(asked: &CreateSnapshot) -> Result<RecipeName, ApiError> {
    if asked.kernel.is_some() || asked.initramfs.is_some() || asked.rootfs.is_some() {
        return Err(ApiError::invalid("give either a recipe, or a kernel and a rootfs"));
    }
    let name = asked.recipe.as_deref().unwrap_or_default();
    name.parse().map_err(|error: types::NameError| ApiError::invalid(error.to_string()))
}

/// A line, however slowly it comes, unless nobody wants it any more.
fn read_line(reader: &mut impl BufRead, cancelled: &dyn Fn() -> bool) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let room = MAX_LINE.saturating_sub(line.len() as u64);
        match reader.by_ref().take(room).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => return Ok(line),
            Ok(_) if line.len() as u64 >= MAX_LINE => return Err(io::Error::other("a line without an end")),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if cancelled() {
                    return Err(io::Error::other("nobody wants it any more"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The builder's side: waits on a connection until a recipe is wanted, has it built, and tells what came of it. Who builds
/// gets the request, and gives it back with files that the daemon can open instead of the recipe.
///
/// # Errors
/// When the connection ends, as it does when the daemon does.
pub fn build_for<S>(
    stream: S,
    build: impl FnOnce(CreateSnapshot, Recipe, &dyn Progress) -> Result<CreateSnapshot, String>,
) -> io::Result<()>
where
    S: Send + Sync + 'static,
    for<'a> &'a S: Read + Write,
{
    let asked = read_line(&mut BufReader::new(&stream), &|| false)?;
    let asked: CreateSnapshot = serde_json::from_slice(&asked)?;
    let teller = Teller::new(move |line| (&stream).write_all(line));
    let found = check(&asked).map_err(|error| error.message);
    let found = found.and_then(|name| Recipe::find(name.as_str()).map_err(|error| chain(&error)));
    teller.say(&match found.map(|recipe| build(asked, recipe, &teller)) {
        Ok(Ok(built)) => Said::Built(Box::new(built)),
        Ok(Err(why)) => Said::Failed(why),
        Err(why) => Said::Refused(why),
    })
}

/// Writes a line whole.
type WriteLine = Box<dyn FnMut(&[u8]) -> io::Result<()> + Send>;

/// Tells the daemon how far it is.
#[derive(Clone)]
struct Teller {
    write: Arc<Mutex<WriteLine>>,
    next: Arc<AtomicU64>,
}

impl Teller {
    fn new(write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> Self {
        Self { write: Arc::new(Mutex::new(Box::new(write))), next: Arc::default() }
    }

    fn say(&self, what: &Said) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        (self.write.lock().unwrap_or_else(PoisonError::into_inner))(&line)
    }
}

impl Progress for Teller {
    fn stage(&self, what: &str, total: Option<u64>) -> Box<dyn Stage> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let told = api::Progress { id, stage: what.into(), done: 0, total, note: None, over: false };
        let stage = Told { to: self.clone(), now: Mutex::new((told, Instant::now())) };
        stage.tell(|_| true);
        Box::new(stage)
    }
}

/// A stage, and when it was told last.
struct Told {
    to: Teller,
    now: Mutex<(api::Progress, Instant)>,
}

impl Told {
    /// Changes it, and tells it if it must be told, or has not been for long.
    fn tell(&self, change: impl FnOnce(&mut api::Progress) -> bool) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let must = change(&mut now.0);
        if !must && now.1.elapsed() < PACE {
            return;
        }
        now.1 = Instant::now();
        // Who has left is noticed at the end.
        if let Err(error) = self.to.say(&Said::Progress(now.0.clone())) {
            log::debug!("nobody hears how far a build is: {error}");
        }
    }
}

impl Stage for Told {
    fn advance(&self, done: u64) {
        self.tell(|told| {
            told.done = done;
            false
        });
    }

    fn note(&self, text: &str) {
        self.tell(|told| {
            told.note = Some(text.into());
            false
        });
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.tell(|told| {
            told.over = true;
            true
        });
    }
}
