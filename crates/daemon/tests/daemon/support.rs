//! A home with a snapshot in it, and a daemon over it that can be killed and started again.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use layer::Writer;
use serde_json::{Value, json};
use store::{Described, Existing, Origin, Store};
use types::{Dirs, GuestMemorySize, Interpreter, VcpuCount};

use crate::http::{Answer, PATIENCE, exchange, request, tcp, unix};

/// The file token of daemons that have one.
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What may be named in a path, and a name for each.
pub(crate) const HOLES: [(&str, &str); 7] = [
    ("{id}", "sb-1"),
    ("{tag}", "base"),
    ("{name}", "x"),
    ("{pid}", "1"),
    ("{session}", "1"),
    ("{port}", "80"),
    ("{path}", "x"),
];

/// A home with a daemon.
pub(crate) struct World {
    pub(crate) home: tempfile::TempDir,
    pub(crate) dirs: Dirs,
    daemon: Option<Child>,
    /// What it has logged.
    log: Arc<Mutex<String>>,
    port: u16,
    with_token: bool,
    /// What else it is told.
    words: Vec<String>,
}

impl World {
    /// A daemon that is open to this host.
    pub(crate) fn open() -> Self {
        Self::new(false, |_| Vec::new())
    }

    /// A daemon that wants a token.
    pub(crate) fn closed() -> Self {
        Self::closed_with(|_| Vec::new())
    }

    /// The same, told something more that is about its home.
    pub(crate) fn closed_with(words: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self::new(true, words)
    }

    /// A daemon that is open to this host, and is told something more.
    pub(crate) fn open_with(words: &[&str]) -> Self {
        Self::new(false, |_| words.iter().map(ToString::to_string).collect())
    }

    fn new(with_token: bool, words: impl FnOnce(&Path) -> Vec<String>) -> Self {
        // Short, because sockets' paths are.
        let home = tempfile::Builder::new().prefix("fd").tempdir().unwrap();
        let dirs = Dirs::under(home.path());
        fs::write(home.path().join("image"), [0; 4096]).unwrap();
        fs::write(home.path().join("token"), format!("{TOKEN}\n")).unwrap();
        symlink(built("scripted-vmm-of-daemon"), home.path().join("obeys")).unwrap();
        let words = words(home.path());
        let mut world = Self { home, dirs, daemon: None, log: Arc::default(), port: 0, with_token, words };
        world.take_snapshot("base");
        world.start();
        world
    }

    pub(crate) fn take_snapshot(&self, tag: &str) {
        self.take(tag, None);
    }

    /// A snapshot with a warm interpreter.
    pub(crate) fn take_warm_snapshot(&self, tag: &str) {
        self.take(tag, Some(Interpreter::Python3));
    }

    fn take(&self, tag: &str, interpreter: Option<Interpreter>) {
        let origin = Origin::booted(vec![self.home.path().join("image")]);
        let staged = Store::new(&self.dirs).stage(&tag.parse().unwrap(), Existing::Keep, origin).unwrap();
        staged.state().unwrap().write_all(state().as_bytes()).unwrap();
        for file in [staged.memory().unwrap(), staged.layer(0).unwrap()] {
            Writer::create(&file, 4096).unwrap().finish().unwrap();
        }
        let described = Described {
            recipe: None,
            kernel: "none".into(),
            agent: "scripted".into(),
            vcpus: VcpuCount::DEFAULT,
            memory: GuestMemorySize::DEFAULT,
            network: false,
            egress: None,
            interpreter,
            ports: Vec::new(),
            pause_us: None,
        };
        staged.commit(described).unwrap();
    }

    /// Starts the daemon and waits until it says that it listens.
    pub(crate) fn start(&mut self) {
        let mut command = self.command(&["--bind", "127.0.0.1:0"]);
        let mut daemon = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(daemon.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the daemon ended: {}", self.log());
            self.log.lock().unwrap().push_str(&line);
        }
        let address = line.split("://").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        self.port = address.rsplit(':').next().unwrap().parse().unwrap();
        let log = Arc::clone(&self.log);
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let mut log = log.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        self.daemon = Some(daemon);
    }

    /// The daemon's command line.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(built("serve"));
        command.args(words).args(&self.words).env_clear();
        command.env("NOTIFY_SOCKET", self.home.path().join("notify"));
        command.env("FORKD_HOME", self.home.path()).env("FORKD_VMM", self.home.path().join("obeys"));
        if self.with_token {
            command.arg("--token-file").arg(self.home.path().join("token"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Ends the daemon without a word.
    pub(crate) fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Asks the daemon to end; how it ended.
    pub(crate) fn stop_daemon(&mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        self.wait_for_daemon()
    }

    /// Waits for the daemon's end; how it ended.
    pub(crate) fn wait_for_daemon(&mut self) -> Option<i32> {
        self.daemon.take().unwrap().wait().unwrap().code()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.daemon.as_ref().unwrap().id()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// How much memory the daemon has.
    pub(crate) fn daemon_memory_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.as_ref().unwrap().id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// How many threads of the daemon's are busy with guests.
    pub(crate) fn guest_threads(&self) -> u64 {
        let text = self.ask("GET", "/metrics", None).expect(200).text();
        let line = text.lines().find_map(|line| line.strip_prefix("forkd_guest_calls_in_flight ")).unwrap();
        line.parse().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dirs.run.join("forkd.sock")
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// A request over the unix socket.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.ask_with(method, path, &[], body)
    }

    pub(crate) fn ask_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Answer {
        let body = body.map(|body| body.to_string());
        let mut headers = headers.to_vec();
        if body.is_some() {
            headers.push(("content-type", "application/json"));
        }
        let text = request(method, path, &headers, body.as_deref());
        exchange(unix(&self.socket()), text.as_bytes()).unwrap()
    }

    /// A request over the unix socket whose body is bytes.
    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let head = request(method, path, &[("content-length", &body.len().to_string())], None);
        exchange(unix(&self.socket()), &[head.as_bytes(), body].concat()).unwrap()
    }

    /// A request over TCP.
    pub(crate) fn ask_tcp(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Answer {
        exchange(tcp(self.port), request(method, path, headers, body).as_bytes()).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        self.ask("GET", path, None).expect(200).json()
    }

    pub(crate) fn post(&self, path: &str, body: Value, status: u16) -> Value {
        self.ask("POST", path, Some(body)).expect(status).json()
    }

    /// The registry's file, as nobody but the daemon should have it.
    pub(crate) fn registry(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.dirs.data.join("registry.db")).unwrap()
    }

    /// Every method and path of the document, with its holes.
    pub(crate) fn routes(&self) -> Vec<(String, String)> {
        let document = self.get("/v1/openapi.json");
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        let paths = document["paths"].as_object().unwrap();
        let routes: Vec<_> = paths
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
            })
            .collect();
        assert!(routes.len() > 50, "{routes:?}");
        routes
    }

    /// So many sandboxes; their ids.
    pub(crate) fn spawn(&self, count: usize) -> Vec<String> {
        let made = self.post("/v1/sandboxes", json!({ "snapshot_tag": "base", "n": count }), 201);
        made.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    /// The ids of all that the engine sees living.
    pub(crate) fn living(&self) -> Vec<String> {
        engine::list(&self.dirs).unwrap().iter().map(|child| child.id().to_owned()).collect()
    }

    /// The names of all directories that sandboxes live in, or lived.
    pub(crate) fn homes(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.dirs.run.join("vms")).into_iter().flatten().map(Result::unwrap);
        entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name != ".lock").collect()
    }

    /// What begins a stream of events; the rest comes line by line.
    pub(crate) fn stream(&self, method: &str, path: &str, body: Option<Value>) -> Lines {
        let body = body.map(|body| body.to_string());
        let text = request(method, path, &[("content-type", "application/json")], body.as_deref());
        let mut stream = unix(&self.socket());
        stream.write_all(text.as_bytes()).unwrap();
        Lines(BufReader::new(stream))
    }
}

/// An answer that goes on.
pub(crate) struct Lines(BufReader<std::os::unix::net::UnixStream>);

impl Lines {
    /// Reads until a line has this in it.
    pub(crate) fn until(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "`{wanted}` never came");
            if line.contains(wanted) {
                return line;
            }
        }
    }

    /// All that comes until a line has this in it.
    pub(crate) fn take_until(&mut self, wanted: &str) -> String {
        let mut all = String::new();
        while !all.contains(wanted) {
            assert_ne!(self.0.read_line(&mut all).unwrap(), 0, "`{wanted}` never came, but {all}");
        }
        all
    }

    /// All that comes until the end.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            drop(daemon.kill());
            drop(daemon.wait());
        }
        drop(engine::kill_many(&engine::list(&self.dirs).unwrap_or_default()));
        let templates = fs::read_dir(self.dirs.run.join("templates")).into_iter().flatten().flatten();
        for tag in templates.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            drop(engine::stop_template(&tag, &self.dirs));
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

/// The beginning of a state that was taken on this host, which is all that is read of it here.
fn state() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap();
    let vendor =
        cpus.lines().find_map(|line| line.strip_prefix("vendor_id")).unwrap().trim_start_matches([' ', '\t', ':']);
    let header = json!({ "arch": std::env::consts::ARCH, "cpu_vendor": vendor });
    format!("forkd-state {} 1 x\n{header}\n", types::STATE_FORMAT)
}

/// A program of this crate's examples: this test lies in deps/, beside examples/.
fn built(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let built = deps.ancestors().nth(2).unwrap().join("examples").join(name);
    built.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", built.display()))
}

/// Waits for what another process does.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a file holds this text.
pub(crate) fn holds(path: &Path, text: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|all| all.contains(text))
}
