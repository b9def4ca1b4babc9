//! Which sandboxes are being ended on purpose: whoever finds one of them dead leaves it to the one who ends it to say why.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// What is being ended.
#[derive(Debug, Default)]
pub(crate) struct Ends(Mutex<HashMap<String, usize>>);

/// Somebody ends it, and has said why when this is dropped.
#[derive(Debug)]
pub(crate) struct Ending<'a> {
    ends: &'a Ends,
    id: String,
}

impl Ends {
    /// It is about to be ended, perhaps by more than one.
    pub(crate) fn begin(&self, id: &str) -> Ending<'_> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(id.into()).or_default() += 1;
        Ending { ends: self, id: id.into() }
    }

    /// Whether somebody ends it.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut ends = self.ends.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = ends.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                ends.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_being_ended_until_the_last_has_done_so() {
        let ends = Ends::default();
        let (one, two) = (ends.begin("sb-1"), ends.begin("sb-1"));
        drop(one);
        assert!(ends.has("sb-1") && !ends.has("sb-2"));
        drop(two);
        assert!(!ends.has("sb-1"));
    }
}
