//! Long work, shown: bars on a terminal, otherwise one line when a stage takes longer than a second and one at its end.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) use daemon::relay as watch;
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
