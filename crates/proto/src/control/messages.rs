//! What is said over a control socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use types::{GuestMemorySize, VcpuCount};

/// What the engine says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ToVmm {
    /// To `forkd-vmm vm`, first of all: builds the VM and runs it. Descriptors: the tap of `net`, if there is one, and the
    /// claim on `uid`, if it has one. Answer: [`FromVmm::Booted`] or [`FromVmm::Refused`].
    Boot(Box<VmSpec>),
    /// To a running VM: stops it for good and writes it down. Descriptors: the page map of its process, then empty files
    /// open for reading and writing: the state, the memory, and one for each writable disk in order. Answer:
    /// [`FromVmm::Frozen`], and the process exits; or [`FromVmm::FreezeFailed`], and the VM goes on.
    Freeze,
    /// To a running VM: when its guest powers itself off, what it has written to its disks is kept. Descriptors, all empty
    /// files open for writing: one for each writable disk in order. They are layers when [`FromVmm::Ended`] says
    /// [`Outcome::Shutdown`]; what could not be kept is an [`Outcome::Fault`].
    KeepDisks,
    /// To `forkd-vmm template`, first of all: takes up a frozen VM. Descriptors, open for reading: the state, the layers of
    /// the memory, lowest first, then for each disk its image, if it has one, and its layers, lowest first. If the memory
    /// has more than one layer, an empty file follows in which they are laid over each other, open for reading and writing,
    /// and then the same file open for reading, which is what children have of it. Answer: [`FromVmm::Loaded`] or
    /// [`FromVmm::Refused`].
    Load(LoadSpec),
    /// To a template that is loaded: forks these children. Descriptors: those of the first child in the order that
    /// `descriptors` says, then the second's, and so on; a tap is among them exactly if the frozen VM had a network card.
    /// Answer: [`FromVmm::Forked`] by the template, and by each child, on the same connection and in any order,
    /// [`FromVmm::Started`] or [`FromVmm::NotStarted`].
    Spawn {
        /// Who they shall be.
        children: Vec<ChildSpec>,
        /// What comes for each of them; only tops come more than once.
        #[serde(default)]
        descriptors: Vec<ChildDescriptor>,
    },
    /// To a running VM, before it is branched: which files it writes to now. Answer: [`FromVmm::Tops`], or
    /// [`FromVmm::BranchFailed`].
    ShowTops,
    /// To a running VM: makes a template of what it is at this instant, and runs on. Descriptors: the listening socket of
    /// the template, its log, open for writing, and for each writable disk three: an empty file, to which the VM writes
    /// from then on, the same file open for reading only, and the file it wrote to before, as [`FromVmm::Tops`] brought
    /// it, open for reading only. Template and VM have no other descriptor of the latter afterwards. Answer:
    /// [`FromVmm::Branched`] or [`FromVmm::BranchFailed`].
    Branch,
    /// To a template: writes down what it holds, in a process of its own, while it goes on serving. Descriptors: the page
    /// map of the template's process; the state, the memory and a layer for each writable disk, all empty files open for
    /// reading and writing; then the memory layers of the parent, lowest first. Answer: [`FromVmm::Forked`] with the
    /// writer, and by the writer, on the same connection, [`FromVmm::Written`] or [`FromVmm::WriteFailed`].
    Write(WriteSpec),
    /// To a running VM: stops its vCPUs, and its devices with them, until it is told to go on. It can be branched and ended
    /// meanwhile. While it is so, its state says so (see [`crate::control::Condition`]). Answer: [`FromVmm::Paused`], also
    /// when it was so already, or [`FromVmm::PauseFailed`].
    Pause,
    /// To a VM that is paused: goes on. Answer: [`FromVmm::Resumed`], also when it ran already, or [`FromVmm::PauseFailed`].
    Resume,
    /// Presses the power button: the guest shuts itself down.
    PowerButton,
    /// Ends the VM at once.
    Stop,
}

/// What the VMM says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum FromVmm {
    /// The vCPUs run.
    Booted {
        /// From the request until the first vCPU ran.
        setup_us: u64,
    },
    /// The VM could not be built; the process exits.
    Refused {
        /// Which case it is.
        code: RefusalCode,
        /// What a person should read.
        message: String,
    },
    /// The VM is written down; the process exits.
    Frozen {
        /// For how long the guest did not run before it was all in memory.
        pause_us: u64,
        /// Bytes of guest memory that are not zero.
        memory_bytes: u64,
        /// Bytes the guest had written to its disks.
        disk_bytes: u64,
    },
    /// The VM could not be written down and goes on.
    FreezeFailed {
        /// What a person should read.
        message: String,
    },
    /// What the VM writes to. Descriptors: the file of each writable disk, in order.
    Tops,
    /// A template of the VM exists, and the VM runs on.
    Branched {
        /// The template's process.
        pid: i32,
        /// For how long the guest did not run.
        pause_us: u64,
    },
    /// There is no template; the VM runs on.
    BranchFailed {
        /// What a person should read.
        message: String,
    },
    /// The VM does not run until it is told to.
    Paused,
    /// The VM runs.
    Resumed,
    /// The VM is as it was.
    PauseFailed {
        /// What a person should read.
        message: String,
    },
    /// A template is written down; the writer exits.
    Written {
        /// Bytes of guest memory that were written.
        memory_bytes: u64,
        /// Bytes of disks that were written.
        disk_bytes: u64,
    },
    /// A template could not be written down; the writer exits.
    WriteFailed {
        /// What a person should read.
        message: String,
    },
    /// The template can spawn.
    Loaded {
        /// How long it took.
        setup_us: u64,
        /// How many tops each child needs.
        tops: u8,
    },
    /// The template has forked.
    Forked {
        /// Those it could fork. One that is missing has no process, and [`FromVmm::NotStarted`] was said for it.
        children: Vec<ForkedChild>,
    },
    /// A child's vCPUs run.
    Started {
        /// Which child.
        id: String,
        /// From its first instant until then.
        setup_us: u64,
    },
    /// A child could not be set up; its process, if there was one, exits.
    NotStarted {
        /// Which child.
        id: String,
        /// Which case it is.
        code: RefusalCode,
        /// What a person should read.
        message: String,
    },
    /// The VM is over; the process exits.
    Ended {
        /// How it ended.
        outcome: Outcome,
    },
}

/// Why a VM could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// `/dev/kvm` is missing, forbidden or lacks something.
    Kvm,
    /// The kernel or initramfs cannot be loaded.
    Kernel,
    /// A disk cannot be opened or is not one.
    Disk,
    /// The host has not enough memory.
    Memory,
    /// A snapshot is damaged, of another format, or needs what this host has not.
    Snapshot,
    /// Anything else of the host's.
    Host,
}

/// How a VM ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Outcome {
    /// The guest powered itself off.
    Shutdown,
    /// The guest asked for a restart.
    Reboot,
    /// The guest's kernel panicked.
    Panic {
        /// The kernel's words, if they reached the console.
        reason: Option<String>,
    },
    /// The engine ended it, or went away.
    Stopped,
    /// The VMM or KVM could not go on.
    Fault {
        /// What happened.
        message: String,
    },
}

/// What the VM is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// Virtual CPUs.
    pub vcpus: VcpuCount,
    /// Memory.
    pub memory: GuestMemorySize,
    /// A bzImage or an ELF vmlinux.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: Option<PathBuf>,
    /// The kernel's command line; the VMM adds nothing.
    pub cmdline: String,
    /// Disks in order: `/dev/vda`, `/dev/vdb`, ...
    pub disks: Vec<DiskSpec>,
    /// The network card; its tap comes beside the message.
    pub net: Option<NetSpec>,
    /// The vsock device.
    pub vsock: VsockSpec,
    /// Whether the guest can give memory back that it has no use for.
    #[serde(default)]
    pub balloon: bool,
    /// Where the serial console is written. Bounded: of a long log the tail is kept.
    pub console: PathBuf,
    /// What ends the VM.
    pub lifetime: Lifetime,
    /// As whom its process runs, once it has opened what is named here. There is none if the engine may not choose one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<VmUid>,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// A raw image; never written to.
    pub image: PathBuf,
    /// Whether the guest may write.
    pub access: DiskAccess,
}

/// What a guest may do with a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskAccess {
    /// Read.
    ReadOnly,
    /// Write to a private top layer, an unlinked sparse file made in this directory, gone with the VM.
    PrivateTop {
        /// Where the top layer's bytes go.
        dir: PathBuf,
    },
}

/// What a template is made from, beside the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// How many layers the memory has.
    pub memory: LayerCount,
    /// What each disk is made of.
    pub disks: Vec<DiskLayers>,
}

/// The layers of something: at least one.
pub type LayerCount = std::num::NonZeroU8;

/// What a disk is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLayers {
    /// What is under the lowest layer.
    pub base: DiskBase,
    /// How many layers there are.
    pub layers: u8,
}

/// What is under the lowest layer of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskBase {
    /// An image.
    Image,
    /// Nothing: what no layer has is zero.
    Zero,
}

/// How a template is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteSpec {
    /// The writer's name in the answer.
    pub id: String,
    /// How much is written.
    pub extent: Extent,
}

/// How much of a template is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// All memory, and all that lies over the disks' images.
    Full,
    /// What differs from the parent, of whose memory so many layers came beside the message; and of the disks what was
    /// written since the VM was forked from it.
    Diff {
        /// How many.
        memory_layers: LayerCount,
    },
}

/// A child to be forked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildSpec {
    /// Its name; no two of one request share it.
    pub id: String,
    /// What ends it: the connection by which the request came, or nothing.
    pub lifetime: Lifetime,
    /// How many bytes its tops may take, together. A guest that writes more gets errors, and its state says so from then
    /// on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_limit: Option<u64>,
    /// As whom it runs; without one, as the template does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<VmUid>,
    /// Nothing else may run on the other hardware threads of a core while it runs there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_cores: bool,
}

/// A user and group that a VM's process runs as, never root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmUid(std::num::NonZeroU32);

impl VmUid {
    /// `None` for root, and for the number that the system understands as no change.
    #[must_use]
    pub const fn new(uid: u32) -> Option<Self> {
        match std::num::NonZeroU32::new(uid) {
            Some(uid) if uid.get() != u32::MAX => Some(Self(uid)),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// A descriptor that comes for a child. A child opens nothing: what it has was handed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildDescriptor {
    /// What it says of itself (see [`crate::control::Condition`]), open for writing. A shared `flock` on it is the child's
    /// for as long as it lives. One that finds the file without a name, once it listens, is not wanted any more and ends.
    State,
    /// Its log, open for writing.
    Log,
    /// Where its serial console is written. Bounded: of a long log the tail is kept.
    Console,
    /// Where it listens for [`ToVmm`]: a socket that has its address and does not listen yet, so that who listens is the
    /// child.
    Control,
    /// The host's end of its vsock, the same.
    Vsock,
    /// An empty file for what the guest writes to a disk: one for each writable disk, in order.
    Top,
    /// The tap of its network card.
    Tap,
    /// The `cgroup.procs` of the control group it shall live in, open for writing. The child joins before anything else,
    /// so that all it ever uses is counted there.
    Cgroup,
    /// Says that its uid is taken, for as long as it or a copy of it lives. It is only kept.
    Claim,
}

/// A child that has a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkedChild {
    /// Which.
    pub id: String,
    /// Its process.
    pub pid: i32,
}

/// A network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetSpec {
    /// The guest's hardware address.
    pub mac: [u8; 6],
}

/// The vsock device: the host reaches guest port P through `socket` by saying `CONNECT P\n`; the guest reaches nothing of
/// the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsockSpec {
    /// The guest's context id; at least 3.
    pub cid: u64,
    /// The host's end.
    pub socket: PathBuf,
}

/// What ends a VM besides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// The engine's end of the control socket closing.
    Connection,
    /// Nothing.
    Detached,
}
