//! A home with one snapshot in it, and a daemon over it. Its VMs are real ones with the native guest in them, or stand-ins:
//! processes that do towards the host what a VM does, without a guest.

#![expect(clippy::print_stderr, reason = "what is left behind must be said")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use layer::Writer;
use serde_json::{Value, json};
use store::{Described, Existing, Origin, Store};
use types::{Dirs, GuestMemorySize, VcpuCount};
use ureq::Agent;

/// The only snapshot there is.
pub const TAG: &str = "nothing";

/// What is forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vms {
    /// VMs with the native guest, on this host's KVM.
    Native,
    /// Processes, on any host.
    StandIns,
}

/// What stands in for `forkd-vmm`, and the name by which it does all it is told.
const STAND_IN: (&str, &str) = ("examples/scripted-vmm-of-daemon", "obeys");
const PATIENCE: Duration = Duration::from_secs(60);

/// It ends with this value, and so does all that it made.
#[derive(Debug)]
pub struct Home {
    /// Where everything is.
    pub dirs: Dirs,
    daemon: Child,
    /// Where it listens.
    pub url: String,
    agent: Agent,
    _dir: tempfile::TempDir,
}

impl Home {
    /// Below `place`.
    ///
    /// # Errors
    /// When something is not built, or does not start.
    pub fn new(place: &Path, vms: Vms) -> Result<Self> {
        let dir = tempfile::tempdir_in(place)?;
        let dirs = Dirs::under(dir.path());
        let mut command = Command::new(beside("forkd")?);
        match vms {
            Vms::Native => drop(guest::Files::write(dir.path())?.snapshot(&TAG.parse()?, &dirs)?),
            Vms::StandIns => {
                fs::write(dir.path().join("image"), [0; 4096])?;
                take_snapshot(&dirs, &dir.path().join("image"))?;
                let stand_in = dir.path().join(STAND_IN.1);
                symlink(beside(STAND_IN.0)?, &stand_in)?;
                command.env("FORKD_VMM", &stand_in);
            }
        }
        command.args(["serve", "--bind", "127.0.0.1:0"]).env("FORKD_HOME", dir.path()).env("FORKD_PLACE", "local");
        command.env("RUST_LOG", "info").stdin(Stdio::null()).stdout(Stdio::null());
        let mut daemon = command.stderr(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(daemon.stderr.take().context("its words")?).lines();
        let url = said.find_map(|line| {
            let line = line.ok()?;
            line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
        });
        // What it says later is of no interest, but somebody has to take it.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
        let url = url.context("the daemon does not listen")?;
        Ok(Self { dirs, daemon, url, agent: Self::agent(), _dir: dir })
    }

    /// A client with a connection of its own.
    #[must_use]
    pub fn agent() -> Agent {
        Agent::config_builder().timeout_global(Some(PATIENCE)).build().into()
    }

    /// What a POST answers.
    ///
    /// # Errors
    /// When it is an error.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.agent.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        let mut answer = request.send(body.to_string())?;
        Ok(serde_json::from_slice(&answer.body_mut().read_to_vec()?)?)
    }

    /// Ends a sandbox.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn delete(&self, id: &str) -> Result<()> {
        let answer = self.agent.delete(format!("{}/v1/sandboxes/{id}", self.url)).call()?;
        ensure!(answer.status() == 204, "DELETE {id}: {}", answer.status());
        Ok(())
    }

    /// Asks for something, and has no use for it.
    ///
    /// # Errors
    /// When the answer is one.
    pub fn get(&self, agent: &Agent, path: &str) -> Result<()> {
        agent.get(format!("{}{path}", self.url)).call()?.body_mut().read_to_vec()?;
        Ok(())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = self.daemon.kill().and_then(|()| self.daemon.wait()) {
            eprintln!("bench: the daemon does not end: {error}");
        }
        let left = engine::list(&self.dirs).unwrap_or_default();
        for error in engine::kill_many(&left).into_iter().filter_map(Result::err) {
            eprintln!("bench: {error}");
        }
        if let Ok(tag) = TAG.parse()
            && let Err(error) = engine::stop_template(&tag, &self.dirs)
        {
            eprintln!("bench: {error}");
        }
    }
}

/// A program of this build, by its path beside this one.
fn beside(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is not built", path.display());
    Ok(path)
}

/// The beginning of a state that was taken on this host; nobody looks further.
fn state() -> Result<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let vendor = cpus.lines().find_map(|line| line.strip_prefix("vendor_id")).context("the maker of the CPU")?;
    let vendor = vendor.trim_start_matches([' ', '\t', ':']);
    let header = json!({ "arch": std::env::consts::ARCH, "cpu_vendor": vendor });
    Ok(format!("forkd-state {} 1 x\n{header}\n", types::STATE_FORMAT))
}

/// A snapshot in which nothing is: a stand-in does not look.
fn take_snapshot(dirs: &Dirs, image: &Path) -> Result<()> {
    let staged = Store::new(dirs).stage(&TAG.parse()?, Existing::Keep, Origin::booted(vec![image.into()]))?;
    staged.state()?.write_all(state()?.as_bytes())?;
    for file in [staged.memory()?, staged.layer(0)?] {
        Writer::create(&file, 4096)?.finish()?;
    }
    staged.commit(Described {
        recipe: None,
        kernel: "none".into(),
        agent: "stand-in".into(),
        vcpus: VcpuCount::DEFAULT,
        memory: GuestMemorySize::DEFAULT,
        network: false,
        egress: None,
        interpreter: None,
        ports: Vec::new(),
        pause_us: None,
    })?;
    Ok(())
}
