//! Long work, shown: bars on a terminal, otherwise one line when a stage takes longer than a second and one at its end.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use types::progress::{Progress, Silent, Stage};

/// Shorter stages are not worth a line.
const WORTH_A_LINE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

/// What fits where standard error goes.
pub(crate) fn reporter(quiet: bool) -> Box<dyn Progress> {
    if quiet {
        Box::new(Silent)
    } else if std::io::stderr().is_terminal() {
        Box::new(Bars(MultiProgress::new()))
    } else {
        Box::new(Lines)
    }
}

/// Shows what a daemon tells of its work as if it were done here.
pub(crate) fn watch(progress: &dyn Progress) -> impl FnMut(api::Progress) {
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

/// Bars, cleared when their stage is over.
#[derive(Debug)]
struct Bars(MultiProgress);

impl Progress for Bars {
    fn stage(&self, what: &str, total: Option<u64>) -> Box<dyn Stage> {
        let bar = self.0.add(total.map_or_else(ProgressBar::new_spinner, ProgressBar::new));
        let template = match total {
            Some(_) => "{spinner} {prefix} [{bar:30}] {percent}% {elapsed} {wide_msg}",
            None => "{spinner} {prefix} {elapsed} {wide_msg}",
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well formed"));
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(TICK);
        Box::new(Bar(bar))
    }
}

#[derive(Debug)]
struct Bar(ProgressBar);

impl Stage for Bar {
    fn advance(&self, done: u64) {
        self.0.set_position(done);
    }

    fn note(&self, text: &str) {
        self.0.set_message(text.to_owned());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Plain lines.
#[derive(Debug)]
struct Lines;

impl Progress for Lines {
    fn stage(&self, what: &str, _total: Option<u64>) -> Box<dyn Stage> {
        let (over, waiting) = channel::<()>();
        let (started, text) = (Instant::now(), what.to_owned());
        // A thread that cannot be had costs a line, not the work.
        let teller = thread::Builder::new().name("progress".into()).spawn(move || {
            if waiting.recv_timeout(WORTH_A_LINE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("forkd: {text} ...");
                // Ends with an error when the stage is dropped, which is what is waited for.
                if waiting.recv().is_err() {
                    eprintln!("forkd: {text}: {:.1} s", started.elapsed().as_secs_f32());
                }
            }
        });
        Box::new(Line { over: Some(over), teller: teller.ok() })
    }
}

#[derive(Debug)]
struct Line {
    over: Option<Sender<()>>,
    teller: Option<JoinHandle<()>>,
}

impl Stage for Line {
    fn advance(&self, _done: u64) {}
    fn note(&self, _text: &str) {}
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.over.take());
        // Its last line comes before ours.
        if self.teller.take().is_some_and(|teller| teller.join().is_err()) {
            log::debug!("a progress thread panicked");
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
        let mut watch = watch(&notes);
        let told = api::Progress { id: 1, stage: "Reading".into(), done: 1, total: Some(9), note: None, over: false };
        watch(told.clone());
        watch(api::Progress { done: 5, note: Some("slowly".into()), ..told.clone() });
        watch(api::Progress { over: true, ..told });
        assert_eq!(*notes.0.lock().unwrap(), ["Reading Some(9)", "1", "5", "slowly"]);
    }
}
