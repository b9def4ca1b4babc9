//! The body of the fuzz target: arbitrary bytes as a pack, as they are or in the shape of one, with tiny limits.
//!
//! What must hold: no panic, no more memory or files than the limits allow, and whatever is read to its end has the
//! members that its manifest lists.

use std::fs::File;
use std::io;

use layer::{Digest, Layer};
use types::progress::Silent;

use crate::manifest::{Limits, Manifest, Path};
use crate::read::{ReadError, Sink, read};

const TINY: Limits = Limits { manifest: 4096, links: 3, members: 8, total: 1 << 20 };

/// Keeps what comes in memory.
#[derive(Default)]
struct Kept {
    members: Vec<Path>,
    layers: Vec<(Digest, File)>,
}

impl Sink for Kept {
    fn layer(&mut self, digest: Digest) -> io::Result<File> {
        let file: File = rustix::fs::memfd_create("layer", rustix::fs::MemfdFlags::CLOEXEC)?.into();
        self.members.push(Path::Layer(digest));
        self.layers.push((digest, file.try_clone()?));
        Ok(file)
    }

    fn manifest(&mut self, link: usize, bytes: Vec<u8>) -> io::Result<()> {
        assert!(bytes.len() as u64 <= TINY.total);
        self.members.push(Path::Manifest(link));
        Ok(())
    }

    fn state(&mut self, link: usize, bytes: &[u8]) -> io::Result<()> {
        assert!(bytes.len() as u64 <= TINY.total);
        self.members.push(Path::State(link));
        Ok(())
    }
}

/// Arbitrary bytes as a pack. The first one says what is done to the others before.
///
/// # Panics
/// When something does not hold.
pub fn pack(bytes: &[u8]) {
    let Some((mode, rest)) = bytes.split_first() else { return };
    let stream = if mode % 2 == 0 { rest.to_vec() } else { compressed(rest) };
    let accept = |manifest: &Manifest| {
        assert!(manifest.total() <= TINY.total && manifest.files.len() <= TINY.members);
        Ok::<_, ReadError>(Kept::default())
    };
    let Ok((manifest, kept)) = read(&stream[..], &TINY, &Silent, &|| false, accept) else { return };
    assert!(manifest.files.iter().map(|member| member.path).eq(kept.members));
    for (digest, file) in kept.layers {
        let layer = Layer::open(file, None).expect("it was read");
        assert_eq!(layer.digest(), digest);
        layer.check(|_| {}).expect("it was checked");
    }
}

/// A tar's headers have sums that no fuzzer guesses: each block that could be one gets the right one.
fn compressed(tar: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    for block in tar.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    zstd::encode_all(&tar[..], 1).expect("memory takes it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, members, zipped};

    #[test]
    fn a_good_pack_passes_and_noise_does_not_matter() {
        let raw = members(&World::with_chain().pack("base"));
        pack(&[&[0], &zipped(&raw)[..]].concat());
        let tar = zstd::decode_all(&zipped(&raw)[..]).expect("it was just made");
        pack(&[&[1], &tar[..]].concat());
        for at in (0..tar.len()).step_by(97) {
            let mut changed = tar.clone();
            changed[at] ^= 255;
            pack(&[&[1], &changed[..]].concat());
        }
    }
}
