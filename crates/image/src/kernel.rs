//! Finds a kernel to boot guests with, and the modules that fit it.
//!
//! Whoever has a kernel says `--kernel`. Otherwise: one unpacked earlier, else the host's own, else Debian's newest
//! cloud kernel, downloaded with the host's apt and unpacked, not installed. One that is known to be broken (`broken`) is
//! passed over for the next:
//!
//! ```text
//! kernels-v1/6.1.0-54-cloud-amd64/boot/vmlinuz-6.1.0-54-cloud-amd64
//! kernels-v1/6.1.0-54-cloud-amd64/lib/modules/6.1.0-54-cloud-amd64/
//! ```

mod broken;
mod debian;
pub(crate) mod header;

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use types::Dirs;
use types::progress::Progress;

pub use header::HeaderError;

use crate::cache::{Bucket, CacheError};
use crate::modules::ModuleTree;
use crate::tool::ToolError;

/// Without these in reach of the host's kernel it cannot see the devices we give it.
const GUEST_BUS: &str = "virtio_mmio";

/// Where fetched kernels are kept.
const BUCKET: &str = "kernels-v1";

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The file is not a kernel.
    #[error("{} cannot be booted as a kernel", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Why.
        source: HeaderError,
    },
    /// Nothing to take one from.
    #[error(
        "no guest kernel was found: /boot has none with virtio_mmio that can be read, and there is no apt to get \
         Debian's; give one with --kernel"
    )]
    NoApt,
    /// apt has no such package.
    #[error("apt knows no linux-image-cloud-amd64; add Debian's package sources, or give a kernel with --kernel")]
    NoPackage,
    /// There are only such as guests die of.
    #[error("apt has no other kernel than {release}, which is broken: {why}; give one with --kernel")]
    Broken {
        /// What apt has.
        release: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A program needed to get one failed.
    #[error("cannot get Debian's cloud kernel; give one with --kernel if that does not change")]
    Tool(#[from] ToolError),
    /// The package is not what it should be.
    #[error("the package {package} does not hold a kernel and its modules where Debian puts them")]
    Package {
        /// The package.
        package: String,
    },
    /// The cache could not be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A kernel, and the modules that fit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// A bzImage or a vmlinux.
    pub image: PathBuf,
    /// `.../lib/modules/<release>`. Without it the kernel must have its drivers built in.
    pub modules: Option<PathBuf>,
    /// As `uname -r` in the guest will say.
    pub release: String,
}

/// The kernel to boot guests with: `explicit` if given, else the newest of the cache, the host, Debian.
///
/// # Errors
/// When the given file is not a kernel, or none was given and none can be had.
pub fn guest_kernel(explicit: Option<&Path>, dirs: &Dirs, progress: &dyn Progress) -> Result<GuestKernel, KernelError> {
    if let Some(image) = explicit {
        return GuestKernel::at(image);
    }
    if let Some(kernel) = present_kernel(dirs)? {
        return Ok(kernel);
    }
    debian::fetch(&Bucket::open(&dirs.cache, BUCKET)?, progress)
}

/// The kernel guests would boot with if it is there already; fetches and changes nothing.
///
/// # Errors
/// When the cache cannot be read.
pub fn present_kernel(dirs: &Dirs) -> Result<Option<GuestKernel>, KernelError> {
    let cached = if dirs.cache.join(BUCKET).is_dir() { cached(&Bucket::open(&dirs.cache, BUCKET)?)? } else { None };
    Ok(cached.or_else(|| host_kernel(Path::new("/"), &running_release())))
}

impl GuestKernel {
    /// The kernel in this file; modules are looked for beside it and in the system.
    fn at(image: &Path) -> Result<Self, KernelError> {
        let refused = |source| KernelError::Header { path: image.into(), source };
        let image = fs::canonicalize(image).map_err(|err| refused(HeaderError::Read(err)))?;
        let release = header::release_of(&image).map_err(refused)?;
        let dir = image.parent().unwrap_or(Path::new("/"));
        let beside = [&dir.join(".."), dir, Path::new("/")].map(|root| modules_below(root, &release));
        let modules = beside.into_iter().flatten().next();
        Ok(Self { modules, image, release })
    }
}

/// `lib/modules/<release>`, or where a merged `/usr` has it.
fn modules_below(root: &Path, release: &str) -> Option<PathBuf> {
    let places = ["lib/modules", "usr/lib/modules"].map(|place| root.join(place).join(release));
    let found = places.into_iter().find(|place| place.is_dir())?;
    Some(fs::canonicalize(&found).unwrap_or(found))
}

/// The newest kernel unpacked earlier. What has its final name here is complete.
fn cached(bucket: &Bucket) -> Result<Option<GuestKernel>, KernelError> {
    let dir = bucket.path("");
    let entries = fs::read_dir(&dir).map_err(CacheError::new("list", &dir))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut releases: Vec<_> = names.filter(|name| !name.ends_with(".lock") && !name.ends_with(".staging")).collect();
    releases.retain(|release| broken::why(release).is_none());
    releases.sort_by(|a, b| by_version(b, a));
    Ok(releases.iter().find_map(|release| unpacked(&bucket.path(release), release)))
}

fn unpacked(root: &Path, release: &str) -> Option<GuestKernel> {
    let image = root.join("boot").join(format!("vmlinuz-{release}"));
    (header::release_of(&image).ok()? == release).then_some(())?;
    Some(GuestKernel { modules: Some(modules_below(root, release)?), image, release: release.into() })
}

/// The kernel this host runs, else its newest, provided that a guest can use it.
fn host_kernel(root: &Path, running: &str) -> Option<GuestKernel> {
    let entries = fs::read_dir(root.join("boot")).ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut releases: Vec<_> = names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned)).collect();
    releases.retain(|release| broken::why(release).is_none());
    releases.sort_by(|a, b| (b == running).cmp(&(a == running)).then_with(|| by_version(b, a)));
    let usable = |kernel: &GuestKernel| {
        let tree = kernel.modules.as_deref().map(ModuleTree::open);
        matches!(tree, Some(Ok(tree)) if tree.has(GUEST_BUS))
    };
    releases.iter().filter_map(|release| unpacked(root, release)).find(usable)
}

fn running_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Orders `6.1.0-9` before `6.1.0-54`: numbers as numbers, the rest as text.
fn by_version(a: &str, b: &str) -> Ordering {
    version_parts(a).cmp(&version_parts(b))
}

fn version_parts(text: &str) -> Vec<(u64, String)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let word = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        parts.push((number.parse().unwrap_or(0), tail[..word].to_owned()));
        rest = &tail[word..];
    }
    parts
}

#[cfg(test)]
mod tests;
