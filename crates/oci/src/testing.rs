//! Archives and images for tests, also such as nobody would write.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use crate::digest::Digest;

/// An archive that is being made.
#[derive(Default)]
pub(crate) struct Tar(Vec<u8>);

/// A header; everything that is not said is usual.
#[derive(Clone)]
pub(crate) struct Head {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: u8,
    pub(crate) link: Vec<u8>,
    pub(crate) size: u64,
}

impl Head {
    pub(crate) fn new(path: impl AsRef<[u8]>, kind: u8) -> Self {
        Self { path: path.as_ref().into(), kind, link: Vec::new(), size: 0 }
    }

    pub(crate) fn encode(&self) -> [u8; 512] {
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.path);
        put(100, b"0000755\0");
        put(108, b"0000012\0");
        put(116, b"0000013\0");
        if self.size < 1 << 33 {
            put(124, format!("{:011o}\0", self.size).as_bytes());
        } else {
            put(124, &[0x80, 0, 0, 0]);
            put(128, &self.size.to_be_bytes());
        }
        put(136, b"00000000144\0");
        put(156, &[self.kind]);
        put(157, &self.link);
        put(257, b"ustar\x0000");
        put(329, b"0000005\0");
        put(337, b"0000001\0");
        seal(&mut block);
        block
    }
}

/// Makes the checksum right.
pub(crate) fn seal(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

impl Tar {
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn head(self, head: &Head) -> Self {
        self.raw(&head.encode())
    }

    pub(crate) fn data(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: impl AsRef<[u8]>, text: &[u8]) -> Self {
        self.head(&Head { size: text.len() as u64, ..Head::new(path, b'0') }).data(text)
    }

    pub(crate) fn dir(self, path: impl AsRef<[u8]>) -> Self {
        self.head(&Head::new(path, b'5'))
    }

    pub(crate) fn symlink(self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.head(&Head { link: target.as_ref().into(), ..Head::new(path, b'2') })
    }

    pub(crate) fn link(self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.head(&Head { link: target.as_ref().into(), ..Head::new(path, b'1') })
    }

    /// Records for the member that follows.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = 3 + key.len() + value.len();
            // The length counts its own digits.
            let len = (1..=7).map(|digits| rest + digits).find(|len| len.to_string().len() == len - rest).unwrap();
            text.extend(format!("{len} {key}=").as_bytes());
            text.extend(*value);
            text.push(b'\n');
        }
        self.head(&Head { size: text.len() as u64, ..Head::new("pax", b'x') }).data(&text)
    }

    pub(crate) fn long(self, kind: u8, text: &[u8]) -> Self {
        self.head(&Head { size: text.len() as u64, ..Head::new("././@LongLink", kind) }).data(text)
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).0
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The blobs of an image, and where it begins.
pub(crate) struct Layout {
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) manifest: Digest,
    layers: Vec<Digest>,
}

impl Layout {
    /// Of layers that are packed in any way; the configuration names the unpacked ones.
    pub(crate) fn new(unpacked: &[Vec<u8>], packed: &[Vec<u8>], run: &str) -> Self {
        let mut blobs = BTreeMap::new();
        let mut add = |bytes: Vec<u8>| {
            let digest = Digest::of(&bytes);
            let descriptor = format!(r#"{{"mediaType": "x", "digest": "{digest}", "size": {}}}"#, bytes.len());
            blobs.insert(digest.clone(), bytes);
            (digest, descriptor)
        };
        let (layers, descriptors): (Vec<_>, Vec<_>) = packed.iter().map(|layer| add(layer.clone())).unzip();
        let (_, config) = add(Self::config(unpacked, run).into_bytes());
        let manifest = format!(r#"{{"schemaVersion": 2, "config": {config}, "layers": [{}]}}"#, descriptors.join(","));
        let (manifest, _) = add(manifest.into_bytes());
        Self { blobs, manifest, layers }
    }

    pub(crate) fn config(unpacked: &[Vec<u8>], run: &str) -> String {
        let ids: Vec<_> = unpacked.iter().map(|layer| format!("\"{}\"", Digest::of(layer))).collect();
        format!(
            r#"{{"architecture": "amd64", "os": "linux", "config": {run}, "rootfs": {{"type": "layers", "diff_ids": [{}]}}}}"#,
            ids.join(",")
        )
    }

    pub(crate) fn layers(&self) -> &[Digest] {
        &self.layers
    }

    /// As a directory.
    pub(crate) fn write(&self, dir: &Path) {
        let place = dir.join("blobs/sha256");
        fs::create_dir_all(&place).unwrap();
        for (digest, bytes) in &self.blobs {
            fs::write(place.join(digest.hex()), bytes).unwrap();
        }
        let (digest, size) = (&self.manifest, self.blobs[&self.manifest].len());
        let name = r#""annotations": {"org.opencontainers.image.ref.name": "latest"}"#;
        let index = format!(r#"{{"manifests": [{{"mediaType": "x", "digest": "{digest}", "size": {size}, {name}}}]}}"#);
        fs::write(dir.join("index.json"), index).unwrap();
    }
}
