//! The last of what a process wrote, for readers that are each somewhere else in it.

use std::collections::VecDeque;

use proto::codec::Channel;
use proto::guest::MAX_CHUNK;

/// What a chunk costs besides its bytes: many small ones must not grow without end either.
const CHUNK_COST: usize = 64;

/// Output with its end kept. A place in it is how much was written before.
#[derive(Debug)]
pub(super) struct Kept {
    chunks: VecDeque<Chunk>,
    limit: usize,
    /// All that was ever written.
    end: u64,
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    channel: Channel,
    bytes: Vec<u8>,
}

impl Chunk {
    const fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// What comes at a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// So much that was before it is kept no longer.
    pub(super) skipped: u64,
    pub(super) channel: Channel,
    pub(super) bytes: Vec<u8>,
    /// The place behind it.
    pub(super) next: u64,
}

impl Kept {
    /// Keeps at least so much, and not much more.
    pub(super) const fn new(limit: usize) -> Self {
        Self { chunks: VecDeque::new(), limit, end: 0 }
    }

    /// Adds what was written; at most a frame of it at once.
    pub(super) fn push(&mut self, channel: Channel, bytes: &[u8]) {
        match self.chunks.back_mut() {
            Some(last) if last.channel == channel && last.bytes.len() + bytes.len() <= MAX_CHUNK => {
                last.bytes.extend_from_slice(bytes);
            }
            _ => self.chunks.push_back(Chunk { start: self.end, channel, bytes: bytes.into() }),
        }
        self.end += bytes.len() as u64;
        while self.chunks.front().is_some_and(|first| self.goes(first)) {
            self.chunks.pop_front();
        }
    }

    /// Whether as much is kept without it, or there are so many pieces that they cost as much as what is in them.
    fn goes(&self, first: &Chunk) -> bool {
        let rest = self.end - first.end();
        rest >= self.limit as u64 || self.chunks.len() > self.limit / CHUNK_COST
    }

    /// What comes at this place; nothing at the end.
    pub(super) fn at(&self, place: u64) -> Option<Piece> {
        let index = self.chunks.partition_point(|chunk| chunk.end() <= place);
        let chunk = self.chunks.get(index)?;
        let from = place.max(chunk.start);
        let within = usize::try_from(from - chunk.start).unwrap_or(usize::MAX);
        let bytes = chunk.bytes.get(within..)?.to_vec();
        Some(Piece { skipped: from - place, channel: chunk.channel, next: chunk.end(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kept: &Kept, mut place: u64) -> (u64, Vec<(Channel, u8)>) {
        let (mut skipped, mut read) = (0, Vec::new());
        while let Some(piece) = kept.at(place) {
            skipped += piece.skipped;
            read.extend(piece.bytes.iter().map(|byte| (piece.channel, *byte)));
            assert!(piece.next > place, "it goes on");
            place = piece.next;
        }
        (skipped, read)
    }

    #[test]
    fn the_end_is_kept_and_the_gap_told() {
        let mut kept = Kept::new(2000);
        let mut all = Vec::new();
        for round in 0..4000_u32 {
            let channel = if round % 7 < 3 { Channel::Stdout } else { Channel::Stderr };
            let bytes = vec![round.to_le_bytes()[0]; (round % 5) as usize + 1];
            kept.push(channel, &bytes);
            all.extend(bytes.iter().map(|byte| (channel, *byte)));
            let bytes: usize = kept.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
            assert!(bytes < 2000 + 32 && kept.chunks.len() <= 2000 / CHUNK_COST, "{bytes} in {}", kept.chunks.len());
        }
        for place in [0, 1, all.len() / 2, all.len() - 9, all.len() - 1, all.len()] {
            let (skipped, read) = read(&kept, place as u64);
            let from = place + usize::try_from(skipped).unwrap();
            assert_eq!(read, all[from..], "from {place}");
        }
        assert!(read(&kept, 0).1.len() < 2000);
        assert_eq!(read(&kept, (all.len() - 9) as u64).0, 0);
    }

    #[test]
    fn as_much_as_was_promised_is_there() {
        let mut kept = Kept::new(1 << 20);
        for _ in 0..100 {
            kept.push(Channel::Stdout, &[7; MAX_CHUNK]);
        }
        let (skipped, read) = read(&kept, 0);
        assert!(read.len() >= 1 << 20 && read.len() < (1 << 20) + 2 * MAX_CHUNK, "{}", read.len());
        assert_eq!(skipped + read.len() as u64, 100 * MAX_CHUNK as u64);
    }

    #[test]
    fn a_place_that_is_not_there_yet_has_nothing() {
        assert_eq!(Kept::new(10).at(0), None);
        let mut kept = Kept::new(10);
        kept.push(Channel::Stdout, b"x");
        assert_eq!((kept.at(1), kept.at(u64::MAX)), (None, None));
    }
}
