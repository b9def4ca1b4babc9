use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn spec(bytes: u64) -> Spec {
    Spec { bytes, uuid: [7; 16], label: "test".into() }
}

fn meta(mode: u16) -> Meta {
    Meta { mode, uid: 70_000, gid: 3, mtime: Time { secs: 1_700_000_000, nanos: 123_456_789 }, ..Meta::default() }
}

fn name(text: &[u8]) -> Name {
    Name::new(text).unwrap()
}

fn put(tree: &mut Tree, dir: NodeId, text: &[u8], kind: Kind) -> NodeId {
    tree.insert(dir, name(text), Node { meta: meta(0o4755), kind }, 0).unwrap()
}

fn dir() -> Kind {
    Kind::Directory(BTreeMap::new())
}

/// The tree as a disk's file.
fn written(tree: Tree, bytes: u64) -> (Plan, tempfile::NamedTempFile) {
    let plan = Plan::new(tree, &spec(bytes)).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    plan.write(file.as_file()).unwrap();
    (plan, file)
}

/// What e2fsprogs thinks of it.
fn check(image: &Path) {
    let found = Command::new("/sbin/e2fsck").arg("-fn").arg(image).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
}

fn debugfs(image: &Path, request: &str) -> Vec<u8> {
    let output = Command::new("/sbin/debugfs").args(["-R", request]).arg(image).output().unwrap();
    output.stdout
}

fn stat(image: &Path, path: &str) -> String {
    String::from_utf8_lossy(&debugfs(image, &format!("stat {path}"))).into_owned()
}

#[test]
fn every_kind_of_file_is_there() {
    let mut tree = Tree::new(meta(0o755));
    let sub = put(&mut tree, NodeId::ROOT, b"sub", dir());
    let file = put(&mut tree, sub, b"file", Kind::File(Content::whole(10_000)));
    tree.link(NodeId::ROOT, name(b"again"), Entry { node: file, mark: 0 }).unwrap();
    put(&mut tree, sub, b"short", Kind::Symlink(b"file".as_slice().into()));
    put(&mut tree, sub, b"long", Kind::Symlink(vec![b'x'; 4095].into()));
    put(&mut tree, sub, b"border", Kind::Symlink(vec![b'y'; 60].into()));
    put(&mut tree, sub, b"tty", Kind::Device { kind: DeviceKind::Character, major: 5, minor: 1 });
    put(&mut tree, sub, b"disk", Kind::Device { kind: DeviceKind::Block, major: 259, minor: 70_000 });
    put(&mut tree, sub, b"fifo", Kind::Fifo);
    put(&mut tree, sub, b"sock", Kind::Socket);
    put(&mut tree, sub, b"new\nline\xff", Kind::File(Content::default()));
    put(&mut tree, sub, &[b'n'; 255], Kind::File(Content::whole(1)));
    let (plan, image) = written(tree, 16 * MIB);
    let text: Vec<u8> = (0..10_000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    for (at, part) in (0..).zip(text.chunks(1000)) {
        plan.write_content(image.as_file(), file, at * 1000, part).unwrap();
    }
    let path = image.path();
    check(path);
    assert_eq!(debugfs(path, "cat /again"), text);
    let found = stat(path, "/sub/file");
    for part in ["Type: regular", "Mode:  04755", "User: 70000", "Group:     3", "Links: 2", "Size: 10000"] {
        assert!(found.contains(part), "{part}: {found}");
    }
    assert!(found.contains("mtime: 0x6553f100:1d6f3454"), "{found}");
    assert!(stat(path, "/sub/short").contains("Fast link dest: \"file\""));
    assert_eq!(debugfs(path, "cat /sub/long").len(), 4095);
    assert_eq!(debugfs(path, "cat /sub/border"), [b'y'; 60]);
    assert!(stat(path, "/sub/tty").contains("05:01"), "{}", stat(path, "/sub/tty"));
    assert!(stat(path, "/sub/disk").contains("259:70000"), "{}", stat(path, "/sub/disk"));
    assert!(stat(path, "/sub/fifo").contains("Type: FIFO"));
    assert!(stat(path, "/sub/sock").contains("Type: socket"));
    assert!(debugfs(path, "ls -p /sub").windows(9).any(|bytes| bytes == b"new\nline\xff"));
    assert!(stat(path, &format!("/sub/{}", "n".repeat(255))).contains("Size: 1"));
    assert_eq!(plan.bytes(), 16 * MIB);
}

#[test]
fn attributes_are_in_the_inode_or_in_a_block() {
    let mut tree = Tree::new(meta(0o755));
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let small = put(&mut tree, NodeId::ROOT, b"small", Kind::File(Content::default()));
    tree.meta_mut(small).xattrs.insert(b"security.capability".as_slice().into(), capability.into());
    let large = put(&mut tree, NodeId::ROOT, b"large", Kind::File(Content::whole(5)));
    for n in 0..30u8 {
        let name = format!("user.attribute-{n:.<0$}", usize::from(n));
        tree.meta_mut(large).xattrs.insert(name.into_bytes().into(), vec![n; usize::from(n) * 3].into());
    }
    let link = put(&mut tree, NodeId::ROOT, b"dir", dir());
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat();
    let all = [entry(1, u32::MAX), entry(2, 1000), entry(4, u32::MAX), entry(16, u32::MAX), entry(32, u32::MAX)];
    let acl = [2u32.to_le_bytes().to_vec(), all.concat()].concat();
    tree.meta_mut(link).xattrs.insert(b"system.posix_acl_access".as_slice().into(), acl.into());
    let (_, image) = written(tree, 16 * MIB);
    let path = image.path();
    check(path);
    let listed = |of: &str| String::from_utf8_lossy(&debugfs(path, &format!("ea_list {of}"))).into_owned();
    assert!(listed("/small").contains("security.capability (20)"), "{}", listed("/small"));
    assert_eq!(listed("/large").matches("user.attribute-").count(), 30);
    assert!(listed("/dir").contains("system.posix_acl_access"), "{}", listed("/dir"));
    let value = debugfs(path, "ea_get -x /large user.attribute-9........");
    assert!(String::from_utf8_lossy(&value).contains("09 09 09"), "{value:?}");
}

#[test]
fn what_ext4_cannot_say_is_an_error_with_a_path() {
    let with = |name: &[u8], value: usize| {
        let mut tree = Tree::new(meta(0o755));
        let sub = put(&mut tree, NodeId::ROOT, b"sub", dir());
        let file = put(&mut tree, sub, b"f", Kind::File(Content::default()));
        tree.meta_mut(file).xattrs.insert(name.into(), vec![1; value].into());
        Plan::new(tree, &spec(16 * MIB)).unwrap_err().to_string()
    };
    for (name, value) in [(&b"odd.name"[..], 1), (b"user.", 1), (b"user.x", 5000), (b"system.posix_acl_access", 3)] {
        assert_eq!(with(name, value), "/sub/f");
    }
    let mut tree = Tree::new(meta(0o755));
    put(&mut tree, NodeId::ROOT, b"f", Kind::File(Content { len: MAX_FILE + 1, pieces: Vec::new() }));
    assert_eq!(Plan::new(tree, &spec(16 * MIB)).unwrap_err(), PlanError::File { path: "/f".into() });
    let mut tree = Tree::new(meta(0o755));
    put(&mut tree, NodeId::ROOT, b"f", Kind::File(Content::whole(20 * MIB)));
    let PlanError::TooSmall { bytes, needed } = Plan::new(tree.clone(), &spec(16 * MIB)).unwrap_err() else {
        panic!("20 MiB fit into 16")
    };
    assert_eq!(bytes, 16 * MIB);
    Plan::new(tree, &spec(needed)).unwrap();
}

#[test]
fn holes_stay_holes_and_large_files_cross_groups() {
    let mut tree = Tree::new(meta(0o755));
    let pieces: Vec<_> = (0..2000).map(|n| Piece { at: n * 3 * BLOCK + 5, len: 10 }).collect();
    let sparse = put(&mut tree, NodeId::ROOT, b"sparse", Kind::File(Content { len: MAX_FILE, pieces: pieces.clone() }));
    let large = put(&mut tree, NodeId::ROOT, b"large", Kind::File(Content::whole(300 * MIB)));
    put(&mut tree, NodeId::ROOT, b"hole", Kind::File(Content { len: MAX_FILE, pieces: Vec::new() }));
    let bytes = Plan::demand(&tree).unwrap().bytes_with_free(MIB).unwrap();
    assert_eq!(bytes, 3 * 128 * MIB);
    let (plan, image) = written(tree, bytes);
    for piece in pieces {
        plan.write_content(image.as_file(), sparse, piece.at, b"0123456789").unwrap();
    }
    let outside = plan.write_content(image.as_file(), sparse, BLOCK, b"x").unwrap_err();
    assert_eq!(outside.kind(), std::io::ErrorKind::InvalidInput);
    plan.write_content(image.as_file(), large, 0, &vec![0; 8 << 20]).unwrap();
    plan.write_content(image.as_file(), large, 300 * MIB - 3, b"end").unwrap();
    check(image.path());
    assert!(image.as_file().metadata().unwrap().blocks() * 512 < 12 * MIB, "not sparse");
    let found = stat(image.path(), "/sparse");
    assert!(found.contains("Size: 1099511627776"), "{found}");
    let tail = tempfile::NamedTempFile::new().unwrap();
    debugfs(image.path(), &format!("dump /large {}", tail.path().display()));
    let mut end = [0; 5];
    File::open(tail.path()).unwrap().read_exact_at(&mut end, 300 * MIB - 5).unwrap();
    assert_eq!(&end, b"\0\0end");
}

#[test]
fn many_files_in_many_directories() {
    let mut tree = Tree::new(meta(0o755));
    let wide = put(&mut tree, NodeId::ROOT, b"wide", dir());
    for n in 0..40_000 {
        put(&mut tree, wide, format!("file-{n}").as_bytes(), Kind::File(Content::default()));
    }
    let mut deep = NodeId::ROOT;
    for _ in 0..3000 {
        deep = put(&mut tree, deep, b"d", dir());
    }
    let crowd = put(&mut tree, NodeId::ROOT, b"crowd", dir());
    let file = put(&mut tree, crowd, b"0", Kind::File(Content::whole(3)));
    for n in 1..65_000 {
        tree.link(crowd, name(n.to_string().as_bytes()), Entry { node: file, mark: 0 }).unwrap();
    }
    let bytes = Plan::demand(&tree).unwrap().bytes_with_free(0).unwrap();
    let (_, image) = written(tree.clone(), bytes);
    check(image.path());
    tree.link(crowd, name(b"one more"), Entry { node: file, mark: 0 }).unwrap();
    assert!(matches!(Plan::new(tree, &spec(bytes)), Err(PlanError::Links { .. })));
}

#[test]
fn a_disk_that_is_no_number_of_groups_is_used_as_far_as_it_goes() {
    for bytes in [8 * MIB, 128 * MIB + BLOCK, 130 * MIB, 135 * MIB, 1200 * MIB + 12_345] {
        let (plan, image) = written(Tree::new(meta(0o755)), bytes);
        assert!(plan.bytes() <= bytes);
        check(image.path());
    }
    Plan::new(Tree::new(meta(0o755)), &spec(MIB)).unwrap_err();
}

#[test]
fn names_that_are_none_are_refused() {
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
        assert!(Name::new(bad).is_err(), "{bad:?}");
    }
    let mut tree = Tree::new(meta(0o755));
    let sub = put(&mut tree, NodeId::ROOT, b"sub", dir());
    assert_eq!(
        tree.link(NodeId::ROOT, name(b"x"), Entry { node: sub, mark: 0 }),
        Err(TreeError::IsADirectory),
        "two names for a directory"
    );
    let file = put(&mut tree, sub, b"f", Kind::Fifo);
    assert_eq!(tree.link(file, name(b"x"), Entry { node: file, mark: 0 }), Err(TreeError::NotADirectory));
    assert_eq!(tree.link(sub, name(b"f"), Entry { node: file, mark: 0 }), Err(TreeError::Exists));
    let long = Node { meta: meta(0o777), kind: Kind::Symlink(vec![b'x'; 4096].into()) };
    assert_eq!(tree.insert(sub, name(b"l"), long, 0), Err(TreeError::Target));
    assert_eq!(tree.path(file), "/sub/f");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    /// Whatever the names, sizes and holes: clean, and the same bytes twice.
    #[test]
    fn any_tree_is_a_clean_file_system(
        files in proptest::collection::vec(
            (proptest::collection::vec(1u8..=255, 1..40), proptest::collection::vec((0u64..100_000, 1u64..9000), 0..6), any::<bool>()),
            0..60,
        )
    ) {
        let mut tree = Tree::new(meta(0o755));
        let mut at = NodeId::ROOT;
        for (text, gaps, down) in files {
            let Ok(name) = Name::new(&text) else { continue };
            let (mut len, mut pieces) = (0, Vec::new());
            for (gap, piece) in gaps {
                pieces.push(Piece { at: len + gap, len: piece });
                len += gap + piece;
            }
            let kind = if down { dir() } else { Kind::File(Content { len, pieces }) };
            if let Ok(id) = tree.insert(at, name, Node { meta: meta(0o644), kind }, 0)
                && down
            {
                at = id;
            }
        }
        let (_, one) = written(tree.clone(), 16 * MIB);
        check(one.path());
        let (_, other) = written(tree, 16 * MIB);
        prop_assert!(std::fs::read(one.path()).unwrap() == std::fs::read(other.path()).unwrap());
    }
}
