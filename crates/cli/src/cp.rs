//! `forkd cp`: files into sandboxes and out of them.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, bail};
use api::FileInfo;
use clap::Args;
use client::{Client, path};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::daemon::DaemonArgs;
use crate::output::{self, Raw};
use crate::sandbox;

const EXAMPLES: &str = "\
Examples:
  forkd cp data.csv sb-66f0a1b2-9c3d:/root/data.csv
  forkd cp sb-66f0a1b2-9c3d:/var/log/app.log .
  forkd cp sb-66f0a1b2-9c3d:/root/out.json - | jq .
  tar -c src | forkd cp - sb-66f0a1b2-9c3d:/root/src.tar

A file is there as a whole or not at all, on both sides.";

/// Copies a file into a sandbox, or out of one
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CpArgs {
    /// What: FILE, ID:/PATH, or - for standard input
    from: Place,
    /// Where to: FILE, a directory, ID:/PATH, or - for standard output
    to: Place,
    /// Prints what was copied as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// One end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Here(PathBuf),
    Stream,
    Sandbox { id: String, path: String },
}

impl FromStr for Place {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split_once(":/") {
            _ if text == "-" => Self::Stream,
            // A path of this computer has a slash before a colon.
            Some((id, rest)) if !id.is_empty() && !id.contains('/') => {
                Self::Sandbox { id: id.into(), path: format!("/{rest}") }
            }
            _ => Self::Here(text.into()),
        })
    }
}

pub(crate) fn cp(args: &CpArgs) -> anyhow::Result<ExitCode> {
    let (at, bytes) = match (&args.from, &args.to) {
        (Place::Here(from), Place::Sandbox { id, path: to }) => {
            let file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
            let (client, id) = args.reach(id)?;
            put(&client, &id, &inside(to, from), file)?
        }
        (Place::Stream, Place::Sandbox { id, path: to }) => {
            let (client, id) = args.reach(id)?;
            put(&client, &id, to, io::stdin())?
        }
        (Place::Sandbox { id, path: from }, Place::Here(to)) => {
            let (client, id) = args.reach(id)?;
            get(&client, &id, from, to)?
        }
        (Place::Sandbox { .. }, Place::Stream) if args.json => {
            bail!("standard output is the file's; a name instead of - leaves it to --json")
        }
        (Place::Sandbox { id, path: from }, Place::Stream) => {
            let (client, id) = args.reach(id)?;
            let mut out = Raw(rustix::stdio::stdout());
            let bytes = io::copy(&mut client.read(&files(&id, from))?, &mut out).context("the copy broke off")?;
            ("-".into(), bytes)
        }
        _ => bail!("one side must be in a sandbox, as ID:/PATH, and the other one here"),
    };
    if args.json {
        output::line(&json!({ "path": at, "bytes": bytes }).to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl CpArgs {
    /// A daemon, and the whole id of a sandbox of its.
    fn reach(&self, id: &str) -> anyhow::Result<(Client, String)> {
        let client = self.daemon.running()?.ok_or_else(|| sandbox::none(id))?;
        let id = sandbox::find(&client, id)?;
        Ok((client, id))
    }
}

fn files(id: &str, file: &str) -> String {
    path(&["sandboxes", id, "files"], &[("path", file)])
}

/// A path that ends with a slash is a directory.
fn inside(to: &str, from: &Path) -> String {
    match from.file_name().and_then(|name| name.to_str()) {
        Some(name) if to.ends_with('/') => format!("{to}{name}"),
        _ => to.into(),
    }
}

/// Where it is then, and how much it was.
fn put(client: &Client, id: &str, to: &str, from: impl io::Read) -> anyhow::Result<(String, u64)> {
    let written: FileInfo = client.send(&files(id, to), from)?;
    Ok((written.path, written.size))
}

/// The same. Written beside where it goes, so that nothing is lost when it breaks off.
fn get(client: &Client, id: &str, from: &str, to: &Path) -> anyhow::Result<(String, u64)> {
    let mut bytes = client.read(&files(id, from))?;
    let to = match from.rsplit('/').next() {
        Some(name) if to.is_dir() && !name.is_empty() => to.join(name),
        _ => to.into(),
    };
    let failed = || format!("cannot write {}", to.display());
    let mut file = staged(&to).with_context(failed)?;
    let copied = io::copy(&mut bytes, &mut file).context("the copy broke off")?;
    file.flush().context("the copy broke off")?;
    file.persist(&to).with_context(failed)?;
    Ok((to.display().to_string(), copied))
}

/// A file beside that one, to take its place: with its mode, or with that of any new file if there is none yet.
fn staged(to: &Path) -> io::Result<NamedTempFile> {
    let mode = match fs::metadata(to) {
        Ok(there) if there.is_file() => Some(there.permissions()),
        Ok(_) => return Err(io::Error::other("it is no file; `forkd cp ID:/PATH -` writes to standard output")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(dir)?;
    mode.map_or(Ok(()), |mode| file.as_file().set_permissions(mode))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_here_or_in_a_sandbox() {
        let parse = |text: &str| text.parse::<Place>().unwrap();
        assert_eq!(parse("sb-1:/a/b"), Place::Sandbox { id: "sb-1".into(), path: "/a/b".into() });
        assert_eq!(parse("-"), Place::Stream);
        for here in ["a", "./a:/b", "/a:/b", ":/b", "a:b"] {
            assert_eq!(parse(here), Place::Here(here.into()));
        }
    }

    #[test]
    fn a_directory_keeps_the_name() {
        assert_eq!(inside("/root/", Path::new("x/data.csv")), "/root/data.csv");
        assert_eq!(inside("/root/a", Path::new("x/data.csv")), "/root/a");
    }

    #[test]
    fn a_copy_has_the_mode_of_what_it_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (usual, there) = (dir.path().join("usual"), dir.path().join("there"));
        File::create(&usual).unwrap();
        let new = staged(&dir.path().join("new")).unwrap();
        assert_eq!(mode(new.path()), mode(&usual), "one that any program makes");
        File::create(&there).unwrap().set_permissions(Permissions::from_mode(0o751)).unwrap();
        assert_eq!(mode(staged(&there).unwrap().path()), 0o751);
        assert!(staged(Path::new("/dev/null")).unwrap_err().to_string().contains("no file"), "it is a device");
    }
}
