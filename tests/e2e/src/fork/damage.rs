//! Snapshots that are damaged, or were made for somebody else: refused with the reason, before anything starts.

mod state_file;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use engine::Store;
use rustix::fs::SeekFrom;
use serde_json::Value;
use tempfile::TempDir;

use super::Parent;
use super::own::Own;
use crate::Test;
use crate::host::Host;
use crate::world::names;
use state_file::{SECTIONS, StateFile};

pub(crate) const TESTS: &[Test] = &[
    ("fork::damaged_snapshots_are_refused", damaged_snapshots_are_refused),
    ("fork::foreign_snapshots_are_refused", foreign_snapshots_are_refused),
];

const FILES: [&str; 4] = ["manifest.json", "state", "memory", "disk-0.layer"];
/// The end of a layer: magic, version, block size, disk length, count, checksum.
const LAYER_FOOTER: u64 = 64;

/// A copy of a snapshot in a place of its own, with something wrong in it.
struct Patient {
    own: Own,
    original: PathBuf,
    copy: PathBuf,
    /// Where the copy is; beside the original, so that what is not changed need not be copied.
    _data: TempDir,
}

impl Patient {
    fn new(host: &Host) -> Result<Self> {
        let mut own = Own::new(host, Parent::Warm)?;
        let data = tempfile::tempdir_in(&host.dirs.data)?;
        own.dirs.data = data.path().into();
        let [original, copy] = [&host.dirs, &own.dirs].map(|dirs| Store::new(dirs).path(&own.tag));
        Ok(Self { own, original, copy, _data: data })
    }

    /// Makes the copy anew, has it damaged, and expects a refusal that says `words` and leaves nothing.
    fn refused(&self, what: &str, words: &str, damage: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        self.restore()?;
        damage(self).with_context(|| format!("damaging {what}"))?;
        let Err(error) = self.own.fork(1) else { anyhow::bail!("{what}: children were made of it") };
        let said = format!("{error:#}");
        ensure!(said.contains(words), "{what}: it did not say `{words}` but: {said}");
        self.own.only_these_are_left(&[])?;
        let templates = names(&self.own.dirs.run.join("templates"));
        ensure!(templates.is_empty(), "{what}: {templates:?} is left");
        Ok(())
    }

    fn restore(&self) -> Result<()> {
        if self.copy.exists() {
            fs::remove_dir_all(&self.copy)?;
        }
        fs::create_dir_all(&self.copy)?;
        FILES.iter().try_for_each(|name| Ok(fs::hard_link(self.original.join(name), self.copy.join(name))?))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        Ok(fs::read(self.original.join(name))?)
    }

    /// Puts other bytes in a file's place.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        fs::remove_file(self.copy.join(name))?;
        Ok(fs::write(self.copy.join(name), bytes)?)
    }

    /// A file as the original, to be written to; holes stay holes.
    fn own_copy(&self, name: &str) -> Result<File> {
        let copy = self.copy.join(name);
        fs::remove_file(&copy)?;
        let copied = Command::new("cp").arg("--sparse=always").arg(self.original.join(name)).arg(&copy).status()?;
        ensure!(copied.success(), "cp: {copied}");
        Ok(File::options().read(true).write(true).open(&copy)?)
    }

    /// Cuts the last bytes off, and has the manifest believe that it was always so.
    fn cut(&self, name: &str, believed: bool) -> Result<()> {
        let file = self.own_copy(name)?;
        let length = file.metadata()?.len() - 4096;
        file.set_len(length)?;
        if !believed {
            return Ok(());
        }
        self.manifest(|manifest| match name {
            "disk-0.layer" => manifest["sizes"]["layers"][0] = length.into(),
            name => manifest["sizes"][name] = length.into(),
        })
    }

    fn manifest(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut manifest = serde_json::from_slice(&self.read("manifest.json")?)?;
        change(&mut manifest);
        self.replace("manifest.json", &serde_json::to_vec(&manifest)?)
    }

    fn state(&self, change: impl FnOnce(&mut StateFile) -> Result<()>) -> Result<()> {
        let mut state = StateFile::parse(&self.read("state")?)?;
        change(&mut state)?;
        let bytes = state.to_bytes()?;
        self.manifest(|manifest| manifest["sizes"]["state"] = bytes.len().into())?;
        self.replace("state", &bytes)
    }
}

fn flip(file: &File, at: u64) -> Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(file.write_all_at(&[byte[0] ^ 1], at)?)
}

fn damaged_snapshots_are_refused(host: &Host) -> Result<()> {
    let patient = Patient::new(host)?;
    for (name, words) in [("state", "where"), ("memory", "where"), ("disk-0.layer", "its end is missing")] {
        patient.refused(&format!("a short {name}"), "bytes long and was", |it| it.cut(name, false))?;
        patient.refused(&format!("a short {name}, believed"), words, |it| it.cut(name, true))?;
        let missing = |it: &Patient| Ok(fs::remove_file(it.copy.join(name))?);
        patient.refused(&format!("no {name}"), "is missing", missing)?;
    }
    let state = StateFile::parse(&patient.read("state")?)?;
    patient.refused("a flipped bit in the first line", "not a snapshot's state", |it| flip_state(it, 3))?;
    patient.refused("a flipped bit in the header", "its header", |it| flip_state(it, state.header_at() + 20))?;
    for (number, name) in SECTIONS.iter().enumerate() {
        let (what, words) = (format!("a flipped bit in the section {name}"), format!("its section `{name}`"));
        patient.refused(&what, &words, |it| flip_state(it, state.middle_of(number)))?;
    }
    patient.refused("a flipped bit in the memory", "memory does not match its checksum", |it| {
        let file = it.own_copy("memory")?;
        let first = rustix::fs::seek(&file, SeekFrom::Data(0))?;
        flip(&file, first + 100)
    })?;
    for (what, back, words) in
        [("footer", LAYER_FOOTER - 1, "not a disk layer"), ("map", LAYER_FOOTER + 1, "its map is damaged")]
    {
        patient.refused(&format!("a flipped bit in the layer's {what}"), words, |it| {
            let file = it.own_copy("disk-0.layer")?;
            flip(&file, file.metadata()?.len() - back)
        })?;
    }
    Ok(())
}

fn flip_state(patient: &Patient, at: usize) -> Result<()> {
    let mut bytes = patient.read("state")?;
    *bytes.get_mut(at).context("the state is shorter")? ^= 1;
    patient.replace("state", &bytes)
}

/// Whole, and of no use here: every checksum is right.
fn foreign_snapshots_are_refused(host: &Host) -> Result<()> {
    let patient = Patient::new(host)?;
    patient.refused("a newer manifest", "has format 2", |it| it.manifest(|manifest| manifest["format"] = 2.into()))?;
    patient.refused("a newer state", "has format 2", |it| {
        it.state(|state| {
            state.format = 2;
            Ok(())
        })
    })?;
    patient.refused("another architecture", "aarch64", |it| {
        it.state(|state| {
            state.header["arch"] = "aarch64".into();
            Ok(())
        })
    })?;
    patient.refused("another maker", "GenuineTest", |it| it.state(|state| state.set_vendor(b"GenuineTest!")))?;
    patient.refused("a CPU that can do more", "lacks", |it| it.state(StateFile::promise_everything))?;
    // The same way of writing the file, with nothing changed, is taken: what was refused was what it said.
    patient.restore()?;
    patient.state(|_| Ok(()))?;
    ensure!(patient.own.fork(1)?.len() == 1);
    Ok(())
}
