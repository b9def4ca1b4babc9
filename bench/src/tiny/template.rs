//! A template process of the tiny VM.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use proto::control::{ChildDescriptor, ControlSocket, FromVmm, Outfit, STATE, ToVmm, VmUid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::freeze::{Frozen, hear};
use super::process::Process;

const BACKLOG: i32 = 16;
const SOCKET: &str = "template.sock";
/// Users that no system gives to anybody: a measurement has all of them for itself.
const FIRST_UID: u32 = 2_100_000_000;

/// How much the VMM logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logging {
    /// What it always logs.
    Usual,
    /// The stages of each spawn too.
    Stages,
}

/// A template that has loaded, or that was branched; ended when dropped.
#[derive(Debug)]
pub struct Template {
    process: Kept,
    pid: u32,
    pub(super) dir: PathBuf,
    pub(super) has_net: bool,
    /// How many tops a child needs.
    tops: u8,
    /// Whether its children can be users of their own.
    is_root: bool,
    /// What it says that its loading took, in microseconds.
    pub setup_us: u64,
}

/// What ends with the template.
#[derive(Debug)]
enum Kept {
    Started(Child),
    Branched { _process: Process },
}

/// What was written down of a branch, beside the files.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of disks.
    pub disk_bytes: u64,
}

impl Template {
    /// Starts one in `dir`, which must exist.
    ///
    /// # Errors
    /// When it does not load.
    pub fn start(vmm: &Path, dir: &Path, frozen: &Frozen, logging: Logging) -> Result<Self> {
        let mut command = Command::new(vmm);
        command.arg("template").stdin(Stdio::from(listen(dir)?)).stderr(File::create(dir.join("template.log"))?);
        match logging {
            Logging::Usual => command.env_remove("RUST_LOG"),
            Logging::Stages => command.env("RUST_LOG", "debug"),
        };
        let process = command.spawn()?;
        let pid = process.id();
        let (has_net, is_root) = (frozen.has_net(), rustix::process::geteuid().is_root());
        let process = Kept::Started(process);
        let mut template = Self { process, pid, dir: dir.into(), has_net, tops: 0, is_root, setup_us: 0 };
        let connection = template.connect()?;
        let (request, files) = frozen.load()?;
        connection.send(&request, &files.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        match hear(&connection, "the template's loading")? {
            FromVmm::Loaded { setup_us, tops } => (template.setup_us, template.tops) = (setup_us, tops),
            other => bail!("the template did not load: {other:?}; {}", template.log()),
        }
        Ok(template)
    }

    /// One that listens in `dir`, and whose VM was like that of another.
    pub(super) fn of_branch(pid: i32, dir: &Path, has_net: bool, tops: u8) -> Result<Self> {
        let process = Kept::Branched { _process: Process::open(pid)? };
        Ok(Self { process, pid: pid.unsigned_abs(), dir: dir.into(), has_net, tops, is_root: false, setup_us: 0 })
    }

    /// As whom a child of it runs.
    pub(super) fn uid_of(&self, number: usize) -> Option<VmUid> {
        let uid = FIRST_UID + u32::try_from(number).unwrap_or_default();
        VmUid::new(uid).filter(|_| self.is_root)
    }

    /// What each of its children is handed.
    pub(super) fn kinds(&self) -> Vec<ChildDescriptor> {
        let tops = std::iter::repeat_n(ChildDescriptor::Top, self.tops.into());
        let all = [
            ChildDescriptor::State,
            ChildDescriptor::Log,
            ChildDescriptor::Console,
            ChildDescriptor::Control,
            ChildDescriptor::Vsock,
        ];
        all.into_iter().chain(tops).collect()
    }

    /// Makes what the child of this directory is handed.
    pub(super) fn outfit(&self, dir: &Path) -> Result<Outfit> {
        let tops = (0..self.tops).map(|_| tempfile::tempfile_in(dir)).collect::<Result<_, _>>()?;
        Ok(Outfit::make(dir, File::create(dir.join(STATE))?.into(), tops)?)
    }

    /// How many tops a child needs.
    pub(super) const fn tops(&self) -> u8 {
        self.tops
    }

    /// Its process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("template.log")).unwrap_or_else(|error| format!("its log: {error}"))
    }

    /// Writes down in `dir`, which must exist, what differs from `parent`. The frozen VM that it then is lies above the
    /// parent.
    ///
    /// # Errors
    /// When it cannot.
    pub fn write(&self, dir: &Path, parent: &Frozen) -> Result<(Frozen, Written)> {
        let connection = self.connect()?;
        let (frozen, request, mut files) = parent.above(dir)?;
        files.insert(0, File::open(format!("/proc/{}/pagemap", self.pid))?);
        connection.send(&ToVmm::Write(request), &files.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        loop {
            match hear(&connection, "the writing down")? {
                FromVmm::Forked { .. } => {}
                FromVmm::Written { memory_bytes, disk_bytes } => {
                    return Ok((frozen, Written { memory_bytes, disk_bytes }));
                }
                other => bail!("the branch was not written down: {other:?}; {}", self.log()),
            }
        }
    }

    pub(super) fn connect(&self) -> Result<ControlSocket> {
        connect(&self.dir.join(SOCKET))
    }
}

/// The socket of the template in `dir`.
pub(super) fn listen(dir: &Path) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(dir.join(SOCKET))?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

pub(super) fn connect(path: &Path) -> Result<ControlSocket> {
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
        .with_context(|| format!("connecting to {}", path.display()))?;
    Ok(socket.into())
}

impl Drop for Template {
    fn drop(&mut self) {
        let Kept::Started(process) = &mut self.process else { return };
        // Both fail only for a process that is gone already.
        drop(process.kill());
        drop(process.wait());
    }
}
