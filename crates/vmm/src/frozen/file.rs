//! The state file.
//!
//! ```text
//! forkd-state 2 <length of the header> <checksum of the header>\n
//! {"vmm":"0.1.0","arch":"x86_64","cpu_vendor":...,"shape":{...},"sections":[{"name":"vm","bytes":..,"checksum":..},..]}\n
//! <section><section>...                each a JSON document
//! ```
//!
//! `head -2` on the file shows what it needs. Every byte is covered: the first line says all it can be, the header and
//! each section have a checksum, and nothing may follow the last section.

use std::fs::File;
use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{Frozen, ShapeV1};
use crate::x86::features;

const MAGIC: &str = "forkd-state";
const FORMAT: u32 = types::STATE_FORMAT;
const OLDEST: u32 = types::OLDEST_STATE_FORMAT;
const ARCH: &str = "x86_64";
/// A VM of 32 vCPUs takes less than 2 MiB.
const MAX_FILE: u64 = 64 << 20;
const SECTIONS: [&str; 4] = ["vm", "vcpus", "devices", "serial"];

/// Why a state file could not be written or used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateFileError {
    /// The system says no.
    #[error("the snapshot's state cannot be read or written: {source}")]
    Io {
        /// What the system says.
        #[from]
        source: io::Error,
    },
    /// Not one of ours.
    #[error("this is not a snapshot's state: {why}")]
    Foreign {
        /// What gives it away.
        why: &'static str,
    },
    /// A newer forkd wrote it.
    #[error("the snapshot has format {found}, this forkd reads up to {FORMAT}; update forkd")]
    Newer {
        /// Its format.
        found: u32,
    },
    /// Another kind of CPU altogether.
    #[error("the snapshot was taken on {found}, this is {ARCH}")]
    Arch {
        /// Its architecture.
        found: String,
    },
    /// It changed since it was written.
    #[error("the snapshot is damaged: {part} does not match its checksum")]
    Damaged {
        /// Which part.
        part: String,
    },
    /// It ends too early, or too late.
    #[error("the snapshot is damaged: its state has {found} bytes where {expected} were written")]
    Length {
        /// How long it should be.
        expected: u64,
        /// How long it is.
        found: u64,
    },
    /// A part is not what it should be although its checksum is right.
    #[error("the snapshot's {part} cannot be understood: {source}")]
    Json {
        /// Which part.
        part: &'static str,
        /// What the parser says.
        source: serde_json::Error,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    vmm: String,
    arch: String,
    cpu_vendor: String,
    shape: ShapeV1,
    sections: Vec<Section>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Section {
    name: String,
    bytes: u64,
    checksum: String,
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

fn json<T: Serialize>(part: &'static str, value: &T) -> Result<Vec<u8>, StateFileError> {
    serde_json::to_vec(value).map_err(|source| StateFileError::Json { part, source })
}

/// Writes a VM down at the beginning of an empty file.
pub(crate) fn write(frozen: &Frozen, mut to: &File) -> Result<(), StateFileError> {
    let parts = [
        json("vm", &frozen.vm)?,
        json("vcpus", &frozen.vcpus)?,
        json("devices", &frozen.devices)?,
        json("serial", &frozen.serial)?,
    ];
    let section = |(name, part): (&str, &Vec<u8>)| Section {
        name: name.to_owned(),
        bytes: part.len() as u64,
        checksum: checksum(part),
    };
    let header = Header {
        vmm: env!("CARGO_PKG_VERSION").to_owned(),
        arch: ARCH.to_owned(),
        cpu_vendor: frozen.vcpus.first().map(|vcpu| features::vendor(&vcpu.cpuid)).unwrap_or_default(),
        shape: frozen.shape.clone(),
        sections: SECTIONS.into_iter().zip(&parts).map(section).collect(),
    };
    let header = json("header", &header)?;
    let mut bytes = format!("{MAGIC} {FORMAT} {} {}\n", header.len(), checksum(&header)).into_bytes();
    bytes.extend_from_slice(&header);
    bytes.push(b'\n');
    bytes.extend(parts.into_iter().flatten());
    to.write_all(&bytes)?;
    Ok(())
}

/// Reads what [`write`] wrote. Whether the VM can live here is [`Frozen::check`]'s to say.
pub(crate) fn read(from: &File) -> Result<Frozen, StateFileError> {
    let mut bytes = Vec::new();
    from.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(StateFileError::Foreign { why: "it is far too long" });
    }
    let (header, body) = header(&bytes)?;
    if header.arch != ARCH {
        return Err(StateFileError::Arch { found: header.arch });
    }
    let mut sections = Sections { header: &header, rest: body, next: 0 };
    sections.check_length(bytes.len())?;
    Ok(Frozen {
        vm: sections.take("vm")?,
        vcpus: sections.take("vcpus")?,
        devices: sections.take("devices")?,
        serial: sections.take("serial")?,
        shape: header.shape.clone(),
    })
}

/// The header, and what follows it.
fn header(bytes: &[u8]) -> Result<(Header, &[u8]), StateFileError> {
    let foreign = |why| StateFileError::Foreign { why };
    let line = bytes.iter().take(128).position(|byte| *byte == b'\n').ok_or(foreign("it has no first line"))?;
    let (line, rest) = bytes.split_at(line);
    let line = std::str::from_utf8(line).map_err(|_| foreign("its first line is not text"))?;
    let Some([magic, format, len, sum]) = line.split(' ').collect::<Vec<_>>().first_chunk::<4>().copied() else {
        return Err(foreign("its first line is another one"));
    };
    if magic != MAGIC {
        return Err(foreign("its first line is another one"));
    }
    // All formats so far have the same parts; a later one has devices that an earlier forkd does not know.
    let format = match format.parse() {
        Ok(format @ OLDEST..=FORMAT) => format,
        Ok(found) if found > FORMAT => return Err(StateFileError::Newer { found }),
        _ => return Err(foreign("it has no format that ever was")),
    };
    // The first line must be the one we would write, so that no byte of it goes unchecked.
    let len: usize = len.parse().map_err(|_| foreign("its header has no length"))?;
    if line != format!("{MAGIC} {format} {len} {sum}") {
        return Err(foreign("its first line is another one"));
    }
    let short =
        StateFileError::Length { expected: (line.len() as u64).saturating_add(len as u64), found: bytes.len() as u64 };
    let Some((header, body)) = rest.get(1..).and_then(|rest| rest.split_at_checked(len)) else { return Err(short) };
    let Some((b'\n', body)) = body.split_first() else { return Err(short) };
    if checksum(header) != sum {
        return Err(StateFileError::Damaged { part: "its header".to_owned() });
    }
    let header = serde_json::from_slice(header).map_err(|source| StateFileError::Json { part: "header", source })?;
    Ok((header, body))
}

struct Sections<'a> {
    header: &'a Header,
    rest: &'a [u8],
    next: usize,
}

impl Sections<'_> {
    fn check_length(&self, file_len: usize) -> Result<(), StateFileError> {
        let declared = self.header.sections.iter().fold(0_u64, |sum, section| sum.saturating_add(section.bytes));
        let rest = self.rest.len() as u64;
        if declared == rest {
            return Ok(());
        }
        let found = file_len as u64;
        Err(StateFileError::Length { expected: (found - rest).saturating_add(declared), found })
    }

    fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<T, StateFileError> {
        let missing = StateFileError::Foreign { why: "a section is missing" };
        let Some(section) = self.header.sections.get(self.next) else { return Err(missing) };
        if section.name != name {
            return Err(missing);
        }
        self.next += 1;
        let len = usize::try_from(section.bytes).unwrap_or(usize::MAX);
        let Some((part, rest)) = self.rest.split_at_checked(len) else { return Err(missing) };
        self.rest = rest;
        if checksum(part) != section.checksum {
            return Err(StateFileError::Damaged { part: format!("its section `{name}`") });
        }
        serde_json::from_slice(part).map_err(|source| StateFileError::Json { part: name, source })
    }
}

#[cfg(test)]
mod tests;
