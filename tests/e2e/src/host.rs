//! What a test has in its hands: the binaries, the things VMs boot from, and one VM that all gentle tests share.

#![expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use engine::place::{Place, place};
use engine::{BootSpec, Program, Removal, Store, Tap, Vm, boot, remove_snapshot};
use image::{Initramfs, Purpose, Recipe, build_image, build_machine_root, guest_kernel};
use proto::guest::ExecRequest;
use session::Output;
use tempfile::TempDir;
use types::progress::Silent;
use types::{Dirs, GuestMemorySize, Tag, VcpuCount};

use crate::fork::{Parent, Parents};
use crate::tiny;

/// Set inside the emulated host, where nothing can be built: what came in, by name.
pub(crate) const INSIDE: &str = "FORKD_E2E_INSIDE";
/// The most that is kept of what a process says.
pub(crate) const OUTPUT_LIMIT: usize = 16 << 20;
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// What VMs boot from.
#[derive(Clone, Debug)]
pub(crate) struct Artifacts {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) debian: PathBuf,
    pub(crate) python: PathBuf,
    pub(crate) tiny: PathBuf,
}

impl Artifacts {
    fn build(dirs: &Dirs) -> Result<Self> {
        let image = |name: &str| -> Result<PathBuf> {
            Ok(build_image(&Recipe::find(name)?, dirs, &Silent).with_context(|| name.to_owned())?.path)
        };
        let kernel = guest_kernel(None, dirs, &Silent).context("the guest kernel")?;
        let agent = Program::Agent.find()?;
        let initramfs = Initramfs { agent: &agent, kernel: &kernel, purpose: Purpose::Guest }.cached(dirs, &Silent)?;
        // Together: each unpacks packages, one after the other, and waits for a disk or a network.
        let (python, debian, tiny) = std::thread::scope(|scope| {
            let python = scope.spawn(|| image("python-numpy"));
            let debian = image("debian")?;
            let tiny = tiny::image(&debian, dirs)?;
            Ok::<_, anyhow::Error>((python.join().expect("it does not panic")?, debian, tiny))
        })?;
        Ok(Self { debian, python, tiny, initramfs, kernel: kernel.image })
    }
}

/// Where the tests run.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) dirs: Dirs,
    pub(crate) artifacts: Artifacts,
    /// The user's binary.
    pub(crate) forkd: PathBuf,
    /// What runs in a guest that is branched.
    pub(crate) torture_guest: PathBuf,
    /// Says what files there are, here or in a guest.
    pub(crate) list_tree: PathBuf,
    place: Place,
    made: Arc<Made>,
}

/// What tests have made of a host, for each other.
#[derive(Debug, Default)]
struct Made {
    shared: Mutex<Option<Arc<Vm>>>,
    native: Mutex<Option<guest::Files>>,
    parents: Parents,
    /// Where everything is, if that is not where everybody's is.
    home: Option<TempDir>,
}

impl Host {
    /// The host as the emulated host's inside sees it, if this is the inside.
    pub(crate) fn inside() -> Result<Option<Self>> {
        let Some(paths) = std::env::var_os(INSIDE) else { return Ok(None) };
        let paths: Vec<PathBuf> = std::env::split_paths(&paths).collect();
        let [forkd, torture_guest, list_tree, kernel, initramfs, debian, python, tiny] = &paths[..] else {
            bail!("{INSIDE} names not eight files")
        };
        let artifacts = Artifacts {
            kernel: kernel.clone(),
            initramfs: initramfs.clone(),
            debian: debian.clone(),
            python: python.clone(),
            tiny: tiny.clone(),
        };
        let dirs = Dirs::from_env()?;
        let place = place(&dirs)?;
        ensure!(matches!(place, Place::Local), "the emulated host has no usable KVM: {place:?}");
        remove_leftovers(&dirs)?;
        let (forkd, torture_guest, list_tree) = (forkd.clone(), torture_guest.clone(), list_tree.clone());
        Ok(Some(Self { dirs, artifacts, forkd, torture_guest, list_tree, place, made: Arc::default() }))
    }

    /// The host everything starts from.
    pub(crate) fn outside() -> Result<Self> {
        let dirs = Dirs::from_env()?;
        let forkd = Program::Forkd.find()?;
        let artifacts = Artifacts::build(&dirs)?;
        let place = place(&dirs)?;
        let beside = |name: &str| Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name(name));
        let (torture_guest, list_tree) = (beside("torture-guest")?, beside("list-tree")?);
        Ok(Self { dirs, artifacts, forkd, torture_guest, list_tree, place, made: Arc::default() })
    }

    /// Builds all that takes long, so that somebody else can use the time.
    pub(crate) fn prepare() -> Result<()> {
        let dirs = Dirs::from_env()?;
        std::thread::scope(|scope| {
            let machine = scope.spawn(|| match place(&dirs)? {
                Place::Local => Ok(()),
                Place::Machine { .. } => {
                    build_machine_root(&dirs, &Silent).map(drop).context("the emulated host's image")
                }
            });
            Artifacts::build(&dirs)?;
            machine.join().expect("it does not panic")
        })
    }

    /// How often a test of VMs is tried. QEMU's emulation of nested virtualisation is not flawless: once in a while a guest in
    /// the emulated host, or that host itself, dies of it. A bug of ours fails each time; on real KVM nothing is tried
    /// again.
    pub(crate) fn tries(&self) -> usize {
        if self.has_kvm() && !self.is_emulated() { 1 } else { 3 }
    }

    /// This is the inside of the emulated host.
    #[expect(clippy::unused_self, reason = "who asks has a host in his hands, and it is about that host")]
    pub(crate) fn is_emulated(&self) -> bool {
        std::env::var_os(INSIDE).is_some()
    }

    /// VMs run right here.
    pub(crate) const fn has_kvm(&self) -> bool {
        matches!(self.place, Place::Local)
    }

    /// The same host with a home of its own, for VMs with the native guest: they run also on a KVM that Linux cannot boot
    /// on. Where they run nowhere but in the emulated host there is none, and somebody is told why.
    pub(crate) fn native(&self) -> Result<Option<Self>> {
        if !self.has_kvm()
            && let Err(why) = guest::try_here()?
        {
            eprintln!("e2e: the native guest runs in the emulated host, because here {why}");
            return Ok(None);
        }
        Ok(Some(Self { place: Place::Local, ..self.with_own_home()? }))
    }

    /// The same host with a home of its own; what runs in it must be ended by who made it.
    pub(crate) fn with_own_home(&self) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let dirs = Dirs::under(home.path());
        Ok(Self { dirs, made: Arc::new(Made { home: Some(home), ..Made::default() }), ..self.clone() })
    }

    /// That home, if it has one.
    pub(crate) fn home(&self) -> Option<&Path> {
        self.made.home.as_ref().map(TempDir::path)
    }

    /// A plain small VM; change what the test is about.
    pub(crate) fn spec(&self) -> BootSpec {
        BootSpec {
            vcpus: VcpuCount::DEFAULT,
            memory: GuestMemorySize::DEFAULT,
            kernel: self.artifacts.kernel.clone(),
            initramfs: self.artifacts.initramfs.clone(),
            image: self.artifacts.debian.clone(),
            append: None,
            tap: None,
            limit: BOOT_LIMIT,
            cancel: None,
        }
    }

    /// Boots a VM of the test's own.
    pub(crate) fn boot(&self, spec: BootSpec) -> Result<Vm> {
        Ok(boot(spec, &self.dirs)?)
    }

    /// The VM all gentle tests share: two vCPUs, Python with numpy, a network.
    pub(crate) fn vm(&self) -> Result<Arc<Vm>> {
        let mut shared = self.made.shared.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has died is another test's failure, not this one's.
        if let Some(vm) = shared.as_ref().filter(|vm| vm.connect().is_ok()) {
            return Ok(Arc::clone(vm));
        }
        let spec = BootSpec {
            vcpus: "2".parse()?,
            image: self.artifacts.python.clone(),
            tap: Some(Tap::create()?),
            ..self.spec()
        };
        Ok(Arc::clone(shared.insert(Arc::new(self.boot(spec)?))))
    }

    /// What the native guest boots from, written once: whoever forks a snapshot needs its disk as it was.
    pub(crate) fn native_files(&self) -> Result<guest::Files> {
        let mut native = self.made.native.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(files) = &*native {
            return Ok(files.clone());
        }
        Ok(native.insert(guest::Files::write(&self.dirs.cache.join("e2e"))?).clone())
    }

    /// The snapshot of a parent that all tests share.
    pub(crate) fn parent(&self, parent: Parent) -> Result<Tag> {
        self.made.parents.get(parent, self)
    }

    /// The user's binary, with its streams to be set by the test.
    pub(crate) fn forkd(&self) -> Command {
        let mut command = Command::new(&self.forkd);
        command.stdin(Stdio::null());
        if let Some(home) = self.home() {
            command.env("FORKD_HOME", home).env(engine::place::VARIABLE, "local");
        }
        command
    }

    /// Ends the daemon that commands of the tests have started, so that there can be another.
    pub(crate) fn end_daemon(&self) -> Result<()> {
        let ended = self.forkd().args(["daemon", "stop"]).output()?;
        ensure!(ended.status.success(), "forkd daemon stop: {}", String::from_utf8_lossy(&ended.stderr));
        Ok(())
    }

    /// `forkd run` on what is already built, so that it needs nothing from outside.
    pub(crate) fn forkd_run(&self) -> Command {
        let mut command = self.forkd();
        let Artifacts { kernel, initramfs, debian, .. } = &self.artifacts;
        command.arg("run").arg("--kernel").arg(kernel).arg("--initramfs").arg(initramfs).arg("--image").arg(debian);
        command
    }

    /// The same host with other things to boot from.
    pub(crate) fn with(&self, change: impl FnOnce(&mut Artifacts)) -> Self {
        let mut host = self.clone();
        change(&mut host.artifacts);
        host
    }

    /// Ends the daemon, removes the snapshots that were taken, and ends the shared VM, and tells if it had ended before.
    pub(crate) fn tear_down(&self) {
        if let Err(error) = self.end_daemon() {
            eprintln!("{error:#}");
        }
        self.made.parents.remove(&self.dirs);
        let shared = self.made.shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut vm) = shared.and_then(Arc::into_inner) else { return };
        if let Ok(Some(outcome)) = vm.outcome(Duration::ZERO) {
            eprintln!("the shared VM had ended: {outcome:?}; its console's last lines:\n{}", vm.console_tail());
        }
    }
}

/// Removes the snapshots of a run that was killed: the disk of the emulated host outlives it.
fn remove_leftovers(dirs: &Dirs) -> Result<()> {
    let tags = Store::new(dirs).list()?.into_iter().map(|(tag, _)| tag);
    for tag in tags.filter(|tag| tag.as_str().starts_with("e2e-")) {
        remove_snapshot(&tag, Removal::Force, dirs)?;
    }
    Ok(())
}

/// Running things in a VM, as tests like to.
pub(crate) trait Sh {
    /// Runs to the end whatever the exit code.
    fn output(&self, request: &ExecRequest, stdin: &[u8]) -> Result<Output>;

    /// Runs a shell script that must succeed and returns its standard output, trimmed.
    fn sh(&self, script: &str) -> Result<String> {
        let output = self.output(&shell(script), &[])?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.shell_code() == 0, "`{script}` ended with {:?}: {stderr}", output.status);
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }
}

impl Sh for Vm {
    fn output(&self, request: &ExecRequest, stdin: &[u8]) -> Result<Output> {
        Ok(self.connect()?.output(request, stdin, OUTPUT_LIMIT)?)
    }
}

/// A request that runs `script`.
pub(crate) fn shell(script: &str) -> ExecRequest {
    argv(&["sh", "-c", script])
}

/// A request that runs these words.
pub(crate) fn argv(words: &[&str]) -> ExecRequest {
    ExecRequest { argv: words.iter().map(ToString::to_string).collect(), ..ExecRequest::default() }
}
