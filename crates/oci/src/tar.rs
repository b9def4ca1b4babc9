//! Reads tar archives as people make them: ustar, GNU (long names, sparse files, large numbers) and PAX.
//!
//! An archive is hostile: every length it states is bounded, and nothing is believed of its names here. Contents are
//! not read but passed over; where they lie in the stream is part of what is said of a member.
//!
//! ```text
//! [extension: long name, long link, PAX records]*  header  [sparse map]  contents, to a multiple of 512
//! ```

mod header;
mod pax;
mod sparse;

use std::io::{self, Read};

use ext4::{Content, DeviceKind, Time};

use header::{BLOCK, Header};
use pax::Pax;

/// The longest extension; no sane name or attribute is longer.
const MAX_EXTENSION: u64 = 1 << 20;

/// Not an archive, or not one that we read.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// A header's checksum is wrong.
    #[error("at byte {at} there should be a header of a tar archive, and there is none")]
    Header {
        /// Where in the stream.
        at: u64,
    },
    /// A number that is none, or is too large or too small for what it says.
    #[error("at byte {at}: the {field} in a header is not a number we can use")]
    Number {
        /// Where in the stream.
        at: u64,
        /// Which number.
        field: &'static str,
    },
    /// An extension that breaks its own rules, or is too long.
    #[error("at byte {at}: a malformed extension ({what})")]
    Extension {
        /// Where in the stream.
        at: u64,
        /// Which kind.
        what: &'static str,
    },
    /// A kind of file that we do not know.
    #[error("at byte {at}: a member of the unknown kind `{}`", kind.escape_ascii())]
    Kind {
        /// Where in the stream.
        at: u64,
        /// As it is in the header.
        kind: u8,
    },
    /// The archive ends too early.
    #[error("the archive ends at byte {at}, in the middle of a member")]
    Truncated {
        /// Where in the stream.
        at: u64,
    },
    /// The archive could not be read.
    #[error("cannot read the archive")]
    Read {
        /// Why.
        source: io::Error,
    },
}

/// Where an archive is read from.
pub(crate) trait Stream: Read {
    /// Passes over so many bytes, or as many as there are.
    fn pass(&mut self, len: u64) -> io::Result<u64> {
        io::copy(&mut self.take(len), &mut io::sink())
    }
}

impl Stream for &[u8] {}

impl Stream for Box<dyn Read + '_> {}

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberKind {
    File(Content),
    HardLink,
    Symlink,
    Directory,
    Device(DeviceKind),
    Fifo,
}

/// One member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) kind: MemberKind,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    pub(crate) device: (u32, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where in the stream its pieces lie, one after the other.
    pub(crate) at: u64,
    /// How many bytes it has there.
    pub(crate) stored: u64,
}

/// An archive that is being read.
#[derive(Debug)]
pub(crate) struct Archive<R> {
    source: R,
    /// Bytes read so far.
    at: u64,
    /// Bytes until the next header.
    rest: u64,
    /// How many of them only fill a block.
    padding: u64,
}

/// What extensions said of the next member.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Pax,
}

impl<R: Stream> Archive<R> {
    pub(crate) const fn new(source: R) -> Self {
        Self { source, at: 0, rest: 0, padding: 0 }
    }

    /// The next member; nothing after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, TarError> {
        let mut extensions = Extensions::default();
        loop {
            self.skip()?;
            let at = self.at;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = extensions.pax.size.map_or_else(|| header.size(), Some);
            let size = size.ok_or(TarError::Number { at, field: "size" })?;
            match header.kind() {
                b'L' => extensions.path = Some(c_string(self.extension(&header, "long name")?)),
                b'K' => extensions.link = Some(c_string(self.extension(&header, "long link")?)),
                b'x' => {
                    let text = self.extension(&header, "PAX")?;
                    extensions.pax = Pax::parse(&text).ok_or(TarError::Extension { at, what: "PAX" })?;
                }
                // What is said of all members, volume labels: nothing that would be a file.
                b'g' | b'V' => self.expect(size, at)?,
                kind => return self.member(&header, kind, size, extensions).map(Some),
            }
        }
    }

    /// Reads to the end, whatever follows the last member, and hands the source back.
    pub(crate) fn finish(mut self) -> Result<R, TarError> {
        io::copy(&mut self.source, &mut io::sink()).map_err(|source| TarError::Read { source })?;
        Ok(self.source)
    }

    fn member(&mut self, header: &Header, kind: u8, size: u64, said: Extensions) -> Result<Member, TarError> {
        let at = self.at - BLOCK as u64;
        let number = |found: Option<u32>, field| found.ok_or(TarError::Number { at, field });
        let Extensions { path, link, pax } = said;
        let path = pax.path.clone().or(path).unwrap_or_else(|| header.path());
        let link = pax.link.clone().or(link).unwrap_or_else(|| header.link());
        let kind = match kind {
            b'0' | 0 if path.ends_with(b"/") => MemberKind::Directory,
            b'0' | b'7' | 0 => self.file(&pax, size, at)?,
            b'S' => self.gnu_sparse(header, size)?,
            b'1' => MemberKind::HardLink,
            b'2' => MemberKind::Symlink,
            b'3' => MemberKind::Device(DeviceKind::Character),
            b'4' => MemberKind::Device(DeviceKind::Block),
            b'5' => MemberKind::Directory,
            b'6' => MemberKind::Fifo,
            kind => return Err(TarError::Kind { at, kind }),
        };
        let stored = if let MemberKind::File(content) = &kind {
            content.pieces.iter().map(|piece| piece.len).sum()
        } else {
            // Only files have contents, whatever the size says.
            self.rest = 0;
            0
        };
        Ok(Member {
            kind,
            path,
            link,
            mode: header.mode().ok_or(TarError::Number { at, field: "mode" })?,
            uid: number(pax.uid.or_else(|| header.uid()), "owner")?,
            gid: number(pax.gid.or_else(|| header.gid()), "group")?,
            mtime: pax.mtime.or_else(|| header.mtime()).ok_or(TarError::Number { at, field: "time" })?,
            device: (number(header.major(), "device")?, number(header.minor(), "device")?),
            xattrs: pax.xattrs,
            at: self.at,
            stored,
        })
    }

    /// A plain file, or one whose holes PAX records tell of.
    fn file(&mut self, pax: &Pax, size: u64, at: u64) -> Result<MemberKind, TarError> {
        self.expect(size, at)?;
        let broken = || TarError::Extension { at, what: "sparse map" };
        let Some(sparse) = &pax.sparse else { return Ok(MemberKind::File(Content::whole(size))) };
        let (content, stored) = if sparse.map_is_in_contents {
            let before = self.at;
            let numbers = sparse::read_map(|block| self.take(block)).map_err(|error| error.or(broken))?;
            let stored = size.checked_sub(self.at - before).ok_or_else(broken)?;
            (sparse.content(&numbers), stored)
        } else {
            (sparse.content(&sparse.map), size)
        };
        let content = content.filter(|content| pieces(content) == Some(stored)).ok_or_else(broken)?;
        Ok(MemberKind::File(content))
    }

    /// The old way of GNU tar: four pieces in the header, more in blocks that follow it.
    fn gnu_sparse(&mut self, header: &Header, size: u64) -> Result<MemberKind, TarError> {
        let at = self.at;
        let broken = || TarError::Extension { at, what: "sparse map" };
        let (mut map, mut more) = header.sparse_map().ok_or_else(broken)?;
        while more {
            let mut block = [0; BLOCK];
            self.fill(&mut block)?;
            let (pieces, further) = header::sparse_block(&block).ok_or_else(broken)?;
            map.extend(pieces);
            more = further;
            if map.len() > sparse::MAX_NUMBERS {
                return Err(broken());
            }
        }
        self.expect(size, at)?;
        let content = sparse::content(header.real_size().ok_or_else(broken)?, &map);
        let content = content.filter(|content| pieces(content) == Some(size)).ok_or_else(broken)?;
        Ok(MemberKind::File(content))
    }

    fn extension(&mut self, header: &Header, what: &'static str) -> Result<Vec<u8>, TarError> {
        let size = header.size().filter(|size| *size <= MAX_EXTENSION);
        let size = size.ok_or(TarError::Extension { at: self.at, what })?;
        self.expect(size, self.at)?;
        let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
        self.fill(&mut text)?;
        self.rest -= size;
        Ok(text)
    }

    /// Nothing at the end of the stream, or where blocks of zeros say that this is the end.
    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let mut block = [0; BLOCK];
        let mut len = 0;
        while len < BLOCK {
            match self.source.read(&mut block[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(TarError::Read { source }),
            }
        }
        let at = self.at;
        self.at += len as u64;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if len < BLOCK {
            return Err(TarError::Truncated { at: self.at });
        }
        Header::new(block).map(Some).ok_or(TarError::Header { at })
    }

    /// So many bytes of contents follow, and what fills their last block.
    fn expect(&mut self, size: u64, at: u64) -> Result<(), TarError> {
        let padded = size.checked_next_multiple_of(BLOCK as u64);
        self.rest = padded.ok_or(TarError::Number { at, field: "size" })?;
        self.padding = self.rest - size;
        Ok(())
    }

    /// To the next header. An archive may end where its last contents do: there are programs that leave it at that.
    fn skip(&mut self) -> Result<(), TarError> {
        let skipped = self.source.pass(self.rest);
        let skipped = skipped.map_err(|source| TarError::Read { source })?;
        self.at += skipped;
        if skipped < self.rest && self.rest - skipped > self.padding {
            return Err(TarError::Truncated { at: self.at });
        }
        self.rest = 0;
        Ok(())
    }

    /// A block of the member's contents.
    fn take(&mut self, block: &mut [u8; BLOCK]) -> Result<(), TarError> {
        self.rest = self.rest.checked_sub(BLOCK as u64).ok_or(TarError::Truncated { at: self.at })?;
        self.fill(block)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), TarError> {
        match self.source.read_exact(bytes) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(TarError::Truncated { at: self.at }),
            Err(source) => Err(TarError::Read { source }),
        }
    }
}

fn pieces(content: &Content) -> Option<u64> {
    content.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len))
}

fn c_string(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    bytes
}
