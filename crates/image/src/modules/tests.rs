use super::*;

/// A relocatable ELF file with nothing but a `.modinfo` section.
pub(crate) fn module(modinfo: &[&str]) -> Vec<u8> {
    let info: Vec<u8> = modinfo.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect();
    let names = b"\0.modinfo\0.shstrtab\0";
    let table = (64 + info.len() + names.len()).next_multiple_of(8);
    let mut elf = vec![0; 64];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    elf[16] = 1; // ET_REL
    elf[18] = 62; // EM_X86_64
    elf[20] = 1;
    elf[40..48].copy_from_slice(&(table as u64).to_le_bytes());
    for (at, value) in [(52, 64_u16), (58, 64), (60, 3), (62, 2)] {
        elf[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    elf.extend_from_slice(&info);
    elf.extend_from_slice(names);
    elf.resize(table, 0);
    for (name, kind, offset, size) in
        [(0_u32, 0_u32, 0, 0), (1, 1, 64, info.len()), (10, 3, 64 + info.len(), names.len())]
    {
        let mut header = [0; 64];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(size as u64).to_le_bytes());
        elf.extend_from_slice(&header);
    }
    elf
}

/// A directory of modules: file name and dependencies (with `softdep` after a `;`).
pub(crate) fn tree(modules: &[(&str, &str)], builtin: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let drivers = dir.path().join("kernel/drivers/x");
    fs::create_dir_all(&drivers).unwrap();
    for (file, depends) in modules {
        let (depends, soft) = depends.split_once(';').unwrap_or((depends, ""));
        let bytes = module(&[&format!("depends={depends}"), &format!("softdep=pre: {soft}")]);
        let bytes = match file.rsplit('.').next().unwrap() {
            "xz" => compress_xz(&bytes),
            "zst" => zstd::encode_all(&bytes[..], 3).unwrap(),
            _ => bytes,
        };
        fs::write(drivers.join(file), bytes).unwrap();
    }
    fs::write(dir.path().join("modules.builtin"), builtin).unwrap();
    dir
}

fn compress_xz(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    liblzma::read::XzEncoder::new(bytes, 1).read_to_end(&mut out).unwrap();
    out
}

fn want(name: &'static str) -> Wanted {
    Wanted { name, required: true }
}

fn order(dir: &tempfile::TempDir, wanted: &[Wanted]) -> Result<Vec<String>, ModulesError> {
    let modules = ModuleTree::open(dir.path())?.resolve(wanted)?;
    Ok(modules.into_iter().map(|module| module.name).collect())
}

#[test]
fn dependencies_come_first_and_once() {
    let dir = tree(
        &[("a-x.ko", "b_y,c"), ("b-y.ko.xz", "d"), ("c.ko.zst", "d,e"), ("d.ko", ""), ("z.ko", "d")],
        "kernel/fs/e.ko\n",
    );
    assert_eq!(order(&dir, &[want("a_x"), want("z"), want("e")]).unwrap(), ["d", "b_y", "c", "a_x", "z"]);
    let bytes = &ModuleTree::open(dir.path()).unwrap().resolve(&[want("b-y")]).unwrap()[1].bytes;
    assert!(bytes.starts_with(b"\x7fELF"), "decompressed");
}

#[test]
fn the_tree_knows_built_in_modules() {
    let dir = tree(&[("virtio-rng.ko", "")], "kernel/fs/ext4/ext4.ko\nkernel/a/virtio-mmio.ko\n");
    let tree = ModuleTree::open(dir.path()).unwrap();
    assert!(tree.has("ext4") && tree.has("virtio_mmio") && tree.has("virtio_rng") && !tree.has("kvm"));
}

#[test]
fn optional_modules_may_be_missing_with_all_they_need() {
    let dir = tree(&[("half.ko", "there,gone"), ("there.ko", ""), ("whole.ko", "there")], "");
    let optional = |name| Wanted { name, required: false };
    assert_eq!(order(&dir, &[optional("half"), optional("gone"), optional("whole")]).unwrap(), ["there", "whole"]);
    for name in ["gone", "half"] {
        let error = order(&dir, &[want(name)]).unwrap_err();
        assert!(matches!(&error, ModulesError::Missing { name, .. } if name == "gone"), "{error}");
    }
}

#[test]
fn soft_dependencies_come_first_when_they_exist() {
    let dir = tree(
        &[("ext4.ko", "jbd2;crc32c gone"), ("jbd2.ko", ""), ("crc32c-intel.ko", ";ext4"), ("crc32c_generic.ko", "")],
        "",
    );
    assert_eq!(order(&dir, &[want("ext4")]).unwrap(), ["crc32c_generic", "crc32c_intel", "jbd2", "ext4"]);
}

#[test]
fn a_cycle_is_refused() {
    let dir = tree(&[("a.ko", "b"), ("b.ko", "c"), ("c.ko", "a")], "");
    let error = order(&dir, &[want("a")]).unwrap_err();
    assert!(matches!(&error, ModulesError::Cycle { chain, .. } if chain == "a, b, c"), "{error}");
    let dir = tree(&[("a.ko", "a")], "");
    assert!(matches!(order(&dir, &[want("a")]), Err(ModulesError::Cycle { .. })));
}

#[test]
fn damage_is_told_with_the_file() {
    let dir = tree(&[("a.ko", ""), ("b.ko", ""), ("c.ko", "")], "");
    let drivers = dir.path().join("kernel/drivers/x");
    fs::write(drivers.join("a.ko"), b"not a module").unwrap();
    fs::rename(drivers.join("b.ko"), drivers.join("b.ko.xz")).unwrap();
    fs::rename(drivers.join("c.ko"), drivers.join("c.ko.gz")).unwrap();
    assert!(matches!(order(&dir, &[want("a")]), Err(ModulesError::NotAModule { .. })));
    for (name, file) in [("b", "b.ko.xz"), ("c", "c.ko.gz")] {
        let error = order(&dir, &[want(name)]).unwrap_err();
        assert!(matches!(&error, ModulesError::Read { path, .. } if path.ends_with(file)), "{error}");
    }
    assert!(matches!(ModuleTree::open(&drivers), Err(ModulesError::Read { .. })), "no kernel directory");
}

#[test]
fn a_decompression_bomb_is_not_swallowed() {
    let dir = tree(&[], "");
    let bomb = zstd::encode_all(io::repeat(0).take(MAX_MODULE_BYTES + 1), 1).unwrap();
    assert!(bomb.len() < 100_000);
    fs::write(dir.path().join("kernel/drivers/x/bomb.ko.zst"), bomb).unwrap();
    assert!(matches!(order(&dir, &[want("bomb")]), Err(ModulesError::TooLarge { .. })));
}
