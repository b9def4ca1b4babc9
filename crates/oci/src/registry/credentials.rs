//! What `docker login` and `podman login` wrote down.
//!
//! ```json
//! {"auths": {"HOST[/PATH]": {"auth": "base64 of user:password"}}, "credHelpers": {"HOST": "NAME"}, "credsStore": "NAME"}
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::Settings;

const MAX_FILE: u64 = 1 << 20;
/// What a program says that keeps none for a registry; all say it in these words.
const NO_CREDENTIALS: &str = "credentials not found in native keychain";
/// What the hub was called once; files still say so.
const HUB: &[&str] = &["https://index.docker.io/v1/", "index.docker.io", "docker.io"];

/// Credentials that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file could not be read.
    #[error("cannot read the credentials in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program that keeps credentials did not hand them over.
    #[error("{program} does not tell the credentials for {host}: {said}")]
    Helper {
        /// Which.
        program: String,
        /// For whom.
        host: String,
        /// What it said.
        said: String,
    },
}

/// Who we are to a registry.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Credentials {
    Password { user: String, password: String },
    IdentityToken(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AuthFile {
    auths: BTreeMap<String, AuthEntry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: String,
    identitytoken: String,
}

/// The first that any file has for the repository, from the most exact name to the host alone.
pub(super) fn find(settings: &Settings, host: &str, repository: &str) -> Result<Option<Credentials>, CredentialsError> {
    let mut keys = Vec::new();
    let mut path = format!("{host}/{repository}");
    while let Some((shorter, _)) = path.rsplit_once('/') {
        keys.push(path.clone());
        path = shorter.into();
    }
    keys.extend([host.to_owned(), format!("https://{host}"), format!("https://{host}/v1/")]);
    if matches!(host, "docker.io" | "registry-1.docker.io") {
        keys.extend(HUB.iter().map(|name| (*name).to_owned()));
    }
    for file in &settings.auth_files {
        if let Some(found) = find_in(file, host, &keys, settings)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn find_in(
    path: &Path,
    host: &str,
    keys: &[String],
    settings: &Settings,
) -> Result<Option<Credentials>, CredentialsError> {
    let read = |source| CredentialsError::Read { path: path.into(), source };
    let mut text = Vec::new();
    match File::open(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file.and_then(|file| file.take(MAX_FILE).read_to_end(&mut text)).map_err(read)?,
    };
    let file: AuthFile = serde_json::from_slice(&text).map_err(|error| read(error.into()))?;
    let helper = keys.iter().find_map(|key| Some((key, file.cred_helpers.get(key)?)));
    if let Some((key, name)) = helper {
        return ask_helper(name, key, settings);
    }
    let entry = keys.iter().find_map(|key| Some((key, file.auths.get(key)?)));
    match (entry, &file.creds_store) {
        (Some((key, entry)), Some(store)) if entry.auth.is_empty() && entry.identitytoken.is_empty() => {
            ask_helper(store, key, settings)
        }
        (Some((_, entry)), _) => decode(entry).map(Some).ok_or_else(|| {
            read(io::Error::new(io::ErrorKind::InvalidData, format!("what it has for {host} is no name and password")))
        }),
        (None, _) => Ok(None),
    }
}

fn decode(entry: &AuthEntry) -> Option<Credentials> {
    if !entry.identitytoken.is_empty() {
        return Some(Credentials::IdentityToken(entry.identitytoken.clone()));
    }
    let text = String::from_utf8(BASE64_STANDARD.decode(entry.auth.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Credentials::Password { user: user.into(), password: password.trim_end_matches('\0').into() })
}

/// Asks the program that keeps them: `docker-credential-NAME get`, with the host on its standard input. It may have none.
fn ask_helper(name: &str, host: &str, settings: &Settings) -> Result<Option<Credentials>, CredentialsError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        username: String,
        secret: String,
    }
    let program = format!("docker-credential-{name}");
    let failed = |said: String| CredentialsError::Helper { program: program.clone(), host: host.into(), said };
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        return Err(failed("it is not a name of such a program".into()));
    }
    let text = said(&program, host, settings).map_err(|error| failed(error.to_string()))?;
    if String::from_utf8_lossy(&text).trim() == NO_CREDENTIALS {
        return Ok(None);
    }
    let answer: Answer = serde_json::from_slice(&text)
        .map_err(|_| failed(String::from_utf8_lossy(&text).chars().take(200).collect()))?;
    Ok(Some(match answer.username.as_str() {
        "<token>" => Credentials::IdentityToken(answer.secret),
        _ => Credentials::Password { user: answer.username, password: answer.secret },
    }))
}

/// What the program says to the host's name, in no more time than a registry has for an answer.
fn said(program: &str, host: &str, settings: &Settings) -> io::Result<Vec<u8>> {
    let mut command = Command::new(program);
    // It is looked for where it is told to look for others.
    command.env("PATH", &settings.programs).arg("get");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (done, answer) = mpsc::channel();
    let host = host.to_owned();
    // It is left behind if the program's own children keep the pipes open.
    thread::spawn(move || {
        let asked = stdin.map_or(Ok(()), |mut stdin| stdin.write_all(host.as_bytes()));
        let mut text = Vec::new();
        let read = stdout.map_or(Ok(0), |stdout| stdout.take(MAX_FILE).read_to_end(&mut text));
        // Nobody listens any more when it took too long.
        drop(done.send(asked.and(read).map(|_| text)));
    });
    let answer = answer.recv_timeout(settings.idle);
    // One that has answered has nothing more to do.
    child.kill()?;
    child.wait()?;
    answer.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::time::Duration;

    use super::*;

    fn in_dir(dir: &Path, host: &str, repository: &str) -> Result<Option<(String, String)>, CredentialsError> {
        let settings = Settings {
            auth_files: vec![dir.join("none.json"), dir.join("auth.json")],
            programs: format!("{}:/usr/bin:/bin", dir.display()).into(),
            idle: Duration::from_secs(5),
            ..Settings::from_env()
        };
        let found = find(&settings, host, repository)?;
        Ok(found.map(|found| match found {
            Credentials::Password { user, password } => (user, password),
            Credentials::IdentityToken(token) => ("<token>".into(), token),
        }))
    }

    fn of(text: &str, host: &str, repository: &str) -> Result<Option<(String, String)>, CredentialsError> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("auth.json"), text).unwrap();
        in_dir(dir.path(), host, repository)
    }

    #[test]
    fn programs_that_keep_credentials_are_asked() {
        let dir = tempfile::tempdir().unwrap();
        let script = r#"#!/bin/sh
[ "$1" = get ] && read -r host || [ -n "$host" ]
case $host in
  h.test/team) echo '{"ServerURL": "x", "Username": "me", "Secret": "helped"}' ;;
  s.test) echo '{"Username": "<token>", "Secret": "stored"}' ;;
  slow.test) exec sleep 1000 ;;
  *) echo credentials not found in native keychain; exit 1 ;;
esac
"#;
        let mut file = File::options();
        let path = dir.path().join("docker-credential-mine");
        let file = file.write(true).create_new(true).mode(0o755).open(path);
        file.unwrap().write_all(script.as_bytes()).unwrap();
        let text = r#"{"credHelpers": {"h.test/team": "mine", "other.test": "mine", "slow.test": "mine"}, "credsStore": "mine",
                       "auths": {"s.test": {}, "p.test": {"auth": "YTpi"}}}"#;
        fs::write(dir.path().join("auth.json"), text).unwrap();
        let found = |host: &str| in_dir(dir.path(), host, "team/x").unwrap();
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(found("h.test"), pair("me", "helped"));
        assert_eq!(found("s.test"), pair("<token>", "stored"), "the store has those that the file only names");
        assert_eq!(found("p.test"), pair("a", "b"), "what the file has itself is not asked for");
        assert_eq!((found("other.test"), found("unknown.test")), (None, None), "nobody knows, so nobody asks");
        let slow = in_dir(dir.path(), "slow.test", "team/x").unwrap_err();
        assert!(matches!(&slow, CredentialsError::Helper { said, .. } if said == "it does not answer"), "{slow}");
    }

    #[test]
    fn the_most_exact_name_wins() {
        let encode = |text: &str| BASE64_STANDARD.encode(text);
        let text = format!(
            r#"{{"auths": {{"r.test": {{"auth": "{}"}}, "r.test/team": {{"auth": "{}"}},
                "https://index.docker.io/v1/": {{"auth": "{}"}}, "t.test": {{"identitytoken": "tok"}}, "b.test": {{"auth": "x"}}}}}}"#,
            encode("a:1"),
            encode("b:2:3"),
            encode("hub:4")
        );
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(of(&text, "r.test", "x/y").unwrap(), pair("a", "1"));
        assert_eq!(of(&text, "r.test", "team/y").unwrap(), pair("b", "2:3"));
        assert_eq!(of(&text, "registry-1.docker.io", "library/x").unwrap(), pair("hub", "4"));
        assert_eq!(of(&text, "t.test", "x").unwrap(), pair("<token>", "tok"));
        assert_eq!(of(&text, "other.test", "x").unwrap(), None);
        assert_eq!(of(&text, "evildocker.io", "x").unwrap(), None);
        assert!(matches!(of(&text, "b.test", "x"), Err(CredentialsError::Read { .. })));
        assert!(matches!(of("[", "b.test", "x"), Err(CredentialsError::Read { .. })));
        let helper = r#"{"credHelpers": {"h.test": "no-such-helper", "e.test": "../evil"}}"#;
        assert!(matches!(of(helper, "h.test", "x"), Err(CredentialsError::Helper { .. })));
        assert!(matches!(of(helper, "e.test", "x"), Err(CredentialsError::Helper { .. })));
    }
}
