//! A template process of the tiny VM.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use proto::control::{ControlSocket, FromVmm};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::freeze::{Frozen, hear};

const BACKLOG: i32 = 16;

/// How much the VMM logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logging {
    /// What it always logs.
    Usual,
    /// The stages of each spawn too.
    Stages,
}

/// A template that has loaded; ended when dropped.
#[derive(Debug)]
pub struct Template {
    process: Child,
    pub(super) dir: PathBuf,
    pub(super) has_net: bool,
}

impl Template {
    /// Starts one in `dir`, which must exist.
    ///
    /// # Errors
    /// When it does not load.
    pub fn start(vmm: &Path, dir: &Path, frozen: &Frozen, logging: Logging) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let address = dir.join("template.sock");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&address)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let mut command = Command::new(vmm);
        command.arg("template").stdin(Stdio::from(listener)).stderr(File::create(dir.join("template.log"))?);
        match logging {
            Logging::Usual => command.env_remove("RUST_LOG"),
            Logging::Stages => command.env("RUST_LOG", "debug"),
        };
        let template = Self { process: command.spawn()?, dir: dir.into(), has_net: frozen.has_net() };
        let connection = template.connect()?;
        let (request, files) = frozen.load()?;
        connection.send(&request, &files.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        match hear(&connection, "the template's loading")? {
            FromVmm::Loaded { .. } => Ok(template),
            other => bail!("the template did not load: {other:?}; {}", template.log()),
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("template.log")).unwrap_or_else(|error| format!("its log: {error}"))
    }

    pub(super) fn connect(&self) -> Result<ControlSocket> {
        let socket: OwnedFd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let address = SocketAddrUnix::new(self.dir.join("template.sock"))?;
        rustix::net::connect(&socket, &address).context("connecting to the template")?;
        Ok(socket.into())
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
