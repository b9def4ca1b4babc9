//! Where a verb writes how far it is, and a stream reads it, each as often as it likes.
//!
//! What changes between two looks is seen once, as it is then, so a slow reader costs nothing. A stage that came and went
//! in between is not seen at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use types::progress::{Progress, Stage};

#[derive(Clone, Debug, Default)]
pub(super) struct Board(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    entries: Mutex<Entries>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    by_id: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    told: api::Progress,
    /// It has been seen at all.
    is_known: bool,
    /// It is not what was seen last.
    is_new: bool,
}

impl Board {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until something is not as it was seen last.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// All that is not as it was seen last.
    pub(super) fn news(&self) -> Vec<api::Progress> {
        let mut entries = self.entries();
        let changed = entries.by_id.iter_mut().filter(|(_, entry)| entry.is_new);
        let news = changed.map(|(_, entry)| {
            (entry.is_new, entry.is_known) = (false, true);
            entry.told.clone()
        });
        let news = news.collect();
        entries.by_id.retain(|_, entry| !entry.told.over);
        news
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut api::Progress)) {
        if let Some(entry) = self.entries().by_id.get_mut(&id) {
            change(&mut entry.told);
            entry.is_new = true;
        }
        self.0.changed.notify_one();
    }
}

impl Progress for Board {
    fn stage(&self, what: &str, total: Option<u64>) -> Box<dyn Stage> {
        let mut entries = self.entries();
        let id = entries.next;
        entries.next += 1;
        let told = api::Progress { id, stage: what.into(), done: 0, total, note: None, over: false };
        let entry = Entry { told, is_known: false, is_new: true };
        entries.by_id.insert(id, entry);
        drop(entries);
        self.0.changed.notify_one();
        Box::new(OnBoard { board: self.clone(), id })
    }
}

#[derive(Debug)]
struct OnBoard {
    board: Board,
    id: u64,
}

impl Stage for OnBoard {
    fn advance(&self, done: u64) {
        self.board.change(self.id, |told| told.done = done);
    }

    fn note(&self, text: &str) {
        self.board.change(self.id, |told| told.note = Some(text.into()));
    }
}

impl Drop for OnBoard {
    fn drop(&mut self) {
        let mut entries = self.board.entries();
        if entries.by_id.get(&self.id).is_some_and(|entry| !entry.is_known) {
            entries.by_id.remove(&self.id);
        }
        drop(entries);
        self.board.change(self.id, |told| told.over = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_seen_once_as_it_is() {
        let board = Board::default();
        drop(board.stage("too short to be seen", None));
        let stage = board.stage("reading", Some(9));
        (1..=5).for_each(|done| stage.advance(done));
        let news = board.news();
        assert_eq!((news.len(), &*news[0].stage, news[0].done, news[0].total), (1, "reading", 5, Some(9)));
        assert_eq!(board.news(), []);
        stage.note("slowly");
        assert_eq!(board.news()[0].note.as_deref(), Some("slowly"));
        drop(stage);
        assert!(board.news()[0].over);
        assert_eq!((board.news(), board.entries().by_id.len()), (vec![], 0));
    }
}
