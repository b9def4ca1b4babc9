//! From the guest's code to the files of a frozen VM.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use proto::control::{
    ControlSocket, DiskAccess, DiskBase, DiskLayers, DiskSpec, FromVmm, LayerCount, Lifetime, LoadSpec, NetSpec, ToVmm,
    VmSpec, VsockSpec,
};
use types::{GuestMemorySize, VcpuCount};

use super::guest::{self, BOOTED};
use super::wait::{Deadline, count_of, named_pipe};

/// The emulated host takes a while for everything.
const PATIENCE: Duration = Duration::from_secs(60);
/// A disk has to have a size; the guest does not look at it.
const DISK_BYTES: u64 = 64 << 20;
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
}

/// A frozen VM.
#[derive(Debug)]
pub struct Frozen {
    files: Vec<PathBuf>,
    load: LoadSpec,
    net: bool,
}

impl Frozen {
    /// The request to load it, with files of its own: whoever reads one moves its position.
    pub(super) fn load(&self) -> Result<(ToVmm, Vec<File>)> {
        let open = |path: &PathBuf| File::open(path).with_context(|| path.display().to_string());
        Ok((ToVmm::Load(self.load.clone()), self.files.iter().map(open).collect::<Result<_>>()?))
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
    let kernel = dir.join("guest.elf");
    guest::write_elf(&kernel)?;
    let console = named_pipe(&dir.join("console"))?;
    let image = dir.join("disk");
    File::create(&image)?.set_len(DISK_BYTES)?;
    let (engine, vm) = ControlSocket::pair()?;
    let log = File::create(dir.join("vm.log"))?;
    let mut process = Command::new(vmm).arg("vm").stdin(Stdio::from(OwnedFd::from(vm))).stderr(log).spawn()?;
    engine.send(&ToVmm::Boot(Box::new(spec(dir, kernel, &image, shape))), tap.as_slice())?;
    match hear(&engine, "the boot")? {
        FromVmm::Booted { .. } => {}
        other => bail!("the guest did not boot: {other:?}"),
    }
    Deadline::after(PATIENCE).wait("the guest's first word", &[console.as_fd()])?;
    count_of(BOOTED, &console)?;
    let mut names = vec!["state".to_owned(), "memory".to_owned()];
    names.extend((0..shape.disks).map(|disk| format!("layer{disk}")));
    let made = names.iter().map(|name| File::create(dir.join(name))).collect::<Result<Vec<_>, _>>()?;
    engine.send(&ToVmm::Freeze, &made.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    match hear(&engine, "the freeze")? {
        FromVmm::Frozen { .. } => {}
        other => bail!("the guest did not freeze: {other:?}"),
    }
    process.wait()?;
    let mut files = vec![dir.join("state"), dir.join("memory")];
    for disk in 0..shape.disks {
        files.extend([image.clone(), dir.join(format!("layer{disk}"))]);
    }
    let disk = DiskLayers { base: DiskBase::Image, layers: 1 };
    let load = LoadSpec { memory: LayerCount::MIN, disks: vec![disk; shape.disks], tops: dir.into() };
    Ok(Frozen { files, load, net: shape.net })
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
        console: dir.join("console"),
        lifetime: Lifetime::Connection,
    }
}

pub(super) fn hear(socket: &ControlSocket, what: &str) -> Result<FromVmm> {
    Deadline::after(PATIENCE).wait(what, &[socket.as_fd()])?;
    let (event, _) = socket.recv()?.with_context(|| format!("the VMM went away before {what}"))?;
    Ok(event)
}
