//! What a process in a guest said, as much of it as is worth showing and fit for a terminal.

use std::collections::VecDeque;

/// How many lines are kept.
const MAX_LINES: usize = 20;
/// How long one of them may be.
const MAX_LINE: usize = 500;

/// The last lines of what was written, in whatever pieces it comes. However much that is, little is kept.
#[derive(Debug, Default)]
pub(crate) struct Said {
    lines: VecDeque<String>,
    /// The one that has no end yet.
    open: Vec<u8>,
}

impl Said {
    /// Takes a piece, and hands each line that is whole to `heard`.
    pub(crate) fn hear(&mut self, bytes: &[u8], mut heard: impl FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_LINE.saturating_sub(self.open.len());
            self.open.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.end_line(&mut heard);
            }
        }
    }

    /// What has no end is a line now: nothing follows.
    pub(crate) fn end(&mut self, mut heard: impl FnMut(&str)) {
        if !self.open.is_empty() {
            self.end_line(&mut heard);
        }
    }

    /// The last lines.
    pub(crate) fn tail(mut self) -> String {
        self.end(|_| ());
        Vec::from(self.lines).join("\n")
    }

    fn end_line(&mut self, heard: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.open);
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        self.open.clear();
        if text.trim().is_empty() {
            return;
        }
        heard(&text);
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_heard_whole_and_the_last_are_kept() {
        let (mut said, mut heard) = (Said::default(), Vec::new());
        for piece in ["one\ntw", "o\n\n  \n\x1b[31mred", "\x1b[0m\nend"] {
            said.hear(piece.as_bytes(), |line| heard.push(line.to_owned()));
        }
        assert_eq!(heard, ["one", "two", "[31mred[0m"]);
        assert_eq!(said.tail(), "one\ntwo\n[31mred[0m\nend");
    }

    #[test]
    fn little_is_kept_of_much() {
        let mut said = Said::default();
        said.hear(&vec![b'x'; 1 << 20], |_| ());
        said.hear(b"\n", |line| assert_eq!(line.len(), MAX_LINE));
        for n in 0..1000 {
            said.hear(format!("{n}\n").as_bytes(), |_| ());
        }
        let tail = said.tail();
        assert!(tail.starts_with("980\n") && tail.ends_with("\n999"), "{tail}");
    }
}
