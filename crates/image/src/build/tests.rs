use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use oci::DiskSize;
use types::progress::Silent;

use super::*;
use crate::recipe::ImageName;

fn recipe() -> Recipe {
    let text = "description = \"d\"\n[base]\ndebian = \"bookworm\"\n[disk]\nsize = \"64M\"\n";
    parse(text, Path::new("/nowhere"))
}

fn parse(text: &str, beside: &Path) -> Recipe {
    Recipe::parse("small".parse().unwrap(), text, Beside::Directory(beside.into())).unwrap()
}

/// In place of the download: a file with a word in it.
fn quick(staging: &Staging<'_>) -> Result<PathBuf, ImageError> {
    let path = staging.path().join("image");
    fs::write(&path, "image").map_err(CacheError::new("write", &path))?;
    Ok(path)
}

fn find_or_make(
    dirs: &Dirs,
    make: impl FnOnce(&Staging<'_>) -> Result<PathBuf, ImageError>,
) -> Result<PathBuf, ImageError> {
    cached(&recipe().name, DIGEST, dirs, &Silent, make)
}

const DIGEST: &str = "0123456789abcdef0123456789abcdef";

fn names(dirs: &Dirs) -> Vec<String> {
    let entries = fs::read_dir(dirs.cache.join("images-v1")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_second_time_it_is_found() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(home.path());
    let path = find_or_make(&dirs, quick).unwrap();
    assert_eq!(path, dirs.cache.join("images-v1/small-0123456789abcdef.ext4"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "image");
    let again = find_or_make(&dirs, |_| panic!("made twice")).unwrap();
    assert_eq!(again, path);
}

#[test]
fn many_builders_make_it_once() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(home.path());
    let made = AtomicUsize::new(0);
    let build = || {
        find_or_make(&dirs, |staging| {
            made.fetch_add(1, Ordering::Relaxed);
            quick(staging)
        })
        .unwrap()
    };
    std::thread::scope(|scope| {
        let builders: Vec<_> = (0..8).map(|_| scope.spawn(build)).collect();
        let images: Vec<_> = builders.into_iter().map(|builder| builder.join().unwrap()).collect();
        assert!(images.iter().all(|image| *image == images[0]));
    });
    assert_eq!(made.into_inner(), 1);
}

#[test]
fn a_failed_build_leaves_nothing_behind_and_can_be_repeated() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(home.path());
    let fail = |staging: &Staging<'_>| {
        fs::write(staging.path().join("image"), "half").unwrap();
        Err(ToolError::Missing { tool: "mmdebstrap", packages: "mmdebstrap" }.into())
    };
    let error = find_or_make(&dirs, fail).unwrap_err();
    assert!(matches!(error, ImageError::Tool(ToolError::Missing { .. })), "{error}");
    assert_eq!(names(&dirs).len(), 1, "only the lock is there");
    find_or_make(&dirs, quick).unwrap();
}

#[test]
fn a_full_disk_is_told_apart() {
    let full = || io::Error::from(io::ErrorKind::StorageFull);
    for error in [
        ImageError::Cache(CacheError::new("write", Path::new("/x"))(full())),
        ImageError::Tool(ToolError::DiskFull { tool: "mmdebstrap", said: String::new() }),
        ImageError::Container(oci::WriteError::Write { source: full() }),
        ImageError::Copy(LayerError::Write { source: full() }),
    ] {
        assert!(is_disk_full(&error), "{error}");
    }
    assert!(!is_disk_full(&ImageError::NoPython));
}

#[test]
fn the_machine_has_a_recipe() {
    let recipe = machine_recipe();
    assert_eq!((recipe.name.as_str(), recipe.disk.0), ("machine", DiskSize::Bytes(2 << 30)));
    assert!(Recipe::builtin().all(|builtin| builtin.name != recipe.name), "the name is taken");
}

/// The digest of a recipe's disk, with files beside it.
fn digest_of(text: &str, beside: &Path) -> String {
    let recipe = parse(text, beside);
    let found = find(&recipe, &Dirs::under(Path::new("/nowhere")), &Silent).unwrap();
    let (_, copied) = copied(&recipe, io::sink()).unwrap();
    digest(&recipe, &found, &run_config(&recipe, &found), &copied)
}

const GOOD: &str = "description = \"d\"\n[base]\ndebian = \"bookworm\"\npackages = [\"b1\", \"a1\"]\n\
                    pip = [\"x==1\"]\nnpm = [\"y@1.0.0\"]\n[disk]\nsize = \"1G\"\n[exec]\nuser = \"u\"\n\
                    [[copy]]\nfrom = \"f\"\nto = \"/f\"\nmode = \"0600\"\n";

#[test]
fn the_digest_follows_what_the_image_depends_on() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "one").unwrap();
    let digest = |text: &str| digest_of(text, dir.path());
    let good = digest(GOOD);
    assert_eq!(good.len(), 64);
    assert_eq!(digest(&GOOD.replace("\"b1\", \"a1\"", "\"a1\", \"b1\", \"a1\"")), good, "order does not matter");
    assert_eq!(digest(&GOOD.replace("\"d\"", "\"other words\"")), good, "description does not matter");
    let started = "[warm]\ninterpreter = \"python3\"\ncommand = \"true\"\n[size]\nmemory = \"1G\"\nvcpus = 2\n\
                   [network]\nports = [80]\n[build]\nrun = [\"x\"]\n";
    assert_eq!(digest(&(GOOD.to_owned() + started)), good, "what happens in a VM does not matter");
    for (from, to) in [
        ("bookworm", "trixie"),
        ("\"b1\"", "\"b2\""),
        ("1G", "2G"),
        ("\"b1\", ", ""),
        ("x==1", "x==2"),
        ("y@1.0.0", "y@1.0.1"),
        ("\"u\"", "\"v\""),
        ("\"/f\"", "\"/g\""),
        ("0600", "0700"),
    ] {
        assert_ne!(digest(&GOOD.replace(from, to)), good, "{from} matters");
    }
    fs::write(dir.path().join("f"), "two").unwrap();
    assert_ne!(digest(GOOD), good, "contents matter");
}

fn debugfs(disk: &Path, request: &str) -> String {
    let output = std::process::Command::new("/sbin/debugfs").args(["-R", request]).arg(disk).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_recipe_of_an_image_gets_its_files_and_its_way_to_run_commands() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(&home.path().join("home"));
    let beside = home.path().join("recipe");
    fs::create_dir_all(beside.join("root/etc")).unwrap();
    fs::write(beside.join("root/etc/kept"), "kept").unwrap();
    fs::write(beside.join("root/etc/motd"), "theirs").unwrap();
    fs::write(beside.join("motd"), "ours").unwrap();
    let text = "description = \"d\"\n[base]\nimage = \"dir:root\"\n[disk]\nsize = \"64M\"\n\
                [[copy]]\nfrom = \"motd\"\nto = \"/etc/motd\"\nowner = \"7:8\"\n\
                [exec]\nuser = \"app\"\nworkdir = \"/srv\"\nenv = { B = \"2\", A = \"1\" }\n";
    let recipe = parse(text, &beside);
    let first = build_image(&recipe, &dirs, &Silent).unwrap();
    assert_eq!(first.run.env, ["A=1", "B=2"]);
    assert_eq!(first.path.metadata().unwrap().len(), 64 << 20);
    assert_eq!(debugfs(&first.path, "cat /etc/kept"), "kept");
    assert_eq!(debugfs(&first.path, "cat /etc/motd"), "ours");
    assert!(debugfs(&first.path, "stat /etc/motd").contains("User:     7   Group:     8"));
    assert!(debugfs(&first.path, "cat /etc/forkd/image.json").contains("\"/srv\""));
    assert_eq!(build_image(&recipe, &dirs, &Silent).unwrap(), first, "the same again");
    let bytes = fs::read(&first.path).unwrap();
    fs::remove_file(&first.path).unwrap();
    build_image(&recipe, &dirs, &Silent).unwrap();
    assert!(fs::read(&first.path).unwrap() == bytes, "the same input, another image");
    fs::write(beside.join("motd"), "Ours").unwrap();
    assert_ne!(build_image(&recipe, &dirs, &Silent).unwrap().path, first.path);
    fs::write(beside.join("root/etc/kept"), "KEPT").unwrap();
    let other = build_image(&recipe, &dirs, &Silent).unwrap();
    assert_eq!(debugfs(&other.path, "cat /etc/kept"), "KEPT");
    fs::write(beside.join("root/etc/large"), vec![1; 70 << 20]).unwrap();
    let error = build_image(&recipe, &dirs, &Silent).unwrap_err();
    assert!(matches!(error, ImageError::TooSmall { bytes: 0x400_0000, .. }), "{error}");
    assert!(error.to_string().contains("raise disk.size"));
}

#[test]
fn copies_go_into_the_directories_that_are_there() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(&home.path().join("home"));
    let beside = home.path().join("recipe");
    for dir in ["root/home/app", "root/usr/lib", "files/home/app/empty", "files/lib"] {
        fs::create_dir_all(beside.join(dir)).unwrap();
    }
    std::os::unix::fs::symlink("usr/lib", beside.join("root/lib")).unwrap();
    fs::set_permissions(beside.join("root/home/app"), fs::Permissions::from_mode(0o1700)).unwrap();
    for file in ["files/home/app/.profile", "files/lib/x"] {
        fs::write(beside.join(file), "text").unwrap();
    }
    let text = "description = \"d\"\n[base]\nimage = \"dir:root\"\n[disk]\nsize = \"64M\"\n\
                [[copy]]\nfrom = \"files/home\"\nto = \"/home\"\n[[copy]]\nfrom = \"files/lib\"\nto = \"/lib\"\n";
    let copied = |text: &str| build_image(&parse(text, &beside), &dirs, &Silent).unwrap().path;
    let disk = copied(text);
    assert!(debugfs(&disk, "stat /home/app").contains("Mode:  01700"), "it is still only its user's");
    assert!(debugfs(&disk, "stat /home/app/empty").contains("Mode:  0755"));
    assert_eq!(debugfs(&disk, "cat /home/app/.profile") + &debugfs(&disk, "cat /usr/lib/x"), "texttext");
    let owned = copied(&text.replacen("to = \"/home\"", "to = \"/home\"\nowner = \"7:8\"", 1));
    let stat = debugfs(&owned, "stat /home/app");
    assert!(stat.contains("Mode:  01700") && stat.contains("User:     7   Group:     8"), "{stat}");
}

#[test]
fn what_cannot_be_built_says_why() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(&home.path().join("home"));
    let beside = home.path().join("recipe");
    fs::create_dir_all(beside.join("root")).unwrap();
    let build = |text: &str| {
        let text = format!("description = \"d\"\n[base]\n{text}");
        build_image(&parse(&text, &beside), &dirs, &Silent).unwrap_err()
    };
    let error = build("image = \"dir:nothing\"");
    assert!(matches!(error, ImageError::Open { .. }) && error.to_string().contains("recipe/nothing"), "{error}");
    let error = build("image = \"dir:root\"\npip = [\"x==1\"]");
    assert!(matches!(error, ImageError::NoPython), "{error}");
    let error = build("image = \"dir:root\"\npackages = [\"jq\"]");
    assert!(matches!(error, ImageError::Extra(ExtraError::NoDpkg)), "{error}");
    let error = build("image = \"dir:root\"\n[[copy]]\nfrom = \"nothing\"\nto = \"/x\"");
    assert!(matches!(error, ImageError::Copy(LayerError::Read { .. })), "{error}");
    assert_eq!(names(&dirs).iter().filter(|name| !name.ends_with(".lock")).count(), 0, "something was left");
}

#[test]
fn an_image_alone_is_a_recipe_too() {
    let home = tempfile::tempdir().unwrap();
    let tree = home.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "text").unwrap();
    let name: ImageName = "dir:tree".parse().unwrap();
    let mut recipe = Recipe::of_image("tree".parse().unwrap(), name, oci::Platform::default(), home.path());
    recipe.disk.0 = DiskSize::Bytes(16 << 20);
    let dirs = Dirs::under(&home.path().join("home"));
    let image = build_image(&recipe, &dirs, &Silent).unwrap();
    assert_eq!(image.path.metadata().unwrap().len(), 16 << 20);
    assert_eq!(debugfs(&image.path, "cat /file"), "text");
    assert!(!debugfs(&image.path, "ls -p /").contains("/etc/"), "nothing is said of commands, so there is no file");
}
