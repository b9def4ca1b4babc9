//! A large file out of the emulated host: as an archive that leaves holes out, so that only what is there crosses.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context, anyhow, bail};
use session::{Event, Exec, ExecRequest};

use super::Remote;

const BLOCK: usize = 1 << 16;
/// How much is kept of what went wrong.
const MAX_SAID: usize = 2000;

impl Remote {
    /// Writes what is in the file to an empty one here.
    pub(crate) fn fetch(&self, path: &str, to: &File) -> anyhow::Result<()> {
        let script = r#"exec tar --create --sparse --format=gnu --file=- -C "${1%/*}" -- "${1##*/}""#;
        let argv = ["sh", "-c", script, "sh", path].map(String::from).to_vec();
        let exec = self.machine.exec(&ExecRequest { argv, ..ExecRequest::default() })?;
        let mut source = Stdout { exec, piece: Vec::new(), at: 0, said: Vec::new(), code: None };
        let copied = first(&mut source, to);
        // What it said is the reason for all else.
        source.finish().with_context(|| format!("cannot read {path} in the emulated host"))?;
        copied.with_context(|| format!("cannot bring {path} out of the emulated host"))
    }
}

/// The first member of an archive, holes left as they are.
fn first(source: &mut impl Read, to: &File) -> anyhow::Result<()> {
    let mut archive = tar::Archive::new(source);
    let mut member = archive.entries()?.next().context("nothing came")??;
    to.set_len(member.size())?;
    let mut buffer = vec![0; BLOCK];
    let mut at = 0;
    loop {
        let len = fill(&mut member, &mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        if buffer[..len].iter().any(|byte| *byte != 0) {
            to.write_all_at(&buffer[..len], at)?;
        }
        at += len as u64;
    }
}

fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match source.read(&mut buffer[len..])? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
}

/// What a command inside writes.
struct Stdout {
    exec: Exec,
    piece: Vec<u8>,
    at: usize,
    said: Vec<u8>,
    code: Option<i32>,
}

impl Stdout {
    /// Reads to the end, and says how it was.
    fn finish(mut self) -> anyhow::Result<()> {
        io::copy(&mut self, &mut io::sink())?;
        match self.code {
            Some(0) => Ok(()),
            Some(code) => bail!("tar ended with exit code {code}: {}", String::from_utf8_lossy(&self.said).trim()),
            None => Err(anyhow!("it did not end")),
        }
    }
}

impl Read for Stdout {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && self.code.is_none() {
            match self.exec.next_event().map_err(io::Error::other)? {
                Event::Stdout(bytes) => (self.piece, self.at) = (bytes, 0),
                Event::Stderr(bytes) => {
                    let room = MAX_SAID.saturating_sub(self.said.len()).min(bytes.len());
                    self.said.extend_from_slice(&bytes[..room]);
                }
                Event::Exited { status, .. } => self.code = Some(status.shell_code()),
            }
        }
        let len = buffer.len().min(self.piece.len() - self.at);
        buffer[..len].copy_from_slice(&self.piece[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_sparse_file_comes_out_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let from = File::create(dir.path().join("image")).unwrap();
        from.set_len(100 << 20).unwrap();
        from.write_all_at(b"text", 50 << 20).unwrap();
        from.write_all_at(b"end", (100 << 20) - 3).unwrap();
        let mut tar = Command::new("tar");
        tar.args(["--create", "--sparse", "--format=gnu", "--file=-", "-C"]).arg(dir.path()).args(["--", "image"]);
        let archive = tar.output().unwrap().stdout;
        assert!(archive.len() < 1 << 20, "holes were packed");
        let to = File::options().read(true).write(true).create_new(true).open(dir.path().join("copy")).unwrap();
        first(&mut &archive[..], &to).unwrap();
        let mut found = [0; 5];
        to.read_exact_at(&mut found, (50 << 20) - 1).unwrap();
        assert_eq!(&found, b"\0text");
        to.read_exact_at(&mut found[..3], (100 << 20) - 3).unwrap();
        let meta = to.metadata().unwrap();
        assert_eq!((&found[..3], meta.len()), (&b"end"[..], 100 << 20));
        assert!(meta.blocks() * 512 < 1 << 20, "not sparse");
        first(&mut &b""[..], &to).unwrap_err();
    }
}
