//! From the guest's code to the files of a frozen VM.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use proto::control::{
    ControlSocket, DiskAccess, DiskBase, DiskLayers, DiskSpec, Extent, FromVmm, LayerCount, Lifetime, LoadSpec,
    NetSpec, ToVmm, VmSpec, VmUid, VsockSpec, WriteSpec,
};
use types::{GuestMemorySize, VcpuCount};

use super::guest::{self, BOOTED};
use super::wait::{Deadline, count_of, named_pipe};
use super::writer;

/// The emulated host takes a while for everything, and any host for writing a gigabyte down behind everybody else.
const PATIENCE: Duration = Duration::from_secs(300);
/// A disk has to have a size; the guest does not look at it.
const DISK_BYTES: u64 = 64 << 20;
/// As whom it boots.
const UID: u32 = 2_099_999_999;
const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// What the VM has beside vsock and rng.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Memory.
    pub memory: GuestMemorySize,
    /// Writable disks.
    pub disks: usize,
    /// A network card; the template's children then need taps.
    pub net: bool,
    /// A balloon.
    pub balloon: bool,
}

/// A frozen VM, with the layers of all that it lies above.
#[derive(Clone, Debug)]
pub struct Frozen {
    state: PathBuf,
    memory: Vec<PathBuf>,
    disks: Vec<Disk>,
    /// Where there is room.
    dir: PathBuf,
    net: bool,
}

#[derive(Clone, Debug)]
struct Disk {
    image: PathBuf,
    layers: Vec<PathBuf>,
}

impl Frozen {
    /// The request to load it, with files of its own: whoever reads one moves its position.
    pub(super) fn load(&self) -> Result<(ToVmm, Vec<File>)> {
        let layers_of =
            |disk: &Disk| Ok(DiskLayers { base: DiskBase::Image, layers: u8::try_from(disk.layers.len())? });
        let spec =
            LoadSpec { memory: count(&self.memory)?, disks: self.disks.iter().map(layers_of).collect::<Result<_>>()? };
        let disks = self.disks.iter().flat_map(|disk| std::iter::once(&disk.image).chain(&disk.layers));
        let paths = std::iter::once(&self.state).chain(&self.memory).chain(disks);
        let mut files = paths.map(|path| open(path)).collect::<Result<Vec<_>>>()?;
        if self.memory.len() > 1 {
            let flat = tempfile::tempfile_in(&self.dir)?;
            let read = reopen(&flat)?;
            files.extend([flat, read]);
        }
        Ok((ToVmm::Load(spec), files))
    }

    /// What is written down in `dir` above this one, and how that is asked for: with new files, and this one's memory.
    pub(super) fn above(&self, dir: &Path) -> Result<(Self, WriteSpec, Vec<File>)> {
        let mut above = Self { state: dir.join("state"), ..self.clone() };
        above.memory.push(dir.join("memory"));
        for (number, disk) in above.disks.iter_mut().enumerate() {
            disk.layers.push(dir.join(format!("layer{number}")));
        }
        let mut files = above.own().iter().map(|path| create(path)).collect::<Result<Vec<_>>>()?;
        for layer in &self.memory {
            files.push(open(layer)?);
        }
        let extent = Extent::Diff { memory_layers: count(&self.memory)? };
        Ok((above, WriteSpec { id: "writer".into(), extent }, files))
    }

    /// The files that it alone has: its state, its layer of the memory, and its layer of each disk.
    #[must_use]
    pub fn own(&self) -> Vec<&Path> {
        let layers = self.disks.iter().filter_map(|disk| disk.layers.last());
        std::iter::once(&self.state).chain(self.memory.last()).chain(layers).map(PathBuf::as_path).collect()
    }

    pub(super) const fn has_net(&self) -> bool {
        self.net
    }
}

/// Boots the guest with this VMM and freezes it. Files are made in `dir`, which must exist. `tap` is for the card.
///
/// # Errors
/// When it does not boot or does not freeze.
pub fn freeze(vmm: &Path, dir: &Path, shape: Shape, tap: Option<BorrowedFd<'_>>) -> Result<Frozen> {
    guest::write_elf(&kernel(dir))?;
    freeze_guest(vmm, dir, shape, tap)
}

/// The same with the guest of [`super::Source`], which writes so many pages. It has no network card.
///
/// # Errors
/// When it does not boot or does not freeze, or there is no `cc`.
pub fn freeze_writer(vmm: &Path, dir: &Path, memory: GuestMemorySize, pages: usize) -> Result<Frozen> {
    writer::compile(dir, &kernel(dir), pages)?;
    freeze_guest(vmm, dir, Shape { memory, disks: 1, net: false, balloon: false }, None)
}

fn kernel(dir: &Path) -> PathBuf {
    dir.join("guest.elf")
}

fn freeze_guest(vmm: &Path, dir: &Path, shape: Shape, tap: Option<BorrowedFd<'_>>) -> Result<Frozen> {
    let console = named_pipe(&dir.join("console"))?;
    let image = dir.join("disk");
    File::create(&image)?.set_len(DISK_BYTES)?;
    let (engine, vm) = ControlSocket::pair()?;
    let log = File::create(dir.join("vm.log"))?;
    let mut process = Command::new(vmm).arg("vm").stdin(Stdio::from(OwnedFd::from(vm))).stderr(log).spawn()?;
    let spec = spec(dir, kernel(dir), &image, shape);
    // Nobody else takes that user.
    let claim = spec.uid.map(|_| File::open("/dev/null")).transpose()?;
    let given: Vec<_> = tap.into_iter().chain(claim.as_ref().map(AsFd::as_fd)).collect();
    engine.send(&ToVmm::Boot(Box::new(spec)), &given)?;
    match hear(&engine, "the boot")? {
        FromVmm::Booted { .. } => {}
        other => bail!("the guest did not boot: {other:?}"),
    }
    Deadline::after(PATIENCE).wait("the guest's first word", &[console.as_fd()])?;
    count_of(BOOTED, &console)?;
    let disk = |number| Disk { image: image.clone(), layers: vec![dir.join(format!("layer{number}"))] };
    let frozen = Frozen {
        state: dir.join("state"),
        memory: vec![dir.join("memory")],
        disks: (0..shape.disks).map(disk).collect(),
        dir: dir.into(),
        net: shape.net,
    };
    let page_map = open(Path::new(&format!("/proc/{}/pagemap", process.id())))?;
    let mut made = vec![page_map];
    for path in frozen.own() {
        made.push(create(path)?);
    }
    engine.send(&ToVmm::Freeze, &made.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    match hear(&engine, "the freeze")? {
        FromVmm::Frozen { .. } => {}
        other => bail!("the guest did not freeze: {other:?}"),
    }
    process.wait()?;
    Ok(frozen)
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

fn create(path: &Path) -> Result<File> {
    let options = File::options().read(true).write(true).create_new(true).open(path);
    options.with_context(|| path.display().to_string())
}

fn count(layers: &[PathBuf]) -> Result<LayerCount> {
    u8::try_from(layers.len()).ok().and_then(LayerCount::new).context("more layers than a chain can have")
}

fn spec(dir: &Path, kernel: PathBuf, image: &Path, shape: Shape) -> VmSpec {
    let disk = DiskSpec { image: image.into(), access: DiskAccess::PrivateTop { dir: dir.into() } };
    VmSpec {
        vcpus: VcpuCount::DEFAULT,
        memory: shape.memory,
        kernel,
        initramfs: None,
        cmdline: String::new(),
        disks: vec![disk; shape.disks],
        net: shape.net.then_some(NetSpec { mac: MAC }),
        vsock: VsockSpec { cid: 3, socket: dir.join("vsock.sock") },
        balloon: shape.balloon,
        console: dir.join("console"),
        lifetime: Lifetime::Connection,
        uid: VmUid::new(UID).filter(|_| rustix::process::geteuid().is_root()),
    }
}

pub(super) fn hear(socket: &ControlSocket, what: &str) -> Result<FromVmm> {
    Deadline::after(PATIENCE).wait(what, &[socket.as_fd()])?;
    let (event, _) = socket.recv()?.with_context(|| format!("the VMM went away before {what}"))?;
    Ok(event)
}

/// A file once more, for reading only.
pub(super) fn reopen(file: &File) -> std::io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
