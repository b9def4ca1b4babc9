//! `forkd machine`: the emulated host, by hand. Other verbs start it by themselves where they need it.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use engine::Program;
use machine::{Machine, Running, Status};
use rustix::termios::isatty;
use serde_json::{Value, json};
use session::{ExecRequest, Stdio};
use types::Dirs;

use crate::interrupts::{Command, Interrupts};
use crate::{output, progress, stream, terminal};

const EXAMPLES: &str = "\
Examples:
  forkd machine start
  forkd machine status --json
  forkd machine shell
  forkd machine shell -- ls -l /dev/kvm
  forkd machine rm";

const SIGHUP: i32 = 1;

/// Controls the emulated host, in which VMs run where there is no usable KVM
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct MachineArgs {
    #[command(subcommand)]
    verb: MachineVerb,
}

#[derive(Debug, Subcommand)]
enum MachineVerb {
    /// Starts it, building what it is made of the first time
    Start,
    /// Stops it; its data stays
    Stop,
    /// Tells how it is
    Status {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Opens a shell in it, or runs a command there
    Shell {
        /// The command and its arguments; a login shell unless given
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Stops it and removes everything of it, its data too
    Rm,
}

pub(crate) fn machine(args: &MachineArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(false);
    match &args.verb {
        MachineVerb::Start => {
            machine::start(&dirs, &Program::Agent.find()?, &*progress)?;
            output::line(&describe(&machine::status(&dirs)?))?;
        }
        MachineVerb::Stop => machine::stop(&dirs, &*progress)?,
        MachineVerb::Status { json: true } => output::line(&as_json(&machine::status(&dirs)?).to_string())?,
        MachineVerb::Status { json: false } => output::line(&describe(&machine::status(&dirs)?))?,
        MachineVerb::Shell { command } => return shell(&dirs, command),
        MachineVerb::Rm => machine::rm(&dirs)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn shell(dirs: &Dirs, command: &[String]) -> anyhow::Result<ExitCode> {
    let Some(machine) = Machine::find(dirs)? else {
        bail!("the machine does not run; start it with `forkd machine start`");
    };
    let argv = match command {
        [] => ["bash", "-l"].map(String::from).to_vec(),
        command => command.to_vec(),
    };
    // Like ssh: a terminal for a shell, plain streams for a command in a script.
    let stdio = if terminal::is_interactive() { Stdio::Tty(terminal::size()) } else { stream::stdio(false)? };
    let env = std::env::var("TERM").ok().filter(|_| isatty(rustix::stdio::stdin()));
    let env = env.map(|term| ("TERM".into(), term)).into_iter().collect();
    let request = ExecRequest { argv, env, stdio, ..ExecRequest::default() };
    let exec = match machine.connect()?.exec(&request) {
        Ok(exec) => exec,
        Err(error) => return Ok(stream::not_started(error)?.exit_code()),
    };
    let (interrupts, control) = (Interrupts::catch()?, exec.control());
    let stop = move || {
        if let Err(error) = control.signal(SIGHUP) {
            log::debug!("the shell is over already: {error}");
        }
    };
    interrupts.about(Command::of(&exec, stdio, Box::new(stop)));
    Ok(stream::join(exec, stdio, None)?.exit_code())
}

/// One line for a person.
pub(crate) fn describe(status: &Status) -> String {
    match status {
        Status::Absent => "absent: nothing of it was made yet".into(),
        Status::Stopped { disk_bytes } => format!("stopped; its data occupies {}", mib(*disk_bytes)),
        Status::Starting { pid } => format!("starting (QEMU is process {pid})"),
        Status::Running(Running { pid, port, uptime, cpus, memory_bytes, disk_bytes, kernel }) => format!(
            "running for {} s: Linux {kernel}, {cpus} CPUs, {} memory, {} data (QEMU is process {pid}, port {port})",
            uptime.as_secs(),
            mib(*memory_bytes),
            mib(*disk_bytes)
        ),
        Status::Broken { why } => format!("broken: {why}"),
    }
}

fn as_json(status: &Status) -> Value {
    match status {
        Status::Absent => json!({ "status": "absent" }),
        Status::Stopped { disk_bytes } => json!({ "status": "stopped", "disk_bytes": disk_bytes }),
        Status::Starting { pid } => json!({ "status": "starting", "pid": pid }),
        Status::Running(running) => json!({
            "status": "running",
            "pid": running.pid,
            "port": running.port,
            "uptime_s": running.uptime.as_secs(),
            "cpus": running.cpus,
            "memory_bytes": running.memory_bytes,
            "disk_bytes": running.disk_bytes,
            "kernel": running.kernel,
        }),
        Status::Broken { why } => json!({ "status": "broken", "why": why }),
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
