//! Snapshots that are damaged, or were made for somebody else: refused with the reason, before anything starts.

mod state_file;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use engine::{Manifest, Store};
use rustix::fs::SeekFrom;
use serde_json::Value;
use tempfile::TempDir;

use super::Parent;
use super::own::Own;
use crate::Test;
use crate::host::Host;
use crate::world::names;
use state_file::{SECTIONS, StateFile};

pub(crate) const NATIVE_TESTS: &[Test] = &[
    ("fork::damaged_snapshots_are_refused", damaged_snapshots_are_refused),
    ("fork::foreign_snapshots_are_refused", foreign_snapshots_are_refused),
];

/// A file of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Manifest,
    State,
    Memory,
    Disk,
}

const PARTS: [Part; 4] = [Part::Manifest, Part::State, Part::Memory, Part::Disk];
/// The end of a layer: magic, version, block size, length, entries, digest.
const LAYER_FOOTER: u64 = 64;

impl Part {
    /// Where it is in a store.
    fn path(self, store: &Store, manifest: &Manifest) -> PathBuf {
        let dir = store.path(&manifest.tag);
        match self {
            Self::Manifest => dir.join("manifest.json"),
            Self::State => dir.join("state"),
            Self::Memory => store.layer_path(&manifest.memory_layers[0].digest),
            Self::Disk => store.layer_path(&manifest.disks[0].layers[0].digest),
        }
    }

    /// What the manifest says about its length.
    fn length(self, manifest: &mut Value) -> &mut Value {
        match self {
            Self::Manifest | Self::State => &mut manifest["state"]["bytes"],
            Self::Memory => &mut manifest["memory_layers"][0]["file_bytes"],
            Self::Disk => &mut manifest["disks"][0]["layers"][0]["file_bytes"],
        }
    }
}

/// A copy of a snapshot in a place of its own, with something wrong in it.
struct Patient {
    own: Own,
    whole: Manifest,
    original: Store,
    copy: Store,
    /// Where the copy is; beside the original, so that what is not changed need not be copied.
    _data: TempDir,
}

impl Patient {
    fn new(host: &Host) -> Result<Self> {
        let mut own = Own::new(host, Parent::Native)?;
        let data = tempfile::tempdir_in(&host.dirs.data)?;
        own.dirs.data = data.path().into();
        let [original, copy] = [&host.dirs, &own.dirs].map(Store::new);
        let whole = original.get(&own.tag)?.manifest().clone();
        Ok(Self { own, whole, original, copy, _data: data })
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
        for part in PARTS {
            let to = self.there(part);
            fs::create_dir_all(to.parent().context("a directory")?)?;
            if to.exists() {
                fs::remove_file(&to)?;
            }
            fs::hard_link(self.here(part), &to)?;
        }
        Ok(())
    }

    /// In the original.
    fn here(&self, part: Part) -> PathBuf {
        part.path(&self.original, &self.whole)
    }

    /// In the copy.
    fn there(&self, part: Part) -> PathBuf {
        part.path(&self.copy, &self.whole)
    }

    fn read(&self, part: Part) -> Result<Vec<u8>> {
        Ok(fs::read(self.here(part))?)
    }

    /// Puts other bytes in a file's place.
    fn replace(&self, part: Part, bytes: &[u8]) -> Result<()> {
        fs::remove_file(self.there(part))?;
        Ok(fs::write(self.there(part), bytes)?)
    }

    /// A file as the original, to be written to; holes stay holes.
    fn own_copy(&self, part: Part) -> Result<File> {
        let copy = self.there(part);
        fs::remove_file(&copy)?;
        let copied = Command::new("cp").arg("--sparse=always").arg(self.here(part)).arg(&copy).status()?;
        ensure!(copied.success(), "cp: {copied}");
        fs::set_permissions(&copy, Permissions::from_mode(0o600))?;
        Ok(File::options().read(true).write(true).open(&copy)?)
    }

    /// Cuts the last bytes off.
    fn cut(&self, part: Part) -> Result<u64> {
        let file = self.own_copy(part)?;
        let length = file.metadata()?.len() - 4096;
        file.set_len(length)?;
        Ok(length)
    }

    fn manifest(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut manifest = serde_json::from_slice(&self.read(Part::Manifest)?)?;
        change(&mut manifest);
        self.replace(Part::Manifest, &serde_json::to_vec(&manifest)?)
    }

    /// Puts another state in the state's place, and has the manifest believe that it was always so.
    fn believe(&self, state: &[u8]) -> Result<()> {
        self.manifest(|manifest| {
            manifest["state"]["bytes"] = state.len().into();
            manifest["state"]["digest"] = blake3::hash(state).to_hex().as_str().into();
        })?;
        self.replace(Part::State, state)
    }

    fn state(&self, change: impl FnOnce(&mut StateFile) -> Result<()>) -> Result<()> {
        let mut state = StateFile::parse(&self.read(Part::State)?)?;
        change(&mut state)?;
        self.believe(&state.to_bytes()?)
    }

    /// The state with a flipped bit.
    fn flipped_state(&self, at: usize) -> Result<Vec<u8>> {
        let mut bytes = self.read(Part::State)?;
        *bytes.get_mut(at).context("the state is shorter")? ^= 1;
        Ok(bytes)
    }
}

fn flip(file: &File, at: u64) -> Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(file.write_all_at(&[byte[0] ^ 1], at)?)
}

fn damaged_snapshots_are_refused(host: &Host) -> Result<()> {
    let patient = Patient::new(host)?;
    for part in [Part::State, Part::Memory, Part::Disk] {
        patient.refused(&format!("a short {part:?}"), "bytes long and was", |it| it.cut(part).map(|_| ()))?;
        let missing = |it: &Patient| Ok(fs::remove_file(it.there(part))?);
        patient.refused(&format!("no {part:?}"), "is missing", missing)?;
    }
    for part in [Part::Memory, Part::Disk] {
        patient.refused(&format!("a short {part:?}, believed"), "its end is missing", |it| {
            let length = it.cut(part)?;
            it.manifest(|manifest| *part.length(manifest) = length.into())
        })?;
        damaged_layers_are_refused(&patient, part)?;
    }
    damaged_states_are_refused(&patient)
}

fn damaged_layers_are_refused(patient: &Patient, part: Part) -> Result<()> {
    patient.refused(&format!("a flipped bit in {part:?}"), "its contents are damaged", |it| {
        let file = it.own_copy(part)?;
        let first = rustix::fs::seek(&file, SeekFrom::Data(0))?;
        flip(&file, first + 100)
    })?;
    for (what, back, words) in
        [("footer", LAYER_FOOTER - 1, "it is not a layer"), ("table", LAYER_FOOTER + 1, "its table is damaged")]
    {
        patient.refused(&format!("a flipped bit in the {what} of {part:?}"), words, |it| {
            let file = it.own_copy(part)?;
            flip(&file, file.metadata()?.len() - back)
        })?;
    }
    Ok(())
}

fn damaged_states_are_refused(patient: &Patient) -> Result<()> {
    let bytes = patient.read(Part::State)?;
    let state = StateFile::parse(&bytes)?;
    patient.refused("a flipped bit in the state", "state is not what was written", |it| {
        it.replace(Part::State, &it.flipped_state(3)?)
    })?;
    let short = &bytes[..bytes.len() - 4096];
    patient.refused("a short state, believed", "where", |it| it.believe(short))?;
    let mut flips = vec![
        ("the first line".to_owned(), 3, "not a snapshot's state".to_owned()),
        ("the header".to_owned(), state.header_at() + 20, "its header".to_owned()),
    ];
    let sections = SECTIONS.iter().enumerate();
    flips.extend(sections.map(|(number, name)| {
        (format!("the section {name}"), state.middle_of(number), format!("its section `{name}`"))
    }));
    for (what, at, words) in flips {
        let what = format!("a flipped bit in {what}, believed");
        patient.refused(&what, &words, |it| it.believe(&it.flipped_state(at)?))?;
    }
    Ok(())
}

/// Whole, and of no use here: every checksum is right.
fn foreign_snapshots_are_refused(host: &Host) -> Result<()> {
    let patient = Patient::new(host)?;
    patient.refused("a newer manifest", "has format 3", |it| it.manifest(|manifest| manifest["format"] = 3.into()))?;
    patient.refused("an older manifest", "older than", |it| it.manifest(|manifest| manifest["format"] = 1.into()))?;
    patient.refused("a newer state", "has format 3", |it| {
        it.state(|state| {
            state.format = 3;
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
