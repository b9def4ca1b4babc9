use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use types::progress::Silent;

use super::*;
use crate::testing::{Layout, Tar, gzip};
use crate::{Digest, ImageError, Platform, Source, StreamError};

fn open(source: &str) -> Result<Image, ImageError> {
    Image::open(&source.parse::<Source>().unwrap(), &Platform::default())
}

fn write(image: &Image) -> Result<tempfile::NamedTempFile, WriteError> {
    let disk = tempfile::NamedTempFile::new().unwrap();
    image.write(disk.as_file(), DiskSize::Free(8 << 20), Limits::default(), &Silent)?;
    Ok(disk)
}

fn written(image: &Image) -> tempfile::NamedTempFile {
    let disk = write(image).unwrap();
    let found = Command::new("/sbin/e2fsck").arg("-fn").arg(disk.path()).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
    disk
}

fn debugfs(disk: &Path, request: &str) -> String {
    let output = Command::new("/sbin/debugfs").args(["-R", request]).arg(disk).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn layers() -> [Vec<u8>; 2] {
    let large: Vec<u8> = (0..300_000u32).map(|n| u8::try_from(n % 253).unwrap()).collect();
    let one = Tar::default().dir("etc").file("etc/a", b"first").file("etc/large", &large).file("gone", b"").end();
    let two = Tar::default().file("etc/a", b"second").link("etc/b", "etc/a").file(".wh.gone", b"").end();
    [one, two]
}

const RUN: &str = r#"{"Env": ["A=1"], "Cmd": ["sh"], "WorkingDir": "/etc", "User": "app", "Labels": {"x": "y"}}"#;

#[test]
fn an_image_of_any_wrapping_gives_the_same_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [one, two] = layers();
    let packed = [gzip(&one), zstd::encode_all(&two[..], 3).unwrap()];
    Layout::new(&[one.clone(), two.clone()], &packed, RUN).write(Path::new(&path("layout")));
    Layout::new(&[one.clone(), two.clone()], &[one.clone(), two.clone()], RUN).write(Path::new(&path("plain")));
    archive(Path::new(&path("layout")), Path::new(&path("layout.tar")));
    docker_archive(&[one, two], Path::new(&path("docker.tar")));
    let disks = [
        format!("oci:{}", path("layout")),
        format!("oci:{}:latest", path("plain")),
        format!("oci-archive:{}", path("layout.tar")),
        format!("docker-archive:{}:me", path("docker.tar")),
    ]
    .map(|source| written(&open(&source).unwrap()));
    let bytes = |disk: &tempfile::NamedTempFile| Digest::of(&fs::read(disk.path()).unwrap());
    assert!(disks.iter().all(|disk| bytes(disk) == bytes(&disks[0])), "the same image, another disk");
    let disk = disks[0].path();
    assert_eq!(debugfs(disk, "cat /etc/b"), "second");
    assert!(debugfs(disk, "stat /etc/a").contains("Links: 2"));
    assert!(!debugfs(disk, "ls -p /").contains("/gone/"));
    let run: crate::RunConfig = serde_json::from_str(&debugfs(disk, "cat /etc/forkd/image.json")).unwrap();
    assert_eq!((run.env, run.cmd, run.user.as_str()), (vec!["A=1".into()], vec!["sh".into()], "app"));
    let copy = path("large");
    debugfs(disk, &format!("dump /etc/large {copy}"));
    let copied = fs::read(copy).unwrap();
    assert!(copied.len() == 300_000 && (0..).zip(&copied).all(|(n, byte)| n % 253 == u32::from(*byte)));
}

#[test]
fn what_is_not_as_its_digest_says_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = format!("oci:{}", dir.path().display());
    let [one, two] = layers();
    let mut layout = Layout::new(&[one.clone(), two.clone()], &[gzip(&one), gzip(&two)], RUN);
    let first = layout.layers()[0].clone();
    let blob = dir.path().join("blobs/sha256").join(first.hex());
    layout.write(dir.path());
    let whole = fs::read(&blob).unwrap();
    fs::write(&blob, &whole[..whole.len() - 1]).unwrap();
    assert!(matches!(open(&source), Err(ImageError::Size { .. })));
    let mut wrong = whole.clone();
    wrong[100] ^= 1;
    fs::write(&blob, &wrong).unwrap();
    assert!(matches!(open(&source), Err(ImageError::Digest { .. })));
    fs::remove_file(&blob).unwrap();
    assert!(matches!(open(&source), Err(ImageError::Read { .. })));
    // A layer that is whole and not the one that the configuration names.
    layout = Layout::new(&[two.clone(), two.clone()], &[gzip(&one), gzip(&two)], RUN);
    layout.write(dir.path());
    let error = write(&open(&source).unwrap()).unwrap_err();
    let WriteError::Layer { number: 1, source: FlattenError::Stream(StreamError::Digest { .. }) } = error else {
        panic!("{error}")
    };
    layout = Layout::new(&[one], &[gzip(&two), gzip(&two)], RUN);
    layout.write(dir.path());
    assert!(matches!(open(&source), Err(ImageError::Layers { layers: 2, named: 1 })));
}

type Packer = fn(&[u8]) -> Vec<u8>;

#[test]
fn what_changes_while_it_is_read_is_not_taken_for_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "before").unwrap();
    let image = open(&format!("dir:{}", tree.display())).unwrap();
    write(&image).unwrap();
    // As long as before, so that nothing but the contents tells.
    fs::write(tree.join("file"), "behind").unwrap();
    let error = write(&image).unwrap_err();
    assert!(
        matches!(&error, WriteError::Directory(DirectoryError::Changed { path }) if path.ends_with("file")),
        "{error}"
    );
    let packers: [Packer; 3] = [<[u8]>::to_vec, gzip, |bytes| zstd::encode_all(bytes, 3).unwrap()];
    for pack in packers {
        let path = dir.path().join("archive");
        let packed = |text: &[u8]| pack(&Tar::default().file("file", text).end());
        fs::write(&path, packed(b"before")).unwrap();
        let image = open(&format!("tar:{}", path.display())).unwrap();
        write(&image).unwrap();
        let other = packed(b"behind");
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&other, 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), other.len() as u64, "another length would be noticed anyway");
        let error = write(&image).unwrap_err();
        let WriteError::Layer { source: FlattenError::Stream(StreamError::Digest { .. }), .. } = error else {
            panic!("{error}")
        };
    }
}

#[test]
fn images_for_others_and_of_other_names_are_named() {
    let arm: Platform = "linux/arm64".parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let source = format!("oci:{}", dir.path().display());
    let [one, _] = layers();
    let one = [one];
    Layout::new(&one, &one, RUN).write(dir.path());
    assert!(matches!(open(&format!("{source}:other")), Err(ImageError::NoSuchImage { .. })));
    let error = Image::open(&source.parse().unwrap(), &arm).unwrap_err();
    assert_eq!(error.to_string(), "the image is not for linux/arm64; it is for: linux/amd64");
    fs::write(dir.path().join("index.json"), "{\"manifests\": []}").unwrap();
    assert!(matches!(open(&source), Err(ImageError::Ambiguous { .. })));
    fs::write(dir.path().join("index.json"), "[").unwrap();
    assert!(matches!(open(&source), Err(ImageError::Malformed { .. })));
    let long = fs::File::create(dir.path().join("index.json")).unwrap();
    long.set_len(1 << 40).unwrap();
    assert!(matches!(open(&source), Err(ImageError::Malformed { .. })), "an endless document");
}

#[test]
fn bombs_end_at_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bomb.tar.gz");
    fs::write(&path, gzip(&Tar::default().file("zeros", &vec![0; 8 << 20]).end())).unwrap();
    let image = open(&format!("tar:{}", path.display())).unwrap();
    let limits = Limits { unpacked_bytes: 1 << 20, ..Limits::default() };
    let disk = tempfile::NamedTempFile::new().unwrap();
    let error = image.write(disk.as_file(), DiskSize::Free(0), limits, &Silent).unwrap_err();
    assert!(matches!(error, WriteError::Layer { source: FlattenError::Stream(StreamError::TooLong { .. }), .. }));
    let error = image.write(disk.as_file(), DiskSize::Bytes(4 << 20), Limits::default(), &Silent).unwrap_err();
    assert!(matches!(error, WriteError::Plan(PlanError::TooSmall { .. })), "{error}");
    let disk = written(&image);
    assert!(disk.as_file().metadata().unwrap().blocks() * 512 < 4 << 20, "zeros were written");
}

#[test]
fn a_directory_is_taken_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::write(root.join("sub/file"), "text").unwrap();
    fs::hard_link(root.join("sub/file"), root.join("again")).unwrap();
    symlink("/etc/passwd", root.join("link")).unwrap();
    symlink("..", root.join("up")).unwrap();
    fs::write(root.join(".wh.file"), "plain").unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(b"in the middle", 512 << 20).unwrap();
    let source = format!("dir:{}", root.display());
    let image = open(&source).unwrap();
    let disk = written(&image);
    assert_eq!(debugfs(disk.path(), "cat /again"), "text");
    assert!(debugfs(disk.path(), "stat /again").contains("Links: 2"));
    assert!(debugfs(disk.path(), "stat /link").contains("/etc/passwd"));
    assert_eq!(debugfs(disk.path(), "cat /.wh.file"), "plain");
    assert!(debugfs(disk.path(), "stat /sparse").contains("Size: 1073741824"));
    assert!(fs::metadata(disk.path()).unwrap().blocks() * 512 < 8 << 20, "not sparse");
    assert_eq!(open(&source).unwrap().id(), image.id());
    fs::write(root.join("sub/file"), "TEXT").unwrap();
    assert_ne!(open(&source).unwrap().id(), image.id());
    assert!(matches!(open("dir:/does/not/exist"), Err(ImageError::Directory(DirectoryError::Read { .. }))));
}

/// What GNU tar writes, in each of its dialects, is what we read.
#[test]
fn archives_of_gnu_tar_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let deep = root.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f".repeat(200)), "deep").unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    for n in 0..40 {
        sparse.write_all_at(b"data", (n << 20) + 4096).unwrap();
    }
    let kinds: [&[&str]; 5] = [
        &["--format=gnu", "--sparse"],
        &["--format=pax", "--sparse", "--sparse-version=0.0"],
        &["--format=pax", "--sparse", "--sparse-version=0.1"],
        &["--format=pax", "--sparse", "--sparse-version=1.0"],
        &["--format=pax", "--sparse", "--zstd"],
    ];
    let mut disks = Vec::new();
    for kind in kinds {
        let archive = dir.path().join("archive.tar");
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--mtime=@1"]).args(kind).arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".");
        assert!(tar.status().unwrap().success());
        let disk = written(&open(&format!("tar:{}", archive.display())).unwrap());
        let path = format!("/{}/{}/{}", "d".repeat(120), "e".repeat(120), "f".repeat(200));
        assert_eq!(debugfs(disk.path(), &format!("cat {path}")), "deep", "{kind:?}");
        let copy = dir.path().join("copy");
        debugfs(disk.path(), &format!("dump /sparse {}", copy.display()));
        let copy = fs::File::open(copy).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), 40 << 20, "{kind:?}");
        for n in 0..40 {
            let mut found = [0; 6];
            copy.read_exact_at(&mut found, (n << 20) + 4095).unwrap();
            assert_eq!(&found, b"\0data\0", "{kind:?} {n}");
        }
        disks.push(disk.as_file().metadata().unwrap().len());
    }
    assert!(disks.iter().all(|len| *len == disks[0]));
}

/// A layout's directory as an archive.
fn archive(layout: &Path, out: &Path) {
    let status = Command::new("tar").arg("-C").arg(layout).arg("-cf").arg(out).arg(".").status().unwrap();
    assert!(status.success());
}

/// As old versions of docker write it: a layer that is there twice is a link the second time.
fn docker_archive(layers: &[Vec<u8>], out: &Path) {
    let config = Layout::config(layers, RUN);
    let manifest = r#"[{"Config": "c.json", "RepoTags": ["docker.io/me:latest"], "Layers": ["1/layer.tar", "2/layer.tar"]},
                       {"Config": "other.json", "RepoTags": null, "Layers": []}]"#;
    let tar = Tar::default().file("c.json", config.as_bytes()).file("real/layer.tar", &layers[0]);
    let tar = tar.symlink("1/layer.tar", "../real/layer.tar").file("./2/layer.tar", &layers[1]);
    fs::write(out, tar.file("manifest.json", manifest.as_bytes()).end()).unwrap();
}

#[test]
fn a_configuration_is_what_its_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let config = Layout::config(&[], RUN);
    let opened = |name: &str| {
        let manifest = format!(r#"[{{"Config": "{name}", "RepoTags": null, "Layers": []}}]"#);
        let tar = Tar::default().file(name, config.as_bytes()).file("manifest.json", manifest.as_bytes());
        fs::write(dir.path().join("docker.tar"), tar.end()).unwrap();
        open(&format!("docker-archive:{}", dir.path().join("docker.tar").display()))
    };
    let (right, wrong) = (Digest::of(config.as_bytes()), Digest::of(b"another"));
    for name in [format!("{}.json", right.hex()), format!("blobs/sha256/{}", right.hex()), "config.json".into()] {
        opened(&name).unwrap();
    }
    for name in [format!("{}.json", wrong.hex()), format!("blobs/sha256/{}", wrong.hex())] {
        assert!(matches!(opened(&name), Err(ImageError::Digest { expected, .. }) if expected == wrong), "{name}");
    }
}

#[test]
fn a_pipe_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, mode) = (dir.path().join("index.json"), rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for source in [format!("oci:{}", dir.path().display()), format!("tar:{}", pipe.display())] {
        assert!(matches!(open(&source), Err(ImageError::Read { .. })), "{source}");
    }
}

#[test]
fn where_programs_run_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let layers = [Tar::default().dir("srv").symlink("link", "srv").file("file", b"").end()];
    for (working_dir, made) in
        [("/srv/app/new", "/srv/app/new"), ("/link/in", "/srv/in"), ("/file", ""), ("relative", ""), ("/", "")]
    {
        Layout::new(&layers, &layers, &format!(r#"{{"WorkingDir": "{working_dir}"}}"#)).write(dir.path());
        let disk = written(&open(&format!("oci:{}", dir.path().display())).unwrap());
        let is_made = |path: &str| debugfs(disk.path(), &format!("stat {path}")).contains("Type: directory");
        assert!(made.is_empty() || is_made(made), "{working_dir}");
        assert!(!is_made("/relative") && !is_made("/file"), "{working_dir}");
    }
}

#[test]
fn which_of_two_images_is_not_guessed() {
    let dir = tempfile::tempdir().unwrap();
    let layers = [Tar::default().file("x", b"1").end()];
    let one = Layout::new(&layers, &layers, r#"{"Cmd": ["one"]}"#);
    let two = Layout::new(&layers, &layers, r#"{"Cmd": ["two"]}"#);
    one.write(dir.path());
    two.write(dir.path());
    let entry = |layout: &Layout, name: &str, arch: &str| {
        let (digest, size) = (&layout.manifest, layout.blobs[&layout.manifest].len());
        format!(
            r#"{{"digest": "{digest}", "size": {size}, "platform": {{"os": "linux", "architecture": "{arch}"}},
                 "annotations": {{"org.opencontainers.image.ref.name": "{name}"}}}}"#
        )
    };
    let index = |entries: &[String]| {
        fs::write(dir.path().join("index.json"), format!(r#"{{"manifests": [{}]}}"#, entries.join(","))).unwrap();
    };
    let source = format!("oci:{}", dir.path().display());
    index(&[entry(&one, "one", "amd64"), entry(&two, "two", "amd64")]);
    assert!(matches!(open(&source), Err(ImageError::Ambiguous { .. })));
    assert_eq!(open(&format!("{source}:two")).unwrap().run().cmd, ["two"]);
    index(&[entry(&one, "one", "s390x"), entry(&two, "two", "amd64")]);
    assert_eq!(open(&source).unwrap().run().cmd, ["two"], "the other is for other computers");
    index(&[entry(&one, "one", "amd64"), entry(&one, "again", "amd64")]);
    assert_eq!(open(&source).unwrap().run().cmd, ["one"], "one image with two names");
    index(&[entry(&one, "one", "s390x"), entry(&two, "two", "arm64")]);
    let error = open(&source).unwrap_err().to_string();
    assert_eq!(error, "the image is not for linux/amd64; it is for: linux/s390x, linux/arm64");
}

#[test]
fn paths_are_not_followed_out_of_a_layout() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.tar");
    let manifest = r#"[{"Config": "../../etc/passwd", "RepoTags": null, "Layers": []}]"#;
    fs::write(&out, Tar::default().file("manifest.json", manifest.as_bytes()).end()).unwrap();
    let error = open(&format!("docker-archive:{}", out.display())).unwrap_err();
    let ImageError::Read { path, .. } = error else { panic!("{error}") };
    assert!(path.starts_with(PathBuf::from(&out)));
}
