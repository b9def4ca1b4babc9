//! Files and layers for tests.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use crate::blocks::{BLOCK, BLOCK_BYTES};
use crate::sparse::file_len;
use crate::{Layer, Writer, Written};

pub(crate) fn empty() -> File {
    tempfile::tempfile().unwrap()
}

pub(crate) fn file(bytes: &[u8]) -> File {
    let mut file = empty();
    file.write_all(bytes).unwrap();
    file
}

pub(crate) fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file_len(file).unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Writes these blocks, each full of a byte, into a new layer.
pub(crate) fn write(length: u64, blocks: &[(u64, u8)]) -> (File, Written) {
    let to = empty();
    let mut writer = Writer::create(&to, length).unwrap();
    for (block, byte) in blocks {
        let len = (length - block * BLOCK_BYTES).min(BLOCK_BYTES);
        writer.put(*block, &[*byte; BLOCK][..usize::try_from(len).unwrap()]).unwrap();
    }
    let written = writer.finish().unwrap();
    (to, written)
}

pub(crate) fn layer(length: u64, blocks: &[(u64, u8)]) -> Layer {
    Layer::open(write(length, blocks).0, Some(length)).unwrap()
}
