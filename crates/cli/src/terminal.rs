//! The terminal that forkd itself runs in.

use std::io;

use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use session::TtySize;

/// Whether a session with a terminal can be had: it needs one on both sides.
pub(crate) fn is_interactive() -> bool {
    isatty(stdin()) && isatty(stdout())
}

/// The window's size; the classic one when the terminal does not say.
pub(crate) fn size() -> TtySize {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TtySize { rows: size.ws_row, cols: size.ws_col },
        _ => TtySize { rows: 24, cols: 80 },
    }
}

/// Passes every key through until dropped.
#[derive(Debug)]
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    pub(crate) fn enter() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(stdin(), OptionalActions::Now, &self.before) {
            log::warn!("the terminal stays in raw mode ({error}); `reset` brings it back");
        }
    }
}
