//! From a name to what a VM boots from: a root filesystem, a kernel and an initramfs.
//!
//! ```text
//! Recipe ------> build_image ---> cache/images-v1/<name>-<digest>.ext4
//! --kernel ----> guest_kernel --> a bzImage or vmlinux, and the modules that fit it
//! agent ------->  Initramfs  ---> cache/initramfs-v1/<digest>.cpio
//! ```
//!
//! Everything in the cache was staged, synced and renamed: what has its final name is complete, whenever a builder was
//! killed. Builders of the same thing take turns, and the second finds it done.
//!
//! Programs of the distribution (mmdebstrap, apt-get, dpkg-deb, pip, npm) do what they are good at; where to download
//! from is their business and the host's configuration, never ours.

mod apt;
mod build;
mod cache;
mod cpio;
mod debian;
mod digest;
mod extra;
mod indexes;
mod initramfs;
mod kernel;
mod layer;
mod modules;
mod recipe;
mod sealed;
mod sys;
mod tool;

pub use build::{Image, ImageError, build_image, build_machine_root};
pub use cache::CacheError;
pub use extra::ExtraError;
pub use initramfs::{Initramfs, InitramfsError, Purpose};
pub use kernel::{GuestKernel, HeaderError, KernelError, guest_kernel, present_kernel};
pub use layer::LayerError;
pub use modules::ModulesError;
pub use recipe::{
    Argument, ArgumentError, Arguments, Base, Beside, BesidePath, BesidePathError, Bottom, Build, Builtin, CopyStep,
    Disk, Exec, GuestPath, GuestPathError, ImageName, ImageNameError, LineText, LineTextError, Mode, ModeError,
    Network, NpmPackage, NpmPackageError, Owner, OwnerError, PackageName, PackageNameError, PipPackage,
    PipPackageError, Ready, Recipe, RecipeError, SCHEMA, Seconds, ShellLine, ShellLineError, Size, Start, Suite,
    SuiteError, UrlPath, UrlPathError, UserName, UserNameError, VariableName, VariableNameError, VariableValue,
    VariableValueError, Warm, WarmInterpreter,
};
pub use sealed::sealed_image;
pub use tool::ToolError;

/// Layers of images that were not fetched to their end.
pub use oci::leftovers as layer_leftovers;
