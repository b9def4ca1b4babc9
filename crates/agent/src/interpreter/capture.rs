//! What an interpreter and those it started write.
//!
//! A thread reads the pipes all the time, so that a server the code left behind is never stopped by a full one. What
//! comes while code runs is kept for its answer, up to a limit; what comes in between belongs to no answer and is
//! dropped.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use proto::guest::{MAX_CHUNK, MAX_EVAL_OUTPUT};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::stdio;

/// The thread only reads.
const STACK: usize = 64 << 10;

/// The two pipes, and what came through them.
pub(crate) struct Capture {
    pipes: Arc<Pipes>,
}

/// What was written while code ran.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Captured {
    /// Standard output and standard error.
    pub(crate) bytes: [Vec<u8>; 2],
    pub(crate) truncated: bool,
}

struct Pipes {
    fds: [OwnedFd; 2],
    /// Pipes are read only under this lock, so what was written before an answer is taken with it, by whomever.
    state: Mutex<State>,
}

struct State {
    open: [bool; 2],
    /// What is kept; nothing while no code runs.
    kept: Option<Captured>,
    scratch: Box<[u8]>,
}

impl Capture {
    /// Takes over the reading ends, which must not block.
    pub(crate) fn new(fds: [OwnedFd; 2]) -> io::Result<Self> {
        let scratch = vec![0; MAX_CHUNK].into_boxed_slice();
        let state = Mutex::new(State { open: [true; 2], kept: None, scratch });
        let pipes = Arc::new(Pipes { fds, state });
        let reader = Arc::clone(&pipes);
        thread::Builder::new().name("output".into()).stack_size(STACK).spawn(move || reader.read_forever())?;
        Ok(Self { pipes })
    }

    /// From here on output is kept.
    pub(crate) fn begin(&self) {
        let mut state = self.pipes.state();
        // What is still in the pipes was written before.
        self.pipes.read_rest(&mut state);
        state.kept = Some(Captured::default());
    }

    /// Everything written since `begin` and before now.
    pub(crate) fn finish(&self) -> Captured {
        let mut state = self.pipes.state();
        self.pipes.read_rest(&mut state);
        state.kept.take().unwrap_or_default()
    }
}

impl Pipes {
    /// Whole between any two statements.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until both pipes have no writer left.
    fn read_forever(&self) {
        loop {
            let open = self.state().open;
            let mut fds: Vec<_> = (self.fds.iter().zip(open))
                .filter(|(_, open)| *open)
                .map(|(fd, _)| PollFd::new(fd, PollFlags::IN))
                .collect();
            if fds.is_empty() {
                return;
            }
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let mut state = self.state();
            for (index, open) in open.into_iter().enumerate() {
                if open {
                    self.read_once(&mut state, index);
                }
            }
        }
    }

    /// What is in the pipes now. A writer that never pauses is not followed for ever.
    fn read_rest(&self, state: &mut State) {
        for (index, fd) in self.fds.iter().enumerate() {
            let mut left = stdio::capacity(fd);
            while left > 0 && state.open[index] {
                match self.read_once(state, index) {
                    0 => break,
                    count => left = left.saturating_sub(count),
                }
            }
        }
    }

    fn read_once(&self, state: &mut State, index: usize) -> usize {
        let State { open, kept, scratch } = state;
        match rustix::io::read(&self.fds[index], &mut **scratch) {
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Ok(0) | Err(_) => {
                open[index] = false;
                0
            }
            Ok(count) => {
                if let Some(kept) = kept {
                    kept.add(index, &scratch[..count]);
                }
                count
            }
        }
    }
}

impl Captured {
    fn add(&mut self, index: usize, bytes: &[u8]) {
        let kept = &mut self.bytes[index];
        let room = MAX_EVAL_OUTPUT - kept.len();
        self.truncated |= bytes.len() > room;
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::pipe::PipeFlags;

    use super::*;

    fn capture() -> (Capture, [File; 2]) {
        let [(out, to_out), (err, to_err)] = [(); 2].map(|()| rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap());
        for fd in [&out, &err] {
            rustix::io::ioctl_fionbio(fd, true).unwrap();
        }
        (Capture::new([out, err]).unwrap(), [to_out.into(), to_err.into()])
    }

    #[test]
    fn only_what_is_written_in_between_is_kept() {
        let (capture, [mut out, mut err]) = capture();
        out.write_all(b"before").unwrap();
        capture.begin();
        out.write_all(b"one").unwrap();
        err.write_all(b"two").unwrap();
        assert_eq!(capture.finish().bytes, [b"one".to_vec(), b"two".to_vec()]);
        out.write_all(b"after").unwrap();
        capture.begin();
        assert_eq!(capture.finish(), Captured::default());
    }

    #[test]
    fn more_than_the_limit_is_cut_and_said() {
        let (capture, [mut out, err]) = capture();
        capture.begin();
        out.write_all(&vec![b'x'; MAX_EVAL_OUTPUT]).unwrap();
        drop(err);
        let whole = capture.finish();
        assert_eq!((whole.bytes[0].len(), whole.truncated), (MAX_EVAL_OUTPUT, false));
        capture.begin();
        out.write_all(&vec![b'x'; MAX_EVAL_OUTPUT + 1]).unwrap();
        let cut = capture.finish();
        assert_eq!((cut.bytes[0].len(), cut.truncated), (MAX_EVAL_OUTPUT, true));
    }

    #[test]
    fn a_writer_is_never_held_up_while_nobody_asks() {
        let (_capture, [mut out, _err]) = capture();
        out.write_all(&vec![0; 4 << 20]).unwrap();
    }
}
