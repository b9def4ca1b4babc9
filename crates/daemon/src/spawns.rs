//! Which spawns are under way, so that a sandbox of ours that nobody knows can be told from one that is not known yet.
//!
//! Spawns are numbered. Whoever is seen when the next number is `n` was made by a spawn before `n`, if by any; when all of
//! those are over and it is still not known, its spawn failed to end it, and nobody else will. No clock is asked.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The spawns under way.
#[derive(Debug, Default)]
pub(crate) struct Spawns(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// A spawn under way; over when dropped.
#[derive(Debug)]
pub(crate) struct Spawning<'a> {
    spawns: &'a Spawns,
    number: u64,
}

impl Spawns {
    /// A spawn begins.
    pub(crate) fn begin(&self) -> Spawning<'_> {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = numbers.next;
        numbers.next += 1;
        numbers.under_way.insert(number);
        Spawning { spawns: self, number }
    }

    /// The number of the next spawn.
    pub(crate) fn next(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next
    }

    /// All spawns before this number are over.
    pub(crate) fn over(&self) -> u64 {
        let numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.under_way.first().copied().unwrap_or(numbers.next)
    }
}

impl Drop for Spawning<'_> {
    fn drop(&mut self) {
        self.spawns.0.lock().unwrap_or_else(PoisonError::into_inner).under_way.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_over_in_order() {
        let spawns = Spawns::default();
        assert_eq!((spawns.next(), spawns.over()), (0, 0));
        let (first, second) = (spawns.begin(), spawns.begin());
        assert_eq!((spawns.next(), spawns.over()), (2, 0));
        drop(second);
        assert_eq!(spawns.over(), 0, "the first may still make something");
        drop(first);
        assert_eq!(spawns.over(), 2);
    }
}
