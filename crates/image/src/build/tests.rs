use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use types::progress::Silent;

use super::*;

fn recipe() -> Recipe {
    let text = "description = \"d\"\n[base]\ndebian = \"bookworm\"\n[disk]\nsize = \"64M\"\n";
    Recipe::parse("small".parse().unwrap(), text).unwrap()
}

/// In place of the download: a file with a word in it.
fn quick(_: &Recipe, staging: &Staging<'_>, _: &dyn Progress) -> Result<PathBuf, ImageError> {
    let path = staging.path().join("image");
    fs::write(&path, "image").map_err(CacheError::new("write", &path))?;
    Ok(path)
}

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
    let image = find_or_make(&recipe(), &dirs, &Silent, quick).unwrap();
    let digest = recipe().digest();
    assert_eq!(image.path, dirs.cache.join(format!("images-v1/small-{}.ext4", &digest[..16])));
    assert_eq!((fs::read_to_string(&image.path).unwrap().as_str(), &image.digest), ("image", &digest));
    let again = find_or_make(&recipe(), &dirs, &Silent, |_, _, _| panic!("made twice")).unwrap();
    assert_eq!(again, image);
}

#[test]
fn many_builders_make_it_once() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(home.path());
    let made = AtomicUsize::new(0);
    let build = || {
        find_or_make(&recipe(), &dirs, &Silent, |recipe, staging, progress| {
            made.fetch_add(1, Ordering::Relaxed);
            quick(recipe, staging, progress)
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
    let fail = |_: &Recipe, staging: &Staging<'_>, _: &dyn Progress| {
        fs::write(staging.path().join("image"), "half").unwrap();
        Err(ToolError::Missing { tool: "mmdebstrap", packages: "mmdebstrap" }.into())
    };
    let error = find_or_make(&recipe(), &dirs, &Silent, fail).unwrap_err();
    assert!(matches!(error, ImageError::Tool(ToolError::Missing { .. })), "{error}");
    assert_eq!(names(&dirs).len(), 1, "only the lock is there");
    find_or_make(&recipe(), &dirs, &Silent, quick).unwrap();
}

#[test]
fn a_full_disk_says_which() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(home.path());
    let ours = |_: &Recipe, staging: &Staging<'_>, _: &dyn Progress| {
        Err(CacheError::new("write", staging.path())(io::Error::from(io::ErrorKind::StorageFull)).into())
    };
    let theirs = |_: &Recipe, _: &Staging<'_>, _: &dyn Progress| {
        Err(ToolError::DiskFull { tool: "mke2fs", said: String::new() }.into())
    };
    for error in [
        find_or_make(&recipe(), &dirs, &Silent, ours).unwrap_err(),
        find_or_make(&recipe(), &dirs, &Silent, theirs).unwrap_err(),
    ] {
        let ImageError::DiskFull { path } = &error else { panic!("{error}") };
        assert!(path.starts_with(&dirs.cache), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn the_machine_has_a_recipe() {
    let recipe = machine_recipe();
    assert_eq!((recipe.name.as_str(), recipe.disk_bytes), ("machine", 2 << 30));
    assert!(Recipe::builtin().all(|builtin| builtin.name != recipe.name), "the name is taken");
}

#[test]
fn a_container_image_is_written_once_for_each_size() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(&home.path().join("home"));
    let tree = home.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "text").unwrap();
    let source: oci::Source = format!("dir:{}", tree.display()).parse().unwrap();
    let open = || oci::Image::open(&source, &oci::Platform::default()).unwrap();
    let name = "tree".parse().unwrap();
    let build = |image: &oci::Image, size| build_container_image(image, &name, size, &dirs, &Silent).unwrap();
    let first = build(&open(), DiskSize::Bytes(16 << 20));
    assert_eq!(first.path.metadata().unwrap().len(), 16 << 20);
    assert_eq!(build(&open(), DiskSize::Bytes(16 << 20)), first);
    assert_ne!(build(&open(), DiskSize::Bytes(32 << 20)).path, first.path);
    fs::write(tree.join("file"), "TEXT").unwrap();
    assert_ne!(build(&open(), DiskSize::Bytes(16 << 20)).path, first.path);
    let error = build_container_image(&open(), &name, DiskSize::Bytes(1 << 20), &dirs, &Silent).unwrap_err();
    assert!(matches!(error, ImageError::Container(oci::WriteError::Plan(_))), "{error}");
}
