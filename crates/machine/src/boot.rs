//! From the parts to a machine whose agent has said hello.
//!
//! Until that hello everything made here is tied to this process: QEMU dies with it, and what the next start finds is
//! a state that says `starting` with nobody at it.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use image::{GuestKernel, Initramfs, Purpose};
use session::{AgentHello, ErrorCode, SessionError};
use types::progress::Progress;

use crate::launch::{Launched, died};
use crate::layout::Layout;
use crate::push::PUSHED;
use crate::qemu::{self, QemuSpec};
use crate::state::{Parts, Phase, Size, StateV1, replace};
use crate::{Machine, MachineError, console, disk, program, transfer};

/// How long a machine may take to come up. It takes 7 seconds here; a loaded computer may be far slower.
const BOOT_PATIENCE: Duration = Duration::from_secs(180);
/// The least a knock waits for an answer. QEMU's end of the port is open long before the agent's, and a knock that
/// came too early is answered late or never. In case the agent is only slow, a knock waits for an eighth of the time
/// since the start if that is longer, which is the most it can make a start later.
const SHORTEST_KNOCK: Duration = Duration::from_millis(500);
/// Between a knock that was refused and the next.
const PAUSE: Duration = Duration::from_millis(100);
/// How many ports are tried.
const PORT_TRIES: usize = 5;
/// An emulated CPU more than this only makes the others wait.
const MAX_CPUS: u32 = 8;
const MIB: u64 = 1 << 20;

/// Run once after every boot, when nothing is being pushed: removes what was cut off, and what nobody used for long.
/// What the data disk no longer holds is given back to this computer, while the machine is already of use.
///
/// The newer of KVM's two page table managers waits for more grace periods when a VM ends than the older one: 20 VMs
/// were made and dropped in 4.6 s with it and in 1.4 s without, and a nested kernel booted no slower.
/// A vCPU that waits must not be waited for by spinning: a hundred idle guests share two emulated CPUs.
const TIDY: &str = r#"
kvm=/sys/module/kvm/parameters/tdp_mmu
if [ -w "$kvm" ]; then echo 0 >"$kvm"; fi
polling=/sys/module/kvm/parameters/halt_poll_ns
if [ -w "$polling" ]; then echo 0 >"$polling"; fi
if [ -d "$1" ]; then
    find "$1" -mindepth 1 -maxdepth 1 \( -name '.incoming.*' -o -mtime +30 \) -exec rm -rf {} +
fi
setsid fstrim "${1%/*}" </dev/null >/dev/null 2>&1 &
"#;

/// What a machine is made of.
#[derive(Debug)]
pub(crate) struct Ingredients<'a> {
    pub(crate) root: PathBuf,
    pub(crate) kernel: GuestKernel,
    pub(crate) agent: &'a Path,
    pub(crate) parts: Parts,
}

/// Boots a machine; the caller holds the lock and nothing runs.
pub(crate) fn boot(
    layout: &Layout,
    ingredients: &Ingredients<'_>,
    progress: &dyn Progress,
) -> Result<Machine, MachineError> {
    let _stage = progress.stage("starting the machine", None);
    disk::ensure(layout)?;
    transfer::create(layout)?;
    let made = prepare(layout, ingredients).and_then(|()| bring_up(layout, ingredients));
    if made.is_err() {
        layout.sweep()?;
    }
    made
}

fn prepare(layout: &Layout, ingredients: &Ingredients<'_>) -> Result<(), MachineError> {
    let token = fresh_token().map_err(MachineError::process("get random bytes"))?;
    let path = layout.token();
    replace(&path, token.as_bytes()).map_err(MachineError::io("write", &path))?;
    let Ingredients { kernel, agent, .. } = ingredients;
    let initramfs = Initramfs { agent, kernel, purpose: Purpose::Machine };
    Ok(initramfs.write_with_token(&layout.initramfs(), &token)?)
}

fn fresh_token() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a String does not fail");
        hex
    }))
}

/// A port that is free now can be taken before QEMU has it; then another is tried.
fn bring_up(layout: &Layout, ingredients: &Ingredients<'_>) -> Result<Machine, MachineError> {
    for _ in 0..PORT_TRIES {
        let port = free_port().map_err(MachineError::process("find a free port"))?;
        match bring_up_at(port, layout, ingredients) {
            Err(MachineError::Died { .. }) if console::mentions(&layout.console(), qemu::PORT_TAKEN) => {}
            result => return result,
        }
    }
    Err(MachineError::NoPort { tries: PORT_TRIES })
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn bring_up_at(port: u16, layout: &Layout, ingredients: &Ingredients<'_>) -> Result<Machine, MachineError> {
    let (kernel, root) = (ingredients.kernel.image.clone(), ingredients.root.clone());
    let size = host_size();
    let (data, transfer) = (layout.data_disk(), layout.transfer_disk());
    let spec = QemuSpec { kernel, root, data, transfer, port, size };
    let launched = Launched::start(layout, &program::find(qemu::PROGRAM, qemu::PACKAGE)?, &spec.args())?;
    let state = StateV1::starting(launched.process.identity().clone(), port, ingredients.parts.clone(), size);
    state.write(layout)?;
    let mut machine = Machine { layout: layout.clone(), state };
    let hello = wait_for_agent(&machine, &launched)?;
    machine.script("tidy up", TIDY, &[PUSHED.to_owned()])?;
    machine.state.phase = Phase::Ready;
    machine.state.kernel = hello.kernel;
    machine.state.write(layout)?;
    launched.keep();
    Ok(machine)
}

fn wait_for_agent(machine: &Machine, launched: &Launched) -> Result<AgentHello, MachineError> {
    let begun = Instant::now();
    while begun.elapsed() < BOOT_PATIENCE {
        match machine.connect_within(SHORTEST_KNOCK.max(begun.elapsed() / 8)) {
            Ok((connection, _)) => return Ok(connection.hello().clone()),
            Err(error @ MachineError::Session { source: SessionError::Refused { code: ErrorCode::Denied, .. } }) => {
                return Err(error);
            }
            Err(MachineError::Session { .. } | MachineError::NotRunning) => {}
            Err(error) => return Err(error),
        }
        if launched.process.wait(PAUSE).map_err(MachineError::process("watch QEMU"))? {
            return Err(died(&machine.layout));
        }
    }
    let console = machine.layout.console();
    let last_lines = console::last_lines(&console);
    Err(MachineError::BootTimeout { waited: begun.elapsed(), console, last_lines })
}

/// As many CPUs as there are; half the memory, but enough to run a few guests: it is taken only as it is used.
fn host_size() -> Size {
    let cpus = available_parallelism().map_or(1, NonZero::get);
    let info = rustix::system::sysinfo();
    size_for(cpus, info.totalram.saturating_mul(info.mem_unit.into()))
}

fn size_for(cpus: usize, memory_bytes: u64) -> Size {
    let cpus = u32::try_from(cpus).unwrap_or(MAX_CPUS).clamp(1, MAX_CPUS);
    let half_mib = memory_bytes / 2 / MIB;
    Size { cpus, memory_bytes: half_mib.clamp(4096, 8192) * MIB }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_size_follows_the_computer_within_bounds() {
        assert_eq!(size_for(1, GIB), Size { cpus: 1, memory_bytes: 4 * GIB });
        assert_eq!(size_for(6, 12 * GIB + 3), Size { cpus: 6, memory_bytes: 6 * GIB });
        assert_eq!(size_for(1000, 1 << 50), Size { cpus: 8, memory_bytes: 8 * GIB });
    }

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let (one, two) = (fresh_token().unwrap(), fresh_token().unwrap());
        assert!(one.len() == 64 && one != two);
    }
}
