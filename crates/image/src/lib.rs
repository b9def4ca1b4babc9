//! From a name to what a VM boots from: a root filesystem, a kernel and an initramfs.
//!
//! ```text
//! Recipe ------> build_image ---> cache/images-v1/<name>-<digest>.ext4
//! oci::Image --> build_container_image ---> the same
//! --kernel ----> guest_kernel --> a bzImage or vmlinux, and the modules that fit it
//! agent ------->  Initramfs  ---> cache/initramfs-v1/<digest>.cpio
//! ```
//!
//! Everything in the cache was staged, synced and renamed: what has its final name is complete, whenever a builder was
//! killed. Builders of the same thing take turns, and the second finds it done.
//!
//! Programs of the distribution (mmdebstrap, mke2fs, apt-get, dpkg-deb) do what they are good at; where to download
//! from is their business and the host's configuration, never ours.

mod apt;
mod build;
mod cache;
mod cpio;
mod debian;
mod digest;
mod ext4;
mod initramfs;
mod kernel;
mod modules;
mod recipe;
mod sys;
mod tool;

pub use build::{Image, ImageError, build_container_image, build_image, build_machine_root};
pub use cache::CacheError;
pub use initramfs::{Initramfs, InitramfsError, Purpose};
pub use kernel::{GuestKernel, HeaderError, KernelError, guest_kernel, present_kernel};
pub use modules::ModulesError;
pub use recipe::{
    PackageName, PackageNameError, Recipe, RecipeError, ShellLine, ShellLineError, Size, Suite, SuiteError, Warm,
    WarmInterpreter,
};
pub use tool::ToolError;
