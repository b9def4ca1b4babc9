//! From a snapshot in the store to a process that can spawn.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child as Started, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use proto::control::{ControlSocket, DiskBase, DiskLayers, FromVmm, LayerCount, LoadSpec, ToVmm};
use store::{Files, Snapshot};
use types::Dirs;

use super::lock::Held;
use super::record::RecordV1;
use super::{Place, Template, TemplateError};
use crate::cancel::Cancel;
use crate::hearing::{Waited, hear};
use crate::pidfd::Process;
use crate::process::ProcessError;
use crate::{caller, console, sys};

/// How long loading may take: it reads what the children will need first, from a disk that may be slow.
const LOAD_LIMIT: Duration = Duration::from_secs(180);
/// The longest path a unix socket can have, its terminating zero not counted.
const MAX_SOCKET_PATH: usize = 107;

/// Starts a template, unless somebody else was quicker.
pub(super) fn start(
    program: &Path,
    place: &Place,
    snapshot: &Snapshot,
    dirs: &Dirs,
    cancel: Option<&Cancel>,
) -> Result<Template, TemplateError> {
    let path = place.socket();
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(TemplateError::TooLong { path });
    }
    let held = Held::take(&place.dir)?;
    let id = &snapshot.manifest().id;
    if let Some(template) = place.find(id)? {
        return Ok(template);
    }
    place.end(&held)?;
    let loaded = launch(program, place, snapshot, dirs, cancel);
    if loaded.is_err()
        && let Err(error) = held.remove()
    {
        log::warn!("{} is left behind: {error}", place.dir.display());
    }
    loaded
}

fn launch(
    program: &Path,
    place: &Place,
    snapshot: &Snapshot,
    dirs: &Dirs,
    cancel: Option<&Cancel>,
) -> Result<Template, TemplateError> {
    let files = snapshot.files()?;
    let tops = dirs.cache.join("tops");
    fs::create_dir_all(&tops).map_err(TemplateError::io("make", &tops))?;
    crate::vmdir::remove_file(&place.socket()).map_err(TemplateError::io("remove", &place.socket()))?;
    let listener = caller::listen(&place.socket()).map_err(TemplateError::io("listen on", &place.socket()))?;
    let started = Launched::start(program, listener, &place.log())?;
    let failed = TemplateError::io("watch the template of", &place.dir);
    let died = || TemplateError::Died { log: console::tail(&place.log()) };
    let control = place.call()?.ok_or_else(died)?;
    load(&control, &files, tops, place, cancel)?;
    let process = Process::open(started.pid()).map_err(&failed)?.ok_or_else(died)?;
    let record = RecordV1::of(&snapshot.manifest().id, started.pid()).map_err(&failed)?.ok_or_else(died)?;
    record.write(&place.dir).map_err(&failed)?;
    started.keep()?;
    Ok(Template { process, place: place.clone() })
}

fn load(
    control: &ControlSocket,
    files: &Files,
    tops: std::path::PathBuf,
    place: &Place,
    cancel: Option<&Cancel>,
) -> Result<(), TemplateError> {
    let count = |layers: &[File]| u8::try_from(layers.len()).expect("the store has no longer chains");
    let memory = LayerCount::new(count(&files.memory)).expect("the store has no memory without a layer");
    let disks = files.disks.iter().map(|disk| {
        let base = if disk.image.is_some() { DiskBase::Image } else { DiskBase::Zero };
        DiskLayers { base, layers: count(&disk.layers) }
    });
    let disks = disks.collect();
    let of_disks = files.disks.iter().flat_map(|disk| disk.image.iter().chain(&disk.layers));
    let fds: Vec<_> = std::iter::once(&files.state).chain(&files.memory).chain(of_disks).map(AsFd::as_fd).collect();
    let log = || console::tail(&place.log());
    if let Err(error) = control.send(&ToVmm::Load(LoadSpec { memory, disks, tops }), &fds) {
        log::debug!("the request to load: {error}");
        return Err(TemplateError::Died { log: log() });
    }
    match hear(control, Instant::now() + LOAD_LIMIT, cancel)? {
        Waited::Event(FromVmm::Loaded { setup_us }) => {
            log::debug!("the template was loaded in {setup_us} us");
            Ok(())
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
    fn start(program: &Path, listener: OwnedFd, log: &Path) -> Result<Self, TemplateError> {
        let failed = |source| ProcessError::Start { program: program.into(), source };
        let mut command = Command::new(program);
        command.arg("template").stdin(Stdio::from(listener)).stdout(Stdio::null());
        command.stderr(File::create(log).map_err(failed)?);
        sys::in_own_session(&mut command);
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
