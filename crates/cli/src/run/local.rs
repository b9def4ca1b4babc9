//! A run on this machine's KVM.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use engine::{BootSpec, Outcome, Tap, Vm, boot};
use session::{Exec, SessionError};

use super::Run;
use crate::interrupts::{Command, Interrupts};
use crate::parts::{Completed, Parts};
use crate::stream::{self, Ended};

/// A VM whose connections broke says why within this time, or never.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl Run<'_> {
    pub(super) fn local(&mut self) -> anyhow::Result<ExitCode> {
        self.timings.set("place", "local");
        let mut parts = Parts::find(&self.args.guest, &self.dirs, &*self.progress)?;
        if let Completed::Here(image) = parts.completed(&self.dirs, &*self.progress)? {
            parts.image = image;
        }
        self.timings.lap("parts_us");
        let interrupts = Interrupts::catch()?;
        let mut vm = match self.boot(parts, &interrupts) {
            Ok(vm) => vm,
            Err(error) => return interrupts.fatal().map_or_else(|| Err(error), |signal| Ok(self.stopped_by(signal))),
        };
        self.timings.lap("boot_us");
        self.timings.set("vmm_setup_us", vm.timings().setup_us);
        self.timings.set("guest_boot_ms", vm.timings().guest_boot_ms);
        let ended = match vm.exec(&self.args.request(self.stdio)) {
            Ok(exec) => {
                self.timings.lap("exec_us");
                self.join(exec, &vm, &interrupts)
            }
            Err(error) => stream::not_started(error),
        };
        self.timings.lap("command_us");
        // A VM that was stopped from outside breaks the connection; that is no error of its own.
        if let Some(signal) = interrupts.fatal() {
            return Ok(self.stopped_by(signal));
        }
        // What the guest wrote to its disk is thrown away with it, so nothing is gained by an orderly shutdown.
        ended.map(|ended| self.tell(ended)).map_err(|error| explain(error, &mut vm))
    }

    fn boot(&self, parts: Parts, interrupts: &Interrupts) -> anyhow::Result<Vm> {
        let guest = &self.args.guest;
        let _stage = self.progress.stage("Booting the VM", None);
        let tap = self.args.net.then(Tap::create).transpose()?;
        let spec = BootSpec {
            vcpus: parts.vcpus,
            memory: parts.memory,
            kernel: parts.kernel,
            initramfs: parts.initramfs,
            image: parts.image,
            append: guest.append.clone(),
            tap,
            limit: guest.boot_timeout,
            cancel: Some(interrupts.cancel()),
        };
        Ok(boot(spec, &self.dirs)?)
    }

    fn join(&self, exec: Exec, vm: &Vm, interrupts: &Interrupts) -> anyhow::Result<Ended> {
        let stopper = vm.stopper();
        let stop = move || {
            if let Err(error) = stopper.stop() {
                log::debug!("the VM is gone already: {error}");
            }
        };
        interrupts.about(Command::of(&exec, self.stdio, Box::new(stop)));
        stream::join(exec, self.stdio, None)
    }
}

/// A connection that broke says little; the VM's own end says why.
fn explain(error: anyhow::Error, vm: &mut Vm) -> anyhow::Error {
    if !matches!(error.downcast_ref(), Some(SessionError::Lost { .. } | SessionError::NotListening { .. })) {
        return error;
    }
    match vm.outcome(LAST_WORDS) {
        Ok(Some(Outcome::Panic { reason })) => {
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            anyhow!("the guest's kernel panicked{reason}; its console's last lines:\n{}", vm.console_tail())
        }
        Ok(Some(Outcome::Shutdown)) => anyhow!("the guest powered itself off before the command ended"),
        Ok(Some(Outcome::Reboot)) => anyhow!("the guest restarted before the command ended"),
        Ok(Some(Outcome::Fault { message })) => anyhow!("the VM failed: {message}"),
        Ok(Some(Outcome::Stopped) | None) => error,
        Err(wait) => anyhow::Error::from(wait).context(error),
    }
}
