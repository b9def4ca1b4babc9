//! The `.modinfo` section of a kernel module: `key=value` texts, each ended by a zero byte.

use goblin::container::{Container, Ctx, Endian};
use goblin::elf::header::{EI_CLASS, EI_DATA, ELFCLASS64, ELFDATA2LSB, EM_X86_64, ET_REL};
use goblin::elf::{Elf, SectionHeader};

/// What must be loaded before a module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Modinfo {
    /// Modules it cannot do without.
    pub(super) depends: Vec<String>,
    /// Modules or algorithms it would like to have.
    pub(super) softdeps: Vec<String>,
}

impl Modinfo {
    /// `None` when the bytes are not a module for x86-64.
    pub(super) fn parse(module: &[u8]) -> Option<Self> {
        let section = section(module)?;
        let mut info = Self::default();
        for text in section.split(|b| *b == 0).filter_map(|text| std::str::from_utf8(text).ok()) {
            match text.split_once('=') {
                Some(("depends", names)) => {
                    info.depends.extend(names.split(',').filter(|name| !name.is_empty()).map(super::normal));
                }
                Some(("softdep", rule)) => info.softdeps.extend(before(rule)),
                _ => {}
            }
        }
        Some(info)
    }
}

/// The names after `pre:` and before `post:`.
fn before(rule: &str) -> Vec<String> {
    let words = rule.split_whitespace();
    let names = words.skip_while(|word| *word != "pre:").skip(1).take_while(|word| *word != "post:");
    names.map(super::normal).collect()
}

/// Only the header and the section table are looked at; symbols and relocations are nobody's business here.
fn section(module: &[u8]) -> Option<&[u8]> {
    let header = Elf::parse_header(module).ok()?;
    let ours = header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB;
    if !ours || header.e_type != ET_REL || header.e_machine != EM_X86_64 {
        return None;
    }
    let table = usize::try_from(header.e_shoff).ok().filter(|offset| *offset < module.len())?;
    let context = Ctx::new(Container::Big, Endian::Little);
    let sections = SectionHeader::parse(module, table, usize::from(header.e_shnum), context).ok()?;
    let names = contents(module, sections.get(usize::from(header.e_shstrndx))?)?;
    let called =
        |section: &&SectionHeader| names.get(section.sh_name..).is_some_and(|name| name.starts_with(b".modinfo\0"));
    contents(module, sections.iter().find(called)?)
}

fn contents<'a>(module: &'a [u8], section: &SectionHeader) -> Option<&'a [u8]> {
    let start = usize::try_from(section.sh_offset).ok()?;
    module.get(start..start.checked_add(usize::try_from(section.sh_size).ok()?)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::module;
    use super::*;

    #[test]
    fn dependencies_are_read_and_normalised() {
        let bytes = module(&["license=GPL", "depends=virtio-ring,virtio", "softdep=pre: crc32c x-y post: z", "name=a"]);
        let info = Modinfo::parse(&bytes).unwrap();
        assert_eq!(info.depends, ["virtio_ring", "virtio"]);
        assert_eq!(info.softdeps, ["crc32c", "x_y"]);
        assert_eq!(Modinfo::parse(&module(&["depends=", "softdep=post: z"])).unwrap(), Modinfo::default());
    }

    #[test]
    fn what_is_no_module_is_none() {
        let good = module(&["depends="]);
        assert_eq!(Modinfo::parse(b""), None);
        assert_eq!(Modinfo::parse(&good[..good.len() - 1]), None, "cut short");
        for (at, value) in [(4, 1), (5, 2), (16, 2), (18, 0xb7)] {
            let mut other = good.clone();
            other[at] = value;
            assert_eq!(Modinfo::parse(&other), None, "byte {at} is {value}");
        }
    }

    proptest! {
        #[test]
        fn damaged_modules_never_panic(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
            let mut bytes = module(&["depends=a,b", "softdep=pre: c"]);
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            drop(Modinfo::parse(&bytes));
        }
    }
}
