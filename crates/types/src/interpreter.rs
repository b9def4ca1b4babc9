//! Interpreters that are kept warm, and what they have imported.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MAX_MODULE: usize = 128;
const MAX_MODULES: usize = 64;

/// A program that keeps its state between two pieces of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpreter {
    /// Python 3.
    Python3,
    /// Node: JavaScript, with values as JSON.
    Node,
    /// A kernel of Jupyter's for Python 3, which shows plots and tables as Jupyter does.
    Jupyter,
}

impl Interpreter {
    /// The program's name, as `PATH` knows it.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Python3 | Self::Jupyter => "python3",
            Self::Node => "node",
        }
    }

    /// The language of its code, as clients call it.
    #[must_use]
    pub const fn language(self) -> &'static str {
        match self {
            Self::Python3 | Self::Jupyter => "python",
            Self::Node => "node",
        }
    }

    /// Whether it can load a module of that name.
    #[must_use]
    pub fn accepts(self, module: &ModuleName) -> bool {
        match self {
            Self::Python3 | Self::Jupyter => module.as_str().split('.').all(is_identifier),
            Self::Node => true,
        }
    }
}

impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Python3 => "python3",
            Self::Node => "node",
            Self::Jupyter => "jupyter",
        })
    }
}

/// Why modules were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// Not a name.
    #[error("`{text}` is not a module; write a name such as numpy, os.path, node:fs or @scope/package")]
    Name {
        /// What was written.
        text: String,
    },
    /// A name of another language.
    #[error("{interpreter} has no module `{module}`; its names are identifiers with dots between them")]
    Foreign {
        /// Who should load it.
        interpreter: Interpreter,
        /// The name.
        module: ModuleName,
    },
    /// Too many of them.
    #[error("{count} modules were named; at most {MAX_MODULES} can be")]
    TooMany {
        /// How many there were.
        count: usize,
    },
}

/// A module's full name, never code: for Python identifiers with dots between them; for Node a package, a path in it, or
/// an absolute path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModuleName(Box<str>);

impl ModuleName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModuleName {
    type Err = ModuleError;

    fn from_str(text: &str) -> Result<Self, ModuleError> {
        if text.len() <= MAX_MODULE && (text.split('.').all(is_identifier) || is_package(text)) {
            Ok(Self(text.into()))
        } else {
            Err(ModuleError::Name { text: text.into() })
        }
    }
}

fn is_identifier(text: &str) -> bool {
    let fits = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    fits && text.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

/// Names with slashes between them, each of which could be that of a package or a file.
fn is_package(text: &str) -> bool {
    let path = text.strip_prefix("node:").or_else(|| text.strip_prefix(['@', '/'])).unwrap_or(text);
    path.split('/').all(|part| {
        let fits = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        fits && !part.is_empty() && !part.starts_with('-') && !part.ends_with('.')
    })
}

impl TryFrom<String> for ModuleName {
    type Error = ModuleError;

    fn try_from(text: String) -> Result<Self, ModuleError> {
        text.parse()
    }
}

impl From<ModuleName> for String {
    fn from(name: ModuleName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an interpreter imports before it is used, in this order: at most 64 modules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<ModuleName>", into = "Vec<ModuleName>")]
pub struct Modules(Vec<ModuleName>);

impl Modules {
    /// The names.
    #[must_use]
    pub fn as_slice(&self) -> &[ModuleName] {
        &self.0
    }
}

impl TryFrom<Vec<ModuleName>> for Modules {
    type Error = ModuleError;

    fn try_from(names: Vec<ModuleName>) -> Result<Self, ModuleError> {
        match names.len() {
            0..=MAX_MODULES => Ok(Self(names)),
            count => Err(ModuleError::TooMany { count }),
        }
    }
}

impl From<Modules> for Vec<ModuleName> {
    fn from(modules: Modules) -> Self {
        modules.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_pass_and_code_does_not() {
        for good in ["numpy", "os.path", "_x", "a1.b_2.C"] {
            let name = good.parse::<ModuleName>().unwrap();
            assert_eq!(name.as_str(), good);
            assert!(Interpreter::Python3.accepts(&name) && Interpreter::Node.accepts(&name));
        }
        for bad in [
            "",
            ".",
            "a.",
            "a b",
            "-a",
            "a;b",
            "a\n",
            "a as b",
            "ü",
            "@",
            "a//b",
            "./a",
            "../a",
            "a/..",
            &"x".repeat(129),
        ] {
            assert!(bad.parse::<ModuleName>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn packages_are_for_node_only() {
        for package in
            ["fs/promises", "node:fs", "@scope/some-thing", "playwright-core", "/opt/.app/warm.js", "1a", "a..b"]
        {
            let name = package.parse::<ModuleName>().unwrap();
            assert!(Interpreter::Node.accepts(&name), "{package}");
            assert!(!Interpreter::Python3.accepts(&name) && !Interpreter::Jupyter.accepts(&name), "{package}");
        }
    }

    #[test]
    fn there_cannot_be_too_many() {
        let many = |count| vec!["a".parse::<ModuleName>().unwrap(); count];
        assert_eq!(Modules::try_from(many(64)).unwrap().as_slice().len(), 64);
        assert_eq!(Modules::try_from(many(65)), Err(ModuleError::TooMany { count: 65 }));
    }

    #[test]
    fn an_interpreter_is_written_as_it_is_shown() {
        for interpreter in [Interpreter::Python3, Interpreter::Node, Interpreter::Jupyter] {
            assert_eq!(serde_json::to_string(&interpreter).unwrap(), format!("\"{interpreter}\""));
        }
        serde_json::from_str::<Interpreter>("\"sh\"").unwrap_err();
    }
}
