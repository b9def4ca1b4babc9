//! Keeps the sources in the shape we read them in: short files that say what they are, `unsafe` in one place.

#![expect(clippy::print_stdout, reason = "a tool talks to whoever runs it")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A file that outgrows this is two files.
const LINES_MAX: usize = 800;

pub(crate) fn run() -> Result<()> {
    let mut files = Vec::new();
    for root in ["crates", "xtask", "tests", "bench"] {
        collect(Path::new(root), &mut files)?;
    }
    let mut complaints = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        complaints.extend(check(file, &text).into_iter().map(|complaint| format!("{}: {complaint}", file.display())));
    }
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n"));
    }
    println!("shape: {} files are short, documented, and keep unsafe in sys", files.len());
    Ok(())
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn check(file: &Path, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        complaints.push(format!("{lines} lines, the limit is {LINES_MAX}"));
    }
    // A sibling `tests.rs` is told by the module it tests.
    if !text.starts_with("//!") && file.file_name().is_none_or(|name| name != "tests.rs") {
        complaints.push("does not open with what it is (//!)".into());
    }
    let in_sys = file.components().any(|part| part.as_os_str() == "sys" || part.as_os_str() == "sys.rs");
    let uses_unsafe =
        text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(concat!("un", "safe {")));
    if uses_unsafe && !in_sys {
        complaints.push("has an unsafe block outside of a sys module".into());
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_complains() {
        let long = format!("//! x\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(check(Path::new("a.rs"), &long).len(), 1);
        assert_eq!(check(Path::new("a.rs"), "fn x() {}").len(), 1);
        let block = concat!("//! x\nfn f() { un", "safe { g() } }");
        assert_eq!(check(Path::new("a.rs"), block).len(), 1);
        assert_eq!(check(Path::new("sys/a.rs"), block).len(), 0);
    }
}
