//! Completing a disk: steps are run in a VM of an image, and what is on its disk after that is another image.
//!
//! ```text
//! boot -> step, step, ... -> power off -> what was written, over the image -> one file
//! ```
//!
//! The guest shuts itself down as any computer does, so the file system is left clean. Whatever fails or is called off
//! leaves neither a VM nor a file that anybody has a name for.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use layer::{Base, Layer, LayerError, Stack, StackError};
use proto::control::{Outcome, ToVmm};
use session::{Event, ExecRequest, SessionError};
use std::os::fd::AsFd;
use types::Dirs;
use types::progress::Progress;

use crate::boot::{BootError, BootSpec, boot};
use crate::cancel::Cancel;
use crate::process::ProcessError;
use crate::said::Said;
use crate::vm::Vm;
use crate::watchdog::{called_off, watched};

/// How long a guest may take to shut itself down, with all it has to write.
const GRACE: Duration = Duration::from_secs(120);
/// The agent ends a step at its limit; this is for an agent that does not.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to complete.
#[derive(Debug)]
pub struct BuildSpec {
    /// The VM, and the image that it boots from.
    pub boot: BootSpec,
    /// Lines for its shell, run as root one after the other.
    pub steps: Vec<String>,
    /// How long each may take.
    pub limit: Duration,
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The VM did not boot.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A step failed.
    #[error("step {number} of {total} of the build ended with exit code {code}: {step}\nit said:\n{said}")]
    Step {
        /// Which, from 1.
        number: usize,
        /// Of how many.
        total: usize,
        /// What was run.
        step: String,
        /// How it ended, as a shell says it.
        code: i32,
        /// The last lines of its output.
        said: String,
    },
    /// A step took too long.
    #[error(
        "step {number} of {total} of the build was not over within {} s (build.timeout_secs sets the limit): {step}\n\
         it said:\n{said}",
        limit.as_secs()
    )]
    Slow {
        /// Which, from 1.
        number: usize,
        /// Of how many.
        total: usize,
        /// What was run.
        step: String,
        /// The limit.
        limit: Duration,
        /// The last lines of its output.
        said: String,
    },
    /// The guest went away.
    #[error("the guest went away during step {number} of the build: {source}; its console's last lines:\n{console}")]
    Guest {
        /// Which, from 1.
        number: usize,
        /// What the connection says.
        source: SessionError,
        /// The console's last lines.
        console: String,
    },
    /// It did not shut down as it should.
    #[error("the guest did not shut itself down after the build ({outcome:?})")]
    Shutdown {
        /// How it ended.
        outcome: Outcome,
    },
    /// A file of ours cannot be made, read or written.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What the VM left is not a layer of the image.
    #[error("what the guest wrote cannot be laid over its image")]
    Layer(#[from] LayerError),
    /// The same.
    #[error("what the guest wrote cannot be laid over its image")]
    Stack(#[from] StackError),
    /// The image cannot be written.
    #[error("cannot write the image")]
    Write {
        /// Why.
        source: io::Error,
    },
    /// It was called off.
    #[error("interrupted; nothing is left of the build")]
    Cancelled,
    /// The VM could not be watched or ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Runs the steps, and writes the disk that they leave to an empty file.
///
/// # Errors
/// When a step fails or takes too long, the VM does not work, or it is called off.
pub fn build(spec: BuildSpec, out: &File, dirs: &Dirs, progress: &dyn Progress) -> Result<(), BuildError> {
    let BuildSpec { boot: boot_spec, steps, limit } = spec;
    let (image, cancel) = (boot_spec.image.clone(), boot_spec.cancel.clone());
    let base = File::open(&image).map_err(|source| BuildError::File { doing: "open", path: image, source })?;
    let stage = progress.stage("Booting a VM for the build", None);
    let vm = boot(boot_spec, dirs)?;
    drop(stage);
    let kept = nameless(dirs)?;
    vm.process().send(&ToVmm::KeepDisks, &[kept.as_fd()])?;
    let run = Steps { vm: &vm, total: steps.len(), limit, cancel: cancel.as_ref(), progress };
    for (index, step) in steps.iter().enumerate() {
        run.step(index + 1, step)?;
    }
    let stage = progress.stage("Shutting the VM down", None);
    match vm.shutdown(GRACE)? {
        Outcome::Shutdown => {}
        outcome => return Err(BuildError::Shutdown { outcome }),
    }
    drop(stage);
    let _stage = progress.stage("Writing the image", None);
    let length = base.metadata().map_err(|source| BuildError::Write { source })?.len();
    let stack = Stack::open(Base::Image(base), vec![Layer::open(kept, Some(length))?])?;
    layer::flatten(&stack, out).map_err(|source| BuildError::Write { source })
}

/// A file that is gone with its last descriptor.
fn nameless(dirs: &Dirs) -> Result<File, BuildError> {
    let dir = dirs.cache.join("tops");
    let failed = |source| BuildError::File { doing: "make a file in", path: dir.clone(), source };
    fs::create_dir_all(&dir).map_err(failed)?;
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(&dir, flags, rustix::fs::Mode::from_raw_mode(0o600));
    file.map(File::from).map_err(|error| failed(error.into()))
}

/// What all steps have in common.
struct Steps<'a> {
    vm: &'a Vm,
    total: usize,
    limit: Duration,
    cancel: Option<&'a Cancel>,
    progress: &'a dyn Progress,
}

impl Steps<'_> {
    fn step(&self, number: usize, step: &str) -> Result<(), BuildError> {
        let stage = self.progress.stage(&format!("Step {number} of {}", self.total), None);
        stage.note(step);
        let until = Instant::now() + self.limit + PATIENCE;
        let mut said = Said::default();
        let ended = watched(self.vm, until, self.cancel, || self.run(step, &mut said, &|line| stage.note(line)))?;
        if called_off(self.cancel) {
            return Err(BuildError::Cancelled);
        }
        let (total, said, step) = (self.total, said.tail(), step.to_owned());
        match ended {
            Ok(Ended::Code(0)) => Ok(()),
            Ok(Ended::Code(code)) => Err(BuildError::Step { number, total, step, code, said }),
            Ok(Ended::TimedOut) => Err(BuildError::Slow { number, total, step, limit: self.limit, said }),
            Err(_) if Instant::now() >= until => Err(BuildError::Slow { number, total, step, limit: self.limit, said }),
            Err(source) => Err(BuildError::Guest { number, source, console: self.vm.console_tail() }),
        }
    }

    fn run(&self, step: &str, said: &mut Said, heard: &dyn Fn(&str)) -> Result<Ended, SessionError> {
        let request = ExecRequest {
            argv: ["/bin/sh", "-c", step].map(Into::into).into(),
            cwd: Some("/".into()),
            // Whoever commands are run by otherwise.
            user: Some("0:0".into()),
            timeout_ms: Some(u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX)),
            ..ExecRequest::default()
        };
        let mut exec = self.vm.exec(&request)?;
        loop {
            match exec.next_event()? {
                Event::Stdout(bytes) | Event::Stderr(bytes) => said.hear(&bytes, heard),
                Event::Exited { timed_out: true, .. } => return Ok(Ended::TimedOut),
                Event::Exited { status, .. } => return Ok(Ended::Code(status.shell_code())),
            }
        }
    }
}

enum Ended {
    Code(i32),
    TimedOut,
}
