//! What a sandbox asked its name server for, as far as it concerns whoever watches it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::policy::HostName;

/// How many names that were refused are remembered.
const MAX_REFUSED: usize = 32;

/// What was asked for since the network was given out, or its manager was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamesReport {
    /// Questions.
    pub asked: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Messages that were no questions.
    pub malformed: u64,
    /// The names that were refused last, the latest first.
    pub last_refused: VecDeque<String>,
}

/// Counts questions.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    report: Mutex<NamesReport>,
}

impl Asked {
    pub(crate) fn asked(&self) {
        self.change().asked += 1;
    }

    pub(crate) fn malformed(&self) {
        self.change().malformed += 1;
    }

    pub(crate) fn refused(&self, name: Option<&HostName>) {
        let mut report = self.change();
        report.refused += 1;
        let Some(name) = name.map(ToString::to_string) else { return };
        report.last_refused.retain(|other| *other != name);
        report.last_refused.push_front(name);
        report.last_refused.truncate(MAX_REFUSED);
    }

    pub(crate) fn report(&self) -> NamesReport {
        self.change().clone()
    }

    fn change(&self) -> MutexGuard<'_, NamesReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_names_are_kept_each_once() {
        let asked = Asked::default();
        for number in 0..40 {
            asked.refused(HostName::new(&format!("n{number}.org")).as_ref());
        }
        asked.refused(HostName::new("n39.org").as_ref());
        asked.refused(HostName::new("n20.org").as_ref());
        asked.refused(None);
        let report = asked.report();
        assert_eq!((report.refused, report.last_refused.len()), (43, MAX_REFUSED));
        assert_eq!(report.last_refused.range(..3).collect::<Vec<_>>(), ["n20.org", "n39.org", "n38.org"]);
    }
}
