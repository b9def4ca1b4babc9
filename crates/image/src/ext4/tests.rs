use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::process::Command;

use types::progress::Silent;

use super::*;
use crate::cache::Bucket;

fn recipe(size: &str) -> Recipe {
    let text = format!("description = \"d\"\n[base]\ndebian = \"bookworm\"\n[disk]\nsize = \"{size}\"\n");
    Recipe::parse("small".parse().unwrap(), &text).unwrap()
}

fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("etc/deep")).unwrap();
    std::fs::write(dir.path().join("etc/deep/file"), "content").unwrap();
    std::fs::set_permissions(dir.path().join("etc/deep/file"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("deep/file", dir.path().join("etc/link")).unwrap();
    dir
}

/// Formats in a cache of its own, and hands the image to `look`.
fn formatted<T>(tree: &Path, size: &str, look: impl FnOnce(Result<&Path, ImageError>) -> T) -> T {
    let cache = tempfile::tempdir().unwrap();
    let bucket = Bucket::open(cache.path(), "images-v1").unwrap();
    let turn = bucket.lock("small", &Silent).unwrap();
    let staging = turn.stage().unwrap();
    match format(tree, &recipe(size), &staging) {
        Ok(image) => look(Ok(&image)),
        Err(err) => look(Err(err)),
    }
}

fn debugfs(image: &Path, request: &str) -> String {
    let output = Command::new("/sbin/debugfs").args(["-R", request]).arg(image).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_tree_is_in_a_clean_filesystem() {
    let tree = tree();
    formatted(tree.path(), "64M", |image| {
        let image = image.unwrap();
        let check = Command::new("/sbin/e2fsck").arg("-fn").arg(image).output().unwrap();
        assert!(check.status.success(), "{check:?}");
        assert_eq!(debugfs(image, "cat /etc/deep/file"), "content");
        assert!(debugfs(image, "stat /etc/deep/file").contains("Mode:  04755"));
        assert!(debugfs(image, "stat /etc/link").contains("deep/file"));
        let meta = image.metadata().unwrap();
        assert_eq!(meta.len(), 64 << 20);
        assert!(meta.blocks() * 512 < 16 << 20, "not sparse: {} blocks", meta.blocks());
    });
}

#[test]
fn the_kernel_has_nothing_left_to_initialise() {
    let tree = tree();
    formatted(tree.path(), "256M", |image| {
        let groups = Command::new("/sbin/dumpe2fs").arg(image.unwrap()).output().unwrap();
        let groups = String::from_utf8(groups.stdout).unwrap();
        let flags: Vec<_> = groups.lines().filter(|line| line.contains(") csum 0x")).collect();
        assert_eq!(flags.len(), 2, "{groups}");
        assert!(flags.iter().all(|line| line.contains("ITABLE_ZEROED")), "{flags:?}");
    });
}

#[test]
fn what_does_not_fit_is_said() {
    let tree = tree();
    let noise: Vec<u8> = (0..70_u32 << 18).flat_map(u32::to_le_bytes).collect();
    std::fs::write(tree.path().join("large"), noise).unwrap();
    formatted(tree.path(), "64M", |image| {
        let error = image.unwrap_err();
        assert!(matches!(error, ImageError::TooSmall { bytes: 0x400_0000, .. }), "{error}");
        assert!(error.to_string().contains("raise disk.size"));
    });
}

#[test]
fn identifiers_come_from_the_digest() {
    let digest = recipe("64M").digest();
    let uuid = uuid(&digest);
    assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    let tree = tree();
    formatted(tree.path(), "64M", |image| {
        assert!(debugfs(image.unwrap(), "stats").contains(&format!("Filesystem UUID:          {uuid}")));
    });
}
