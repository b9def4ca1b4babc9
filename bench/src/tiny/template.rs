//! A template process of the tiny VM.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use proto::control::{ControlSocket, FromVmm, ToVmm};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::freeze::{Frozen, hear};
use super::process::Process;

const BACKLOG: i32 = 16;
const SOCKET: &str = "template.sock";

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
        let mut template =
            Self { process: Kept::Started(process), pid, dir: dir.into(), has_net: frozen.has_net(), setup_us: 0 };
        let connection = template.connect()?;
        let (request, files) = frozen.load()?;
        connection.send(&request, &files.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        match hear(&connection, "the template's loading")? {
            FromVmm::Loaded { setup_us } => template.setup_us = setup_us,
            other => bail!("the template did not load: {other:?}; {}", template.log()),
        }
        Ok(template)
    }

    /// One that listens in `dir`.
    pub(super) fn of_branch(pid: i32, dir: &Path, has_net: bool) -> Result<Self> {
        let process = Kept::Branched { _process: Process::open(pid)? };
        Ok(Self { process, pid: pid.unsigned_abs(), dir: dir.into(), has_net, setup_us: 0 })
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
        let (frozen, request, files) = parent.above(dir)?;
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
