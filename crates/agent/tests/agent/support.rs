//! A real agent process, and ways to talk to it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio as ProcessStdio};
use std::time::{Duration, Instant};

use session::{
    Connection, ErrorCode, Exec, ExecRequest, ExitStatus, Metadata, Output, RenewRequest, SessionError, Stdio,
};

/// Longer than anything here takes, so that only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// An agent that ends with this value.
pub(crate) struct Agent {
    process: Child,
    pub(crate) socket: PathBuf,
    root: Option<tempfile::TempDir>,
    _dir: tempfile::TempDir,
}

impl Agent {
    pub(crate) fn start() -> Self {
        Self::start_with(&[], |dir| format!("unix:{}", dir.join("agent").display()))
    }

    /// An agent that has been renewed, with these variables; its files are below `root`.
    pub(crate) fn start_renewed(env: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let more = ["--root", root.path().to_str().unwrap()];
        let mut agent = Self::start_with(&more, |dir| format!("unix:{}", dir.join("agent").display()));
        agent.connect().renew(&renewal(env)).unwrap();
        agent.root = Some(root);
        agent
    }

    /// Where a renewal writes its files.
    pub(crate) fn root(&self) -> &Path {
        self.root.as_ref().expect("it was started with one").path()
    }

    /// An agent that can mount what nobody else sees.
    pub(crate) fn start_with_own_mounts() -> Self {
        let mut command = Command::new("unshare");
        command.arg("--mount").arg(env!("CARGO_BIN_EXE_forkd-agent"));
        Self::spawn(command, &[], |dir| format!("unix:{}", dir.join("agent").display()))
    }

    pub(crate) fn start_with(more: &[&str], address: impl Fn(&Path) -> String) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_forkd-agent")), more, address)
    }

    fn spawn(mut command: Command, more: &[&str], address: impl Fn(&Path) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        command.arg("--serve").arg(address(dir.path())).args(more).stdin(ProcessStdio::null());
        let process = command.spawn().unwrap();
        let agent = Self { process, socket: dir.path().join("agent"), root: None, _dir: dir };
        agent.wait_until_it_listens(&address(agent._dir.path()));
        agent
    }

    fn wait_until_it_listens(&self, address: &str) {
        let listens = || match address.split_once(':').unwrap() {
            ("unix", path) => UnixStream::connect(path).is_ok(),
            (_, address) => TcpStream::connect(address).is_ok(),
        };
        eventually("the agent listens", listens);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for it to end by itself.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.process.wait().unwrap()
    }

    pub(crate) fn stream(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.stream(), None, PATIENCE).unwrap()
    }

    pub(crate) fn exec(&self, request: &ExecRequest) -> Exec {
        self.connect().exec(request).unwrap()
    }

    pub(crate) fn run(&self, request: &ExecRequest) -> Output {
        self.connect().output(request, &[], 1 << 20).unwrap()
    }

    /// Runs a shell script; its status and standard output.
    pub(crate) fn sh(&self, script: &str) -> (ExitStatus, String) {
        let output = self.run(&shell(script));
        (output.status, String::from_utf8(output.stdout).unwrap())
    }

    /// The code of a refusal.
    pub(crate) fn refusal(&self, request: &ExecRequest) -> ErrorCode {
        match self.connect().exec(request) {
            Err(SessionError::Refused { code, message }) => {
                assert!(!message.is_empty());
                code
            }
            other => panic!("not refused: {other:?}"),
        }
    }

    /// A line of `/proc/PID/status`.
    pub(crate) fn status_line(&self, name: &str) -> String {
        let file = std::fs::File::open(format!("/proc/{}/status", self.pid())).unwrap();
        let mut lines = BufReader::new(file).lines().map(Result::unwrap);
        lines.find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop((self.process.kill(), self.process.wait()));
    }
}

pub(crate) fn request(argv: &[&str]) -> ExecRequest {
    ExecRequest { argv: argv.iter().map(|text| (*text).into()).collect(), ..ExecRequest::default() }
}

pub(crate) fn shell(script: &str) -> ExecRequest {
    request(&["sh", "-c", script])
}

pub(crate) fn with_pipes(request: ExecRequest) -> ExecRequest {
    ExecRequest { stdio: Stdio::Pipes, ..request }
}

/// A renewal of a sandbox `sb-1`.
pub(crate) fn renewal(env: &[(&str, &str)]) -> RenewRequest {
    let env: BTreeMap<_, _> = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    RenewRequest {
        sandbox_id: "sb-1".parse().unwrap(),
        hostname: "sb-1".parse().unwrap(),
        machine_id: "0123456789abcdef0123456789abcdef".parse().unwrap(),
        generation: "g-1".parse().unwrap(),
        env: env.try_into().unwrap(),
        metadata: Metadata::default(),
        wall_clock_unix_ns: 0,
        entropy: vec![7; 32].try_into().unwrap(),
    }
}

/// Waits for a condition, and fails when it never comes true.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "it never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// State and parent of a process; nothing when it is gone.
pub(crate) fn stat(pid: u32) -> Option<(char, u32, i32)> {
    let mut text = String::new();
    std::fs::File::open(format!("/proc/{pid}/stat")).ok()?.read_to_string(&mut text).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Every process there is, with its state, parent and group.
pub(crate) fn processes() -> Vec<(u32, char, u32, i32)> {
    let names = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| stat(pid).map(|(state, parent, group)| (pid, state, parent, group))).collect()
}

/// Whether anybody of a process group still runs.
pub(crate) fn group_lives(group: i32) -> bool {
    processes().iter().any(|(_, state, _, found)| *found == group && *state != 'Z')
}
