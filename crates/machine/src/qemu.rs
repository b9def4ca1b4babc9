//! QEMU's command line, and its monitor for the one thing we ask of it: to quit.
//!
//! TCG emulates AMD's SVM, so the kernel inside offers a real KVM. The network is restricted: nothing inside reaches
//! anything outside, and only the agent's port is reached from here.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::guest::AGENT_PORT;

use crate::layout::{CONSOLE, INITRAMFS, Layout, QMP};
use crate::state::Size;

/// The program.
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// The Debian package that has it.
pub(crate) const PACKAGE: &str = "qemu-system-x86";
/// What QEMU writes when the port it was given is somebody else's.
pub(crate) const PORT_TAKEN: &str = "Could not set up host forwarding rule";

/// `isolcpus=0`: no VM may run on the first CPU. Whenever another CPU executes an instruction that clears floating-point
/// exceptions (`fxrstor` among them), QEMU also clears a flag in a word of the first CPU's, reading and writing it from
/// the other's thread. Whatever the first CPU changed in between is undone, and one of the word's bits says that nested
/// paging is on: a VM that was being left then died of a triple fault, or took the whole machine along.
/// `kernelcore`: keeps what the kernel allocates for itself, KVM's page tables above all, below 4 GiB. Guests with several
/// vCPUs locked the machine up without it when their CPUs came on line; QEMU 7.2 seems to lose the upper half of those
/// tables' addresses while a nested CPU is not yet in long mode. What user processes hold may lie anywhere.
/// `nohz=off highres=off`: the timer ticks by itself, without being set anew each time. When a VM is entered, QEMU notes
/// its pending virtual interrupt in a word to which other threads add, with a lock, the interrupts of the CPU; one of
/// theirs can get lost. Of a timer that fires once, that was the last interrupt: the VM ran on for ever, and whoever waited
/// for its CPU did so too. A lost tick is followed by the next, which finds all others that are pending.
/// `softlockup_panic`: a CPU that has hung for a minute hangs for ever, and a machine that is gone can be started again.
/// `rcu_expedited`: KVM waits for grace periods when it makes and drops a VM; on an idle emulated CPU each takes tens
/// of milliseconds, and 20 VMs were made and dropped in 4.6 s instead of 7.2 s with it.
const CMDLINE: &str = "console=ttyS0 quiet mitigations=off panic=-1 rcupdate.rcu_expedited=1 kernelcore=2560M isolcpus=0 \
    nohz=off highres=off watchdog_thresh=30 softlockup_panic=1 forkd.role=machine forkd.hostname=forkd-machine forkd.root=/dev/vda forkd.data=/dev/vdb:/var/lib/forkd \
    forkd.net=10.0.2.15/24,10.0.2.2";
/// A monitor that says nothing for so long is not going to.
const QMP_PATIENCE: Duration = Duration::from_secs(5);
/// Longer than the monitor's greeting.
const MAX_QMP_LINE: u64 = 64 << 10;

/// What one run of QEMU needs to know.
#[derive(Clone, Debug)]
pub(crate) struct QemuSpec {
    pub(crate) kernel: PathBuf,
    pub(crate) root: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) transfer: PathBuf,
    pub(crate) port: u16,
    pub(crate) size: Size,
}

impl QemuSpec {
    /// The arguments, for a QEMU that is started in the run directory.
    pub(crate) fn args(&self) -> Vec<OsString> {
        let Size { cpus, memory_bytes } = self.size;
        let mut args = words("-name forkd-machine -no-user-config -nodefaults -display none -no-reboot");
        args.extend(words("-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"));
        // Without 5-level paging every walk of the nested tables is a step shorter. XSAVE is off because QEMU does not
        // intercept XSETBV: the KVM inside would never learn a guest's XCR0, and guests lose their vector registers.
        // Without ERMS and FSRM kernels copy and clear by words; a byte-wise string instruction is emulated byte by byte.
        args.extend(words("-M pc -accel tcg,thread=multi -cpu max,-la57,-xsave,-erms,-fsrm"));
        // One more than are of use: the first is kept free, see `CMDLINE`.
        args.extend(words(&format!("-smp {} -m {}M", cpus + 1, memory_bytes >> 20)));
        args.extend(words(&format!("-chardev file,id=console,path={CONSOLE},append=on -serial chardev:console")));
        args.extend(words(&format!("-qmp unix:{QMP},server=on,wait=off -device virtio-rng-pci")));
        let forward = format!("hostfwd=tcp:127.0.0.1:{}-:{AGENT_PORT}", self.port);
        args.extend(words(&format!("-nic user,model=virtio-net-pci,ipv6=off,restrict=on,{forward}")));
        // A host whose disk is full makes writes fail inside; QEMU's own answer would be to stop the machine.
        args.extend(["-drive".into(), drive(&self.root, "snapshot=on,werror=report")]);
        args.extend(["-drive".into(), drive(&self.data, "cache=writeback,discard=unmap,werror=report")]);
        args.extend(["-drive".into(), drive(&self.transfer, "readonly=on")]);
        args.extend(["-kernel".into(), self.kernel.clone().into()]);
        args.extend(["-initrd".into(), INITRAMFS.into(), "-append".into(), CMDLINE.into()]);
        args
    }
}

fn words(text: &str) -> Vec<OsString> {
    text.split_ascii_whitespace().map(OsString::from).collect()
}

/// In QEMU's option lists a comma inside a value is written twice.
fn drive(path: &Path, options: &str) -> OsString {
    let escaped = path.as_os_str().as_bytes().iter().flat_map(|byte| match byte {
        b',' => vec![b',', b','],
        byte => vec![*byte],
    });
    let mut drive = OsString::from("file=");
    drive.push(OsString::from_vec(escaped.collect()));
    drive.push(OsStr::new(",if=virtio,format=raw,"));
    drive.push(options);
    drive
}

/// Tells whatever QEMU listens on the monitor's socket to quit. False when none does.
pub(crate) fn quit(layout: &Layout) -> io::Result<bool> {
    let stream = match connect(layout) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(QMP_PATIENCE))?;
    stream.set_write_timeout(Some(QMP_PATIENCE))?;
    let mut lines = BufReader::new(&stream).take(MAX_QMP_LINE);
    let mut greeting = String::new();
    lines.read_line(&mut greeting)?;
    if !greeting.starts_with("{\"QMP\"") {
        return Err(io::Error::other("what answers on the monitor's socket is not QEMU"));
    }
    (&stream).write_all(b"{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"quit\"}\n")?;
    // The stream ends when QEMU does; what it says before that does not matter.
    io::copy(&mut lines, &mut io::sink())?;
    Ok(true)
}

/// Connects by way of the directory, because the whole path may be longer than a socket's may.
fn connect(layout: &Layout) -> io::Result<UnixStream> {
    let dir = File::open(&layout.run)?;
    UnixStream::connect(Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(QMP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::layout;

    fn spec() -> QemuSpec {
        QemuSpec {
            kernel: "/k/vmlinuz".into(),
            root: "/a,b/root.ext4".into(),
            data: "/d/data.raw".into(),
            transfer: "/d/transfer.raw".into(),
            port: 4711,
            size: Size { cpus: 3, memory_bytes: 5 << 30 },
        }
    }

    fn value(flag: &str) -> Vec<String> {
        let args: Vec<_> = spec().args().into_iter().map(|arg| arg.into_string().unwrap()).collect();
        args.windows(2).filter(|pair| pair[0] == flag).map(|pair| pair[1].clone()).collect()
    }

    #[test]
    fn the_network_is_restricted_and_only_loopback_leads_in() {
        let nic = value("-nic");
        assert_eq!(nic, ["user,model=virtio-net-pci,ipv6=off,restrict=on,hostfwd=tcp:127.0.0.1:4711-:1717"]);
    }

    #[test]
    fn the_root_is_thrown_away_and_the_data_is_kept() {
        let drives = value("-drive");
        assert_eq!(drives.len(), 3);
        assert!(drives[0].starts_with("file=/a,,b/root.ext4,") && drives[0].contains("snapshot=on"), "{drives:?}");
        assert!(drives[1].starts_with("file=/d/data.raw,") && !drives[1].contains("snapshot"), "{drives:?}");
        assert!(drives[1].contains("cache=writeback"), "{drives:?}");
        assert!(drives[2].starts_with("file=/d/transfer.raw,") && drives[2].contains("readonly=on"), "{drives:?}");
    }

    #[test]
    fn size_and_kernel_arrive() {
        // Three of use, and the first, which is kept free.
        assert_eq!((value("-smp"), value("-m")), (vec!["4".into()], vec!["5120M".into()]));
        assert!(value("-append")[0].contains(" isolcpus=0 "));
        assert_eq!(value("-kernel"), ["/k/vmlinuz"]);
        assert!(value("-append")[0].contains("forkd.data=/dev/vdb:/var/lib/forkd"));
    }

    #[test]
    fn a_socket_without_a_qemu_is_no_error_and_a_stranger_is() {
        let (_home, layout) = layout();
        assert!(!quit(&layout).unwrap());
        let listener = std::os::unix::net::UnixListener::bind(layout.qmp()).unwrap();
        let stranger = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"220 hello\n"));
        quit(&layout).unwrap_err();
        stranger.join().unwrap().unwrap();
        assert!(!quit(&layout).unwrap(), "a dead socket counts as none");
    }
}
