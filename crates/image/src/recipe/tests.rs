use super::*;
use crate::layer::Layer;

const GOOD: &str =
    "description = \"d\"\n[base]\ndebian = \"bookworm\"\npackages = [\"b1\", \"a1\"]\n[disk]\nsize = \"1G\"\n";

fn parse(text: &str) -> Result<Recipe, RecipeError> {
    Recipe::parse("test".parse().unwrap(), text, Beside::Directory("/nowhere".into()))
}

#[test]
fn every_table_arrives() {
    let recipe = parse(GOOD).unwrap();
    assert_eq!((recipe.name.as_str(), recipe.description.as_str()), ("test", "d"));
    assert_eq!(recipe.base.bottom, Bottom::Debian("bookworm".parse().unwrap()));
    assert_eq!(recipe.disk.0, oci::DiskSize::Bytes(1 << 30));
    let more = "[[copy]]\nfrom = \"a\"\nto = \"/a\"\n[[copy]]\nfrom = \"b\"\nto = \"/b\"\n[build]\nrun = [\"x\"]\n\
                [exec]\nuser = \"u\"\n[warm]\nstart = \"y\"\n[network]\nports = [80]\n[size]\nvcpus = 2\n";
    let recipe = parse(&(GOOD.to_owned() + more)).unwrap();
    assert_eq!(recipe.copy.iter().map(|step| step.to.as_str()).collect::<Vec<_>>(), ["/a", "/b"]);
    assert_eq!((recipe.build.run.len(), recipe.exec.user.unwrap().as_str()), (1, "u"));
    assert_eq!((recipe.warm.start.unwrap().argv()[2].as_str(), recipe.network.ports.len()), ("y", 1));
    assert_eq!(recipe.size.vcpus.unwrap().get(), 2);
}

#[test]
fn every_bad_field_is_named_with_its_line() {
    for (from, to, named) in [
        ("description = \"d\"\n", "", "description"),
        ("description = \"d\"", "description = 1", "line 1"),
        ("debian = \"bookworm\"\n", "", "say what it is based on"),
        ("debian = \"bookworm\"", "debian = \"-x\"", "line 3"),
        ("\"b1\"", "\"--purge\"", "`--purge` is not a Debian package"),
        ("\"b1\"", "7", "line 4"),
        ("[disk]", "[disk]\nused = 1", "used"),
        ("size = \"1G\"", "size = \"63M\"", "64M to 1T"),
        ("[base]", "[base]\nmirror = \"x\"", "mirror"),
        ("[base]", "[wram]\n[base]", "wram"),
        ("[base]", "[warm]\nmodules = [\"numpy\"]\n[base]", "no interpreter"),
        ("[base]", "[size]\nvcpus = 99\n[base]", "99"),
        ("[base]", "[[copy]]\nfrom = \"../x\"\nto = \"/x\"\n[base]", "line 3"),
        ("[base]", "[base", "line 2"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from:?} is not in the recipe");
        let error = parse(&text).unwrap_err();
        assert!(matches!(error, RecipeError::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains(named), "{named:?} is not in: {error}");
    }
}

#[test]
fn built_in_recipes_are_all_there_and_valid() {
    let builtin: Vec<_> = Recipe::builtin().collect();
    let shipped = names_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes")).unwrap();
    assert_eq!(builtin.iter().map(|recipe| recipe.name.as_str()).collect::<Vec<_>>(), shipped);
    for recipe in builtin {
        assert!(!recipe.description.is_empty());
        for step in &recipe.copy {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(recipe.name.as_str());
            let layer = |beside: &Beside| {
                let mut layer = Layer::new(Vec::new());
                beside.copy(step, &mut layer).unwrap();
                layer.finish().unwrap()
            };
            assert_eq!(layer(&recipe.beside).len(), layer(&Beside::Directory(dir)).len(), "{}", step.from);
        }
        assert_eq!(Recipe::find_in(None, recipe.name.as_str()).unwrap(), recipe);
    }
}

#[test]
fn packages_for_an_image_are_installed_before_anything_else_is_run() {
    let steps = |text: &str| parse(&format!("description = \"d\"\n[base]\n{text}")).unwrap().steps();
    assert_eq!(steps("debian = \"bookworm\"\npackages = [\"jq\"]"), [""; 0]);
    assert_eq!(steps("image = \"x\"\n[build]\nrun = [\"a\", \"b\"]"), ["a", "b"]);
    let both = steps("image = \"x\"\npackages = [\"jq\"]\n[build]\nrun = [\"a\"]");
    assert!(both.len() == 2 && both[0].contains("apt-get install") && both[1] == "a", "{both:?}");
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
    assert!(error.to_string().contains("there are: ") && error.to_string().contains("python-numpy"), "{error}");
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

mod schema;
