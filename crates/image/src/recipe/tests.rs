use super::*;

const GOOD: &str =
    "description = \"d\"\n[base]\ndebian = \"bookworm\"\npackages = [\"b1\", \"a1\"]\n[disk]\nsize = \"1G\"\n";

fn parse(text: &str) -> Result<Recipe, RecipeError> {
    Recipe::parse("test".parse().unwrap(), text)
}

#[test]
fn every_field_arrives() {
    let recipe = parse(GOOD).unwrap();
    assert_eq!((recipe.name.as_str(), recipe.description.as_str()), ("test", "d"));
    assert_eq!((recipe.suite.as_str(), recipe.disk_bytes), ("bookworm", 1 << 30));
    assert_eq!(recipe.packages.iter().map(PackageName::as_str).collect::<Vec<_>>(), ["a1", "b1"]);
}

#[test]
fn every_bad_field_is_named() {
    for (from, to, named) in [
        ("description = \"d\"\n", "", "description"),
        ("description = \"d\"", "description = 1", "description"),
        ("debian = \"bookworm\"\n", "", "debian"),
        ("debian = \"bookworm\"", "debian = \"-x\"", "`-x` is not a Debian release"),
        ("\"b1\"", "\"--purge\"", "`--purge` is not a Debian package"),
        ("\"b1\"", "7", "packages"),
        ("[disk]\nsize = \"1G\"\n", "", "disk"),
        ("[disk]", "[disk]\nfree = 1", "free"),
        ("[base]", "[base]\nmirror = \"x\"", "mirror"),
        ("[base]", "[wram]\n[base]", "wram"),
        ("[base]", "[warm]\nmodules = [\"numpy\"]\n[base]", "no interpreter"),
        ("[base]", "[size]\nvcpus = 99\n[base]", "99"),
        ("[base]", "[base", "line"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from:?} is not in the recipe");
        let error = parse(&text).unwrap_err();
        assert!(matches!(error, RecipeError::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains(named), "{named:?} is not in: {error}");
    }
}

#[test]
fn disk_sizes_are_bounded() {
    let sized = |size: &str| parse(&GOOD.replace("1G", size)).map(|recipe| recipe.disk_bytes);
    assert_eq!(sized("64M").unwrap(), 64 << 20);
    assert_eq!(sized("1T").unwrap(), 1 << 40);
    for size in ["0", "63M", "2T", "67108865"] {
        assert!(matches!(sized(size), Err(RecipeError::DiskRange { .. })), "{size}");
    }
    assert!(matches!(sized("big"), Err(RecipeError::DiskSize { .. })));
}

#[test]
fn the_digest_follows_what_the_image_depends_on() {
    let digest = |text: &str| parse(text).unwrap().digest();
    let good = digest(GOOD);
    assert_eq!(good.len(), 64);
    assert_eq!(digest(&GOOD.replace("\"b1\", \"a1\"", "\"a1\", \"b1\", \"a1\"")), good, "order does not matter");
    assert_eq!(digest(&GOOD.replace("\"d\"", "\"other words\"")), good, "description does not matter");
    let started = "[warm]\ninterpreter = \"python3\"\ncommand = \"true\"\n[size]\nmemory = \"1G\"\nvcpus = 2\n";
    assert_eq!(digest(&(GOOD.to_owned() + started)), good, "what happens after boot does not matter");
    for (from, to) in [("bookworm", "trixie"), ("\"b1\"", "\"b2\""), ("1G", "2G"), ("\"b1\", ", "")] {
        assert_ne!(digest(&GOOD.replace(from, to)), good, "{from} matters");
    }
}

#[test]
fn built_in_recipes_are_all_there_and_valid() {
    let builtin: Vec<_> = Recipe::builtin().collect();
    let shipped = names_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes")).unwrap();
    assert_eq!(builtin.iter().map(|recipe| recipe.name.as_str()).collect::<Vec<_>>(), shipped);
    for recipe in builtin {
        assert!(!recipe.description.is_empty());
        assert_eq!(Recipe::find_in(None, recipe.name.as_str()).unwrap(), recipe);
    }
}

#[test]
fn a_recipe_says_how_its_vm_is_warmed() {
    let numpy = Recipe::find_in(None, "python-numpy").unwrap();
    let interpreter = numpy.warm.interpreter.unwrap();
    assert_eq!(interpreter.program.program(), "python3");
    assert_eq!(interpreter.modules.as_slice(), ["numpy".parse().unwrap()]);
    let debian = Recipe::find_in(None, "debian").unwrap();
    assert_eq!((debian.warm, debian.size), (Warm::default(), Size::default()));
}

#[test]
fn names_come_from_the_directory_when_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    std::fs::write(dir.path().join("mine/recipe.toml"), GOOD).unwrap();
    assert_eq!(Recipe::find_in(Some(dir.path()), "mine").unwrap().name.as_str(), "mine");
    let error = Recipe::find_in(Some(dir.path()), "debian").unwrap_err();
    assert!(matches!(&error, RecipeError::Unknown { name, known } if name == "debian" && known == "mine"), "{error}");
    let error = Recipe::find_in(None, "mine").unwrap_err();
    assert!(error.to_string().contains("debian, python-numpy"), "{error}");
}

#[test]
fn a_path_names_the_recipe_by_its_directory_or_file() {
    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    std::fs::write(mine.join("recipe.toml"), GOOD).unwrap();
    std::fs::write(mine.join("other.toml"), GOOD).unwrap();
    for (path, name) in [(mine.clone(), "mine"), (mine.join("recipe.toml"), "mine"), (mine.join("other.toml"), "other")]
    {
        assert_eq!(Recipe::find_in(None, path.to_str().unwrap()).unwrap().name.as_str(), name);
    }
    for missing in ["./nowhere", "nowhere.toml", "../nowhere/recipe.toml"] {
        assert!(matches!(Recipe::find_in(None, missing), Err(RecipeError::Read { .. })), "{missing}");
    }
}

#[test]
fn what_is_no_name_and_no_path_is_refused() {
    for bad in ["", ".", "..", "-x", "a b"] {
        assert!(matches!(Recipe::find_in(None, bad), Err(RecipeError::Name(_))), "{bad:?}");
    }
}

#[test]
fn a_huge_file_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge.toml");
    std::fs::write(&path, format!("{GOOD}#{}", "x".repeat(70_000))).unwrap();
    let error = Recipe::find_in(None, path.to_str().unwrap()).unwrap_err();
    assert!(matches!(error, RecipeError::Invalid { .. }), "{error}");
}
