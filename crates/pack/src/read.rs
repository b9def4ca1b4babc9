//! Reading a pack that anybody may have made.
//!
//! The stream is one zstd frame whose window is bounded; in it a plain tar whose members are those that its first one
//! lists: as many, in that order, each of the length and with the sum that is written there. Extensions of tar are
//! members of a kind that is refused, so nothing in a header is ever unpacked, followed or allocated for.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Take};

use layer::dense::{self, DenseError, Expected};
use layer::{Digest, MAX_LENGTH};
use tar::{EntryType, Header};
use types::progress::Progress;
use zstd::stream::read::Decoder;

use crate::manifest::{Limits, Manifest, ManifestError, Member, Path, shown};
use crate::pace::{Pace, Summed};
use crate::write::MANIFEST;

/// Twice what `zstd -19` makes use of: 16 MiB.
const WINDOW_LOG: u32 = 24;
const TAR_BLOCK: u64 = 512;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// What tar adds to each member: a header and padding.
const PER_MEMBER: u64 = 1024;
/// The largest record that tars are padded to.
const MAX_TRAILER: u64 = 16 << 10;

/// Why a pack was not read to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Something else altogether.
    #[error("this is not a pack: it is not compressed with zstd")]
    Foreign,
    /// The list cannot be used.
    #[error("the pack cannot be used: {0}")]
    Manifest(#[from] ManifestError),
    /// It ends too early, is damaged, or cannot be read.
    #[error("the pack is damaged or cannot be read")]
    Stream {
        /// What the stream says.
        source: io::Error,
    },
    /// Something that is not a file, or that is not in the list, or not now.
    #[error("the pack is refused: its member `{found}` {problem}")]
    Member {
        /// Its name.
        found: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The list goes on.
    #[error("the pack is refused: its member `{path}` is missing")]
    Missing {
        /// The next one.
        path: Path,
    },
    /// A layer is not what its name says.
    #[error("the pack is refused: layer {digest} is not what it should be")]
    Layer {
        /// Which.
        digest: Digest,
        /// What is wrong with it.
        source: DenseError,
    },
    /// Something follows.
    #[error("the pack is refused: there is more in it than it lists")]
    Trailing,
    /// What is read cannot be kept.
    #[error("what is in the pack cannot be written")]
    Write {
        /// What the system says.
        source: io::Error,
    },
}

/// Where members go.
pub trait Sink {
    /// An empty file for a layer, which will be written at its places.
    ///
    /// # Errors
    /// When there can be none.
    fn layer(&mut self, digest: Digest) -> io::Result<File>;

    /// What a snapshot of the chain says about itself; it is short.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn manifest(&mut self, link: usize, bytes: Vec<u8>) -> io::Result<()>;

    /// The vCPUs and devices of a snapshot of the chain; at most [`MAX_STATE`](crate::MAX_STATE).
    ///
    /// # Errors
    /// When it cannot be kept.
    fn state(&mut self, link: usize, bytes: &[u8]) -> io::Result<()>;
}

/// Reads a pack to its end. `accept` sees the manifest before anything else is read and says where the rest goes.
///
/// # Errors
/// When anything is not as it should be; what the sink was given until then is worth nothing.
pub fn read<S: Sink, E: From<ReadError>>(
    from: impl Read,
    limits: &Limits,
    progress: &dyn Progress,
    cancelled: &dyn Fn() -> bool,
    accept: impl FnOnce(&Manifest) -> Result<S, E>,
) -> Result<(Manifest, S), E> {
    let stream = |source| ReadError::Stream { source };
    let mut from = BufReader::new(from);
    if !from.fill_buf().map_err(stream)?.starts_with(&ZSTD_MAGIC) {
        return Err(ReadError::Foreign.into());
    }
    let mut decoder = Decoder::with_buffer(from).map_err(stream)?.single_frame();
    decoder.window_log_max(WINDOW_LOG).map_err(stream)?;
    // Until the list is known, there is only the list.
    let mut tar = decoder.take(limits.manifest.saturating_add(PER_MEMBER));
    let manifest = read_manifest(&mut tar, limits)?;
    let mut sink = accept(&manifest)?;
    let members = manifest.files.len() as u64 * PER_MEMBER;
    tar.set_limit(manifest.total().saturating_add(members + MAX_TRAILER));
    let pace = Pace::new(progress.stage("Unpacking", Some(manifest.total())), cancelled);
    for member in &manifest.files {
        read_member(&mut tar, member, &mut sink, &pace)?;
    }
    expect_end(tar)?;
    Ok((manifest, sink))
}

fn read_manifest(tar: &mut impl Read, limits: &Limits) -> Result<Manifest, ReadError> {
    let header = next_header(tar)?.ok_or(ReadError::Foreign)?;
    let size = plain_size(&header)?;
    if header.path_bytes() != MANIFEST.as_bytes() {
        return Err(refused(&header, format!("comes where `{MANIFEST}` should")));
    }
    if size > limits.manifest {
        return Err(refused(&header, format!("has {size} bytes, and there can be {}", limits.manifest)));
    }
    let bytes = read_short(&mut tar.by_ref().take(size), size)?;
    skip_padding(tar, size)?;
    Ok(Manifest::parse(&bytes, limits)?)
}

fn read_member(tar: &mut impl Read, member: &Member, sink: &mut impl Sink, pace: &Pace<'_>) -> Result<(), ReadError> {
    let header = next_header(tar)?.ok_or(ReadError::Missing { path: member.path })?;
    let size = plain_size(&header)?;
    if header.path_bytes() != member.path.to_string().as_bytes() {
        return Err(refused(&header, format!("comes where the list has `{}`", member.path)));
    }
    if size != member.size {
        return Err(refused(&header, format!("has {size} bytes, and the list says {}", member.size)));
    }
    let mut body = Summed::new(tar.by_ref().take(size), pace);
    let write = |source| ReadError::Write { source };
    match member.path {
        Path::Layer(digest) => read_layer(&mut body, digest, size, sink)?,
        Path::Manifest(link) => sink.manifest(link, read_short(&mut body, size)?).map_err(write)?,
        Path::State(link) => sink.state(link, &read_short(&mut body, size)?).map_err(write)?,
    }
    match body.finish() {
        (read, sha256) if (read, sha256) == (size, member.sha256) => skip_padding(tar, size),
        _ => Err(refused(&header, "does not have the sum that the list says".into())),
    }
}

fn read_layer(body: &mut impl Read, digest: Digest, size: u64, sink: &mut impl Sink) -> Result<(), ReadError> {
    let to = sink.layer(digest).map_err(|source| ReadError::Write { source })?;
    let expected = Expected { digest, dense_bytes: size, max_length: MAX_LENGTH };
    match dense::import(body, &expected, &to) {
        Ok(_) => Ok(()),
        Err(DenseError::Read { source }) => Err(ReadError::Stream { source }),
        Err(DenseError::Write { source }) => Err(ReadError::Write { source }),
        Err(source) => Err(ReadError::Layer { digest, source }),
    }
}

/// All of something whose length was bounded. Room is made as it comes.
fn read_short(from: &mut impl Read, size: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).map_err(|source| ReadError::Stream { source })?;
    if bytes.len() as u64 == size {
        Ok(bytes)
    } else {
        Err(ReadError::Stream { source: io::ErrorKind::UnexpectedEof.into() })
    }
}

/// `None` at the end that a tar has, which is a block of zeroes.
fn next_header(tar: &mut impl Read) -> Result<Option<Box<Header>>, ReadError> {
    let mut header = Box::new(Header::new_old());
    tar.read_exact(header.as_mut_bytes()).map_err(|source| ReadError::Stream { source })?;
    if header.as_bytes().iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let (before, after) = (&header.as_bytes()[..148], &header.as_bytes()[156..]);
    // The sum counts itself as blanks.
    let sum = before.iter().chain(after).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
    match header.cksum() {
        Ok(said) if said == sum => Ok(Some(header)),
        _ => Err(ReadError::Stream { source: io::Error::other("a header in it has another sum than it says") }),
    }
}

/// The size of what is nothing but a file.
fn plain_size(header: &Header) -> Result<u64, ReadError> {
    let kind = match header.entry_type() {
        EntryType::Regular => return header.entry_size().map_err(|error| refused(header, error.to_string())),
        EntryType::Symlink => "a symbolic link",
        EntryType::Link => "a hard link",
        EntryType::Directory => "a directory",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a pipe",
        _ => "an extension of tar",
    };
    Err(refused(header, format!("is {kind}, and a pack has only plain files")))
}

fn refused(header: &Header, problem: String) -> ReadError {
    ReadError::Member { found: shown(&String::from_utf8_lossy(&header.path_bytes())), problem }
}

fn skip_padding(tar: &mut impl Read, size: u64) -> Result<(), ReadError> {
    let mut padding = [0; 512];
    let len = usize::try_from(size.next_multiple_of(TAR_BLOCK) - size).expect("less than a block");
    tar.read_exact(&mut padding[..len]).map_err(|source| ReadError::Stream { source })
}

/// After the last member come zeroes, and not many; then the stream is over, and what it was read from as well.
fn expect_end<R: BufRead>(mut tar: Take<Decoder<'_, R>>) -> Result<(), ReadError> {
    let stream = |source| ReadError::Stream { source };
    if let Some(header) = next_header(&mut tar)? {
        return Err(refused(&header, "is not in the list".into()));
    }
    tar.set_limit(MAX_TRAILER);
    let mut rest = Vec::new();
    tar.read_to_end(&mut rest).map_err(stream)?;
    if tar.limit() == 0 || rest.iter().any(|byte| *byte != 0) {
        return Err(ReadError::Trailing);
    }
    match tar.into_inner().finish().fill_buf().map_err(stream)? {
        [] => Ok(()),
        _ => Err(ReadError::Trailing),
    }
}
