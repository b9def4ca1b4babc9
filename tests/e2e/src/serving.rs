//! `forkd serve` as a process of a test's own, over the VMs of everybody: asked over its unix socket, killed, started again.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use net::Directory;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::faults::signal;
use crate::host::Host;
use crate::world::wait_until;

/// How long a request may take: an emulated host takes its time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Who comes by the address of a daemon in a network of its own has to say this.
pub(crate) const TOKEN: &str = "a token of the tests";
/// Where that is; nobody else listens there.
pub(crate) const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8889);

/// A daemon; killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    host: Host,
    socket: PathBuf,
    /// The name of the network that it is in, if that is not everybody's.
    network: Option<String>,
    /// Below this is what only this test's daemons have.
    own: tempfile::TempDir,
    process: Option<Child>,
}

impl Daemon {
    pub(crate) fn start(host: &Host) -> Result<Self> {
        Self::start_on(host, None)
    }

    /// The same, in the network of that name if there is one.
    pub(crate) fn start_on(host: &Host, network: Option<String>) -> Result<Self> {
        let own = tempfile::tempdir()?;
        let socket = own.path().join("forkd.sock");
        let mut daemon = Self { host: host.clone(), socket, network, own, process: None };
        daemon.start_again()?;
        Ok(daemon)
    }

    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.host.end_daemon()?;
        let mut command = self.host.forkd();
        command.arg("serve").arg("--socket").arg(&self.socket);
        command.arg("--state").arg(self.registry());
        command.arg("--audit-log").arg(self.audit_log());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(match &self.network {
            None => command.args(["--bind", "127.0.0.1:0"]).spawn()?,
            Some(network) => {
                let token = self.own.path().join("token");
                fs::write(&token, TOKEN)?;
                command.args(["--bind", &ADDRESS.to_string(), "--token-file"]).arg(token);
                Directory::default().enter(network, || command.spawn())?
            }
        });
        wait_until("a daemon that listens", PATIENCE, || UnixStream::connect(&self.socket).is_ok())
    }

    /// Where its clients find it who need no token.
    pub(crate) fn url(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// The command line, which asks it.
    pub(crate) fn forkd(&self) -> Command {
        let mut command = self.host.forkd();
        command.env("FORKD_URL", self.url());
        command
    }

    /// What it remembers.
    pub(crate) fn registry(&self) -> PathBuf {
        self.own.path().join("registry.db")
    }

    /// Where it writes down who did what.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.own.path().join("audit.log")
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("a daemon")?.id())
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("a daemon")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Asks it to end, which it must do in order.
    pub(crate) fn stop(&mut self) -> Result<()> {
        signal(self.pid()?, Signal::TERM)?;
        let ended = self.process.take().context("a daemon")?.wait()?;
        ensure!(ended.success(), "it ended with {ended}");
        Ok(())
    }

    /// Asks for something; whoever wants the answer reads it.
    pub(crate) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<BufReader<UnixStream>> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n");
        stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
        Ok(BufReader::new(stream))
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let mut answer = String::new();
        self.send(method, path, body)?.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
        let status = head.split(' ').nth(1).context("a status")?.parse()?;
        let value = if body.is_empty() { Value::Null } else { serde_json::from_str(body)? };
        Ok((status, value))
    }

    /// The answer, which must have this status.
    pub(crate) fn expect(&self, status: u16, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (found, value) = self.ask(method, path, body).with_context(|| format!("{method} {path}"))?;
        ensure!(found == status, "{method} {path}: {found}: {value}");
        Ok(value)
    }

    pub(crate) fn spawn(&self, tag: &str, count: usize) -> Result<Vec<String>> {
        let made = self.expect(201, "POST", "/v1/sandboxes", Some(&json!({ "snapshot_tag": tag, "n": count })))?;
        let ids = made.as_array().context("sandboxes")?.iter();
        ids.map(|one| Ok(one["id"].as_str().context("an id")?.to_owned())).collect()
    }

    /// What a command, which must succeed, writes in a sandbox.
    pub(crate) fn exec(&self, id: &str, words: &[&str]) -> Result<String> {
        let body = json!({ "args": words, "timeout_secs": 60 });
        let ran = self.expect(200, "POST", &format!("/v1/sandboxes/{id}/exec"), Some(&body))?;
        ensure!(ran["exit_code"] == 0, "{words:?}: {ran}");
        Ok(ran["stdout"].as_str().context("output")?.trim_end().to_owned())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.process.is_some() {
            drop(self.kill());
        }
    }
}
