//! Work done elsewhere, shown as if it were done here.

use std::collections::HashMap;

use types::progress::{Progress, Stage};

/// Turns what is told of work into stages.
pub fn relay(progress: &dyn Progress) -> impl FnMut(api::Progress) {
    let mut stages: HashMap<u64, Box<dyn Stage>> = HashMap::new();
    move |told| {
        if told.over {
            stages.remove(&told.id);
            return;
        }
        let stage = stages.entry(told.id).or_insert_with(|| progress.stage(&told.stage, told.total));
        stage.advance(told.done);
        if let Some(note) = &told.note {
            stage.note(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Writes down what it is told.
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<String>>>);

    impl Notes {
        fn add(&self, text: String) {
            self.0.lock().unwrap().push(text);
        }
    }

    impl Progress for Notes {
        fn stage(&self, what: &str, total: Option<u64>) -> Box<dyn Stage> {
            self.add(format!("{what} {total:?}"));
            Box::new(self.clone())
        }
    }

    impl Stage for Notes {
        fn advance(&self, done: u64) {
            self.add(done.to_string());
        }

        fn note(&self, text: &str) {
            self.add(text.into());
        }
    }

    #[test]
    fn what_a_daemon_tells_becomes_stages() {
        let notes = Notes::default();
        let mut show = relay(&notes);
        let told = api::Progress { id: 1, stage: "Reading".into(), done: 1, total: Some(9), note: None, over: false };
        show(told.clone());
        show(api::Progress { done: 5, note: Some("slowly".into()), ..told.clone() });
        show(api::Progress { over: true, ..told });
        assert_eq!(*notes.0.lock().unwrap(), ["Reading Some(9)", "1", "5", "slowly"]);
    }
}
