//! Which numpy a guest has, as published clients want to know with every ping.

use std::time::Duration;

use proto::guest::{ExecRequest, ExitStatus};

use crate::{Connection, SessionError};

/// What is told where there is none.
pub const NONE: &str = "not-installed";
/// What is told where nobody knows.
pub const UNKNOWN: &str = "unknown";
/// How long the guest may take to say it.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Asked of a process of its own: a question to the warm interpreter would be interrupted when its time is up, and an
/// interpreter that does not heed that loses all it has.
const QUESTION: &str = "\
import importlib.metadata as found
try: print(found.version('numpy'))
except found.PackageNotFoundError: print('not-installed')";
/// The longest version.
const MAX_VERSION: usize = 64;
/// The most that is read of what it says.
const MAX_ANSWER: usize = 4096;

/// Asks. `None` when the guest says something else.
///
/// # Errors
/// When it cannot be asked.
pub fn ask(connection: Connection) -> Result<Option<String>, SessionError> {
    let argv = ["python3", "-c", QUESTION].map(String::from).to_vec();
    let timeout_ms = u64::try_from(LIMIT.as_millis()).ok();
    let said = connection.output(&ExecRequest { argv, timeout_ms, ..ExecRequest::default() }, &[], MAX_ANSWER)?;
    Ok((said.status == ExitStatus::Code(0)).then(|| plain(&said.stdout)).flatten())
}

/// One line that can be a version.
fn plain(said: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(said).ok()?.trim_end();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-_!".contains(&byte));
    (is_plain && (1..=MAX_VERSION).contains(&text.len())).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_plain_text() {
        assert_eq!(plain(b"2.1.0rc1+x\n").as_deref(), Some("2.1.0rc1+x"));
        for strange in ["", "\n", "a b", "a\nb", "\u{e9}", &"x".repeat(MAX_VERSION + 1)] {
            assert_eq!(plain(strange.as_bytes()), None, "{strange}");
        }
        assert_eq!(plain(&[0xff]), None);
    }
}
