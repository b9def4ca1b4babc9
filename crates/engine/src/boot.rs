//! From a kernel, an initramfs and an image to a VM whose agent answers.
//!
//! ```text
//! directory -> forkd-vmm -> Boot -> Booted -> connect ... refused, refused, ... -> hello
//! ```
//!
//! Until the guest's agent listens, connecting is refused. In the pauses between two tries the VMM is listened to, so
//! a guest that panics or a VMM that dies ends the wait at once.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use net::Tap;
use proto::control::{
    DiskAccess, DiskSpec, FromVmm, Lifetime, NetSpec, Outcome, RefusalCode, ToVmm, VmSpec, VsockSpec,
};
use proto::guest::AGENT_PORT;
use session::{AgentHello, Connection, SessionError};
use types::{Dirs, GuestMemorySize, VcpuCount};

use crate::admission::{AdmissionError, admit_boot};
use crate::cancel::Cancel;
use crate::cmdline::{GuestNetwork, guest_cmdline};
use crate::console;
use crate::hearing::Waited;
use crate::longest_file::longest_file;
use crate::process::{ProcessError, VmmProcess};
use crate::programs::{Program, ProgramError};
use crate::uids::{self, UidError};
use crate::vm::{BootTimings, STOP_PATIENCE, Vm};
use crate::vmdir::{VmDir, VmDirError};

/// The context id of every guest: its vsock device ends in a socket of its own, so the number names nobody.
const GUEST_CID: u64 = 3;
/// The pause after the first refused connection, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
/// How long the first hello may take; doubled with every try, so that a stuck one is abandoned and a slow one not.
const FIRST_HELLO: Duration = Duration::from_secs(2);

/// What to boot.
#[derive(Debug)]
pub struct BootSpec {
    /// Virtual CPUs.
    pub vcpus: VcpuCount,
    /// Memory.
    pub memory: GuestMemorySize,
    /// A bzImage or an ELF vmlinux.
    pub kernel: PathBuf,
    /// The initramfs with the agent.
    pub initramfs: PathBuf,
    /// The root file system; never written to, what the guest writes is its own and goes with it.
    pub image: PathBuf,
    /// Words to add to the kernel's command line.
    pub append: Option<String>,
    /// The network; the guest has none when absent.
    pub tap: Option<Tap>,
    /// From the start until the agent has answered.
    pub limit: Duration,
    /// Calls the boot off.
    pub cancel: Option<Cancel>,
}

/// Why there is no VM.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The VMM is not installed.
    #[error(transparent)]
    Program {
        /// Which program is missing.
        #[from]
        source: ProgramError,
    },
    /// The VM has no place for its sockets and logs.
    #[error(transparent)]
    Dir {
        /// What went wrong.
        #[from]
        source: VmDirError,
    },
    /// The host has no room for it.
    #[error(transparent)]
    Admission {
        /// Why.
        #[from]
        source: AdmissionError,
    },
    /// The VM has no user.
    #[error(transparent)]
    Uid {
        /// Why.
        #[from]
        source: UidError,
    },
    /// The guest's writes have no place.
    #[error("cannot make {}, where the guest's writes go", path.display())]
    TopDir {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The VMM process could not be started or spoken to.
    #[error(transparent)]
    Process {
        /// What went wrong.
        #[from]
        source: ProcessError,
    },
    /// The VMM could not build the VM.
    #[error("{message}")]
    Refused {
        /// Which case it is.
        code: RefusalCode,
        /// The VMM's words.
        message: String,
    },
    /// The guest's kernel panicked before the agent answered.
    #[error("the guest's kernel panicked{}; its console's last lines:\n{console}", because(reason.as_deref()))]
    Panic {
        /// The kernel's words.
        reason: Option<String>,
        /// The console's last lines.
        console: String,
    },
    /// The VM ended in another way before the agent answered.
    #[error("the VM ended ({outcome:?}) before its agent answered; its console's last lines:\n{console}")]
    Ended {
        /// How.
        outcome: Outcome,
        /// The console's last lines.
        console: String,
    },
    /// The VMM died without a word.
    #[error("the VMM died ({status}); its log's last lines:\n{log}")]
    VmmDied {
        /// How.
        status: std::process::ExitStatus,
        /// The log's last lines.
        log: String,
    },
    /// The agent did not answer in time.
    #[error(
        "the guest's agent did not answer within {} s (--boot-timeout, boot_timeout_secs); its console's last \
         lines:\n{console}",
        limit.as_secs_f32()
    )]
    AgentSilent {
        /// The time limit.
        limit: Duration,
        /// The console's last lines.
        console: String,
    },
    /// Something answered that is not our agent.
    #[error("the guest's agent cannot be used")]
    Agent {
        /// What it said.
        source: SessionError,
    },
    /// The boot was called off.
    #[error("interrupted while the VM was booting")]
    Cancelled,
}

fn because(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(" ({reason})"))
}

/// Boots a VM and waits until its agent has answered.
///
/// # Errors
/// When any step fails or the time is up; then nothing is left of the VM.
pub fn boot(spec: BootSpec, dirs: &Dirs) -> Result<Vm, BootError> {
    boot_with(&Program::Vmm.find()?, spec, dirs)
}

fn boot_with(program: &Path, spec: BootSpec, dirs: &Dirs) -> Result<Vm, BootError> {
    let started = Instant::now();
    admit_boot()?;
    let tops = dirs.cache.join("tops");
    fs::create_dir_all(&tops).map_err(|source| BootError::TopDir { path: tops.clone(), source })?;
    let dir = VmDir::create(&dirs.run)?;
    let claim = uids::claim(1)?.pop();
    // An image that is not there is an error of the VMM's.
    let disk = fs::metadata(&spec.image).map_or(0, |image| image.len());
    let process = VmmProcess::start(program, &dir.vmm_log(), longest_file(spec.memory, [disk]))?;
    let mut booting = Booting { dir, process, limit: spec.limit, until: started + spec.limit, cancel: spec.cancel };
    let vm_spec = VmSpec {
        vcpus: spec.vcpus,
        memory: spec.memory,
        kernel: spec.kernel,
        initramfs: Some(spec.initramfs),
        cmdline: guest_cmdline(booting.dir.id(), spec.tap.as_ref().map(GuestNetwork::from), spec.append.as_deref()),
        disks: vec![DiskSpec { image: spec.image, access: DiskAccess::PrivateTop { dir: tops } }],
        net: spec.tap.as_ref().map(|tap| NetSpec { mac: tap.mac }),
        vsock: VsockSpec { cid: GUEST_CID, socket: booting.dir.socket() },
        balloon: true,
        console: booting.dir.console(),
        lifetime: Lifetime::Connection,
        uid: claim.as_ref().map(|claim| claim.uid),
    };
    let given = spec.tap.iter().map(|tap| tap.fd.as_fd()).chain(claim.iter().map(|claim| claim.fd.as_fd()));
    if let Err(error) = booting.process.send(&ToVmm::Boot(Box::new(vm_spec)), &given.collect::<Vec<_>>()) {
        log::debug!("the request to boot: {error}");
        return Err(booting.over(Waited::Gone));
    }
    let setup_us = booting.wait_for_vmm()?;
    let hello = booting.wait_for_agent()?;
    let timings = BootTimings { setup_us, guest_boot_ms: hello.boot_ms, ready_us: micros(started.elapsed()) };
    // The VMM has its own descriptor now; with ours closed, the tap goes when the VMM does.
    let guest_ip = spec.tap.map(|tap| tap.guest_ip);
    Ok(Vm::new(booting.dir, booting.process, hello, timings, guest_ip))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A VM that does not answer yet; dropping it leaves nothing.
struct Booting {
    // The process goes first: it uses the directory.
    process: VmmProcess,
    dir: VmDir,
    limit: Duration,
    until: Instant,
    cancel: Option<Cancel>,
}

impl Booting {
    /// Until the vCPUs run.
    fn wait_for_vmm(&mut self) -> Result<u64, BootError> {
        match self.process.wait(self.until, self.cancel.as_ref())? {
            Waited::Event(FromVmm::Booted { setup_us }) => Ok(setup_us),
            Waited::TimedOut => Err(self.silent()),
            over => Err(self.over(over)),
        }
    }

    /// Until the agent has said hello. A try can sit in a connection that the guest neither takes nor refuses, so a
    /// watchdog ends the VM when the time is up or the boot is called off; that breaks every connection.
    fn wait_for_agent(&mut self) -> Result<AgentHello, BootError> {
        let failed = |source| ProcessError::Wait { source };
        let answered = Cancel::new().map_err(failed)?;
        let tried = thread::scope(|scope| {
            let watchdog = thread::Builder::new().name("watchdog".into());
            watchdog.spawn_scoped(scope, || self.watch(&answered)).map_err(failed)?;
            let tried = self.try_until_hello();
            answered.cancel();
            tried
        })?;
        tried.map_err(|waited| self.over(waited))
    }

    /// Tries for as long as the VM runs; otherwise what the VMM said last.
    fn try_until_hello(&self) -> Result<Result<AgentHello, Waited>, BootError> {
        let (mut pause, longest) = PAUSES;
        let mut patience = FIRST_HELLO;
        loop {
            match self.try_hello(patience) {
                Ok(hello) => return Ok(Ok(hello)),
                // Nobody listens yet, or the one who did was still being set up.
                Err(
                    SessionError::Unreachable { .. } | SessionError::NotListening { .. } | SessionError::Lost { .. },
                ) => {}
                Err(SessionError::Timeout { .. }) => patience *= 2,
                Err(source) => return Err(BootError::Agent { source }),
            }
            match self.process.wait(Instant::now() + pause, None)? {
                Waited::TimedOut => pause = (pause * 2).min(longest),
                over => return Ok(Err(over)),
            }
        }
    }

    fn try_hello(&self, patience: Duration) -> Result<AgentHello, SessionError> {
        let stream = session::connect_vsock(&self.dir.socket(), AGENT_PORT)?;
        Ok(Connection::open(stream, None, patience)?.hello().clone())
    }

    /// Tells the VMM to stop, and kills one that is too stuck to listen.
    fn watch(&self, answered: &Cancel) {
        if matches!(Cancel::first(&[Some(answered), self.cancel.as_ref()], self.until), Ok(Some(0))) {
            return;
        }
        if let Err(error) = self.process.send(&ToVmm::Stop, &[]) {
            log::debug!("the VM is gone already: {error}");
        }
        if !matches!(Cancel::first(&[Some(answered)], Instant::now() + STOP_PATIENCE), Ok(Some(0))) {
            self.process.end();
        }
    }

    fn called_off(&self) -> bool {
        matches!(Cancel::first(&[self.cancel.as_ref()], Instant::now()), Ok(Some(_)))
    }

    fn silent(&self) -> BootError {
        BootError::AgentSilent { limit: self.limit, console: console::tail(&self.dir.console()) }
    }

    /// Why it will never answer.
    fn over(&mut self, waited: Waited) -> BootError {
        let console = || console::tail(&self.dir.console());
        match waited {
            // The watchdog's doing, unless the guest was quicker to end by itself.
            Waited::Gone | Waited::Event(FromVmm::Ended { outcome: Outcome::Stopped }) if self.called_off() => {
                BootError::Cancelled
            }
            Waited::Gone | Waited::Event(FromVmm::Ended { outcome: Outcome::Stopped })
                if self.until <= Instant::now() =>
            {
                self.silent()
            }
            Waited::Event(FromVmm::Refused { code, message }) => BootError::Refused { code, message },
            Waited::Event(FromVmm::Ended { outcome: Outcome::Panic { reason } }) => {
                BootError::Panic { reason, console: console() }
            }
            Waited::Event(FromVmm::Ended { outcome }) => BootError::Ended { outcome, console: console() },
            Waited::Cancelled => BootError::Cancelled,
            Waited::Gone | Waited::TimedOut | Waited::Event(_) => match self.process.reap() {
                Ok(status) => BootError::VmmDied { status, log: console::tail(&self.dir.vmm_log()) },
                Err(source) => source.into(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
