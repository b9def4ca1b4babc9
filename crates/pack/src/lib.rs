//! Packs: a snapshot and all it is made of in one file, for another host.
//!
//! ```text
//! pyagent.forkd-snapshot.tar.zst
//!     manifest.toml                  what is in it and what it needs; each member with size and SHA-256
//!     snapshots/0/manifest.json      what it descends from, the first of all first, and it itself last
//!     snapshots/0/state
//!     layers/<digest>                memory and disks, each layer once, without holes (`layer::dense`)
//! ```
//!
//! A disk image under a snapshot becomes a layer, too, so that nothing is needed but the pack, and nothing in it says
//! where something lies.
//!
//! What must hold:
//! - A pack is a stranger's. What it may hold is known before anything of it is believed: members are compared with the
//!   list, byte for byte, and never tell where they go. Everything is bounded by that list, and the list by us.
//! - Whether it can be used here is known before anything is written. What is refused leaves the store as it was.
//! - What is damaged does not leave, either: all that is packed is checked on the way.

#![forbid(unsafe_code)]

mod calendar;
mod collect;
mod download;
#[cfg(any(test, feature = "test-utils"))]
pub mod fuzzing;
mod host;
mod http;
mod install;
mod manifest;
mod pace;
mod pack;
mod read;
mod registry;
mod room;
#[cfg(test)]
mod testing;
mod upload;
mod write;

pub use download::{Checked, DownloadError, Downloaded, download, leftovers};
pub use host::{HostCpu, Unmet};
pub use http::{Client, HttpError};
pub use install::{Installed, UnpackError, UnpackSpec, unpack};
pub use manifest::{Limits, Link, MAX_STATE, Manifest, ManifestError, Member, Path, Requires, Sha256, VERSION};
pub use pack::{PackError, PackSpec, Packed, pack};
pub use read::{ReadError, Sink, read};
pub use registry::{Package, RegistryError, Version, find};
pub use upload::{UploadError, upload};
