use std::os::unix::fs::PermissionsExt as _;

use types::progress::Silent;

use super::*;
use crate::cpio::tests::listing;
use crate::modules::tests::tree;

/// What is looked at of a program: an ELF header, and a program header of the given type.
fn program(header_type: u32) -> Vec<u8> {
    let mut elf = vec![0; 64 + 56];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    for (at, value) in [(16, 3_u16), (18, 62), (54, 56), (56, 1)] {
        elf[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    elf[32] = 64;
    elf[64..68].copy_from_slice(&header_type.to_le_bytes());
    elf
}

struct Fixture {
    home: tempfile::TempDir,
    agent: PathBuf,
    kernel: GuestKernel,
}

impl Fixture {
    /// Module trees are per test; so is the agent.
    fn new(modules: &[(&str, &str)], builtin: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let agent = home.path().join("agent");
        fs::write(&agent, program(1)).unwrap();
        let modules = tree(modules, builtin).keep();
        let placed = home.path().join("modules");
        fs::rename(modules, &placed).unwrap();
        let kernel = GuestKernel { image: "unused".into(), modules: Some(placed), release: "6.1.0".into() };
        Self { home, agent, kernel }
    }

    fn dirs(&self) -> Dirs {
        Dirs::under(self.home.path())
    }

    fn initramfs(&self, purpose: Purpose) -> Initramfs<'_> {
        Initramfs { agent: &self.agent, kernel: &self.kernel, purpose }
    }
}

const GUEST_MODULES: &[(&str, &str)] = &[
    ("virtio.ko", ""),
    ("virtio_mmio.ko", "virtio"),
    ("virtio_blk.ko.xz", "virtio"),
    ("virtio-rng.ko", "virtio"),
    ("vmw_vsock_virtio_transport.ko.zst", "virtio"),
];

#[test]
fn everything_is_where_the_agent_looks_for_it() {
    let fixture = Fixture::new(GUEST_MODULES, "kernel/fs/ext4/ext4.ko\n");
    let archive = fs::read(fixture.initramfs(Purpose::Guest).cached(&fixture.dirs(), &Silent).unwrap()).unwrap();
    let entries: Vec<_> = listing(&archive)
        .iter()
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            format!("{} {}", words[0], words[words.len() - 1])
        })
        .collect();
    assert_eq!(
        entries,
        [
            "drwxr-xr-x dev",
            "drwxr-xr-x proc",
            "drwxr-xr-x sys",
            "drwxr-xr-x run",
            "drwxr-xr-x root-new",
            "drwxr-xr-x modules",
            "crw------- dev/console",
            "-rwxr-xr-x init",
            "-rw-r--r-- modules.list",
            "-rw-r--r-- modules/virtio.ko",
            "-rw-r--r-- modules/virtio_mmio.ko",
            "-rw-r--r-- modules/virtio_blk.ko",
            "-rw-r--r-- modules/vmw_vsock_virtio_transport.ko",
            "-rw-r--r-- modules/virtio_rng.ko",
        ]
    );
    let list = b"virtio.ko\nvirtio_mmio.ko\nvirtio_blk.ko\nvmw_vsock_virtio_transport.ko\nvirtio_rng.ko\n";
    assert!(archive.windows(list.len()).any(|bytes| bytes == list));
}

#[test]
fn a_kernel_without_a_required_module_is_refused() {
    let fixture = Fixture::new(GUEST_MODULES, "");
    let error = fixture.initramfs(Purpose::Guest).cached(&fixture.dirs(), &Silent).unwrap_err();
    assert!(matches!(&error, InitramfsError::Modules(ModulesError::Missing { name, .. }) if name == "ext4"), "{error}");
    let error = fixture.initramfs(Purpose::Machine).cached(&fixture.dirs(), &Silent).unwrap_err();
    assert!(error.to_string().contains("no module virtio_pci"), "{error}");
}

#[test]
fn a_kernel_without_modules_gets_none() {
    let mut fixture = Fixture::new(&[], "");
    fixture.kernel.modules = None;
    let archive = fs::read(fixture.initramfs(Purpose::Machine).cached(&fixture.dirs(), &Silent).unwrap()).unwrap();
    assert_eq!(listing(&archive).len(), 9);
}

#[test]
fn the_cache_is_keyed_by_all_that_matters() {
    let mut fixture = Fixture::new(GUEST_MODULES, "kernel/fs/ext4/ext4.ko\n");
    let cached = |fixture: &Fixture| fixture.initramfs(Purpose::Guest).cached(&fixture.dirs(), &Silent).unwrap();
    let first = cached(&fixture);
    let written = fs::metadata(&first).unwrap().modified().unwrap();
    assert_eq!(cached(&fixture), first);
    assert_eq!(fs::metadata(&first).unwrap().modified().unwrap(), written, "written again");
    fixture.kernel.release = "6.1.1".into();
    let second = cached(&fixture);
    let mut agent = program(1);
    agent.push(0);
    fs::write(&fixture.agent, agent).unwrap();
    let third = cached(&fixture);
    assert!(first != second && second != third);
    let guest = fixture.initramfs(Purpose::Guest).digest(b"");
    assert_ne!(guest, fixture.initramfs(Purpose::Machine).digest(b""));
}

#[test]
fn a_token_is_for_the_owner_only_and_never_in_the_cache() {
    let fixture = Fixture::new(GUEST_MODULES, "kernel/fs/ext4/ext4.ko\n");
    let path = fixture.home.path().join("initrd");
    fs::write(&path, "readable by all").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fixture.initramfs(Purpose::Guest).write_with_token(&path, "secret-word").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let last = listing(&fs::read(&path).unwrap()).pop().unwrap();
    assert_eq!(last, "-rw------- 1 0 0 11 Jan 1 1970 token");
    assert!(!fixture.dirs().cache.exists());
    let nowhere = fixture.home.path().join("no/such/dir/initrd");
    let error = fixture.initramfs(Purpose::Guest).write_with_token(&nowhere, "x").unwrap_err();
    assert!(error.to_string().contains("no/such/dir/initrd"), "{error}");
}

#[test]
fn only_a_static_program_can_be_init() {
    let fixture = Fixture::new(&[], "");
    let cached = || fixture.initramfs(Purpose::Guest).cached(&fixture.dirs(), &Silent);
    for bytes in [&b"#!/bin/sh\n"[..], b"", &program(3)] {
        fs::write(&fixture.agent, bytes).unwrap();
        assert!(matches!(cached(), Err(InitramfsError::AgentKind { .. })), "{bytes:?}");
    }
    fs::remove_file(&fixture.agent).unwrap();
    assert!(matches!(cached(), Err(InitramfsError::Agent { .. })));
}
