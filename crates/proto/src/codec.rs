//! Framing of the guest protocol.
//!
//! ```text
//! +----------------+---------+----------------------+
//! | length: u32 LE | channel | length payload bytes |
//! +----------------+---------+----------------------+
//! ```
//!
//! Channel 0 carries one JSON message per frame; channels 1 to 3 carry raw bytes of stdin, stdout and stderr, where an
//! empty frame means end of file. A file's bytes go to the guest as stdin does, and come from it as stdout does. The peer is hostile: a length is checked before anything is allocated for it.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes in front of every payload.
pub const HEADER_LEN: usize = 5;
/// The largest payload: enough for a long argument list, small enough to allocate for a stranger.
pub const MAX_PAYLOAD: usize = 256 << 10;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// One JSON message.
    Message,
    /// Bytes for the process's standard input; empty at its end.
    Stdin,
    /// Bytes of the process's standard output; empty at its end.
    Stdout,
    /// Bytes of the process's standard error; empty at its end.
    Stderr,
}

impl Channel {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Message => 0,
            Self::Stdin => 1,
            Self::Stdout => 2,
            Self::Stderr => 3,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Message),
            1 => Some(Self::Stdin),
            2 => Some(Self::Stdout),
            3 => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// Why bytes are not a frame, or a frame not a message.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The length field is out of bounds.
    #[error("a frame of {length} bytes was announced; the limit is {MAX_PAYLOAD}")]
    TooLong {
        /// The announced length.
        length: usize,
    },
    /// The channel byte is unknown.
    #[error("a frame for channel {channel} was received; this side knows 0 to 3")]
    Channel {
        /// The byte found.
        channel: u8,
    },
    /// The payload is not a message of this protocol.
    #[error("a message could not be understood: {source}")]
    Json {
        /// What the parser says.
        #[from]
        source: serde_json::Error,
    },
    /// A data frame came where only messages are allowed, or the other way round.
    #[error("a {found:?} frame came where it has no place")]
    Unexpected {
        /// What came.
        found: Channel,
    },
    /// The stream ended inside a frame, or failed.
    #[error("the connection broke: {source}")]
    Io {
        /// What the system says.
        #[from]
        source: io::Error,
    },
}

/// One frame, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is.
    pub channel: Channel,
    /// The bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Reads the payload as a message.
    ///
    /// # Errors
    /// When the frame is a data frame or its JSON is not a `T`.
    pub fn message<T: DeserializeOwned>(&self) -> Result<T, CodecError> {
        match self.channel {
            Channel::Message => Ok(serde_json::from_slice(&self.payload)?),
            found => Err(CodecError::Unexpected { found }),
        }
    }
}

fn header(channel: Channel, length: usize) -> Result<[u8; HEADER_LEN], CodecError> {
    match u32::try_from(length) {
        Ok(short) if length <= MAX_PAYLOAD => {
            let [a, b, c, d] = short.to_le_bytes();
            Ok([a, b, c, d, channel.to_byte()])
        }
        _ => Err(CodecError::TooLong { length }),
    }
}

fn parse_header(bytes: [u8; HEADER_LEN]) -> Result<(Channel, usize), CodecError> {
    let [a, b, c, d, channel] = bytes;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > MAX_PAYLOAD {
        return Err(CodecError::TooLong { length });
    }
    Ok((Channel::from_byte(channel).ok_or(CodecError::Channel { channel })?, length))
}

/// Writes one frame with a single `write_all`, so that frames of several threads never mix under one lock.
///
/// # Errors
/// When the payload is too long or the stream fails.
pub fn write_frame(stream: &mut impl Write, channel: Channel, payload: &[u8]) -> Result<(), CodecError> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    bytes.extend_from_slice(&header(channel, payload.len())?);
    bytes.extend_from_slice(payload);
    stream.write_all(&bytes)?;
    Ok(())
}

/// Writes one message frame.
///
/// # Errors
/// When the message is too long or the stream fails.
pub fn write_message<T: Serialize>(stream: &mut impl Write, message: &T) -> Result<(), CodecError> {
    write_frame(stream, Channel::Message, &serde_json::to_vec(message)?)
}

/// Reads one frame; `None` when the stream ended between frames.
///
/// # Errors
/// When the stream fails, ends inside a frame, or does not carry this protocol.
pub fn read_frame(stream: &mut impl Read) -> Result<Option<Frame>, CodecError> {
    let mut head = [0; HEADER_LEN];
    let mut filled = 0;
    while filled < HEADER_LEN {
        match stream.read(&mut head[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let (channel, length) = parse_header(head)?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Some(Frame { channel, payload }))
}

/// Reads one frame that must be a message; `None` when the stream ended between frames.
///
/// # Errors
/// As [`read_frame`], and when it is a data frame or not a `T`.
pub fn read_message<T: DeserializeOwned>(stream: &mut impl Read) -> Result<Option<T>, CodecError> {
    read_frame(stream)?.map(|frame| frame.message()).transpose()
}

/// Cuts frames out of bytes that arrive in pieces, for callers that must not block.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Takes in bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// When the bytes are not a frame; the stream cannot be used after that.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, CodecError> {
        let Some(head) = self.pending.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let (channel, length) = parse_header(*head)?;
        let Some(payload) = self.pending.get(HEADER_LEN..HEADER_LEN + length) else { return Ok(None) };
        let payload = payload.to_vec();
        self.pending.drain(..HEADER_LEN + length);
        Ok(Some(Frame { channel, payload }))
    }

    /// What came behind the last whole frame, for a stream that carries frames no longer.
    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::guest::{Reply, Request};

    fn channel() -> impl Strategy<Value = Channel> {
        prop_oneof![Just(Channel::Message), Just(Channel::Stdin), Just(Channel::Stdout), Just(Channel::Stderr)]
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_is_allocated() {
        let bytes = [0xff, 0xff, 0xff, 0xff, 0];
        assert!(matches!(read_frame(&mut &bytes[..]), Err(CodecError::TooLong { length: 0xffff_ffff })));
        let huge = vec![0; MAX_PAYLOAD + 1];
        assert!(matches!(write_frame(&mut io::sink(), Channel::Stdin, &huge), Err(CodecError::TooLong { .. })));
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_an_error_and_between_frames_is_not() {
        assert!(matches!(read_frame(&mut &[][..]), Ok(None)));
        for bytes in [&[1, 0][..], &[4, 0, 0, 0, 2, 9, 9][..]] {
            assert!(matches!(read_frame(&mut &bytes[..]), Err(CodecError::Io { .. })));
        }
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            frames in prop::collection::vec((channel(), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
            cut in 1_usize..64,
        ) {
            let mut wire = Vec::new();
            for (channel, payload) in &frames {
                write_frame(&mut wire, *channel, payload).unwrap();
            }
            let (mut decoder, mut pushed) = (Decoder::default(), Vec::new());
            for piece in wire.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    pushed.push((frame.channel, frame.payload));
                }
            }
            prop_assert_eq!(&pushed, &frames);
            let (mut stream, mut read) = (&wire[..], Vec::new());
            while let Some(frame) = read_frame(&mut stream).unwrap() {
                read.push((frame.channel, frame.payload));
            }
            prop_assert_eq!(&read, &frames);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut stream = &bytes[..];
            while let Ok(Some(frame)) = read_frame(&mut stream) {
                prop_assert!(frame.payload.len() <= MAX_PAYLOAD);
                drop((frame.message::<Request>(), frame.message::<Reply>()));
            }
            drop((serde_json::from_slice::<Request>(&bytes), serde_json::from_slice::<Reply>(&bytes)));
        }
    }
}
