//! What a child is handed, made in a directory of its own.
//!
//! ```text
//! <dir>/state           what it says of itself; whoever lives there holds it
//!       vmm.log, console.log
//!       control.sock    it listens here for orders
//!       vsock.sock      the way to its guest
//! ```

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::SocketType;

use super::{ChildDescriptor, bind};

/// The file in a child's directory that says what it is, and whose lock says that it is.
pub const STATE: &str = "state";
/// Its socket for orders.
pub const CONTROL: &str = "control.sock";
/// Its guest's sockets.
pub const VSOCK: &str = "vsock.sock";
/// Its serial console.
pub const CONSOLE: &str = "console.log";
/// Its log.
pub const LOG: &str = "vmm.log";

/// Descriptors for one child, with what each of them is.
#[derive(Debug)]
pub struct Outfit(Vec<(ChildDescriptor, OwnedFd)>);

impl Outfit {
    /// Makes what every child has. Its state exists, and so do its tops, which are empty.
    ///
    /// # Errors
    /// When the directory cannot have them, or the system has no more descriptors.
    pub fn make(dir: &Path, state: OwnedFd, tops: Vec<File>) -> io::Result<Self> {
        let mut all = vec![
            (ChildDescriptor::State, state),
            (ChildDescriptor::Log, File::create(dir.join(LOG))?.into()),
            (ChildDescriptor::Console, File::create(dir.join(CONSOLE))?.into()),
            (ChildDescriptor::Control, bind(&dir.join(CONTROL), SocketType::SEQPACKET)?),
            (ChildDescriptor::Vsock, bind(&dir.join(VSOCK), SocketType::STREAM)?),
        ];
        all.extend(tops.into_iter().map(|top| (ChildDescriptor::Top, top.into())));
        Ok(Self(all))
    }

    /// Adds something that not every child has.
    pub fn add(&mut self, kind: ChildDescriptor, fd: OwnedFd) {
        self.0.push((kind, fd));
    }

    /// What it consists of, in order.
    #[must_use]
    pub fn kinds(&self) -> Vec<ChildDescriptor> {
        self.0.iter().map(|(kind, _)| *kind).collect()
    }

    /// The descriptors, in that order.
    #[must_use]
    pub fn into_fds(self) -> Vec<OwnedFd> {
        self.0.into_iter().map(|(_, fd)| fd).collect()
    }
}
