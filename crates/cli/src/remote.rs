//! The emulated host as a place to run forkd in: the same program, the same verbs, one level down.

mod fetch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use engine::Program;
use machine::{Machine, Push};
use session::{Exec, ExecRequest, SessionError, Stdio};
use types::progress::{Progress, Stage};
use types::{Dirs, GuestMemorySize, VcpuCount};

use crate::interrupts::{Command, Interrupts};
use crate::parts::Parts;
use crate::run::GuestArgs;
use crate::stream::{self, Ended};

/// Where forkd keeps its things inside: on the disk that survives restarts.
const HOME: &str = "/var/lib/forkd";
const SIGTERM: i32 = 15;
/// More than any file that is taken back holds.
const MAX_FILE: usize = 1 << 20;

/// A running machine with forkd in it.
#[derive(Debug)]
pub(crate) struct Remote {
    machine: Machine,
    forkd: String,
    vmm: String,
    agent: String,
}

/// A VM's parts, as paths inside, and how large it is.
#[derive(Debug)]
pub(crate) struct InsideParts {
    pub(crate) image: String,
    pub(crate) kernel: String,
    pub(crate) initramfs: String,
    pub(crate) vcpus: VcpuCount,
    pub(crate) memory: GuestMemorySize,
}

impl InsideParts {
    /// The same VM for a forkd inside: nothing is looked up or decided again there.
    pub(crate) fn options(&self, guest: &GuestArgs) -> Vec<String> {
        let mut args = Vec::new();
        let mut option = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        option("image", self.image.clone());
        option("kernel", self.kernel.clone());
        option("initramfs", self.initramfs.clone());
        option("vcpus", self.vcpus.to_string());
        option("memory", format!("{}M", self.memory.mib()));
        option("boot-timeout", guest.boot_timeout.as_secs_f64().to_string());
        guest.append.iter().for_each(|words| option("append", words.clone()));
        args
    }
}

impl Remote {
    /// Starts the machine unless it runs, and brings forkd into it unless it is there.
    pub(crate) fn start(dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<Self> {
        let machine = machine::start(dirs, &Program::Agent.find()?, progress)?;
        let programs = [Program::Forkd, Program::Vmm, Program::Agent];
        let files = programs.map(|program| program.find().map(|path| (path, program.file_name())));
        let [forkd, vmm, agent] = files;
        let [forkd, vmm, agent] = push(&machine, [forkd?, vmm?, agent?], progress)?;
        Ok(Self { machine, forkd, vmm, agent })
    }

    /// The machine.
    pub(crate) const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Brings a VM's parts in unless they are there.
    pub(crate) fn push_parts(&self, parts: &Parts, progress: &dyn Progress) -> anyhow::Result<InsideParts> {
        let files = [(&parts.image, "image.ext4"), (&parts.kernel, "kernel"), (&parts.initramfs, "initramfs.cpio")];
        let [image, kernel, initramfs] = push(&self.machine, files.map(|(path, name)| (path.clone(), name)), progress)?;
        Ok(InsideParts { image, kernel, initramfs, vcpus: parts.vcpus, memory: parts.memory })
    }

    /// How forkd is called inside.
    pub(crate) fn request(&self, args: Vec<String>, stdio: Stdio) -> ExecRequest {
        let programs = [(Program::Vmm.variable(), &*self.vmm), (Program::Agent.variable(), &*self.agent)];
        let variables = [("FORKD_HOME", HOME), ("FORKD_PLACE", "local")].into_iter().chain(programs);
        let mut env: BTreeMap<_, _> = variables.map(|(name, value)| (name.into(), value.into())).collect();
        env.extend(["TERM", "RUST_LOG"].into_iter().filter_map(|name| Some((name.into(), std::env::var(name).ok()?))));
        let argv = std::iter::once(self.forkd.clone()).chain(args).collect();
        ExecRequest { argv, env, stdio, ..ExecRequest::default() }
    }

    /// Runs it, joined to our streams; signals go to the forkd inside, which knows what they mean.
    pub(crate) fn run(
        &self,
        request: &ExecRequest,
        interrupts: &Interrupts,
        waiting: Option<Box<dyn Stage>>,
    ) -> anyhow::Result<Ended> {
        stream::join(self.begin(request, interrupts)?, request.stdio, waiting).map_err(explain)
    }

    /// The same for who joins it to something else.
    pub(crate) fn begin(&self, request: &ExecRequest, interrupts: &Interrupts) -> anyhow::Result<Exec> {
        let exec = self.machine.exec(request)?;
        let control = exec.control();
        let stop = move || {
            if let Err(error) = control.signal(SIGTERM) {
                log::debug!("the command inside is over already: {error}");
            }
        };
        interrupts.about(Command::of(&exec, request.stdio, Box::new(stop)));
        Ok(exec)
    }

    /// Reads a small file inside and removes it.
    pub(crate) fn take_file(&self, path: &str) -> anyhow::Result<String> {
        let script = r#"cat -- "$1" && rm -f -- "$1""#;
        let argv = ["sh", "-c", script, "sh", path].map(String::from).to_vec();
        let output = self.machine.output(&ExecRequest { argv, ..ExecRequest::default() }, &[], MAX_FILE)?;
        if output.status.shell_code() != 0 {
            return Err(anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim())
                .context(format!("cannot read {path} in the emulated host")));
        }
        String::from_utf8(output.stdout).with_context(|| format!("{path} in the emulated host is not text"))
    }
}

/// Says whose end it was.
pub(crate) fn explain(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(SessionError::Lost { .. }) => error.context("the emulated host went away"),
        _ => error,
    }
}

/// Says where it runs.
pub(crate) fn notice(why: &str) {
    eprintln!("forkd: no usable KVM here ({why}); running in the emulated host, which is much slower");
}

/// The path inside of something that forkd keeps there.
pub(crate) fn inside(name: &str) -> String {
    format!("{HOME}/{name}")
}

/// A path inside that nobody else uses.
pub(crate) fn scratch_file(purpose: &str) -> String {
    format!("/tmp/forkd-{purpose}-{}", std::process::id())
}

fn push<const N: usize>(
    machine: &Machine,
    files: [(PathBuf, &str); N],
    progress: &dyn Progress,
) -> anyhow::Result<[String; N]> {
    let files = files.map(|(local, name)| Push { local, remote_name: name.into() });
    let inside = machine.push(&files, progress)?;
    let inside: Vec<String> = inside.iter().map(|path| text(path)).collect::<Result<_, _>>()?;
    inside.try_into().map_err(|_| anyhow!("the machine took another number of files than it was given"))
}

fn text(path: &Path) -> anyhow::Result<String> {
    path.to_str().map(String::from).with_context(|| format!("{} is not text", path.display()))
}
