//! Who is connected, and since when nobody is.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many are connected.
#[derive(Debug)]
pub(crate) struct Clients(Mutex<Count>);

#[derive(Debug)]
struct Count {
    connected: usize,
    /// When the last one came or left.
    changed: Instant,
}

impl Default for Clients {
    fn default() -> Self {
        Self(Mutex::new(Count { connected: 0, changed: Instant::now() }))
    }
}

/// One who is connected; dropped when it leaves.
#[derive(Debug)]
pub(crate) struct Connected<'a>(&'a Clients);

impl Clients {
    /// One more.
    pub(crate) fn come(&self) -> Connected<'_> {
        self.change(|connected| connected + 1);
        Connected(self)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).connected
    }

    /// For how long nobody has been connected.
    pub(crate) fn absent(&self) -> Duration {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if count.connected > 0 { Duration::ZERO } else { count.changed.elapsed() }
    }

    fn change(&self, to: impl FnOnce(usize) -> usize) {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count = Count { connected: to(count.connected), changed: Instant::now() };
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.change(|connected| connected - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_absent_while_somebody_is_there() {
        let clients = Clients::default();
        let (one, two) = (clients.come(), clients.come());
        drop(one);
        assert_eq!((clients.count(), clients.absent()), (1, Duration::ZERO));
        let left = Instant::now();
        drop(two);
        assert!(clients.count() == 0 && clients.absent() <= left.elapsed());
    }
}
