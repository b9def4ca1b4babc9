//! What is started and stays: a line for a shell, or a program and its arguments in an image that need not have one.

use std::fmt;
use std::str::FromStr;

use serde::de::value::SeqAccessDeserializer;
use serde::{Deserialize, Deserializer, de};

use super::line::ShellLine;
use super::word::checked_text;

/// What the kernel takes as one argument.
const MAX_ARGUMENT: usize = 128 << 10;
/// More than anything is started with.
const MAX_ARGUMENTS: usize = 1000;

/// What is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// A line for the guest's shell.
    Line(ShellLine),
    /// A program and its arguments; no shell is needed.
    Program(Arguments),
}

impl Start {
    /// The words of the process.
    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Line(line) => ["/bin/sh", "-c", line.as_str()].map(Into::into).into(),
            Self::Program(words) => words.0.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Not a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// Longer than the kernel takes, or with a NUL in it.
    #[error("an argument has at most {MAX_ARGUMENT} bytes, and no NUL among them")]
    Argument,
    /// No program, or more arguments than anything takes.
    #[error("a program has a name, and at most {MAX_ARGUMENTS} arguments")]
    Arguments,
}

checked_text! {
    /// A word of a command.
    Argument, ArgumentError, r"^[^\u0000]*$"
}

impl FromStr for Argument {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, ArgumentError> {
        let fits = text.len() < MAX_ARGUMENT && !text.contains('\0');
        if fits { Ok(Self(text.into())) } else { Err(ArgumentError::Argument) }
    }
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Argument>")]
pub struct Arguments(Vec<Argument>);

impl TryFrom<Vec<Argument>> for Arguments {
    type Error = ArgumentError;

    fn try_from(words: Vec<Argument>) -> Result<Self, ArgumentError> {
        let has_program = words.first().is_some_and(|program| !program.as_str().is_empty());
        if has_program && words.len() <= MAX_ARGUMENTS { Ok(Self(words)) } else { Err(ArgumentError::Arguments) }
    }
}

impl<'de> Deserialize<'de> for Start {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> de::Visitor<'de> for Either {
            type Value = Start;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a line for the guest's shell, or a list of a program and its arguments")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Start, E> {
                text.parse().map(Start::Line).map_err(E::custom)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, words: A) -> Result<Start, A::Error> {
                Arguments::deserialize(SeqAccessDeserializer::new(words)).map(Start::Program)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Start {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Start".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let words = schemars::json_schema!({
            "type": "array", "minItems": 1, "maxItems": MAX_ARGUMENTS, "items": { "type": "string" }
        });
        let either = [generator.subschema_for::<ShellLine>(), words];
        schemars::json_schema!({ "anyOf": either })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Table {
        start: Start,
    }

    fn argv(text: &str) -> Result<Vec<String>, String> {
        let table: Table = toml::from_str(&format!("start = {text}")).map_err(|error| error.to_string())?;
        Ok(table.start.argv())
    }

    #[test]
    fn a_line_needs_a_shell_and_a_list_does_not() {
        assert_eq!(argv("\"serve --all\"").unwrap(), ["/bin/sh", "-c", "serve --all"]);
        assert_eq!(argv(r#"["/bin/serve it", "", "a\nb"]"#).unwrap(), ["/bin/serve it", "", "a\nb"]);
        for (text, named) in [
            ("[]", "a program has a name"),
            ("[\"\", \"x\"]", "a program has a name"),
            ("[\"a\\u0000\"]", "no NUL"),
            ("[1]", "string"),
            ("\" \"", "one line"),
            ("7", "a list of a program"),
        ] {
            let error = argv(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
