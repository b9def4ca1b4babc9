//! The end of what the machine said, fit to be shown to a person.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// How much of the log's end is looked at.
const TAIL: u64 = 8 << 10;
/// How many lines are shown.
const LINES: usize = 15;

/// The last lines. Whatever the machine wrote, nothing of it can steer the reader's terminal.
pub(crate) fn last_lines(log: &Path) -> String {
    let bytes = match tail(log) {
        Ok(bytes) => bytes,
        Err(error) => return format!("(the log cannot be read: {error})"),
    };
    match presentable(&bytes) {
        lines if lines.is_empty() => "(nothing)".into(),
        lines => lines,
    }
}

/// The last lines of what a stranger wrote; a carriage return begins a line too.
pub(crate) fn presentable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace('\r', "\n");
    let clean = text.replace(|c: char| c.is_control() && c != '\n', "");
    let lines: Vec<_> = clean.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Whether a line of the log's end holds the text.
pub(crate) fn mentions(log: &Path, text: &str) -> bool {
    last_lines(log).contains(text)
}

fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_shown_and_no_escape_sequences() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert!(last_lines(&log).contains("cannot be read"));
        let long: String = (0..5000).map(|n| format!("line {n}\r\n\x1b[2J\n")).collect();
        std::fs::write(&log, [long.as_bytes(), b"end \x07\xff\n"].concat()).unwrap();
        let shown = last_lines(&log);
        assert_eq!(shown.lines().count(), LINES);
        assert!(shown.ends_with("end \u{fffd}") && !shown.contains('\x1b') && shown.contains("line 4999"), "{shown:?}");
        assert!(mentions(&log, "line 4999") && !mentions(&log, "line 12\n"));
    }
}
