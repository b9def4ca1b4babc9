//! From a snapshot in the store to a process that can spawn.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child as Started, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use proto::control::{ControlSocket, DiskBase, DiskLayers, FromVmm, LayerCount, LoadSpec, ToVmm};
use store::{Files, Snapshot};
use types::Dirs;

use super::lock::Held;
use super::record::{Made, RecordV1};
use super::{Place, Template, TemplateError};
use crate::caller::MAX_SOCKET_PATH;
use crate::cancel::Cancel;
use crate::hearing::{Waited, hear};
use crate::longest_file::longest_file;
use crate::pidfd::Process;
use crate::process::ProcessError;
use crate::{console, nameless, sys};

/// How long loading may take: it reads what the children will need first, from a disk that may be slow.
const LOAD_LIMIT: Duration = Duration::from_secs(180);

/// Starts a template of a snapshot that is in the store, unless somebody else was quicker.
pub(super) fn start(
    program: &Path,
    place: &Place,
    snapshot: &Snapshot,
    dirs: &Dirs,
    cancel: Option<&Cancel>,
) -> Result<Template, TemplateError> {
    let held = hold(place)?;
    let id = &snapshot.manifest().id;
    if let Some(template) = place.find(id)?.filter(Template::is_for_stored) {
        return Ok(template);
    }
    place.end(&held)?;
    let loaded = launch(program, place, snapshot, dirs, cancel);
    if loaded.is_err() {
        give_up(held, place);
    }
    loaded
}

/// Takes in a template that another process forks: it is given the socket to listen on and a log, and what it is comes
/// back, with a word of the maker's.
pub(crate) fn adopt<T, E: From<TemplateError>>(
    place: &Place,
    snapshot: &str,
    make: impl FnOnce(&OwnedFd, &File) -> Result<(Made, T), E>,
) -> Result<(Template, T), E> {
    let held = hold(place)?;
    place.end(&held)?;
    let adopted = take_in(place, snapshot, make);
    if adopted.is_err() {
        // It may have been made all the same, or still be: who listens there, now or later, is told to stop.
        if let Err(error) = place.end(&held) {
            log::warn!("a template in {} may still run: {error}", place.dir.display());
        }
        give_up(held, place);
    }
    adopted
}

fn take_in<T, E: From<TemplateError>>(
    place: &Place,
    snapshot: &str,
    make: impl FnOnce(&OwnedFd, &File) -> Result<(Made, T), E>,
) -> Result<(Template, T), E> {
    let listener = place.listen()?;
    let log = File::create(place.log()).map_err(TemplateError::io("make", &place.log()))?;
    let (made, word) = make(&listener, &log)?;
    // Whoever has it open keeps callers waiting that nobody answers any more.
    drop(listener);
    await_ready(place)?;
    record(place, snapshot, &made)?;
    let Made { process, tops, uid } = made;
    Ok((Template { process, snapshot: snapshot.into(), place: place.clone(), tops, uid }, word))
}

/// Waits until a template that was made elsewhere answers: it can be made and fail all the same. It is asked for no
/// children at all, which only one that could fork them answers.
fn await_ready(place: &Place) -> Result<(), TemplateError> {
    let died = || place.died();
    let control = place.call()?.ok_or_else(died)?;
    let asked = control.send(&ToVmm::Spawn { children: Vec::new(), descriptors: Vec::new() }, &[]);
    match asked.and_then(|()| hear(&control, Instant::now() + LOAD_LIMIT, None)) {
        Ok(Waited::Event(FromVmm::Forked { .. })) => Ok(()),
        Ok(Waited::TimedOut) => Err(TemplateError::Slow { limit: LOAD_LIMIT, log: console::tail(&place.log()) }),
        Ok(Waited::Event(_) | Waited::Gone | Waited::Cancelled) => Err(died()),
        Err(error) => {
            log::debug!("the template that was made in {}: {error}", place.dir.display());
            Err(died())
        }
    }
}

/// Writes down which process holds which snapshot.
fn record(place: &Place, snapshot: &str, made: &Made) -> Result<(), TemplateError> {
    let failed = TemplateError::io("watch the template of", &place.dir);
    let record = RecordV1::of(snapshot, made).map_err(&failed)?.ok_or_else(|| place.died())?;
    record.write(&place.dir).map_err(&failed)
}

/// The right to start a template, if its socket can have a path.
fn hold(place: &Place) -> Result<Held, TemplateError> {
    let path = place.socket();
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(TemplateError::TooLong { path });
    }
    Held::take(&place.dir)
}

fn give_up(held: Held, place: &Place) {
    if let Err(error) = held.remove() {
        log::warn!("{} is left behind: {error}", place.dir.display());
    }
}

fn launch(
    program: &Path,
    place: &Place,
    snapshot: &Snapshot,
    dirs: &Dirs,
    cancel: Option<&Cancel>,
) -> Result<Template, TemplateError> {
    let files = snapshot.files()?;
    let tops = tops(dirs)?;
    let manifest = snapshot.manifest();
    let longest = longest_file(manifest.memory, manifest.disks.iter().map(|disk| disk.length));
    let started = Launched::start(program, place.listen()?, &place.log(), longest)?;
    let control = place.call()?.ok_or_else(|| place.died())?;
    let tops = load(&control, &files, &tops, place, cancel)?;
    // It is our child and was not waited for: the number is its own.
    let process = Process::open(started.pid()).map_err(TemplateError::io("watch the template of", &place.dir))?;
    let made = Made { process: process.ok_or_else(|| place.died())?, tops, uid: None };
    record(place, &snapshot.manifest().id, &made)?;
    started.keep()?;
    let process = made.process;
    Ok(Template { process, snapshot: snapshot.manifest().id.clone(), place: place.clone(), tops, uid: None })
}

/// Where what the guests write is kept while they run.
pub(crate) fn tops(dirs: &Dirs) -> Result<PathBuf, TemplateError> {
    let tops = dirs.cache.join("tops");
    fs::create_dir_all(&tops).map_err(TemplateError::io("make", &tops))?;
    Ok(tops)
}

/// Has it load; how many tops each child needs.
fn load(
    control: &ControlSocket,
    files: &Files,
    tops: &Path,
    place: &Place,
    cancel: Option<&Cancel>,
) -> Result<u8, TemplateError> {
    let count = |layers: &[File]| u8::try_from(layers.len()).expect("the store has no longer chains");
    let memory = LayerCount::new(count(&files.memory)).expect("the store has no memory without a layer");
    let disks = files.disks.iter().map(|disk| {
        let base = if disk.image.is_some() { DiskBase::Image } else { DiskBase::Zero };
        DiskLayers { base, layers: count(&disk.layers) }
    });
    let disks = disks.collect();
    let of_disks = files.disks.iter().flat_map(|disk| disk.image.iter().chain(&disk.layers));
    // Where the layers of the memory are laid over each other, if there are several.
    let flat = (files.memory.len() > 1).then(|| nameless::make(tops)).transpose();
    let flat = flat.map_err(TemplateError::io("make a file in", tops))?;
    let flat = flat.iter().flat_map(|flat| [&flat.written, &flat.read]);
    let all = std::iter::once(&files.state).chain(&files.memory).chain(of_disks).chain(flat);
    let fds: Vec<_> = all.map(AsFd::as_fd).collect();
    let log = || console::tail(&place.log());
    if let Err(error) = control.send(&ToVmm::Load(LoadSpec { memory, disks }), &fds) {
        log::debug!("the request to load: {error}");
        return Err(TemplateError::Died { log: log() });
    }
    match hear(control, Instant::now() + LOAD_LIMIT, cancel)? {
        Waited::Event(FromVmm::Loaded { setup_us, tops }) => {
            log::debug!("the template was loaded in {setup_us} us");
            Ok(tops)
        }
        Waited::Event(FromVmm::Refused { code, message }) => Err(TemplateError::Refused { code, message }),
        Waited::TimedOut => Err(TemplateError::Slow { limit: LOAD_LIMIT, log: log() }),
        Waited::Cancelled => Err(TemplateError::Cancelled),
        Waited::Gone | Waited::Event(_) => Err(TemplateError::Died { log: log() }),
    }
}

/// A process in a session of its own; killed when dropped, unless it is kept.
#[derive(Debug)]
struct Launched(Option<Started>);

impl Launched {
    fn start(program: &Path, listener: OwnedFd, log: &Path, longest_file: u64) -> Result<Self, TemplateError> {
        let failed = |source| ProcessError::Start { program: program.into(), source };
        let mut command = Command::new(program);
        command.arg("template").stdin(Stdio::from(listener)).stdout(Stdio::null());
        command.stderr(File::create(log).map_err(failed)?);
        sys::in_own_session(&mut command);
        sys::limit_files(&mut command, longest_file);
        Ok(Self(Some(command.spawn().map_err(failed)?)))
    }

    fn pid(&self) -> i32 {
        self.0.as_ref().and_then(|started| i32::try_from(started.id()).ok()).unwrap_or_default()
    }

    /// It lives on its own from here on. Should it end while we live, it leaves no zombie.
    fn keep(mut self) -> Result<(), TemplateError> {
        let Some(mut started) = self.0.take() else { return Ok(()) };
        let reaper = move || match started.wait() {
            Ok(status) => log::debug!("a template ended: {status}"),
            Err(error) => log::debug!("a template cannot be waited for: {error}"),
        };
        let spawned = thread::Builder::new().name("template-reaper".into()).spawn(reaper);
        spawned.map(|_| ()).map_err(|source| ProcessError::Wait { source }.into())
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let Some(started) = &mut self.0 else { return };
        let ended: io::Result<_> = started.kill().and_then(|()| started.wait());
        if let Err(error) = ended {
            log::warn!("template process {} is left behind: {error}", started.id());
        }
    }
}
