//! From the kernel's hands to a machine that serves.
//!
//! ```text
//! initramfs                                      root
//!   /dev /proc /sys, console                       /dev/pts /dev/shm /run /tmp /sys/fs/cgroup ...
//!   command line, /token                           host name, network
//!   /modules in the order of /modules.list         data disk
//!   root device ─ mount ─ free the initramfs ──>   serve
//! ```
//!
//! What a machine cannot do without is fatal: the kernel panics when its first process exits, and the VMM reports the
//! last words on the console. What some kernels lack is said there and passed over.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use proto::guest::AGENT_PORT;
use rustix::process::{Resource, Rlimit};
use rustix::system::RebootCommand;
use vsock::{VMADDR_CID_ANY, VsockListener};

use crate::console::say;
use crate::renew::Scope;
use crate::serve::Listener;
use crate::service::{Service, ServiceError, read_token};
use crate::sys::SleepingVcpu;
use crate::{button, shutdown};

mod cmdline;
mod modules;
mod mounts;
mod network;
mod root;

use cmdline::{Options, Role};

/// The limit of open files init systems give: old programs expect the first, servers raise it to the second.
const OPEN_FILES: Rlimit = Rlimit { current: Some(1024), maximum: Some(512 << 10) };
/// How long a device may take to appear after its driver was loaded.
const DEVICE_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked for: devices come within milliseconds, and nothing else runs yet.
const DEVICE_POLL: Duration = Duration::from_millis(5);

/// What a machine cannot do without.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error(transparent)]
    Options(#[from] cmdline::OptionsError),
    #[error("this is not an initramfs: / is not in memory, so nothing was touched")]
    NotInitramfs,
    #[error("{} did not appear within {} s", path.display(), DEVICE_PATIENCE.as_secs())]
    NoDevice { path: PathBuf },
    #[error("cannot mount {what} on {}: {source}", target.display())]
    Mount { what: String, target: PathBuf, source: io::Error },
    #[error("cannot {what}: {source}")]
    Step { what: &'static str, source: io::Error },
    #[error("cannot set up eth0: {source}")]
    Network { source: io::Error },
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Names the step in its error.
fn step<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> InitError {
    move |source| InitError::Step { what, source: source.into() }
}

/// Brings the machine up, serves, and brings it down. Returns only when it cannot.
pub(crate) fn run() -> Result<(), InitError> {
    root::check_initramfs()?;
    mounts::kernel_filesystems()?;
    mounts::open_console().map_err(step("open the console"))?;
    let options = Options::read()?;
    let token = match options.role {
        Role::Guest => None,
        Role::Machine => Some(read_token(Path::new("/token"))?),
    };
    modules::load_all();
    wait_for(&options.root)?;
    root::switch(&options.root)?;
    mounts::rest(options.role);
    if let Some(data) = &options.data {
        wait_for(&data.device)?;
        mounts::ext4(&data.device, &data.target)?;
    }
    configure(&options)?;
    let _sleeper = match options.role {
        Role::Guest => None,
        Role::Machine => SleepingVcpu::new().inspect_err(|error| say(format_args!("KVM: {error}"))).ok(),
    };
    let service = Service::start(listen(options.role)?, token, OPEN_FILES, Scope::Machine)?;
    if let Some(door) = options.door()
        && let Err(error) = service.serve_lines(door)
    {
        say(format_args!("nobody is served at {}: {error}", door.at));
    }
    if let Err(error) = button::watch(service.stop.clone()) {
        say(format_args!("nobody watches the power button: {error}"));
    }
    let stop = service.wait_for_stop();
    let data = options.data.as_ref().map(|data| data.target.as_path());
    shutdown::run(&service.children, data, stop).map_err(step("stop the machine"))
}

fn configure(options: &Options) -> Result<(), InitError> {
    rustix::process::setrlimit(Resource::Nofile, OPEN_FILES).map_err(step("set the limit of open files"))?;
    // The kernel would restart at once; as a mere signal to PID 1 it is ignored.
    rustix::system::reboot(RebootCommand::CadOff).map_err(step("disarm ctrl-alt-del"))?;
    rustix::system::sethostname(options.hostname.as_bytes()).map_err(step("set the host name"))?;
    network::bring_up_loopback().map_err(step("bring up the loopback interface"))?;
    if let Some(net) = &options.net {
        wait_for(Path::new("/sys/class/net/eth0"))?;
        network::configure(net).map_err(|source| InitError::Network { source })?;
    }
    if !options.dns.is_empty()
        && let Err(error) = network::write_resolv_conf(Path::new("/etc"), &options.dns)
    {
        say(format_args!("cannot write /etc/resolv.conf: {error}"));
    }
    Ok(())
}

fn listen(role: Role) -> Result<Listener, InitError> {
    match role {
        Role::Guest => VsockListener::bind_with_cid_port(VMADDR_CID_ANY, AGENT_PORT).map(Listener::Vsock),
        Role::Machine => {
            let port = u16::try_from(AGENT_PORT).map_err(io::Error::other);
            port.and_then(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))).map(Listener::Tcp)
        }
    }
    .map_err(step("listen for the host"))
}

/// Waits for a device to appear.
fn wait_for(path: &Path) -> Result<(), InitError> {
    let until = Instant::now() + DEVICE_PATIENCE;
    while !path.exists() {
        if Instant::now() >= until {
            return Err(InitError::NoDevice { path: path.into() });
        }
        thread::sleep(DEVICE_POLL);
    }
    Ok(())
}
