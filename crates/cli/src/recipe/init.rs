//! `forkd recipe init`: a recipe to begin with.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use image::{Beside, Recipe};
use types::RecipeName;

use crate::output;

const FILE: &str = "recipe.toml";
const SCHEMA: &str = "recipe.schema.json";
const SCHEMA_LINE: &str = "#:schema ./recipe.schema.json";

/// What a new one says; a test reads it.
const TEMPLATE: &str = r#"description = "What it is, in one line"

[base]
debian = "bookworm"                     # or image = "python:3.12-slim", docker-archive:app.tar, ...
packages = ["iproute2", "procps"]
# pip = ["bottle==0.13.2"]              # of PyPI, in one version; needs python3 among the packages
# npm = ["left-pad@1.3.0"]              # of npm, in one version; needs nodejs

# [[copy]]                              # files and directories beside this one
# from = "server.py"
# to = "/opt/server.py"

# [build]                               # run in a VM, once; the disk is kept until the recipe changes
# run = ["useradd --create-home app"]
# egress = "pypi.org:443"               # where that may connect to; nowhere when nothing is said

# [exec]                                # how commands are run where they say nothing else
# user = "app"
# workdir = "/home/app"
# env = { PORT = "8080" }

# [warm]                                # in a VM, before each snapshot
# interpreter = "python3"               # kept alive for `forkd eval`
# modules = ["json"]
# start = "python3 /opt/server.py"
# ready = { http = 8080, path = "/" }   # or "a command", { tcp = 8080 }, { line = "listening" }

# [network]
# ports = [8080]

# [size]
# memory = "512M"
# vcpus = 1
"#;

/// Writes a recipe.toml to begin with, and the schema by which editors complete it
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  forkd recipe init mine
  forkd recipe init mine --from python-numpy")]
pub(super) struct InitArgs {
    /// The directory, which is made if it is not there, and is what the recipe is called [default: this one]
    #[arg(value_name = "DIR", default_value = ".", hide_default_value = true)]
    dir: PathBuf,
    /// A recipe that comes with forkd to copy, with all its files
    #[arg(long, value_name = "NAME")]
    from: Option<RecipeName>,
}

pub(super) fn init(args: &InitArgs) -> anyhow::Result<ExitCode> {
    let dir = &args.dir;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    if dir.join(FILE).exists() {
        bail!("{} is there already; name another directory, or remove it first", dir.join(FILE).display());
    }
    for file in files(args.from.as_ref())? {
        write(dir, &file)?;
    }
    output::line(&dir.join(FILE).display().to_string())?;
    eprintln!(
        "forkd: edit it, then: forkd recipe check {0} && forkd snapshot --recipe {0} --tag NAME",
        dir.join(FILE).display()
    );
    Ok(ExitCode::SUCCESS)
}

struct NewFile {
    path: &'static str,
    text: Vec<u8>,
    executable: bool,
}

fn files(from: Option<&RecipeName>) -> anyhow::Result<Vec<NewFile>> {
    let schema = NewFile { path: SCHEMA, text: image::SCHEMA.into(), executable: false };
    let with_schema = |text: &str| {
        let rest: Vec<_> = text.lines().filter(|line| !line.starts_with("#:schema ")).collect();
        format!("{SCHEMA_LINE}\n{}\n", rest.join("\n")).into_bytes()
    };
    let Some(name) = from else {
        return Ok(vec![schema, NewFile { path: FILE, text: with_schema(TEMPLATE), executable: false }]);
    };
    let recipe = Recipe::builtin().find(|recipe| recipe.name == *name);
    let Some(Recipe { beside: Beside::Builtin(builtin), .. }) = recipe else {
        bail!("no recipe `{name}` comes with forkd; `forkd recipe list` says which do");
    };
    let copied = builtin.files().map(|(path, executable, bytes)| {
        let text = if path == FILE { with_schema(&String::from_utf8_lossy(bytes)) } else { bytes.to_vec() };
        NewFile { path, text, executable }
    });
    Ok(std::iter::once(schema).chain(copied).collect())
}

/// Nothing that is there is touched.
fn write(dir: &Path, file: &NewFile) -> anyhow::Result<()> {
    let path = dir.join(file.path);
    let failed = || format!("cannot write {}", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(failed)?;
    }
    if path.exists() {
        eprintln!("forkd: {} is there already and stays as it is", path.display());
        return Ok(());
    }
    let mut new = File::create_new(&path).with_context(failed)?;
    new.write_all(&file.text).with_context(failed)?;
    if file.executable {
        new.set_permissions(Permissions::from_mode(0o755)).with_context(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_begun_is_a_recipe_in_every_line() {
        let parse = |text: &str| Recipe::parse("new".parse().unwrap(), text, Beside::Directory("/".into()));
        parse(TEMPLATE).unwrap();
        // With all that is only suggested; its comments are behind two spaces or more.
        let all: Vec<_> = TEMPLATE.lines().map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
        let recipe = parse(&all.join("\n")).unwrap();
        assert!(recipe.build.run.len() == 1 && recipe.warm.start.is_some() && recipe.copy.len() == 1);
    }

    #[test]
    fn a_copy_has_all_files_and_its_own_schema() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("mine");
        let args = InitArgs { dir: dir.clone(), from: Some("python-numpy".parse().unwrap()) };
        init(&args).unwrap();
        let text = fs::read_to_string(dir.join(FILE)).unwrap();
        assert!(text.starts_with(SCHEMA_LINE) && text.matches("#:schema").count() == 1, "{text}");
        assert!(dir.join(SCHEMA).is_file() && dir.join("README.md").is_file());
        let recipe = Recipe::find(dir.join(FILE).to_str().unwrap()).unwrap();
        assert_eq!((recipe.name.as_str(), recipe.base), ("mine", Recipe::find("python-numpy").unwrap().base));
        let error = init(&args).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
        let unknown = InitArgs { dir: dir.join("x"), from: Some("nobody".parse().unwrap()) };
        assert!(init(&unknown).unwrap_err().to_string().contains("forkd recipe list"));
    }
}
