//! Between a blob and an archive: uncompressed, counted, and compared with its digest at the end.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::digest::{Digest, Hasher};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const BUFFER: usize = 1 << 17;
/// What a decoder may need; compressors do not ask for more unless told to.
const XZ_MEMORY: u64 = 128 << 20;
const ZSTD_WINDOW_LOG: u32 = 27;

/// Bytes that are not what they are said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// More than we take: a bomb.
    #[error("the layers have more than {limit} bytes once they are uncompressed")]
    TooLong {
        /// How many we take.
        limit: u64,
    },
    /// Other contents than were named.
    #[error("the contents should be {expected} and are {found}")]
    Digest {
        /// What was named.
        expected: Digest,
        /// What is there.
        found: Digest,
    },
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Bytes that all layers of an image may have together.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    limit: u64,
    left: Rc<Cell<u64>>,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, left: Rc::new(Cell::new(limit)) }
    }
}

/// The contents, whatever they are compressed with. Who reads to the end gets an error if they are not `expected`.
pub(crate) fn unpacked<'a>(
    source: impl Read + 'a,
    budget: &Budget,
    expected: Option<&Digest>,
) -> io::Result<Box<dyn Read + 'a>> {
    let mut source = BufReader::with_capacity(BUFFER, source);
    let start = peek(&mut source)?;
    let unpacked: Box<dyn Read + 'a> = if start.starts_with(GZIP) {
        Box::new(MultiGzDecoder::new(source))
    } else if start.starts_with(ZSTD) {
        let mut decoder = zstd::Decoder::with_buffer(source)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG)?;
        Box::new(decoder)
    } else if start.starts_with(XZ) {
        let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED);
        Box::new(liblzma::bufread::XzDecoder::new_stream(source, stream.map_err(io::Error::from)?))
    } else {
        Box::new(source)
    };
    Ok(Box::new(compared(Counted { source: unpacked, budget: budget.clone() }, expected)))
}

/// The same bytes. Who reads to the end gets an error if they are not `expected`.
pub(crate) fn compared<R: Read>(source: R, expected: Option<&Digest>) -> Compared<R> {
    Compared { source, check: expected.map(|digest| (digest.hasher(), digest.clone())) }
}

/// The first bytes, which stay where they are.
fn peek(source: &mut BufReader<impl Read>) -> io::Result<[u8; 6]> {
    use std::io::BufRead as _;
    let mut start = [0; 6];
    let there = source.fill_buf()?;
    let len = there.len().min(start.len());
    start[..len].copy_from_slice(&there[..len]);
    Ok(start)
}

/// Bytes of a budget.
struct Counted<R> {
    source: R,
    budget: Budget,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        let left = self.budget.left.get().checked_sub(len as u64);
        self.budget.left.set(left.ok_or(StreamError::TooLong { limit: self.budget.limit })?);
        Ok(len)
    }
}

/// Bytes that are compared with what they should be once all have come.
pub(crate) struct Compared<R> {
    source: R,
    check: Option<(Hasher, Digest)>,
}

impl<R: Read> Read for Compared<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        if len > 0 {
            if let Some((hasher, _)) = &mut self.check {
                hasher.update(&buffer[..len]);
            }
        } else if !buffer.is_empty()
            && let Some((hasher, expected)) = self.check.take()
        {
            let found = hasher.finish();
            if found != expected {
                return Err(StreamError::Digest { expected, found }.into());
            }
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8], limit: u64, expected: Option<&Digest>) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        unpacked(bytes, &Budget::new(limit), expected)?.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn every_compression_is_undone() {
        let text = b"layer".repeat(1000);
        let two = [gzip(&text[..2500]), gzip(&text[2500..])].concat();
        let xz = {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            encoder.write_all(&text).unwrap();
            encoder.finish().unwrap()
        };
        for packed in [text.clone(), gzip(&text), two, zstd::encode_all(&text[..], 1).unwrap(), xz] {
            assert_eq!(read(&packed, 1 << 20, Some(&Digest::of(&text))).unwrap(), text);
        }
    }

    #[test]
    fn bombs_and_forgeries_end_with_an_error() {
        let bomb = gzip(&vec![0; 10 << 20]);
        assert!(bomb.len() < 500_000, "{}", bomb.len());
        let error = read(&bomb, 1 << 20, None).unwrap_err().downcast::<StreamError>().unwrap();
        assert_eq!(error, StreamError::TooLong { limit: 1 << 20 });
        let zeros = vec![0; 10 << 20];
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 6);
        xz.write_all(&zeros).unwrap();
        for bomb in [zstd::encode_all(&zeros[..], 3).unwrap(), xz.finish().unwrap()] {
            assert!(bomb.len() < 50_000, "{}", bomb.len());
            let error = read(&bomb, 1 << 20, None).unwrap_err().downcast::<StreamError>().unwrap();
            assert_eq!(error, StreamError::TooLong { limit: 1 << 20 });
        }
        // Those that want all of our memory to be unpacked.
        let mut wide = zstd::Encoder::new(Vec::new(), 1).unwrap();
        wide.window_log(28).unwrap();
        wide.write_all(&zeros).unwrap();
        read(&wide.finish().unwrap(), 1 << 30, None).unwrap_err();
        let mut options = liblzma::stream::LzmaOptions::new_preset(0).unwrap();
        options.dict_size(192 << 20);
        let mut filters = liblzma::stream::Filters::new();
        filters.lzma2(&options);
        let stream = liblzma::stream::Stream::new_stream_encoder(&filters, liblzma::stream::Check::None).unwrap();
        let mut wide = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        wide.write_all(b"little").unwrap();
        read(&wide.finish().unwrap(), 1 << 30, None).unwrap_err();
        let error = read(b"x", 10, Some(&Digest::of(b"y"))).unwrap_err().downcast::<StreamError>().unwrap();
        assert_eq!(error, StreamError::Digest { expected: Digest::of(b"y"), found: Digest::of(b"x") });
        read(&gzip(b"cut off")[..20], 100, None).unwrap_err();
    }
}
