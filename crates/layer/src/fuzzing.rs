//! The body of the fuzz target: arbitrary files as layers, as they are or with sums that fit them.
//!
//! What must hold: no panic, no more memory than a file of that size calls for, and whatever passes [`Layer::check`] is
//! what [`Writer`] makes of the same contents, to the bit.

use std::fs::File;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

use crate::blocks::{self, BLOCK_BYTES, BlockSet, REGION, REGION_BLOCKS};
use crate::format::{ENTRY_LEN, Entry, Footer, table_at};
use crate::{Base, Bottom, Kind, Layer, Stack, Writer, flatten, merge};

/// How many entries a forged layer has at most.
const MAX_ENTRIES: usize = 8;

/// Arbitrary bytes as a layer.
///
/// # Panics
/// When something does not hold.
pub fn layer(bytes: &[u8]) {
    let [mode, low, high, odd, rest @ ..] = bytes else { return };
    let length = (u64::from(u16::from_le_bytes([*low, *high])) * BLOCK_BYTES).saturating_sub(u64::from(*odd));
    let file = match mode % 3 {
        0 => {
            let file = memory_file();
            file.write_all_at(bytes, 0).expect("a file in memory");
            file
        }
        1 => forge(length, &entries(rest), rest),
        _ => plausible(length, rest),
    };
    let expected = (mode & 128 != 0).then_some(length);
    let Ok(layer) = Layer::open(file, expected) else { return };
    assert!(layer.blocks().all(|(run, _)| run.start < run.end && run.end <= blocks::count(layer.len_bytes())));
    let honest = layer.check(|_| {}).is_ok();
    assert!(layer.check_quick().is_ok() || !honest, "the quick check is part of the other");
    if honest {
        is_canonical(layer);
    }
}

/// Writes a good layer anew in several ways.
fn is_canonical(layer: Layer) {
    let (again, merged, flat) = (memory_file(), memory_file(), memory_file());
    let mut writer = Writer::create(&again, layer.len_bytes()).expect("an empty file");
    for (run, kind) in layer.blocks() {
        let bytes = blocks::bytes_of(&run, layer.len_bytes());
        let mut data = vec![0; blocks::len_of(&bytes)];
        layer.file().read_exact_at(&mut data, bytes.start).expect("it was checked");
        assert_eq!(blocks::is_zero(&data), kind == Kind::Zero);
        writer.put(run.start, &data).expect("there is room");
    }
    let written = writer.finish().expect("there is room");
    assert_eq!((written.digest, written.stats), (layer.digest(), layer.stats()));
    let layers = [layer];
    assert_eq!(merge(&layers, Bottom::Inherit, &merged).expect("there is room"), written);
    let base = Base::Zero { length: layers[0].len_bytes() };
    let stack = Stack::open(base, layers.into()).expect("it is of that length");
    flatten(&stack, &flat).expect("there is room");
    assert_eq!(flat.metadata().expect("a file in memory").len(), stack.len_bytes());
}

fn entries(bytes: &[u8]) -> Vec<Entry> {
    bytes.as_chunks::<ENTRY_LEN>().0.iter().take(MAX_ENTRIES).map(Entry::decode).collect()
}

/// A layer whose entries are in order and whose contents, made of the same bytes, have the right sums.
fn plausible(length: u64, bytes: &[u8]) -> File {
    let (mut entries, mut next) = (entries(bytes), 0);
    for entry in &mut entries {
        entry.region = next;
        next += 1 + entry.quick % 2;
        let here = blocks::count(length).saturating_sub(entry.first()).min(REGION_BLOCKS);
        let mut room = BlockSet::default();
        room.insert(0..here);
        entry.has = entry.has & room;
        entry.zero = entry.zero & entry.has;
    }
    entries.retain(|entry| !entry.has.is_empty());
    let file = forge(length, &entries, bytes);
    let mut data = Vec::with_capacity(REGION);
    for entry in &mut entries {
        data.clear();
        for run in entry.data_runs() {
            let place = blocks::bytes_of(&run, length);
            let piece: Vec<u8> = bytes.iter().cycle().copied().take(blocks::len_of(&place)).collect();
            file.write_all_at(&piece, place.start).expect("a file in memory");
            data.extend(piece);
        }
        (entry.quick, entry.digest) = (xxh3_64(&data), blake3::hash(&data).into());
    }
    seal(&file, length, &entries);
    file
}

/// A file with these contents, and with a table and footer that agree with each other.
pub(crate) fn forge(length: u64, entries: &[Entry], contents: &[u8]) -> File {
    let file = memory_file();
    let len = contents.len().min(usize::try_from(length).unwrap_or(usize::MAX));
    file.write_all_at(&contents[..len], 0).expect("a file in memory");
    seal(&file, length, entries);
    file
}

fn seal(file: &File, length: u64, entries: &[Entry]) {
    let count = u64::try_from(entries.len()).expect("usize fits in u64");
    let mut tail: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
    tail.extend(Footer { length, entries: count }.encode());
    let digest = blake3::hash(&tail);
    tail.extend(digest.as_bytes());
    file.write_all_at(&tail, table_at(length)).expect("a file in memory");
}

fn memory_file() -> File {
    rustix::fs::memfd_create("layer", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory").into()
}
