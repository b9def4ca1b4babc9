//! How a warm-up is told to be over.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, de};

use super::line::ShellLine;
use super::word::checked_text;

const MAX_PATH: usize = 1024;
const MAX_TEXT: usize = 1024;

/// What has to be so before a VM is frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A command succeeds; it is tried until it does.
    Command(ShellLine),
    /// Somebody listens on the guest's port.
    Tcp(NonZeroU16),
    /// A server on the guest's port answers `GET` of the path with 200.
    Http(NonZeroU16, UrlPath),
    /// What was started has written a line that contains this.
    Line(LineText),
}

/// A table that says one of them.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Ready"))]
#[serde(deny_unknown_fields)]
struct ReadyFile {
    /// A command that is tried until it succeeds.
    command: Option<ShellLine>,
    /// A TCP port of the guest's that somebody listens on.
    tcp: Option<NonZeroU16>,
    /// A TCP port of the guest's where a server answers `path` with 200.
    http: Option<NonZeroU16>,
    /// What `http` is asked for; `/` when nothing is said.
    path: Option<UrlPath>,
    /// Text that a line has in it which the program of `start` writes to its standard output or error.
    line: Option<LineText>,
}

impl TryFrom<ReadyFile> for Ready {
    type Error = String;

    fn try_from(file: ReadyFile) -> Result<Self, String> {
        match file {
            ReadyFile { command: Some(line), tcp: None, http: None, path: None, line: None } => Ok(Self::Command(line)),
            ReadyFile { command: None, tcp: Some(port), http: None, path: None, line: None } => Ok(Self::Tcp(port)),
            ReadyFile { command: None, tcp: None, http: Some(port), path, line: None } => {
                Ok(Self::Http(port, path.unwrap_or_default()))
            }
            ReadyFile { command: None, tcp: None, http: None, path: None, line: Some(text) } => Ok(Self::Line(text)),
            _ => Err("say one of command, tcp, http (with a path) and line".into()),
        }
    }
}

impl<'de> Deserialize<'de> for Ready {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> de::Visitor<'de> for Either {
            type Value = Ready;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a command, or a table with one of command, tcp, http and line")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ready, E> {
                text.parse().map(Ready::Command).map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Ready, A::Error> {
                let file = ReadyFile::deserialize(MapAccessDeserializer::new(map))?;
                Ready::try_from(file).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Ready {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ReadyCheck".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let either = [generator.subschema_for::<ShellLine>(), generator.subschema_for::<ReadyFile>()];
        schemars::json_schema!({ "anyOf": either })
    }
}

/// Not a path of a server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a path of a server's; write what follows its address, such as /health")]
pub struct UrlPathError {
    text: String,
}

checked_text! {
    /// The path of a URL, and what follows it: printable ASCII without blanks, so it ends no line.
    UrlPath, UrlPathError, r"^/[!-~]*$"
}

impl Default for UrlPath {
    fn default() -> Self {
        Self("/".into())
    }
}

impl FromStr for UrlPath {
    type Err = UrlPathError;

    fn from_str(text: &str) -> Result<Self, UrlPathError> {
        let fits = text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic()) && text.len() <= MAX_PATH;
        if fits { Ok(Self(text.into())) } else { Err(UrlPathError { text: text.into() }) }
    }
}

/// Not what a line could have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("what a line is to have in it are 1 to {MAX_TEXT} bytes that can be printed")]
pub struct LineTextError;

checked_text! {
    /// A part of a line.
    LineText, LineTextError, r"^[^\u0000-\u001f]+$"
}

impl FromStr for LineText {
    type Err = LineTextError;

    fn from_str(text: &str) -> Result<Self, LineTextError> {
        let fits = (1..=MAX_TEXT).contains(&text.len()) && !text.contains(char::is_control);
        if fits { Ok(Self(text.into())) } else { Err(LineTextError) }
    }
}
