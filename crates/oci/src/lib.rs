//! Container images, from wherever they are to a disk, without a container engine.
//!
//! ```text
//! Source ---> Image::open ---> what it runs, and its layers: found, compared with their digests
//!             Image::pull ---> the same from a registry; layers are kept, for other images too
//!             Image::with_layer --> the same with more files over it
//!             Image::contents --> a look at what is in it
//!             Image::write --> the layers as one tree, the tree as an ext4 file system
//! ```
//!
//! An image is hostile. Nothing of it is executed, and nothing is unpacked on the host: its files go from the layers'
//! streams to blocks of the disk, so neither a name, nor a link, an owner or a device needs to exist here, and nobody
//! needs to be root. The same image gives the same bytes.

mod blob;
mod contents;
mod digest;
mod directory;
mod flatten;
#[cfg(any(test, feature = "test-utils"))]
pub mod fuzzing;
mod image;
mod layout;
mod manifest;
mod reference;
mod registry;
mod source;
mod stream;
mod tar;
mod write;

pub use contents::Contents;
pub use digest::{Digest, DigestError};
pub use directory::DirectoryError;
pub use flatten::{FlattenError, Limits, Meaning};
pub use image::{Image, ImageError, RunConfig};
pub use manifest::{Platform, PlatformError};
pub use reference::{Reference, ReferenceError};
pub use registry::{CredentialsError, RegistryError, Settings, leftovers};
pub use source::{Place, Source};
pub use stream::StreamError;
pub use tar::TarError;
pub use write::{DiskSize, WriteError};

/// Why files have no place on a disk.
pub use ext4::PlanError;

#[cfg(test)]
mod testing;
