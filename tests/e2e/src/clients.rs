//! Clients as their users have them before them: those that others publish, unmodified, and our own SDK, against
//! `forkd serve` and real VMs.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bench::home::{self, Home, Vms};
use image::guest_kernel;
use machine::{Machine, Push};
use types::Dirs;
use types::progress::Silent;

use crate::Test;
use crate::host::{Host, argv};
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[("clients::published_and_own", published_and_own)];
/// Of a daemon without VMs.
pub(crate) const PLAIN_TESTS: &[Test] = &[("clients::the_api_is_what_it_says", the_api_is_what_it_says)];

const TAG: &str = "e2e-clients";
pub(crate) const TOKEN: &str = "a token of the tests of clients";
/// How long a daemon may take to answer, machine and all.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often a daemon is started.
const TRIES: usize = 4;
/// Where the emulated host gets a kernel with its modules.
const BOOT_INSIDE: &str = "/var/lib/forkd/e2e-boot";

/// `forkd serve`, which ends with this value.
pub(crate) struct Served {
    process: Child,
    pub(crate) url: String,
    dir: tempfile::TempDir,
}

impl Served {
    /// Commands of other tests may have a daemon start by itself at any moment; then another try is needed.
    pub(crate) fn start(host: &Host) -> Result<Self> {
        (1..TRIES).find_map(|_| Self::try_start(host).ok()).map_or_else(|| Self::try_start(host), Ok)
    }

    fn try_start(host: &Host) -> Result<Self> {
        host.end_daemon()?;
        let dir = tempfile::tempdir()?;
        let token = dir.path().join("token");
        fs::write(&token, TOKEN)?;
        // Free a moment ago; whoever takes it meanwhile makes this test fail, not lie.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = host.forkd();
        command.args(["serve", "--bind", &format!("127.0.0.1:{port}"), "--token-file"]).arg(&token);
        command.stdout(Stdio::null()).stderr(fs::File::create(dir.path().join("log"))?);
        let process = command.spawn()?;
        let mut served = Self { process, url: format!("http://127.0.0.1:{port}"), dir };
        let log = served.dir.path().join("log");
        wait_until("a daemon that listens", PATIENCE, || {
            let listens = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            listens || served.process.try_wait().is_ok_and(|ended| ended.is_some())
        })?;
        if let Some(status) = served.process.try_wait()? {
            bail!("forkd serve ended with {status}: {}", fs::read_to_string(log)?);
        }
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(self.process.id()).unwrap_or(0)) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap_or_default();
        }
        drop(self.process.wait());
    }
}

/// Of real VMs.
fn published_and_own(host: &Host) -> Result<()> {
    let (tests, sdk) = (directory("../clients"), directory("../../sdk/python"));
    let Venvs { published, own } = venvs(&host.dirs)?;
    let mut snapshot = host.forkd();
    let done = snapshot.args(["snapshot", "--recipe", "python-numpy", "--force", "--tag", TAG]).output()?;
    ensure!(done.status.success(), "forkd snapshot: {}", String::from_utf8_lossy(&done.stderr));
    let (kernel, rootfs) = boot_files(host)?;
    let served = Served::start(host)?;
    let variables = [
        ("FORKD_URL", &*served.url),
        ("FORKD_TOKEN", TOKEN),
        ("CLIENTS_TAG", TAG),
        ("CLIENTS_KERNEL", &kernel),
        ("CLIENTS_ROOTFS", &rootfs),
    ];
    let of_vms = ["test_controller.py", "test_mcp.py", "test_schema_of_a_sandbox.py"];
    let tested = pytest(&published, &of_vms.map(|name| tests.join(name)), &variables)
        .and_then(|()| in_a_network_of_its_own(host, &published, &tests.join("test_sandbox.py")))
        .and_then(|()| pytest(&own, &[sdk.join("tests/vms")], &variables));
    drop(served);
    let removed = host.forkd().args(["rmi", TAG]).output()?;
    tested?;
    ensure!(removed.status.success(), "forkd rmi: {}", String::from_utf8_lossy(&removed.stderr));
    Ok(())
}

/// Clients that look for their sandbox in the network that they are in; here in one that has nothing else. They have no
/// other way to the daemon than its socket, and find `forkd` by its name.
fn in_a_network_of_its_own(host: &Host, venv: &Path, test: &Path) -> Result<()> {
    let url = format!("unix:{}", std::path::absolute(host.dirs.run.join("forkd.sock"))?.display());
    let programs = host.forkd.parent().context("forkd is in a directory")?.to_path_buf();
    let all = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&all)))?;
    let mut command = Command::new("unshare");
    command.arg("--net").arg(venv.join("bin/pytest")).env("PATH", path);
    ran(&mut command, &[test.into()], &[("FORKD_URL", &*url), ("FORKD_TOKEN", TOKEN), ("CLIENTS_TAG", TAG)])
}

/// The daemon's own words about itself. It is asked thousands of things, so there are no VMs.
fn the_api_is_what_it_says(host: &Host) -> Result<()> {
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let variables = [("FORKD_URL", &*home.url), ("FORKD_TOKEN", ""), ("CLIENTS_TAG", home::TAG)];
    pytest(&venvs(&host.dirs)?.published, &[directory("../clients").join("test_schema.py")], &variables)
}

/// Runs tests in Python, which say what went wrong.
pub(crate) fn pytest(venv: &Path, tests: &[PathBuf], variables: &[(&str, &str)]) -> Result<()> {
    ran(&mut Command::new(venv.join("bin/pytest")), tests, variables)
}

fn ran(command: &mut Command, tests: &[PathBuf], variables: &[(&str, &str)]) -> Result<()> {
    command.args(["-q", "-p", "no:cacheprovider"]).args(tests).stdin(Stdio::null()).envs(variables.iter().copied());
    let output = command.output().context("pytest")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Pythons to run the tests of clients.
pub(crate) struct Venvs {
    /// With what others publish.
    published: PathBuf,
    /// With our SDK.
    pub(crate) own: PathBuf,
}

/// Makes them unless they are there.
pub(crate) fn venvs(dirs: &Dirs) -> Result<Venvs> {
    static MAKING: Mutex<()> = Mutex::new(());
    // Several tests want them, and begin together.
    let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let (sdk, list) = (directory("../../sdk/python"), directory("../clients/requirements.txt"));
    let published = venv(dirs, "clients", &["-r", &text(&list)], &list)?;
    let own = venv(dirs, "sdk", &["-e", &format!("{}[test]", text(&sdk))], &sdk.join("pyproject.toml"))?;
    Ok(Venvs { published, own })
}

/// A path in this repository.
pub(crate) fn directory(from_here: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(from_here)
}

/// A Python with these packages, kept until the file that lists them changes.
fn venv(dirs: &Dirs, name: &str, packages: &[&str], list: &Path) -> Result<PathBuf> {
    let dir = dirs.cache.join("e2e").join(format!("venv-{name}"));
    let run = |program: PathBuf, words: &[&str]| -> Result<()> {
        let output = Command::new(&program).args(words).output().with_context(|| program.display().to_string())?;
        ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    let (mark, wanted) = (dir.join("installed"), format!("{packages:?} {}", fs::read_to_string(list)?));
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(dir);
    }
    run("python3".into(), &["-m", "venv", "--clear", &text(&dir)])?;
    let install = ["install", "--quiet", "--disable-pip-version-check"];
    run(dir.join("bin/pip"), &[&install[..], packages].concat())?;
    fs::write(mark, wanted)?;
    Ok(dir)
}

/// A kernel and an image as paths that the daemon can use.
fn boot_files(host: &Host) -> Result<(String, String)> {
    let kernel = guest_kernel(None, &host.dirs, &Silent)?;
    if host.has_kvm() {
        return Ok((text(&kernel.image), text(&host.artifacts.tiny)));
    }
    let modules = kernel.modules.context("a kernel with modules")?;
    let dir = tempfile::tempdir()?;
    let archive = dir.path().join("modules.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(modules.parent().context("modules in a directory")?)
        .arg("-cf")
        .arg(&archive)
        .arg(&kernel.release);
    ensure!(tar.status()?.success(), "{} cannot be packed", modules.display());
    let machine = Machine::find(&host.dirs)?.context("a machine that runs")?;
    let files = [(kernel.image, "vmlinuz"), (archive, "modules.tar"), (host.artifacts.tiny.clone(), "image.ext4")];
    let pushes = files.map(|(local, name)| Push { local, remote_name: name.into() });
    let pushed = machine.push(&pushes, &Silent)?;
    let [kernel, modules, image] = &pushed[..] else { bail!("the machine took {} files", pushed.len()) };
    let script = r#"mkdir -p "$1/boot" "$1/lib/modules"; cp "$2" "$1/boot/vmlinuz"; tar -xf "$3" -C "$1/lib/modules""#;
    let request = argv(&["sh", "-ec", script, "sh", BOOT_INSIDE, &text(kernel), &text(modules)]);
    let output = machine.output(&request, &[], 4096)?;
    ensure!(output.status.shell_code() == 0, "{}", String::from_utf8_lossy(&output.stderr));
    Ok((format!("{BOOT_INSIDE}/boot/vmlinuz"), text(image)))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
