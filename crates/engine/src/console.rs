//! The last lines of a log that a guest may have written: bounded, and without what a terminal would obey.
//!
//! What a panicking kernel prints after it has said so is its registers and its stack; what led there came before.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

const LINES: usize = 15;
const MAX_BYTES: u64 = 16 << 10;
const MAX_LINE: usize = 200;
const PANIC: &str = "Kernel panic - not syncing";

/// The last lines, each indented; one line that says so when there is nothing.
pub(crate) fn tail(path: &Path) -> String {
    let text = match read_end(path) {
        Ok(bytes) => printable(&String::from_utf8_lossy(&bytes)),
        Err(error) => return format!("  ({} cannot be read: {error})", path.display()),
    };
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if let Some(panic) = lines.iter().position(|line| line.contains(PANIC)) {
        lines.truncate(panic + 1);
    }
    if lines.is_empty() {
        return "  (nothing was written)".into();
    }
    let last = lines[lines.len().saturating_sub(LINES)..].iter();
    last.map(|line| format!("  {}", line.chars().take(MAX_LINE).collect::<String>())).collect::<Vec<_>>().join("\n")
}

fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail_of(bytes: &[u8]) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        tail(file.path())
    }

    #[test]
    fn the_last_fifteen_lines_without_escapes() {
        let log: String = (0..100).map(|n| format!("\x1b[31mline {n}\r\n\n")).collect();
        let shown = tail_of(log.as_bytes());
        assert_eq!(shown.lines().count(), 15);
        assert!(shown.starts_with("  [31mline 85\n") && shown.ends_with("line 99"), "{shown}");
        assert!(!shown.contains(['\x1b', '\r']));
    }

    #[test]
    fn a_hostile_log_stays_small() {
        let shown = tail_of(&vec![b'x'; 5 << 20]);
        assert_eq!(shown.len(), 202);
        let shown = tail_of(&[0xff; 40_000]);
        assert!(shown.chars().count() <= 202);
    }

    #[test]
    fn a_panic_shows_what_led_to_it_and_not_the_stack() {
        let trace = "[1.2] RIP: 0033:0x7f\n".repeat(40);
        let shown = tail_of(format!("agent: no root disk\n[1.1] {PANIC}: init died\n{trace}").as_bytes());
        assert_eq!(shown, format!("  agent: no root disk\n  [1.1] {PANIC}: init died"));
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        assert_eq!(tail_of(b"\n\n"), "  (nothing was written)");
        assert!(tail(Path::new("/nowhere/log")).contains("cannot be read"));
    }
}
