use proptest::prelude::*;

use super::*;
use crate::testing::{Head, Tar, seal};

/// What archives of another system have, and Linux has not.
const APPLE: (&str, &[u8]) = ("SCHILY.xattr.com.apple.provenance", b"x");

fn flatten_with(layers: &[Vec<u8>], limits: Limits) -> Result<Flat, FlattenError> {
    let mut flattener = Flattener::new(limits);
    for layer in layers {
        flattener.layer(layer.as_slice(), Meaning::Image)?;
    }
    Ok(flattener.finish())
}

fn flatten(layers: &[Vec<u8>]) -> Result<Flat, FlattenError> {
    flatten_with(layers, Limits::default())
}

/// Every path with what is there: `/` for a directory, `@target` for a link, a file's length.
fn listed(flat: &Flat) -> Vec<String> {
    let mut lines = Vec::new();
    let mut waiting = vec![(NodeId::ROOT, String::new())];
    while let Some((dir, path)) = waiting.pop() {
        for (name, entry) in flat.tree.entries(dir).unwrap() {
            let path = format!("{path}/{}", name.as_bytes().escape_ascii());
            let what = match &flat.tree.node(entry.node).kind {
                Kind::Directory(_) => {
                    waiting.push((entry.node, path.clone()));
                    "/".into()
                }
                Kind::File(content) => format!(" {}", content.len),
                Kind::Symlink(target) => format!("@{}", target.escape_ascii()),
                Kind::Device { major, minor, .. } => format!(" {major}:{minor}"),
                Kind::Fifo => "|".into(),
                Kind::Socket => "=".into(),
            };
            lines.push(format!("{path}{what}"));
        }
    }
    lines.sort();
    lines
}

fn list(layers: &[Vec<u8>]) -> Vec<String> {
    listed(&flatten(layers).unwrap())
}

fn refused(tar: Tar) -> FlattenError {
    flatten(&[tar.end()]).unwrap_err()
}

#[test]
fn a_layer_covers_those_below() {
    let one = Tar::default().dir("a").file("a/f", b"one").file("b", b"two").symlink("l", "a").file("a/g", b"1").end();
    let two = Tar::default().file("a/f", b"three").dir("b/").file("./b/new", b"").file("/l", b"file").end();
    assert_eq!(list(&[one.clone(), two]), ["/a/", "/a/f 5", "/a/g 1", "/b/", "/b/new 0", "/l 4"]);
    let three = Tar::default().file("a", b"a file now").end();
    let four = Tar::default().dir("a").end();
    assert_eq!(list(&[one, three, four]), ["/a/", "/b 3", "/l@a"], "nothing of the first `a` comes back");
}

#[test]
fn whiteouts_take_away_what_is_below_and_nothing_else() {
    let one =
        Tar::default().dir("d").file("d/x", b"").file("d/y", b"").dir("d/s").file("d/s/z", b"").file("f", b"").end();
    let gone =
        Tar::default().file(".wh.f", b"").file("d/.wh.x", b"").file("d/.wh.none", b"").file("no/.wh.x", b"").end();
    assert_eq!(list(&[one.clone(), gone]), ["/d/", "/d/s/", "/d/s/z 0", "/d/y 0"]);
    // The same layer's own files stay, before and after.
    let opaque = Tar::default().file("d/new", b"1").file("d/.wh..wh..opq", b"").file("d/s/mine", b"2").end();
    assert_eq!(list(&[one.clone(), opaque]), ["/d/", "/d/new 1", "/d/s/", "/d/s/mine 1", "/f 0"]);
    let both = Tar::default().dir("d/s").file("d/s/mine", b"").file("d/.wh.s", b"").end();
    assert_eq!(list(&[one.clone(), both]), ["/d/", "/d/s/", "/d/s/mine 0", "/d/x 0", "/d/y 0", "/f 0"]);
    let aufs = Tar::default().dir(".wh..wh.plnk").file(".wh..wh.plnk/1.2", b"").file(".wh..wh.aufs", b"").end();
    assert_eq!(list(&[one.clone(), aufs]).len(), 6);
    // An archive by itself has no layers below.
    let mut plain = Flattener::new(Limits::default());
    plain.layer(Tar::default().file(".wh.f", b"").end().as_slice(), Meaning::Archive).unwrap();
    assert_eq!(listed(&plain.finish()), ["/.wh.f 0"]);
}

#[test]
fn what_is_added_leaves_directories_as_they_are() {
    let below = Tar::default().dir("usr/lib").symlink("lib", "usr/lib").dir("home").file("f", b"").end();
    let dir = |path: &str, owner: &[u8]| {
        let mut block = Head::new(path, b'5').encode();
        block[100..108].copy_from_slice(b"0000700\0");
        block[108..116].copy_from_slice(owner);
        block[116..124].copy_from_slice(owner);
        seal(&mut block);
        block
    };
    let (root, other) = (b"0000000\0", b"0000007\0");
    let above = Tar::default().raw(&dir("lib", root)).raw(&dir("home", other)).raw(&dir("new", other));
    let mut flattener = Flattener::new(Limits::default());
    flattener.layer(below.as_slice(), Meaning::Image).unwrap();
    flattener.layer(above.file("lib/x", b"").file(".wh.f", b"").end().as_slice(), Meaning::Addition).unwrap();
    let mut look = |path: &str| {
        let node = flattener.find(path).unwrap().unwrap();
        let meta = &flattener.tree().node(node).meta;
        (meta.mode, meta.uid, meta.gid)
    };
    assert_eq!(look("usr/lib"), (0o755, 10, 11), "root says nothing of whose it is");
    assert_eq!(look("home"), (0o755, 7, 7), "the mode stays");
    assert_eq!(look("new"), (0o755, 7, 7));
    let over_a_file = Tar::default().dir("f").end();
    let error = flattener.layer(over_a_file.as_slice(), Meaning::Addition).unwrap_err();
    assert!(matches!(error, FlattenError::NotADirectory { .. }), "{error}");
    let all = ["/.wh.f 0", "/f 0", "/home/", "/lib@usr/lib", "/new/", "/usr/", "/usr/lib/", "/usr/lib/x 0"];
    assert_eq!(listed(&flattener.finish()), all);
}

#[test]
fn whiteouts_of_parents_are_refused() {
    for path in [".wh.", ".wh..", ".wh...", "d/.wh...", "d/.wh.."] {
        let error = refused(Tar::default().dir("d").file(path, b""));
        assert!(matches!(error, FlattenError::Whiteout { .. }), "{path}: {error}");
    }
}

#[test]
fn links_lead_nowhere_but_into_the_image() {
    let up = Tar::default()
        .symlink("up", "../../..")
        .file("up/etc/passwd", b"12")
        .symlink("abs", "/etc")
        .file("abs/x", b"")
        .end();
    assert_eq!(list(&[up]), ["/abs@/etc", "/etc/", "/etc/passwd 2", "/etc/x 0", "/up@../../.."]);
    let merged = Tar::default().dir("usr").dir("usr/lib").symlink("lib", "usr/lib").end();
    let over = Tar::default().file("lib/libc.so", b"").end();
    assert_eq!(list(&[merged, over]), ["/lib@usr/lib", "/usr/", "/usr/lib/", "/usr/lib/libc.so 0"]);
    let looped = Tar::default().symlink("a", "b").symlink("b", "a").file("a/f", b"");
    assert!(matches!(refused(looped), FlattenError::Loop { .. }));
    let long = Tar::default().symlink("a", "a/a").file("a/f", b"");
    assert!(matches!(refused(long), FlattenError::Loop { .. }));
    assert!(matches!(refused(Tar::default().file("f", b"").file("f/g", b"")), FlattenError::NotADirectory { .. }));
}

#[test]
fn paths_out_of_the_image_are_refused() {
    for path in ["../x", "a/../../x", "..", "/../x", "a/.."] {
        assert!(matches!(refused(Tar::default().file(path, b"")), FlattenError::Escapes { .. }), "{path}");
    }
    let nul = Tar::default().pax(&[("path", b"a\0b")]).file("x", b"");
    assert!(matches!(refused(nul), FlattenError::Path { .. }));
    for long in [vec![b'x'; 256], b"a/".repeat(3000)] {
        let error = refused(Tar::default().long(b'L', &long).file("x", b""));
        assert!(matches!(error, FlattenError::Path { .. }), "{error}");
    }
}

#[test]
fn hard_links_share_a_file_and_never_leave() {
    let layers = [
        Tar::default().file("a", b"text").dir("d").link("d/b", "/a").link("d/b", "d/b").end(),
        Tar::default().link("c", "./a").file(".wh.a", b"").end(),
    ];
    let flat = flatten(&layers).unwrap();
    assert_eq!(listed(&flat), ["/c 4", "/d/", "/d/b 4"]);
    let of = |dir, name: &[u8]| flat.tree.get(dir, &Name::new(name).unwrap()).unwrap().node;
    let d = of(NodeId::ROOT, b"d");
    assert_eq!(of(NodeId::ROOT, b"c"), of(d, b"b"));
    for target in ["none", "d", "a/x", "none/x", "/"] {
        let error = refused(Tar::default().file("x", b"").dir("d").link("l", target));
        assert!(matches!(error, FlattenError::HardLink { .. }), "{target}: {error}");
    }
    assert!(matches!(refused(Tar::default().link("l", "../../etc/passwd")), FlattenError::Escapes { .. }));
}

#[test]
fn metadata_arrives_in_every_dialect() {
    let name = [b'n'; 200];
    let layer = Tar::default()
        .pax(&[("path", b"deep/\xff\n"), ("mtime", b"1.5"), ("uid", b"70000"), ("SCHILY.xattr.user.a", b"\0v"), APPLE])
        .file("x", b"abc")
        .long(b'L', &[&name[..], b"\0"].concat())
        .long(b'K', &[&b"t".repeat(300)[..], b"\0"].concat())
        .symlink("short", "short")
        .head(&Head::new("tty", b'3'))
        .head(&Head::new("pipe", b'6'))
        .head(&Head::new("old/", b'0'))
        .pax(&[("comment", b"of all")])
        .file("last", b"")
        .end();
    let flat = flatten(&[layer]).unwrap();
    let long = format!("/{}@{}", "n".repeat(200), "t".repeat(300));
    assert_eq!(listed(&flat), ["/deep/", "/deep/\\xff\\n 3", "/last 0", &long, "/old/", "/pipe|", "/tty 5:1"]);
    let deep = flat.tree.get(NodeId::ROOT, &Name::new(b"deep").unwrap()).unwrap().node;
    let file = flat.tree.get(deep, &Name::new(b"\xff\n").unwrap()).unwrap().node;
    let Meta { mode, uid, gid, mtime, xattrs } = &flat.tree.node(file).meta;
    assert_eq!((*mode, *uid, *gid, *mtime), (0o755, 70_000, 11, Time { secs: 1, nanos: 500_000_000 }));
    assert_eq!(xattrs.iter().map(|(k, v)| (&**k, &**v)).collect::<Vec<_>>(), [(&b"user.a"[..], &b"\0v"[..])]);
    assert_eq!(flat.files, [Stored { node: file, layer: 0, at: 1536 }]);
}

#[test]
fn holes_are_known_in_every_dialect() {
    let map = b"2\n4096\n3\n1099511627773\n3\n";
    let one_zero = [
        ("GNU.sparse.major", &b"1"[..]),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"s"),
        ("GNU.sparse.realsize", b"1099511627776"),
    ];
    let with_map = [map.to_vec(), vec![0; 512 - map.len()], b"abcxyz".to_vec()].concat();
    let zero_one = [
        ("GNU.sparse.size", &b"1099511627776"[..]),
        ("GNU.sparse.map", b"4096,3,1099511627773,3"),
        ("GNU.sparse.name", b"s"),
    ];
    let mut old = Head { size: 6, ..Head::new("s", b'S') }.encode();
    for (at, text) in
        [(386, "00000010000\0"), (398, "00000000003\0"), (410, "17777777777775"), (422, "00000000003\0"), (483, "")]
    {
        old[at..at + text.len().min(12)].copy_from_slice(&text.as_bytes()[..text.len().min(12)]);
    }
    let binary = |n: u64| [&[0x80, 0, 0, 0][..], &n.to_be_bytes()].concat();
    old[410..422].copy_from_slice(&binary((1 << 40) - 3));
    old[483..495].copy_from_slice(&binary(1 << 40));
    seal(&mut old);
    let archives = [
        (Tar::default().pax(&one_zero).file("x", &with_map).end(), 2048),
        (Tar::default().pax(&zero_one).file("x", b"abcxyz").end(), 1536),
        (Tar::default().raw(&old).data(b"abcxyz").end(), 512),
    ];
    for (archive, at) in archives {
        let flat = flatten(&[archive]).unwrap();
        assert_eq!(listed(&flat), ["/s 1099511627776"]);
        let [Stored { node, at: found, .. }] = flat.files[..] else { panic!("{:?}", flat.files) };
        let Kind::File(content) = &flat.tree.node(node).kind else { panic!("no file") };
        let pieces: Vec<_> = content.pieces.iter().map(|piece| (piece.at, piece.len)).collect();
        assert_eq!((found, pieces), (at, vec![(4096, 3), ((1 << 40) - 3, 3)]));
    }
    let lies: [&[u8]; 4] = [b"0,3,2,3", b"0,6,100,1", b"0,99", b"1"];
    for map in lies {
        let records = [("GNU.sparse.size", &b"50"[..]), ("GNU.sparse.map", map)];
        let error = refused(Tar::default().pax(&records).file("x", b"abcxyz"));
        assert!(matches!(error, FlattenError::Tar(TarError::Extension { .. })), "{map:?}: {error}");
    }
}

#[test]
fn limits_are_reported() {
    let small = Limits { entries: 10, metadata_bytes: 100, unpacked_bytes: u64::MAX };
    let many = (0..11).fold(Tar::default(), |tar, n| tar.file(format!("{n}"), b"")).end();
    assert!(matches!(flatten_with(&[many], small), Err(FlattenError::TooManyEntries { limit: 10 })));
    let deep = Tar::default().file("a/b/c/d/e/f/g/h/i/j/k", b"").end();
    assert!(matches!(flatten_with(&[deep], small), Err(FlattenError::TooManyEntries { limit: 10 })));
    let long = Tar::default().file("n".repeat(99), b"").file("xy", b"").end();
    assert!(matches!(flatten_with(&[long], small), Err(FlattenError::TooMuchMetadata { limit: 100 })));
    let large = Tar::default().head(&Head { size: MAX_FILE + 1, ..Head::new("f", b'0') });
    assert!(matches!(refused(large), FlattenError::FileTooLong { .. }));
    let short = Tar::default().head(&Head { size: MAX_FILE, ..Head::new("f", b'0') });
    assert!(matches!(refused(short), FlattenError::Tar(TarError::Truncated { .. })));
    let endless = Tar::default().head(&Head { size: 2 << 20, ..Head::new("f", b'L') });
    assert!(matches!(refused(endless), FlattenError::Tar(TarError::Extension { .. })));
    assert!(matches!(refused(Tar::default().head(&Head::new("f", b'Z'))), FlattenError::Tar(TarError::Kind { .. })));
    assert!(matches!(refused(Tar::default().raw(&[1; 512])), FlattenError::Tar(TarError::Header { .. })));
}

#[test]
fn an_archive_may_end_with_its_last_contents() {
    let whole = Tar::default().file("a", b"first").file("b", b"last").end();
    let end = 512 * 3 + b"last".len();
    assert_eq!(listed(&flatten(&[whole[..end].to_vec()]).unwrap()).len(), 2);
    for cut in [end - 1, end - 4, 512 * 2 + 1, 512 + 3] {
        let error = flatten(&[whole[..cut].to_vec()]).unwrap_err();
        assert!(matches!(error, FlattenError::Tar(TarError::Truncated { .. })), "{cut}: {error}");
    }
}

#[test]
fn a_million_members_are_counted_and_then_refused() {
    let head = Head::new("d", b'5').encode();
    let endless = head.repeat(1 << 12);
    let mut flattener = Flattener::new(Limits::default());
    let mut result = Ok(());
    for _ in 0..(1 << 8) + 1 {
        result = flattener.layer(endless.as_slice(), Meaning::Image).map(drop);
    }
    assert!(matches!(result, Err(FlattenError::TooManyEntries { limit: 1_048_576 })), "{result:?}");
}

#[test]
fn whiteouts_that_only_keep_us_busy_are_refused() {
    let limits = Limits { entries: 2000, ..Limits::default() };
    let files = |tar: Tar| (0..900).fold(tar, |tar, number| tar.file(format!("d/{number}"), b""));
    let honest = files(Tar::default()).file("d/.wh..wh..opq", b"").end();
    assert_eq!(listed(&flatten_with(&[honest], limits).unwrap()).len(), 901);
    for whiteout in ["d/.wh..wh..opq", ".wh.d"] {
        let busy = (0..900).fold(files(Tar::default()), |tar, _| tar.file(whiteout, b"")).end();
        let refused = flatten_with(&[busy], limits);
        assert!(matches!(refused, Err(FlattenError::TooManyWhiteouts)), "{whiteout}: {:?}", refused.err());
    }
}

#[test]
fn attributes_weigh_what_they_take() {
    let limits = Limits { metadata_bytes: 1000, ..Limits::default() };
    let records = |count: usize| -> Vec<(String, Vec<u8>)> {
        (0..count).map(|number| (format!("SCHILY.xattr.user.{number}"), Vec::new())).collect()
    };
    for (count, fits) in [(2, true), (40, false)] {
        let records = records(count);
        let records: Vec<(&str, &[u8])> = records.iter().map(|(name, value)| (&**name, &**value)).collect();
        let flat = flatten_with(&[Tar::default().pax(&records).file("f", b"").end()], limits);
        assert_eq!(flat.is_ok(), fits, "{count}: {:?}", flat.err());
    }
}

proptest! {
    /// No archive makes it panic, and what it makes of one is a tree that can be laid out.
    #[test]
    fn any_members_are_a_tree_or_an_error(
        members in proptest::collection::vec(
            (0u8..4, proptest::sample::select(vec!["a", "b", "a/b", "b/a", "a/b/c", ".wh.a", "a/.wh..wh..opq", "/", "b/.wh.a"]),
             proptest::sample::select(vec!["a", "b/a", "/a/b", "../b", "c", "."]), any::<bool>()),
            0..24,
        )
    ) {
        let mut layers = vec![Tar::default()];
        for (kind, path, link, next) in members {
            let tar = layers.pop().unwrap();
            layers.push(match kind {
                0 => tar.file(path, b"x"),
                1 => tar.dir(path),
                2 => tar.symlink(path, link),
                _ => tar.link(path, link),
            });
            if next {
                layers.push(Tar::default());
            }
        }
        let layers: Vec<_> = layers.into_iter().map(Tar::end).collect();
        if let Ok(flat) = flatten(&layers) {
            let spec = ext4::Spec { bytes: 16 << 20, uuid: [0; 16], label: String::new() };
            ext4::Plan::new(flat.tree, &spec).unwrap();
        }
    }

    #[test]
    fn any_bytes_are_an_error_at_worst(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let header = Head { size: 700, ..Head::new("f", bytes.first().copied().unwrap_or(0)) }.encode();
        drop(flatten(&[[&header[..], &bytes].concat()]));
    }
}
