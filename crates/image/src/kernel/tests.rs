use types::progress::Silent;

use super::header::tests::bzimage;
use super::*;
use crate::modules::tests::tree;

/// A root directory with kernels in `boot`, and for each a `virtio_mmio` if it is said to be usable.
fn root(kernels: &[(&str, bool)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("boot")).unwrap();
    for (release, usable) in kernels {
        fs::write(dir.path().join(format!("boot/vmlinuz-{release}")), bzimage(release)).unwrap();
        let modules = tree(&[(if *usable { "virtio_mmio.ko" } else { "other.ko" }, "")], "");
        fs::create_dir_all(dir.path().join("lib/modules")).unwrap();
        fs::rename(modules.keep(), dir.path().join("lib/modules").join(release)).unwrap();
    }
    dir
}

#[test]
fn the_running_kernel_comes_first_then_the_newest() {
    let root = root(&[("6.1.0-9-amd64", true), ("6.1.0-54-amd64", true), ("6.12.1-amd64", false)]);
    let chosen = |running| host_kernel(root.path(), running).unwrap().release;
    assert_eq!(chosen("6.1.0-9-amd64"), "6.1.0-9-amd64");
    assert_eq!(chosen("5.0-elsewhere"), "6.1.0-54-amd64", "by number, and only with virtio_mmio");
    assert_eq!(chosen("6.12.1-amd64"), "6.1.0-54-amd64", "running, but of no use to a guest");
}

#[test]
fn a_host_without_a_usable_kernel_has_none() {
    assert_eq!(host_kernel(root(&[("6.12.1-amd64", false)]).path(), "6.12.1-amd64"), None);
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(host_kernel(empty.path(), "6.1.0"), None);
}

#[test]
fn a_given_kernel_brings_the_modules_beside_it() {
    let root = root(&[("6.1.0-test", true)]);
    let home = tempfile::tempdir().unwrap();
    let image = root.path().join("boot/vmlinuz-6.1.0-test");
    let kernel = guest_kernel(Some(&image), &Dirs::under(home.path()), &Silent).unwrap();
    let modules = fs::canonicalize(root.path().join("lib/modules/6.1.0-test")).unwrap();
    assert_eq!((kernel.release.as_str(), kernel.modules), ("6.1.0-test", Some(modules)));
    let alone = home.path().join("vmlinuz");
    fs::write(&alone, bzimage("6.1.0-no-such")).unwrap();
    assert_eq!(GuestKernel::at(&alone).unwrap().modules, None);
}

#[test]
fn a_given_file_that_is_no_kernel_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlinuz");
    fs::write(&path, "#!/bin/sh\n").unwrap();
    let error = GuestKernel::at(&path).unwrap_err();
    assert_eq!(error.to_string(), format!("{} cannot be booted as a kernel", path.display()));
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(reason, "it is neither a bzImage nor an x86-64 vmlinux");
    let error = GuestKernel::at(&dir.path().join("nowhere")).unwrap_err();
    assert!(matches!(error, KernelError::Header { source: HeaderError::Read(_), .. }), "{error}");
}

#[test]
fn the_newest_unpacked_kernel_is_taken_and_a_damaged_one_is_not() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(home.path());
    let bucket = Bucket::open(&dirs.cache, "kernels-v1").unwrap();
    assert_eq!(cached(&bucket).unwrap(), None);
    for release in ["6.1.0-9-cloud", "6.1.0-10-cloud", "6.1.0-11-cloud"] {
        fs::rename(root(&[(release, true)]).keep(), bucket.path(release)).unwrap();
    }
    fs::write(bucket.path("6.1.0-11-cloud").join("boot/vmlinuz-6.1.0-11-cloud"), "damage").unwrap();
    fs::rename(root(&[("6.9.0", true)]).keep(), bucket.path("6.9.0.staging")).unwrap();
    assert_eq!(guest_kernel(None, &dirs, &Silent).unwrap().release, "6.1.0-10-cloud");
}

#[test]
fn versions_are_ordered_by_number() {
    let mut releases = ["6.12.3", "6.1.0-54-cloud", "6.1.0-9-cloud", "5.10.0", "6.1.0-9-amd64"];
    releases.sort_by(|a, b| by_version(a, b));
    assert_eq!(releases, ["5.10.0", "6.1.0-9-amd64", "6.1.0-9-cloud", "6.1.0-54-cloud", "6.12.3"]);
}
