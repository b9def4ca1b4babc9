//! A VM that runs and answers. Dropping it ends it: process, network and directory are gone when `drop` returns.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::control::{ControlError, ControlSocket, FromVmm, Outcome, ToVmm};
use session::AgentHello;

use crate::console;
use crate::hearing::Waited;
use crate::process::{ProcessError, VmmProcess};
use crate::vmdir::VmDir;

/// Beyond this a VMM that was told to stop is killed.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Where the time of a boot went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootTimings {
    /// The VMM's own work: from the request until the first vCPU ran.
    pub setup_us: u64,
    /// The guest's: from its kernel's first instant until the agent served, by its own clock.
    pub guest_boot_ms: u64,
    /// All of it: from the call until the agent had answered.
    pub ready_us: u64,
}

/// A running VM.
#[derive(Debug)]
pub struct Vm {
    // The process goes first: it uses the directory.
    process: VmmProcess,
    dir: VmDir,
    hello: AgentHello,
    timings: BootTimings,
    guest_ip: Option<Ipv4Addr>,
    outcome: Option<Outcome>,
}

impl Vm {
    pub(crate) fn new(
        dir: VmDir,
        process: VmmProcess,
        hello: AgentHello,
        timings: BootTimings,
        guest_ip: Option<Ipv4Addr>,
    ) -> Self {
        Self { process, dir, hello, timings, guest_ip, outcome: None }
    }

    pub(crate) const fn process(&self) -> &VmmProcess {
        &self.process
    }

    /// The VM's id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.dir.id()
    }

    /// What the agent said about itself.
    #[must_use]
    pub const fn hello(&self) -> &AgentHello {
        &self.hello
    }

    /// Where the time of its boot went.
    #[must_use]
    pub const fn timings(&self) -> BootTimings {
        self.timings
    }

    /// The guest's address, if it has a network.
    #[must_use]
    pub const fn guest_ip(&self) -> Option<Ipv4Addr> {
        self.guest_ip
    }

    /// The host's end of the vsock device.
    #[must_use]
    pub fn vsock(&self) -> PathBuf {
        self.dir.socket()
    }

    /// The serial console's last lines, fit for a terminal.
    #[must_use]
    pub fn console_tail(&self) -> String {
        console::tail(&self.dir.console())
    }

    /// A way to stop the VM from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.process.control())
    }

    /// How the VM ended, once it has; waits at most so long for it.
    ///
    /// # Errors
    /// When the VMM cannot be waited for.
    pub fn outcome(&mut self, within: Duration) -> Result<Option<Outcome>, ProcessError> {
        let until = Instant::now() + within;
        while self.outcome.is_none() {
            match self.process.wait(until, None)? {
                Waited::Event(FromVmm::Ended { outcome }) => self.outcome = Some(outcome),
                Waited::Event(_) => {}
                Waited::Gone => {
                    let status = self.process.reap()?;
                    self.outcome = Some(Outcome::Fault { message: format!("the VMM died ({status})") });
                }
                Waited::TimedOut | Waited::Cancelled => return Ok(None),
            }
        }
        Ok(self.outcome.clone())
    }

    /// Presses the power button; a guest that listens shuts itself down.
    ///
    /// # Errors
    /// When the VMM cannot be spoken to.
    pub fn press_power_button(&self) -> Result<(), ProcessError> {
        self.process.send(&ToVmm::PowerButton, &[])
    }

    /// Has the guest shut itself down: asks its agent, then presses the power button, each for half of `grace`; after
    /// that it is stopped. Says how it ended.
    ///
    /// # Errors
    /// When the VMM cannot be spoken to or waited for.
    pub fn shutdown(mut self, grace: Duration) -> Result<Outcome, ProcessError> {
        match self.connect().and_then(|mut connection| connection.poweroff()) {
            Ok(()) => {
                if let Some(outcome) = self.outcome(grace / 2)? {
                    return Ok(outcome);
                }
            }
            Err(error) => log::debug!("{}: the agent does not power off: {error}", self.id()),
        }
        // A VM that has just ended reads no more; its outcome is what counts then.
        let pressed = self.press_power_button();
        if let Some(outcome) = self.outcome(grace / 2)? {
            return Ok(outcome);
        }
        pressed?;
        self.stop()
    }

    /// Ends the VM at once and says how it ended.
    ///
    /// # Errors
    /// When the VMM cannot be spoken to or waited for.
    pub fn stop(mut self) -> Result<Outcome, ProcessError> {
        let stopped = self.stopper().stop();
        if let Some(outcome) = self.outcome(STOP_PATIENCE)? {
            return Ok(outcome);
        }
        stopped?;
        Ok(Outcome::Fault { message: "the VMM did not stop when told to and was killed".into() })
    }
}

/// Stops a VM from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<ControlSocket>);

impl Stopper {
    /// Ends the VM at once; the owner sees it by its connections breaking.
    ///
    /// # Errors
    /// When the VMM is gone already.
    pub fn stop(&self) -> Result<(), ControlError> {
        self.0.send(&ToVmm::Stop, &[])
    }
}
