//! What vCPU threads tell the loop: at most the first few words matter, since the first ends the VM.

use std::io;
use std::sync::{Mutex, PoisonError};

use vmm_sys_util::eventfd::EventFd;

use crate::ports::Ending;

/// The end of a VM as a vCPU saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The guest ended itself.
    Ended(Ending),
    /// KVM or the guest's CPU could not go on.
    Fault {
        /// What happened.
        message: String,
    },
}

/// The first event raised, and a descriptor that becomes readable with it.
#[derive(Debug)]
pub(crate) struct Events {
    first: Mutex<Option<Event>>,
    wake: EventFd,
}

impl Events {
    /// Nothing has happened.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { first: Mutex::new(None), wake: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)? })
    }

    /// What the loop watches.
    pub(crate) const fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// Says what happened, unless something happened before.
    pub(crate) fn raise(&self, event: Event) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(event);
        if let Err(error) = self.wake.write(1) {
            log::error!("the loop cannot be woken: {error}");
        }
    }

    /// What happened.
    pub(crate) fn first(&self) -> Option<Event> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_stays() {
        let events = Events::new().unwrap();
        assert_eq!(events.first(), None);
        events.raise(Event::Ended(Ending::Panic));
        events.raise(Event::Ended(Ending::Reboot));
        assert_eq!(events.first(), Some(Event::Ended(Ending::Panic)));
        assert_eq!(events.wake().read().unwrap(), 2);
    }
}
