//! Waiting for what a VMM says next.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use proto::control::{ControlError, ControlSocket, FromVmm};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::cancel::Cancel;
use crate::process::timespec;

/// What a wait ended with.
#[derive(Debug)]
pub(crate) enum Waited {
    /// The VMM said something.
    Event(FromVmm),
    /// The VMM closed its end: it is dead or dying.
    Gone,
    /// The time is up.
    TimedOut,
    /// Somebody called it off.
    Cancelled,
}

/// Waits until a VMM says something, the time is up, or it is called off. What it hands over is closed.
pub(crate) fn hear(control: &ControlSocket, until: Instant, cancel: Option<&Cancel>) -> Result<Waited, ControlError> {
    hear_and_take(control, until, cancel).map(|(waited, _fds)| waited)
}

/// The same, with what it hands over.
pub(crate) fn hear_and_take(
    control: &ControlSocket,
    until: Instant,
    cancel: Option<&Cancel>,
) -> Result<(Waited, Vec<OwnedFd>), ControlError> {
    loop {
        let left = timespec(until.saturating_duration_since(Instant::now()));
        let mut fds = vec![PollFd::new(control, PollFlags::IN)];
        fds.extend(cancel.map(|cancel| PollFd::new(cancel, PollFlags::IN)));
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(0) => return Ok((Waited::TimedOut, Vec::new())),
            Ok(_) if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) => {
                return Ok((Waited::Cancelled, Vec::new()));
            }
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    Ok(control.recv()?.map_or((Waited::Gone, Vec::new()), |(event, fds)| (Waited::Event(event), fds)))
}
