//! The first root filesystem: the agent as `/init`, and the modules it needs to reach the second.
//!
//! ```text
//! /init                 the agent
//! /modules/<name>.ko    decompressed
//! /modules.list         their file names, one per line, in the order to load them
//! /token                only if given: what a client must say to the agent
//! /dev /proc /sys /run /root-new    to mount on
//! ```

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use types::Dirs;
use types::progress::Progress;

use crate::cache::{Bucket, CacheError};
use crate::cpio::Cpio;
use crate::digest::Hasher;
use crate::kernel::GuestKernel;
use crate::modules::{Module, ModuleTree, ModulesError, Wanted};

/// Changes whenever the same agent and kernel would give a different archive.
const FORMAT: &str = "forkd initramfs 2";

/// Why there is no initramfs.
#[derive(Debug, thiserror::Error)]
pub enum InitramfsError {
    /// The agent could not be read.
    #[error("cannot read the agent {}", path.display())]
    Agent {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The agent is not a program that can be PID 1 by itself.
    #[error("the agent {} is not a static x86-64 program", path.display())]
    AgentKind {
        /// The file.
        path: PathBuf,
    },
    /// The modules cannot be had.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// It could not be written.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// What is booted with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A microVM: virtio-mmio, vsock.
    Guest,
    /// The emulated host: virtio-pci, KVM, networking for guests.
    Machine,
}

const fn required(name: &'static str) -> Wanted {
    Wanted { name, required: true }
}

const fn optional(name: &'static str) -> Wanted {
    Wanted { name, required: false }
}

const GUEST: &[Wanted] = &[
    required("virtio_mmio"),
    required("virtio_blk"),
    required("ext4"),
    required("vmw_vsock_virtio_transport"),
    optional("virtio_net"),
    optional("virtio_rng"),
    optional("virtio_balloon"),
    optional("vmgenid"),
    optional("pvpanic_mmio"),
    optional("button"),
    optional("evdev"),
];

const MACHINE: &[Wanted] = &[
    required("virtio_pci"),
    required("virtio_blk"),
    required("ext4"),
    required("virtio_net"),
    required("kvm_amd"),
    required("tun"),
    optional("virtio_rng"),
    optional("button"),
    optional("evdev"),
    optional("overlay"),
    optional("loop"),
    optional("veth"),
    optional("bridge"),
    optional("br_netfilter"),
    optional("vhost_net"),
    optional("nf_tables"),
    optional("nf_conntrack"),
    optional("nf_conntrack_netlink"),
    optional("nft_ct"),
    optional("nft_connlimit"),
    optional("nft_objref"),
    optional("nft_nat"),
    optional("nft_masq"),
    optional("nft_redir"),
    optional("nft_chain_nat"),
    optional("nft_reject_inet"),
    optional("nft_limit"),
    optional("nft_log"),
    optional("nft_fib_inet"),
    optional("sch_htb"),
    optional("sch_tbf"),
    optional("sch_ingress"),
    optional("act_police"),
    optional("cls_matchall"),
];

impl Purpose {
    const fn wanted(self) -> &'static [Wanted] {
        match self {
            Self::Guest => GUEST,
            Self::Machine => MACHINE,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Machine => "machine",
        }
    }
}

/// What goes into an initramfs.
#[derive(Clone, Copy, Debug)]
pub struct Initramfs<'a> {
    /// A static program; becomes `/init`.
    pub agent: &'a Path,
    /// Its modules are taken.
    pub kernel: &'a GuestKernel,
    /// Decides which modules.
    pub purpose: Purpose,
}

impl Initramfs<'_> {
    /// The archive in the cache, written if it is not there yet. It holds no secrets.
    ///
    /// # Errors
    /// When the agent cannot be read, the kernel lacks a module that is needed, or the cache cannot be written.
    pub fn cached(&self, dirs: &Dirs, progress: &dyn Progress) -> Result<PathBuf, InitramfsError> {
        let agent = self.read_agent()?;
        let key = self.digest(&agent);
        let name = format!("{key}.cpio");
        let bucket = Bucket::open(&dirs.cache, "initramfs-v1")?;
        let path = bucket.path(&name);
        if path.is_file() {
            return Ok(path);
        }
        let turn = bucket.lock(&key, progress)?;
        if path.is_file() {
            return Ok(path);
        }
        let _stage = progress.stage("Writing the initramfs", None);
        let staging = turn.stage()?;
        let staged = staging.path().join(&name);
        fs::write(&staged, self.archive(&agent, None)?).map_err(CacheError::new("write", &staged))?;
        Ok(staging.publish(&staged, &name)?)
    }

    /// Writes the archive with the token in it, readable by the owner only, replacing what is there.
    ///
    /// # Errors
    /// When the agent cannot be read, the kernel lacks a module that is needed, or the file cannot be written.
    pub fn write_with_token(&self, path: &Path, token: &str) -> Result<(), InitramfsError> {
        let archive = self.archive(&self.read_agent()?, Some(token))?;
        let failed = |source| CacheError::new("write", path)(source);
        // A new file, renamed into place: the mode of one that exists already would be whatever it was.
        let mut staged = path.as_os_str().to_owned();
        staged.push(format!(".{}.new", std::process::id()));
        let staged = PathBuf::from(staged);
        let write = || -> io::Result<()> {
            let mut file: File = File::options().write(true).create_new(true).mode(0o600).open(&staged)?;
            file.write_all(&archive)?;
            file.sync_all()?;
            fs::rename(&staged, path)
        };
        let written = write();
        if written.is_err()
            && let Err(err) = fs::remove_file(&staged)
        {
            log::debug!("{} is not there to be removed: {err}", staged.display());
        }
        Ok(written.map_err(failed)?)
    }

    fn read_agent(&self) -> Result<Vec<u8>, InitramfsError> {
        let agent = fs::read(self.agent).map_err(|source| InitramfsError::Agent { path: self.agent.into(), source })?;
        if is_static_program(&agent) { Ok(agent) } else { Err(InitramfsError::AgentKind { path: self.agent.into() }) }
    }

    fn digest(&self, agent: &[u8]) -> String {
        let modules = self.kernel.modules.as_deref().unwrap_or(Path::new("")).as_os_str().as_encoded_bytes();
        let hash = Hasher::default().part(FORMAT.as_bytes()).part(self.purpose.name().as_bytes());
        hash.part(self.kernel.release.as_bytes()).part(modules).part(agent).hex()
    }

    fn archive(&self, agent: &[u8], token: Option<&str>) -> Result<Vec<u8>, InitramfsError> {
        let modules = match &self.kernel.modules {
            Some(root) => ModuleTree::open(root)?.resolve(self.purpose.wanted())?,
            None => Vec::new(),
        };
        Ok(pack(agent, &modules, token).expect("an archive of bounded parts fits in memory"))
    }
}

fn pack(agent: &[u8], modules: &[Module], token: Option<&str>) -> io::Result<Vec<u8>> {
    let mut cpio = Cpio::new(Vec::new());
    for dir in ["dev", "proc", "sys", "run", "root-new", "modules"] {
        cpio.directory(dir)?;
    }
    // The kernel opens it as PID 1's standard streams before anybody could mount a /dev.
    cpio.char_device("dev/console", 0o600, (5, 1))?;
    cpio.file("init", 0o755, agent)?;
    let list: String = modules.iter().map(|module| format!("{}.ko\n", module.name)).collect();
    cpio.file("modules.list", 0o644, list.as_bytes())?;
    for module in modules {
        cpio.file(&format!("modules/{}.ko", module.name), 0o644, &module.bytes)?;
    }
    if let Some(token) = token {
        cpio.file("token", 0o600, token.as_bytes())?;
    }
    cpio.finish()
}

/// A dynamic program as `/init` makes the kernel panic with "No working init found", long after the mistake.
fn is_static_program(bytes: &[u8]) -> bool {
    use goblin::elf::header::{EM_X86_64, ET_DYN, ET_EXEC};
    use goblin::elf::program_header::PT_INTERP;
    let Ok(elf) = goblin::elf::Elf::parse_header(bytes) else { return false };
    let Ok(offset) = usize::try_from(elf.e_phoff) else { return false };
    let context = goblin::container::Ctx::new(goblin::container::Container::Big, goblin::container::Endian::Little);
    let headers = goblin::elf::ProgramHeader::parse(bytes, offset, usize::from(elf.e_phnum), context);
    let without_loader = headers.is_ok_and(|headers| headers.iter().all(|header| header.p_type != PT_INTERP));
    elf.e_machine == EM_X86_64 && matches!(elf.e_type, ET_EXEC | ET_DYN) && without_loader
}

#[cfg(test)]
mod tests;
