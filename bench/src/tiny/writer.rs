//! The guest that writes its memory, `writer.S`: compiled here, so whoever uses it needs `cc`. And what it tells.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

const SOURCE: &str = include_str!("../../writer.S");
const LOADED_AT: &str = "-Wl,-Ttext=0x1000000,--build-id=none,-N,--no-warn-rwx-segments";
/// The bytes of each of a report's numbers.
const NUMBER: usize = 9;
/// What each of them has, beside seven bits of a number: so they are told from the guest's other words.
pub(super) const MARK: u8 = 0x80;

/// Compiles a guest that writes so many pages, to the ELF file a kernel is.
pub(super) fn compile(dir: &Path, elf: &Path, pages: usize) -> Result<()> {
    let source = dir.join("writer.S");
    std::fs::write(&source, SOURCE)?;
    let mut cc = Command::new("cc");
    cc.args(["-nostdlib", "-static", "-no-pie", LOADED_AT, &format!("-DPAGES={pages}"), "-o"]).args([elf, &source]);
    ensure!(cc.status().context("cc is needed to compile the guest")?.success(), "writer.S does not compile");
    Ok(())
}

/// What the guest tells while it writes. Time is in ticks of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// When.
    pub at: u64,
    /// Since the write before.
    pub gap: u64,
    /// How often it has begun to write all its pages.
    pub passes: u64,
}

/// Makes reports of the bytes that come.
#[derive(Debug, Default)]
pub(super) struct Reports {
    bytes: Vec<u8>,
}

impl Reports {
    /// Takes what there is to read, which must be something, if the end shall not be waited for.
    pub(super) fn read(&mut self, mut from: &File) -> io::Result<Vec<Report>> {
        let mut bytes = [0; 4096];
        let count = from.read(&mut bytes)?;
        self.bytes.extend_from_slice(&bytes[..count]);
        let (whole, rest) = self.bytes.as_chunks::<{ Report::LEN }>();
        let reports = whole.iter().map(Report::of).collect();
        self.bytes = rest.to_vec();
        Ok(reports)
    }
}

impl Report {
    /// Its bytes.
    pub(super) const LEN: usize = 3 * NUMBER;

    fn of(bytes: &[u8; Self::LEN]) -> Self {
        let number = |index: usize| {
            let bytes = bytes.iter().skip(index * NUMBER).take(NUMBER).rev();
            bytes.fold(0, |number, byte| number << 7 | u64::from(byte & !MARK))
        };
        Self { at: number(0), gap: number(1), passes: number(2) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn reports_are_put_together_from_pieces() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (reader, mut writer) = (File::from(reader), File::from(writer));
        let words: Vec<u8> = (1..=6_u8).flat_map(|low| [&[MARK | low, MARK | 1][..], &[MARK; 7]].concat()).collect();
        let mut reports = Reports::default();
        writer.write_all(&words[..30]).unwrap();
        assert_eq!(reports.read(&reader).unwrap(), [Report { at: 129, gap: 130, passes: 131 }]);
        writer.write_all(&words[30..]).unwrap();
        assert_eq!(reports.read(&reader).unwrap(), [Report { at: 132, gap: 133, passes: 134 }]);
    }
}
