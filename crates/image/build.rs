//! Puts the recipes of this repository, with all that lies beside them, into a table that the crate includes.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let recipes = Path::new(&manifest).join("../../recipes").canonicalize()?;
    println!("cargo::rerun-if-changed={}", recipes.display());
    let mut text = String::from("pub(super) static BUILTIN: &[Builtin] = &[\n");
    for recipe in sorted(&recipes)?.iter().filter(|path| path.join("recipe.toml").is_file()) {
        let name = recipe.file_name().unwrap_or_default().to_string_lossy();
        writeln!(text, "    Builtin {{ name: {name:?}, files: &[").map_err(io::Error::other)?;
        files(recipe, recipe, &mut text)?;
        text.push_str("    ] },\n");
    }
    text.push_str("];\n");
    let out = std::env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(Path::new(&out).join("builtin.rs"), text)
}

/// All files below, in an order that does not depend on the file system. Links are left out: they mean nothing here.
fn files(root: &Path, dir: &Path, text: &mut String) -> io::Result<()> {
    for path in sorted(dir)? {
        let meta = path.symlink_metadata()?;
        if meta.is_dir() {
            files(root, &path, text)?;
        } else if meta.is_file() {
            let inside = path.strip_prefix(root).map_err(io::Error::other)?;
            let executable = meta.permissions().mode() & 0o100 != 0;
            writeln!(
                text,
                "        BuiltinFile {{ path: {inside:?}, executable: {executable}, bytes: include_bytes!({path:?}) }},"
            )
            .map_err(io::Error::other)?;
        }
    }
    Ok(())
}

fn sorted(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // What an editor or a Python left there is not of the recipe.
    let is_left = |name: &str| name.starts_with('.') || name == "__pycache__";
    paths.retain(|path| path.file_name().is_some_and(|name| !is_left(&name.to_string_lossy())));
    paths.sort();
    Ok(paths)
}
