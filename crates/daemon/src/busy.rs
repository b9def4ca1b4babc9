//! What somebody does something with that others may not disturb: one alone, or several who only need it to stay.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use api::Code;

use crate::error::ApiError;

/// What is being done something with.
#[derive(Debug, Default)]
pub(crate) struct Busy(Mutex<HashMap<String, Hold>>);

/// How somebody has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// One, who may change or remove it.
    Alone,
    /// So many, who need it as it is.
    Together(usize),
}

/// The right to something; given back when dropped.
#[derive(Debug)]
pub(crate) struct Undisturbed<'a> {
    busy: &'a Busy,
    key: String,
}

impl Busy {
    /// The right to do something with this alone.
    pub(crate) fn alone(&self, kind: &str, name: &str) -> Result<Undisturbed<'_>, ApiError> {
        self.hold(kind, name, Hold::Alone)
    }

    /// The right to have this stay, which others may have, too.
    pub(crate) fn together(&self, kind: &str, name: &str) -> Result<Undisturbed<'_>, ApiError> {
        self.hold(kind, name, Hold::Together(1))
    }

    fn hold(&self, kind: &str, name: &str, wanted: Hold) -> Result<Undisturbed<'_>, ApiError> {
        let key = format!("{kind} {name}");
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let after = match (held.get(&key), wanted) {
            (None, wanted) => wanted,
            (Some(Hold::Together(count)), Hold::Together(more)) => Hold::Together(count + more),
            _ => {
                let message = format!("somebody does something with {kind} `{name}` right now; try again");
                return Err(ApiError::conflict(Code::Busy, message));
            }
        };
        held.insert(key.clone(), after);
        drop(held);
        Ok(Undisturbed { busy: self, key })
    }
}

impl Drop for Undisturbed<'_> {
    fn drop(&mut self) {
        let mut held = self.busy.0.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&self.key) {
            Some(Hold::Together(count)) if *count > 1 => *count -= 1,
            _ => drop(held.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_or_many_together() {
        let busy = Busy::default();
        let alone = busy.alone("snapshot", "base").unwrap();
        assert_eq!(busy.alone("snapshot", "base").unwrap_err().code, Code::Busy);
        assert_eq!(busy.together("snapshot", "base").unwrap_err().code, Code::Busy);
        busy.alone("workspace", "base").unwrap();
        drop(alone);
        let (one, two) = (busy.together("snapshot", "base").unwrap(), busy.together("snapshot", "base").unwrap());
        drop(one);
        assert_eq!(busy.alone("snapshot", "base").unwrap_err().code, Code::Busy, "the other still needs it");
        drop(two);
        busy.alone("snapshot", "base").unwrap();
    }
}
