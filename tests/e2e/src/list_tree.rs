//! Says all that there is to say of a tree of files, a line for each: run where the tree was made and where it has arrived,
//! and the same lines mean the same tree.
//!
//! ```text
//! path  kind  mode owner:group  time  what it is (contents, target, device, the first of its names)  attributes
//! ```

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{lgetxattr, llistxattr, major, minor};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

/// What the kernel allows for all names, and for a value.
const MAX_XATTR: usize = 1 << 16;

fn main() -> ExitCode {
    let Some(root) = std::env::args_os().nth(1) else { return ExitCode::FAILURE };
    let listed = list(Path::new(&root)).and_then(|text| io::stdout().write_all(text.as_bytes()));
    match listed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "list-tree: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn list(root: &Path) -> io::Result<String> {
    let mut text = String::new();
    let mut first_names: HashMap<u64, String> = HashMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(name) = waiting.pop() {
        let path = if name.as_os_str().is_empty() { root.to_owned() } else { root.join(&name) };
        let meta = path.symlink_metadata()?;
        let shown = name.as_os_str().as_bytes().escape_ascii().to_string();
        let is_another_name = !meta.is_dir() && first_names.contains_key(&meta.ino());
        let what = if is_another_name {
            format!("is {}", first_names[&meta.ino()])
        } else {
            first_names.insert(meta.ino(), shown.clone());
            format!("{}{}", what(&path, &meta)?, xattrs(&path)?)
        };
        text += &format!(
            "{shown:?} {} {:o} {}:{} {}.{:09} {what}\n",
            kind(&meta),
            meta.mode() & 0o7777,
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
        );
        if meta.is_dir() {
            let names = fs::read_dir(&path)?.map(|entry| Ok(name.join(entry?.file_name())));
            let mut names = names.collect::<io::Result<Vec<_>>>()?;
            names.sort_by(|a, b| b.cmp(a));
            waiting.extend(names);
        }
    }
    Ok(text)
}

fn kind(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    [
        (kind.is_dir(), "directory"),
        (kind.is_symlink(), "symlink"),
        (kind.is_fifo(), "fifo"),
        (kind.is_socket(), "socket"),
        (kind.is_char_device(), "character"),
        (kind.is_block_device(), "block"),
    ]
    .into_iter()
    .find_map(|(is, name)| is.then_some(name))
    .unwrap_or("file")
}

fn what(path: &Path, meta: &Metadata) -> io::Result<String> {
    let kind = meta.file_type();
    if kind.is_symlink() {
        return Ok(format!("-> {}", fs::read_link(path)?.as_os_str().as_bytes().escape_ascii()));
    }
    if kind.is_char_device() || kind.is_block_device() {
        return Ok(format!("{},{}", major(meta.rdev()), minor(meta.rdev())));
    }
    if !kind.is_file() {
        return Ok(String::new());
    }
    let (mut hasher, mut file, mut buffer) = (Sha256::new(), File::open(path)?, vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            len => hasher.update(&buffer[..len]),
        }
    }
    let sparse = if meta.blocks() * 512 < meta.len() / 2 { " sparse" } else { "" };
    Ok(format!("{} bytes in {} names, {}{sparse}", meta.len(), meta.nlink(), hex(&hasher.finalize())))
}

/// Sorted by name. What the host's security modules add is not the tree's.
fn xattrs(path: &Path) -> io::Result<String> {
    let mut names = vec![0; MAX_XATTR];
    let len = match llistxattr(path, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        len => len?,
    };
    let mut names: Vec<_> = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.retain(|name| *name != b"security.selinux");
    names.sort_unstable();
    let mut text = String::new();
    for name in names {
        let mut value = vec![0; MAX_XATTR];
        let len = lgetxattr(path, name, &mut value[..])?;
        text += &format!(" {}={}", name.escape_ascii(), hex(&value[..len]));
    }
    Ok(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
