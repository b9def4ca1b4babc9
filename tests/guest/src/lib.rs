//! A small guest that speaks the guest protocol: a kernel of a few kilobytes without processes or file systems, which does
//! a few things for whoever asks its agent's port (`guest/program.h` says what) and sleeps otherwise.
//!
//! It boots in milliseconds, needs no instruction beyond the plainest, and so runs also where a KVM emulates its guests one
//! instruction at a time and Linux cannot boot. To the host it is a VM like all others: it is snapshotted, forked, branched
//! and asked by the same code, over the same devices. What it cannot show is what Linux and the real agent do.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use engine::{BootSpec, Existing, SnapshotSpec, Taken, WarmUp, boot};
use types::progress::Silent;
use types::{Dirs, GuestMemorySize, Tag, VcpuCount};

/// The kernel, as an ELF file.
pub const ELF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.elf"));

/// Also where everything is emulated; here it takes some milliseconds.
const LIMIT: Duration = Duration::from_secs(60);
const DISK_BYTES: u64 = 4 << 20;

/// What the guest boots from, as files: the kernel, a disk of zeroes, and nothing for the rest.
#[derive(Clone, Debug)]
pub struct Files {
    /// The kernel.
    pub kernel: PathBuf,
    /// An empty file: a VM has an initramfs, and this guest does not look at it.
    pub initramfs: PathBuf,
    /// Its disk.
    pub image: PathBuf,
}

impl Files {
    /// Writes them to a directory. Snapshots need the disk, as it is, for as long as they are there.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(dir: &Path) -> Result<Self> {
        let files = Self {
            kernel: dir.join("native.elf"),
            initramfs: dir.join("native.initramfs"),
            image: dir.join("native.disk"),
        };
        fs::create_dir_all(dir)?;
        fs::write(&files.kernel, ELF)?;
        fs::write(&files.initramfs, [])?;
        File::create(&files.image)?.set_len(DISK_BYTES)?;
        Ok(files)
    }

    /// The VM.
    #[must_use]
    pub fn boot_spec(&self) -> BootSpec {
        BootSpec {
            vcpus: VcpuCount::DEFAULT,
            memory: GuestMemorySize::MIN,
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            image: self.image.clone(),
            append: None,
            tap: None,
            limit: LIMIT,
            cancel: None,
        }
    }

    /// A snapshot of it.
    #[must_use]
    pub fn snapshot_spec(&self, tag: Tag) -> SnapshotSpec {
        SnapshotSpec {
            tag,
            existing: Existing::Keep,
            boot: self.boot_spec(),
            egress: None,
            recipe: None,
            ports: Vec::new(),
            warm_up: WarmUp::default(),
            limit: LIMIT,
        }
    }

    /// Takes that snapshot.
    ///
    /// # Errors
    /// When the VM does not boot or cannot be stored.
    pub fn snapshot(&self, tag: &Tag, dirs: &Dirs) -> Result<Taken> {
        engine::snapshot(self.snapshot_spec(tag.clone()), dirs, &Silent).context("a snapshot of the native guest")
    }
}

/// Whether the KVM of this host runs the guest, found out by booting it; otherwise why not.
///
/// # Errors
/// When that cannot be tried.
pub fn try_here() -> Result<Result<(), String>> {
    let home = tempfile::tempdir()?;
    let files = Files::write(home.path())?;
    Ok(match boot(files.boot_spec(), &Dirs::under(home.path())) {
        Ok(vm) => vm.connect().and_then(|mut connection| connection.ping()).map_err(|error| error.to_string()),
        Err(error) => Err(format!("{error:#}")),
    })
}
