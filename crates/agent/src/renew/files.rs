//! Who a guest is, in the files where programs look.
//!
//! ```text
//! /etc/hostname, /etc/machine-id         as every Linux has them; passed over where they cannot be written
//! /run/forkd/sandbox-id, machine-id      one line each
//! /run/forkd/env                         NAME='value' lines, as a shell reads them; for root only
//! /run/forkd/metadata.json               an object of strings
//! /run/forkd/generation                  last: whoever sees it change finds the others changed
//! ```
//!
//! Each is replaced in one step, so that nobody reads half of one.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use proto::guest::RenewRequest;

use super::RenewError;
use crate::console::say;

/// Writes them all below `root`.
pub(crate) fn write(root: &Path, request: &RenewRequest) -> Result<(), RenewError> {
    let line = |text: &str| format!("{text}\n").into_bytes();
    let (hostname, machine_id) = (line(request.hostname.as_str()), line(request.machine_id.as_str()));
    for (name, content) in [("hostname", &hostname), ("machine-id", &machine_id)] {
        let path = root.join("etc").join(name);
        match replace(&path, content, 0o644) {
            Err(error) if cannot_be_written(&error) => say(format_args!("{} stays: {error}", path.display())),
            done => done.map_err(|source| RenewError::File { path, source })?,
        }
    }
    let run = root.join("run/forkd");
    fs::create_dir_all(&run).map_err(|source| RenewError::File { path: run.clone(), source })?;
    let metadata = serde_json::to_vec(request.metadata.as_map());
    let metadata =
        metadata.map_err(|error| RenewError::File { path: run.join("metadata.json"), source: error.into() })?;
    for (name, content, mode) in [
        ("sandbox-id", line(request.sandbox_id.as_str()), 0o644),
        ("machine-id", machine_id, 0o644),
        ("env", shell_lines(request.env.as_map()), 0o600),
        ("metadata.json", metadata, 0o644),
        ("generation", line(request.generation.as_str()), 0o644),
    ] {
        let path = run.join(name);
        replace(&path, &content, mode).map_err(|source| RenewError::File { path, source })?;
    }
    Ok(())
}

/// An image may be read-only, or have no `/etc` at all.
fn cannot_be_written(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound)
}

fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".forkd-new");
    let staged = path.with_file_name(name);
    // A leftover may have another mode.
    match fs::remove_file(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(mode).open(&staged)?.write_all(content)?;
    fs::rename(&staged, path)
}

/// Quoted so that a shell gives back every value as it was, newlines and quotes included.
fn shell_lines(variables: &BTreeMap<String, String>) -> Vec<u8> {
    let line = |(name, value): (&String, &String)| format!("{name}='{}'\n", value.replace('\'', r"'\''"));
    variables.iter().map(line).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn request(env: &[(&str, &str)]) -> RenewRequest {
        let map = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
            entries.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        RenewRequest {
            sandbox_id: "sb-7".parse().unwrap(),
            hostname: "host-7".parse().unwrap(),
            machine_id: "0123456789abcdef0123456789abcdef".parse().unwrap(),
            generation: "g-7".parse().unwrap(),
            env: map(env).try_into().unwrap(),
            metadata: map(&[("k", "\"v\"\n")]).try_into().unwrap(),
            wall_clock_unix_ns: 0,
            entropy: vec![1; 32].try_into().unwrap(),
        }
    }

    #[test]
    fn every_file_says_who_it_is_and_is_replaced_as_a_whole() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        fs::create_dir(&etc).unwrap();
        fs::write(etc.join("hostname"), "parent\n").unwrap();
        fs::write(etc.join("machine-id.forkd-new"), "left over").unwrap();
        for _ in 0..2 {
            write(root.path(), &request(&[("A", "b")])).unwrap();
        }
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        assert_eq!((read("etc/hostname"), read("run/forkd/sandbox-id")), ("host-7\n".into(), "sb-7\n".into()));
        assert_eq!(read("etc/machine-id"), "0123456789abcdef0123456789abcdef\n");
        assert_eq!(read("run/forkd/machine-id"), read("etc/machine-id"));
        assert_eq!((read("run/forkd/generation"), read("run/forkd/env")), ("g-7\n".into(), "A='b'\n".into()));
        assert_eq!(read("run/forkd/metadata.json"), r#"{"k":"\"v\"\n"}"#);
        let mode = |name: &str| root.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("run/forkd/env"), 0o600);
        assert_eq!(fs::read_dir(&etc).unwrap().count(), 2, "something was left behind");
    }

    #[test]
    fn a_root_without_etc_still_gets_the_rest() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), &request(&[])).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("run/forkd/generation")).unwrap(), "g-7\n");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/forkd/env/in-the-way")).unwrap();
        let error = write(root.path(), &request(&[])).unwrap_err();
        assert!(matches!(&error, RenewError::File { path, .. } if path.ends_with("run/forkd/env")), "{error}");
    }

    #[test]
    fn a_shell_reads_the_variables_back() {
        let root = tempfile::tempdir().unwrap();
        let value = "a 'b' \"c\"\n$HOME `x` \\ #";
        write(root.path(), &request(&[("A", value), ("EMPTY", "")])).unwrap();
        let file = root.path().join("run/forkd/env");
        let script = format!(". {}; printf '%s|%s|' \"$A\" \"${{EMPTY-unset}}\"", file.display());
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{value}||"));
    }
}
