//! What the tops of one VM's disks may take of the host, together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is left of it.
#[derive(Debug)]
pub struct Quota {
    left: AtomicU64,
    refused: AtomicBool,
}

impl Quota {
    /// So many bytes, of which none is taken yet.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { left: AtomicU64::new(bytes), refused: AtomicBool::new(false) }
    }

    /// Whether somebody wanted more than was left.
    #[must_use]
    pub fn was_exceeded(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes so many, or none and says no.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if taken.is_err() {
            self.refused.store(true, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Puts back what was taken and not used.
    pub(super) fn put_back(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}
