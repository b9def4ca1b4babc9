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
}

impl Interpreter {
    /// The program's name, as `PATH` knows it.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Python3 => "python3",
        }
    }
}

impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// Why modules were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// Not a name.
    #[error("`{text}` is not a module; write identifiers with dots between them, such as numpy or os.path")]
    Name {
        /// What was written.
        text: String,
    },
    /// Too many of them.
    #[error("{count} modules were named; at most {MAX_MODULES} can be")]
    TooMany {
        /// How many there were.
        count: usize,
    },
}

/// A module's full name: ASCII identifiers with dots between them, never code.
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
        if text.len() <= MAX_MODULE && text.split('.').all(is_identifier) {
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
            assert_eq!(good.parse::<ModuleName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "a.", ".a", "a..b", "1a", "a-b", "a b", "a;b", "a\n", "a as b", "ü", &"x".repeat(129)] {
            assert!(bad.parse::<ModuleName>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn there_cannot_be_too_many() {
        let many = |count| vec!["a".parse::<ModuleName>().unwrap(); count];
        assert_eq!(Modules::try_from(many(64)).unwrap().as_slice().len(), 64);
        assert_eq!(Modules::try_from(many(65)), Err(ModuleError::TooMany { count: 65 }));
    }

    #[test]
    fn an_interpreter_is_written_as_its_program() {
        assert_eq!(serde_json::to_string(&Interpreter::Python3).unwrap(), "\"python3\"");
        serde_json::from_str::<Interpreter>("\"sh\"").unwrap_err();
    }
}
