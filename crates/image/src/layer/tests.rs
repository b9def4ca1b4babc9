use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

/// What an archive has: kind, mode, owner, name, and what it is or leads to.
fn listed(archive: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(archive);
    let mut lines = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let header = entry.header();
        let kind = char::from(header.entry_type().as_byte());
        let owner = format!("{}:{}", header.uid().unwrap(), header.gid().unwrap());
        assert_eq!(header.mtime().unwrap(), 0);
        let link = entry.link_name().unwrap().map(|link| format!(" -> {}", link.display())).unwrap_or_default();
        lines.push(format!(
            "{kind} {:o} {owner} {} {text}{link}",
            header.mode().unwrap(),
            entry.path().unwrap().display()
        ));
    }
    lines
}

fn copied(dir: &Path, from: &str, to: &str, look: Look) -> Result<Vec<u8>, LayerError> {
    let mut layer = Layer::new(Vec::new());
    layer.copy(dir, from, to, look)?;
    layer.finish()
}

fn recipe() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("app/sub/deep")).unwrap();
    for (name, text, mode) in [("app/b", "B", 0o600), ("app/a.sh", "A", 0o700), ("app/sub/deep/c", "", 0o444)] {
        fs::write(dir.path().join(name), text).unwrap();
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink("/etc/passwd", dir.path().join("app/link")).unwrap();
    symlink("app", dir.path().join("alias")).unwrap();
    dir
}

#[test]
fn a_tree_comes_in_order_and_says_nothing_of_this_computer() {
    let dir = recipe();
    let archive = copied(dir.path(), "app", "/opt/x", Look::default()).unwrap();
    assert_eq!(
        listed(&archive),
        [
            "0 755 0:0 opt/x/a.sh A",
            "0 644 0:0 opt/x/b B",
            "2 777 0:0 opt/x/link  -> /etc/passwd",
            "0 644 0:0 opt/x/sub/deep/c ",
        ]
    );
    let again = copied(recipe().path(), "app", "/opt/x", Look::default()).unwrap();
    assert_eq!(archive, again, "the same files, another archive");
}

#[test]
fn a_directory_has_an_entry_where_it_says_something() {
    let dir = recipe();
    let look = Look { uid: 7, gid: 7, ..Look::default() };
    assert_eq!(listed(&copied(dir.path(), "app", "/opt/x", look).unwrap())[0], "5 755 7:7 opt/x ");
    fs::create_dir(dir.path().join("empty")).unwrap();
    assert_eq!(listed(&copied(dir.path(), "empty", "/e", Look::default()).unwrap()), ["5 755 0:0 e "]);
}

#[test]
fn a_file_looks_as_the_recipe_says() {
    let dir = recipe();
    let look = Look { mode: Some(0o4750), uid: 7, gid: 8 };
    assert_eq!(listed(&copied(dir.path(), "app/b", "/b", look).unwrap()), ["0 4750 7:8 b B"]);
    let long = format!("/{}/b", "d".repeat(200));
    let archive = copied(dir.path(), "app/b", &long, Look::default()).unwrap();
    assert_eq!(listed(&archive), [format!("0 644 0:0 {}/b B", "d".repeat(200))]);
}

#[test]
fn nothing_leads_out_of_the_directory() {
    let dir = recipe();
    fs::write(dir.path().join("secret"), "x").unwrap();
    let inner = dir.path().join("app");
    symlink("../secret", inner.join("out")).unwrap();
    symlink("..", inner.join("up")).unwrap();
    for (from, root) in [("out", &inner), ("up/secret", &inner), ("link", &inner)] {
        let error = copied(root, from, "/x", Look::default()).unwrap_err();
        assert!(matches!(error, LayerError::Link { .. }), "{from}: {error}");
    }
    let error = copied(dir.path(), "alias/b", "/x", Look::default()).unwrap_err();
    assert!(matches!(error, LayerError::Link { .. }), "not even where it stays inside: {error}");
    // Types refuse these before; the kernel does, too.
    for from in ["../secret", "/etc/passwd"] {
        copied(&inner, from, "/x", Look::default()).unwrap_err();
    }
    let error = copied(dir.path(), "nothing", "/x", Look::default()).unwrap_err();
    assert!(matches!(&error, LayerError::Read { path, .. } if path.ends_with("nothing")), "{error}");
}

#[test]
fn what_is_no_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("d/pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    for from in ["d", "d/pipe"] {
        let error = copied(dir.path(), from, "/x", Look::default()).unwrap_err();
        assert!(matches!(&error, LayerError::Kind { path } if path.ends_with("d/pipe")), "{error}");
    }
}

#[test]
fn a_file_that_shrinks_is_an_error_and_one_that_grows_is_cut() {
    let file = |len: u64, text: &'static str| {
        let mut layer = Layer::new(Vec::new());
        layer.file("/x", Look::default(), false, len, text.as_bytes())?;
        layer.finish()
    };
    assert!(matches!(file(5, "abc"), Err(LayerError::Write { .. })));
    assert_eq!(listed(&file(2, "abc").unwrap()), ["0 644 0:0 x ab"]);
}
