//! How a VM from a recipe is started and made worth forking. None of it changes the image.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use types::{GuestMemorySize, Interpreter, ModuleName, Modules, VcpuCount};

/// Longer ones belong into a file of the image.
const MAX_LINE: usize = 4096;

/// What is done once after boot, before a VM is frozen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WarmFile")]
pub struct Warm {
    /// The interpreter that stays, and what it imports.
    pub interpreter: Option<WarmInterpreter>,
    /// Run once; what it leaves running is part of the VM.
    pub command: Option<ShellLine>,
    /// Run again and again until it succeeds: only then is the VM ready.
    pub ready: Option<ShellLine>,
}

/// An interpreter and its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmInterpreter {
    /// What to start.
    pub program: Interpreter,
    /// What it imports.
    pub modules: Modules,
}

/// How large a VM is when nobody says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Memory.
    #[serde(default, deserialize_with = "memory")]
    pub memory: Option<GuestMemorySize>,
    /// Virtual CPUs.
    #[serde(default)]
    pub vcpus: Option<VcpuCount>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WarmFile {
    interpreter: Option<Interpreter>,
    #[serde(default)]
    modules: Vec<ModuleName>,
    command: Option<ShellLine>,
    ready: Option<ShellLine>,
}

impl TryFrom<WarmFile> for Warm {
    type Error = String;

    fn try_from(file: WarmFile) -> Result<Self, String> {
        let WarmFile { interpreter, modules, command, ready } = file;
        let modules = Modules::try_from(modules).map_err(|error| format!("modules: {error}"))?;
        if interpreter.is_none() && !modules.as_slice().is_empty() {
            return Err("modules are named and no interpreter that could import them".into());
        }
        Ok(Self { interpreter: interpreter.map(|program| WarmInterpreter { program, modules }), command, ready })
    }
}

/// Written as people write sizes.
fn memory<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<GuestMemorySize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Not a line for a shell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a command is one line of 1 to {MAX_LINE} bytes that can be printed")]
pub struct ShellLineError;

/// One line for `sh -c`, run in the guest and nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ShellLine(Box<str>);

impl ShellLine {
    /// The line as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ShellLine {
    type Err = ShellLineError;

    fn from_str(text: &str) -> Result<Self, ShellLineError> {
        let fits = (1..=MAX_LINE).contains(&text.len()) && !text.trim().is_empty();
        if fits && !text.contains(char::is_control) { Ok(Self(text.into())) } else { Err(ShellLineError) }
    }
}

impl TryFrom<String> for ShellLine {
    type Error = ShellLineError;

    fn try_from(text: String) -> Result<Self, ShellLineError> {
        text.parse()
    }
}

impl fmt::Display for ShellLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warm(text: &str) -> Result<Warm, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn every_field_arrives() {
        let found = warm(
            "interpreter = \"python3\"\nmodules = [\"numpy\", \"os.path\"]\ncommand = \"redis-server &\"\n\
             ready = \"redis-cli ping | grep -q PONG\"",
        )
        .unwrap();
        let WarmInterpreter { program, modules } = found.interpreter.unwrap();
        assert_eq!(program, Interpreter::Python3);
        assert_eq!(modules.as_slice().iter().map(ModuleName::as_str).collect::<Vec<_>>(), ["numpy", "os.path"]);
        assert_eq!(found.command.unwrap().as_str(), "redis-server &");
        assert_eq!(found.ready.unwrap().as_str(), "redis-cli ping | grep -q PONG");
        assert_eq!(warm("").unwrap(), Warm::default());
        let size: Size = toml::from_str("memory = \"2G\"\nvcpus = 4").unwrap();
        assert_eq!((size.memory.map(GuestMemorySize::mib), size.vcpus.map(VcpuCount::get)), (Some(2048), Some(4)));
        assert_eq!(toml::from_str::<Size>("").unwrap(), Size::default());
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let many = format!("interpreter = \"python3\"\nmodules = [{}]", "\"a\",".repeat(65));
        for (text, named) in [
            ("interpreter = \"perl\"", "perl"),
            ("modules = [\"numpy\"]", "no interpreter"),
            ("interpreter = \"python3\"\nmodules = [\"os; import sys\"]", "`os; import sys` is not a module"),
            (&many, "65 modules"),
            ("command = \"\"", "one line"),
            ("command = \"  \"", "one line"),
            ("command = \"a\\nb\"", "one line"),
            ("ready = 1", "ready"),
            ("modlues = []", "modlues"),
        ] {
            let error = warm(text).unwrap_err().to_string();
            assert!(error.contains(named), "{named:?} is not in: {error}");
        }
        assert_eq!("x".repeat(MAX_LINE + 1).parse::<ShellLine>(), Err(ShellLineError));
        for (text, named) in [
            ("memory = \"1M\"", "128 MiB"),
            ("memory = \"much\"", "`much` is not a size"),
            ("memory = 512", "string"),
            ("vcpus = 0", "1 to 32"),
            ("vcpus = -1", "-1"),
            ("cpus = 1", "cpus"),
        ] {
            let error = toml::from_str::<Size>(text).unwrap_err().to_string();
            assert!(error.contains(named), "{named:?} is not in: {error}");
        }
    }
}
