//! Input for a process, from a client that may leave before it is taken.

use std::os::fd::OwnedFd;

use proto::codec::{Channel, CodecError};
use proto::guest::Reply;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::process::{Input, Process};
use super::{ProcessError, Trouble};
use crate::peer::{Peer, PeerError};

/// What a person types to end the input of a terminal.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// Passes on what the client sends until it says that these were all. What two clients send at once is not kept apart. With
/// `close` the input is over when the client is, also one that leaves before its end: as with any pipe, nobody waits for
/// what never comes.
pub(super) fn feed(peer: &mut Peer, process: &Process, close: bool) -> Result<(), Trouble> {
    let no_input = |why| ProcessError::NoInput { id: process.id, why };
    let fd = match process.input() {
        Input::Open(fd) => fd,
        Input::None => return Err(no_input("it was started without").into()),
        Input::Closed if process.has_ended() => return Err(ProcessError::Ended { id: process.id }.into()),
        Input::Closed => return Err(no_input("it was told that there is no more").into()),
    };
    let mut passed = pass_on_all(peer, process, &fd);
    if close {
        if passed.is_ok() && process.is_terminal() {
            passed = pass_on(peer, process, &fd, END_OF_TRANSMISSION);
        }
        process.close_input();
    }
    // Before the answer: who closed a pipe expects its reader to see that.
    drop(fd);
    passed?;
    Ok(peer.reply(&Reply::Done)?)
}

fn pass_on_all(peer: &mut Peer, process: &Process, fd: &OwnedFd) -> Result<(), Trouble> {
    peer.reply(&Reply::Done)?;
    loop {
        let frame = peer.next_frame(None)?;
        match frame.channel {
            Channel::Stdin if frame.payload.is_empty() => return Ok(()),
            Channel::Stdin => {
                pass_on(peer, process, fd, &frame.payload)?;
                peer.reply(&Reply::StdinCredit { bytes: frame.payload.len() as u64 })?;
            }
            found => return Err(PeerError::from(CodecError::Unexpected { found }).into()),
        }
    }
}

/// Writes all of it, however long the process takes, unless it ends or the client leaves.
fn pass_on(peer: &Peer, process: &Process, fd: &OwnedFd, mut bytes: &[u8]) -> Result<(), Trouble> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(peer, process, fd)?,
            // Nobody reads it any more.
            Err(_) => return Err(ProcessError::Ended { id: process.id }.into()),
        }
    }
    Ok(())
}

/// Waits until it takes more. The client is watched for its leaving only: what it sent meanwhile can wait.
fn wait(peer: &Peer, process: &Process, fd: &OwnedFd) -> Result<(), Trouble> {
    let ended = process.child().ended_fd();
    let mut fds =
        [PollFd::new(fd, PollFlags::OUT), PollFd::new(&ended, PollFlags::IN), PollFd::new(peer, PollFlags::RDHUP)];
    match rustix::event::poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(PeerError::from(errno).into()),
    }
    if !fds[1].revents().is_empty() {
        return Err(ProcessError::Ended { id: process.id }.into());
    }
    if !fds[2].revents().is_empty() {
        return Err(PeerError::Gone.into());
    }
    Ok(())
}
