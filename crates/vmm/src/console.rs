//! The serial console's log: a file that a chatty or hostile guest cannot make grow for ever, and an ear for the
//! kernel's last words.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

/// The file never grows beyond this.
const LIMIT: u64 = 1 << 20;
/// How much of the past survives when the limit is reached.
const KEPT: usize = 256 << 10;
/// What a kernel writes when it gives up, whatever its log level.
const PANIC_MARK: &str = "Kernel panic - not syncing: ";
/// A longer line is cut for [`ConsoleLog::panic_reason`].
const LINE_MAX: usize = 512;

/// Writes what the guest's serial port says.
#[derive(Debug)]
pub(crate) struct ConsoleLog {
    file: File,
    written: u64,
    recent: Vec<u8>,
    line: Vec<u8>,
    panic: Option<String>,
}

impl ConsoleLog {
    /// Begins a log in an empty file.
    pub(crate) const fn new(file: File) -> Self {
        Self { file, written: 0, recent: Vec::new(), line: Vec::new(), panic: None }
    }

    /// The reason of the guest's panic, if its kernel gave one.
    pub(crate) fn panic_reason(&self) -> Option<String> {
        self.panic.clone().or_else(|| reason(&self.line))
    }

    fn listen(&mut self, byte: u8) {
        match byte {
            b'\n' => {
                if self.panic.is_none() {
                    self.panic = reason(&self.line);
                }
                self.line.clear();
            }
            b'\r' => {}
            _ if self.line.len() < LINE_MAX => self.line.push(byte),
            _ => {}
        }
    }

    /// Keeps what [`Self::restart`] will need: twice as much, so that the shift happens once in a while and not for each
    /// byte.
    fn remember(&mut self, bytes: &[u8]) {
        self.recent.extend_from_slice(bytes);
        if self.recent.len() > 2 * KEPT {
            self.recent.drain(..self.recent.len() - KEPT);
        }
    }

    /// Begins the file anew with the last of what it held.
    fn restart(&mut self) -> io::Result<()> {
        let note = b"[forkd: the beginning of this log was dropped]\n";
        let kept = &self.recent[self.recent.len().saturating_sub(KEPT)..];
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        // Counted before it is written: a full disk then costs this text, and not the same attempt for each byte.
        self.written = (note.len() + kept.len()) as u64;
        self.file.write_all(note)?;
        self.file.write_all(kept)
    }
}

fn reason(line: &[u8]) -> Option<String> {
    let line = String::from_utf8_lossy(line);
    let (_, reason) = line.split_once(PANIC_MARK)?;
    // It will be shown on a terminal, and anybody in the guest can write to the console.
    Some(reason.chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned())
}

impl Write for ConsoleLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.listen(*byte);
        }
        self.remember(bytes);
        if self.written + bytes.len() as u64 > LIMIT {
            self.restart()?;
        } else {
            self.file.write_all(bytes)?;
            self.written += bytes.len() as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_keeps_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log = ConsoleLog::new(file.reopen().unwrap());
        for number in 0..400_000 {
            writeln!(log, "{number}").unwrap();
        }
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.len() as u64 <= LIMIT);
        assert!(text.starts_with("[forkd:"), "{}", &text[..60]);
        assert!(text.ends_with("399998\n399999\n"));
        let numbers: Vec<u32> = text.lines().skip(2).map(|line| line.parse().unwrap()).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "a piece is missing");
    }

    #[test]
    fn the_kernels_last_words_are_heard() {
        let mut log = ConsoleLog::new(tempfile::tempfile().unwrap());
        log.write_all(b"[    1.2] all well\r\n").unwrap();
        assert_eq!(log.panic_reason(), None);
        for byte in b"[    2.3] Kernel panic - not syncing: Attempted to kill init! exitcode=0x0\r\nCPU: 0\n" {
            log.write_all(&[*byte]).unwrap();
        }
        assert_eq!(log.panic_reason().as_deref(), Some("Attempted to kill init! exitcode=0x0"));
    }

    #[test]
    fn a_full_disk_costs_no_memory() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut log = ConsoleLog::new(full);
        for _ in 0..32 {
            log.write_all(&[b'x'; 64 << 10]).unwrap_err();
        }
        assert!(log.recent.len() <= 2 * KEPT);
    }

    #[test]
    fn the_last_words_cannot_command_a_terminal() {
        let mut log = ConsoleLog::new(tempfile::tempfile().unwrap());
        log.write_all(b"Kernel panic - not syncing: \x1b[2J\x07oh\n").unwrap();
        assert_eq!(log.panic_reason().as_deref(), Some("[2Joh"));
    }
}
