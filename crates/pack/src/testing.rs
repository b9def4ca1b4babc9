//! Stores with snapshots in them, and packs made by hand, for tests.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path as FsPath, PathBuf};

use layer::{Digest, Writer};
use sha2::Digest as _;
use store::{Described, Existing, Origin, Snapshot, Store};
use tar::{EntryType, Header};
use tempfile::TempDir;
use types::progress::Silent;
use types::{Dirs, GuestMemorySize, Tag, VcpuCount};

use crate::host::HostCpu;
use crate::install::{Installed, UnpackError, UnpackSpec, unpack_on};
use crate::manifest::{Limits, Manifest, Member, Requires};
use crate::pack::{PackSpec, pack};

pub(crate) const DISK: u64 = (3 << 20) + 100;
const MEMORY: u64 = 8 << 20;

pub(crate) fn requires() -> Requires {
    Requires {
        arch: std::env::consts::ARCH.into(),
        cpu_vendor: "TestVendor".into(),
        cpu_flags: Vec::new(),
        guest_kernel: "6.1.0".into(),
        state_format: types::STATE_FORMAT,
        vcpus: 1,
        memory_mib: 512,
    }
}

pub(crate) fn tag(text: &str) -> Tag {
    text.parse().unwrap()
}

/// A store of its own.
pub(crate) struct World {
    pub(crate) home: TempDir,
    pub(crate) store: Store,
}

impl World {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(&Dirs::under(home.path()));
        Self { home, store }
    }

    /// With `base`, and `next` that descends from it.
    pub(crate) fn with_chain() -> Self {
        let world = Self::new();
        let base = world.snapshot("base", None, 1);
        world.snapshot("next", Some(&base), 2);
        world
    }

    pub(crate) fn snapshot(&self, name: &str, parent: Option<&Snapshot>, byte: u8) -> Snapshot {
        let origin = match parent {
            Some(parent) => Origin::branched(parent.manifest().clone(), "sb-1".into()),
            None => Origin::booted(vec![self.image()]),
        };
        let staged = self.store.stage(&tag(name), Existing::Keep, origin).unwrap();
        let state = format!(
            "forkd-state {} 1 x\n{{\"arch\":\"{}\",\"cpu_vendor\":\"TestVendor\"}}\n",
            types::STATE_FORMAT,
            std::env::consts::ARCH
        );
        staged.state().unwrap().write_all(&[state.as_bytes(), &[byte]].concat()).unwrap();
        write_layer(&staged.memory().unwrap(), MEMORY, byte);
        write_layer(&staged.layer(0).unwrap(), DISK, byte);
        let described = Described {
            recipe: None,
            kernel: "6.1.0".into(),
            agent: "0.1.0".into(),
            vcpus: VcpuCount::DEFAULT,
            memory: GuestMemorySize::DEFAULT,
            network: false,
            egress: None,
            interpreter: None,
            ports: Vec::new(),
            pause_us: None,
        };
        staged.commit(described).unwrap()
    }

    fn image(&self) -> PathBuf {
        let path = self.home.path().join("image");
        let file = File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        if file.metadata().unwrap().len() == 0 {
            file.set_len(DISK).unwrap();
            file.write_all_at(&[9; 5000], 1 << 20).unwrap();
        }
        path
    }

    pub(crate) fn pack(&self, name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let spec = PackSpec { tag: tag(name), description: Some("a word".into()), base_image: None };
        let packed = pack(&self.store, &spec, &mut bytes, &Silent, &|| false).unwrap();
        assert_eq!(packed.bytes, bytes.len() as u64);
        bytes
    }

    pub(crate) fn unpack(&self, bytes: &[u8], spec: &UnpackSpec) -> Result<Vec<Installed>, UnpackError> {
        unpack_on(&self.cpu(bytes), &self.store, bytes, spec, &Silent, &|| false)
    }

    /// What the pack asks for, as far as it can be read.
    fn cpu(&self, bytes: &[u8]) -> HostCpu {
        let cpu = HostCpu::here().unwrap();
        assert!(bytes.len() < 1 << 30 && self.home.path().exists());
        HostCpu { vendor: "TestVendor".into(), ..cpu }
    }

    /// Refused, and nothing has changed by it.
    pub(crate) fn refuses(&self, bytes: &[u8]) -> String {
        let before = self.tree();
        let error = self.unpack(bytes, &AS_IT_IS).unwrap_err();
        assert_eq!(self.tree(), before, "after: {error}");
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }

    /// All files below the data directory with their contents' sums.
    pub(crate) fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut tree = BTreeMap::new();
        let mut next = vec![self.home.path().join("data")];
        while let Some(dir) = next.pop() {
            let Ok(entries) = fs::read_dir(&dir) else { continue };
            for entry in entries {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    next.push(path.clone());
                    tree.insert(path, "directory".into());
                } else if !path.ends_with(".lock") {
                    let sum = sum(&fs::read(&path).unwrap()).to_string();
                    tree.insert(path, sum);
                }
            }
        }
        tree.retain(|path, what| !(what == "directory" && is_root(path)));
        tree
    }
}

/// The store makes these for itself, and they are empty.
fn is_root(path: &FsPath) -> bool {
    path.ends_with("data/snapshots") || path.ends_with("data/layers")
}

pub(crate) const AS_IT_IS: UnpackSpec = UnpackSpec { tag: None, existing: Existing::Keep, spared: Vec::new() };

pub(crate) fn sum(bytes: &[u8]) -> Digest {
    Digest::new(sha2::Sha256::digest(bytes).into())
}

fn write_layer(to: &File, length: u64, byte: u8) {
    let mut writer = Writer::create(to, length).unwrap();
    writer.put(u64::from(byte), &[byte; 3 * 4096]).unwrap();
    writer.zero(300, 2).unwrap();
    writer.finish().unwrap();
}

/// A member as a tar has it.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) path: String,
    pub(crate) kind: EntryType,
    pub(crate) link: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Raw {
    pub(crate) fn file(path: &str, body: &[u8]) -> Self {
        Self { path: path.into(), kind: EntryType::Regular, link: None, body: body.into() }
    }

    fn write(&self, to: &mut Vec<u8>) {
        let mut header = Header::new_ustar();
        // Past the checks of the crate, which would not write what we want to read.
        header.as_old_mut().name[..self.path.len()].copy_from_slice(self.path.as_bytes());
        header.set_entry_type(self.kind);
        header.set_size(self.body.len() as u64);
        if let Some(link) = &self.link {
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        }
        header.set_mode(0o644);
        header.set_cksum();
        to.extend(header.as_bytes());
        to.extend(&self.body);
        to.resize(to.len().next_multiple_of(512), 0);
    }
}

/// The members of a pack.
pub(crate) fn members(pack: &[u8]) -> Vec<Raw> {
    let mut tar = tar::Archive::new(zstd::Decoder::new(pack).unwrap());
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut body = Vec::new();
        entry.read_to_end(&mut body).unwrap();
        Raw { path: entry.path().unwrap().display().to_string(), kind: EntryType::Regular, link: None, body }
    });
    entries.collect()
}

/// A tar of these, compressed.
pub(crate) fn zipped(members: &[Raw]) -> Vec<u8> {
    let mut tar = Vec::new();
    members.iter().for_each(|member| member.write(&mut tar));
    tar.resize(tar.len() + 1024, 0);
    zstd::encode_all(&tar[..], 1).unwrap()
}

pub(crate) fn manifest(members: &[Raw]) -> Manifest {
    Manifest::parse(&members[0].body, &Limits::default()).unwrap()
}

/// Makes the first member list the others as they are.
pub(crate) fn list(members: &mut [Raw]) {
    let mut manifest = manifest(members);
    let listed = members[1..].iter().map(|member| Member {
        path: member.path.parse().unwrap(),
        size: member.body.len() as u64,
        sha256: sum(&member.body),
    });
    manifest.files = listed.collect();
    members[0].body = manifest.to_text().into_bytes();
}
