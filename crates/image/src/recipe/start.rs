//! How a VM from a recipe is started and made worth forking. None of it changes the image.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::time::Duration;

use net::Egress;
use serde::Deserialize;
use types::{GuestMemorySize, Interpreter, ModuleError, ModuleName, Modules, VcpuCount};

use super::line::ShellLine;
use super::program::Start;
use super::ready::Ready;
use super::word::described;

/// The longest that anything can be given: a day.
const MAX_SECS: u32 = 86_400;
/// More ports than one sandbox serves.
const MAX_PORTS: usize = 64;

/// What is done once after boot, before a VM is frozen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WarmFile")]
pub struct Warm {
    /// The interpreter that stays, and what it imports.
    pub interpreter: Option<WarmInterpreter>,
    /// Run to its end; what it leaves running is part of the VM.
    pub command: Option<ShellLine>,
    /// Started after that, and left running.
    pub start: Option<Start>,
    /// What has to be so before it is frozen.
    pub ready: Option<Ready>,
    /// How long all of it may take.
    pub timeout: Option<Seconds>,
}

/// An interpreter and its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmInterpreter {
    /// What to start.
    pub program: Interpreter,
    /// What it imports.
    pub modules: Modules,
}

/// The table `[warm]`.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Warm"))]
#[serde(deny_unknown_fields)]
pub(super) struct WarmFile {
    /// An interpreter that is kept alive for `forkd eval`.
    #[cfg_attr(test, schemars(with = "Option<InterpreterWord>"))]
    interpreter: Option<Interpreter>,
    /// What it imports before the snapshot is taken.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Vec<ModuleWord>"))]
    modules: Vec<ModuleName>,
    /// A line for the guest's shell that is run to its end, and has to succeed. What it leaves running is part of the
    /// snapshot.
    command: Option<ShellLine>,
    /// A line for the guest's shell that is started after that and does not end, such as a server; or a program and its
    /// arguments as a list, for which no shell is needed. It is a process like those of `POST
    /// /v1/sandboxes/{id}/processes`: its output is kept, in every fork.
    start: Option<Start>,
    /// What has to be so before the snapshot is taken: a command that succeeds, or a table with one of command, tcp, http
    /// and line.
    ready: Option<Ready>,
    /// How long all of it may take, in seconds; 60 when nothing is said.
    timeout_secs: Option<Seconds>,
}

impl TryFrom<WarmFile> for Warm {
    type Error = String;

    fn try_from(file: WarmFile) -> Result<Self, String> {
        let WarmFile { interpreter, modules, command, start, ready, timeout_secs } = file;
        let modules = Modules::try_from(modules).map_err(|error| format!("modules: {error}"))?;
        if interpreter.is_none() && !modules.as_slice().is_empty() {
            return Err("modules are named and no interpreter that could import them".into());
        }
        let foreign = |module: &&ModuleName| interpreter.is_some_and(|interpreter| !interpreter.accepts(module));
        if let (Some(interpreter), Some(module)) = (interpreter, modules.as_slice().iter().find(foreign)) {
            return Err(ModuleError::Foreign { interpreter, module: module.clone() }.to_string());
        }
        if start.is_none() && matches!(ready, Some(Ready::Line(_))) {
            return Err("ready.line is about what `start` writes, and nothing is started".into());
        }
        let interpreter = interpreter.map(|program| WarmInterpreter { program, modules });
        Ok(Self { interpreter, command, start, ready, timeout: timeout_secs })
    }
}

/// Steps that make the disk what it is, run in a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Lines for the guest's shell, run one after the other as root in a VM of the image, never on this computer. What is
    /// on the disk after the last of them is the recipe's image, and is kept until the recipe changes.
    #[serde(default)]
    pub run: Vec<ShellLine>,
    /// Where they may connect to: none, all, or a list as for `forkd net`; nowhere when nothing is said.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub egress: Option<Egress>,
    /// How long each of them may take, in seconds; 600 when nothing is said.
    #[serde(rename = "timeout_secs")]
    pub timeout: Option<Seconds>,
}

/// What sandboxes have to do with the world.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NetworkFile")]
pub struct Network {
    /// Gives each sandbox a network, and says where it may connect to.
    pub egress: Option<Egress>,
    /// Where something listens.
    pub ports: BTreeSet<NonZeroU16>,
}

/// The table `[network]`.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Network"))]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkFile {
    /// Gives every sandbox a network, and says where it may connect to while it warms up and after: none, all, or a list
    /// as for `forkd net`. Without it they have none.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    egress: Option<Egress>,
    /// TCP ports that something listens on once it is warm; they are listed with the snapshot, and `forkd port` takes
    /// them when it is told none.
    #[serde(default)]
    ports: Vec<NonZeroU16>,
}

impl TryFrom<NetworkFile> for Network {
    type Error = String;

    fn try_from(file: NetworkFile) -> Result<Self, String> {
        let NetworkFile { egress, ports } = file;
        if ports.len() > MAX_PORTS {
            return Err(format!("{} ports were named; at most {MAX_PORTS} can be", ports.len()));
        }
        Ok(Self { egress, ports: ports.into_iter().collect() })
    }
}

/// How large a VM is when nobody says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Memory, such as 512M or 2G; 512M when nothing is said.
    #[serde(default, deserialize_with = "memory")]
    #[cfg_attr(test, schemars(with = "Option<MemoryWord>"))]
    pub memory: Option<GuestMemorySize>,
    /// Virtual CPUs, 1 to 32; 1 when nothing is said.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Option<VcpuNumber>"))]
    pub vcpus: Option<VcpuCount>,
}

/// Written as people write sizes.
fn memory<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<GuestMemorySize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// A time limit: 1 s to a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub struct Seconds(u32);

described! { Seconds, { "type": "integer", "minimum": 1, "maximum": MAX_SECS } }

impl Seconds {
    /// It as a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0 as u64)
    }
}

impl TryFrom<u32> for Seconds {
    type Error = String;

    fn try_from(secs: u32) -> Result<Self, String> {
        if (1..=MAX_SECS).contains(&secs) {
            Ok(Self(secs))
        } else {
            Err(format!("a time limit has 1 to {MAX_SECS} seconds; {secs} were given"))
        }
    }
}

/// What the schema says of types that are not ours.
#[cfg(test)]
mod words {
    use super::described;

    pub(super) struct InterpreterWord;
    described! { InterpreterWord, { "enum": ["python3", "node", "jupyter"] } }
    pub(super) struct ModuleWord;
    described! { ModuleWord, { "type": "string", "pattern": r"^(node:|@|/)?[A-Za-z0-9_.][A-Za-z0-9_.-]*(/[A-Za-z0-9_.][A-Za-z0-9_.-]*)*$" } }
    pub(super) struct MemoryWord;
    described! { MemoryWord, { "type": "string", "pattern": "^[0-9]+ ?([KMGTkmgt]([iI]?[bB])?|[bB])?$" } }
    pub(super) struct VcpuNumber;
    described! { VcpuNumber, { "type": "integer", "minimum": 1, "maximum": 32 } }
}
#[cfg(test)]
use words::{InterpreterWord, MemoryWord, ModuleWord, VcpuNumber};

#[cfg(test)]
mod tests;
