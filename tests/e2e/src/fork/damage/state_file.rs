//! A snapshot's state, taken apart and put together again with checksums that are right, whatever it then says.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

/// The sections, in their order.
pub(super) const SECTIONS: [&str; 4] = ["vm", "vcpus", "devices", "serial"];
/// Where things are in a leaf of CPUID, as KVM lays it out.
const FUNCTION: std::ops::Range<usize> = 0..4;
const EBX_ECX_EDX: std::ops::Range<usize> = 16..28;
const ECX: std::ops::Range<usize> = 20..24;

/// A state file in its parts.
pub(super) struct StateFile {
    pub(super) format: u32,
    pub(super) header: Value,
    header_at: usize,
    sections: Vec<Vec<u8>>,
    body_at: usize,
}

impl StateFile {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let line = bytes.iter().position(|byte| *byte == b'\n').context("a first line")?;
        let words: Vec<&str> = std::str::from_utf8(&bytes[..line])?.split(' ').collect();
        let length: usize = words.get(2).context("the length of the header")?.parse()?;
        let (header_at, body_at) = (line + 1, line + 1 + length + 1);
        let header: Value = serde_json::from_slice(&bytes[header_at..header_at + length])?;
        let (mut sections, mut rest) = (Vec::new(), &bytes[body_at..]);
        for (section, name) in header["sections"].as_array().context("sections")?.iter().zip(SECTIONS) {
            ensure!(section["name"] == name, "{section} is not {name}");
            let length = usize::try_from(section["bytes"].as_u64().context("a length")?)?;
            let (section, after) = rest.split_at_checked(length).context("a whole section")?;
            sections.push(section.to_vec());
            rest = after;
        }
        ensure!(sections.len() == SECTIONS.len());
        Ok(Self { format: words[1].parse()?, header, header_at, sections, body_at })
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut header = self.header.clone();
        for (number, section) in self.sections.iter().enumerate() {
            header["sections"][number]["bytes"] = section.len().into();
            header["sections"][number]["checksum"] = checksum(section).into();
        }
        let header = serde_json::to_vec(&header)?;
        let line = format!("forkd-state {} {} {}\n", self.format, header.len(), checksum(&header));
        Ok([line.as_bytes(), &header, b"\n", &self.sections.concat()].concat())
    }

    pub(super) const fn header_at(&self) -> usize {
        self.header_at
    }

    pub(super) fn middle_of(&self, section: usize) -> usize {
        let before: usize = self.sections[..section].iter().map(Vec::len).sum();
        self.body_at + before + self.sections[section].len() / 2
    }

    /// Has every vCPU be of this maker.
    pub(super) fn set_vendor(&mut self, name: &[u8; 12]) -> Result<()> {
        let [first, second, third] = [&name[..4], &name[4..8], &name[8..]];
        self.change_leaf(0, EBX_ECX_EDX, &[first, third, second].concat())
    }

    /// Has every vCPU have every feature of the first word of them.
    pub(super) fn promise_everything(&mut self) -> Result<()> {
        self.change_leaf(1, ECX, &[0xff; 4])
    }

    fn change_leaf(&mut self, function: u8, at: std::ops::Range<usize>, to: &[u8]) -> Result<()> {
        let mut vcpus: Value = serde_json::from_slice(&self.sections[1])?;
        let mut changed = 0;
        for vcpu in vcpus.as_array_mut().context("vCPUs")? {
            for leaf in vcpu["cpuid"].as_array_mut().context("leaves")? {
                let leaf = leaf.as_array_mut().context("bytes")?;
                if leaf[FUNCTION] == [function, 0, 0, 0].map(Value::from) {
                    leaf[at.clone()].clone_from_slice(&to.iter().copied().map(Value::from).collect::<Vec<_>>());
                    changed += 1;
                }
            }
        }
        ensure!(changed > 0, "no vCPU has leaf {function}");
        self.sections[1] = serde_json::to_vec(&vcpus)?;
        Ok(())
    }
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}
