use proptest::prelude::*;

use super::*;
use crate::testing::{World, manifest, members};

fn good() -> Manifest {
    manifest(&members(&World::with_chain().pack("next")))
}

fn refused(manifest: &Manifest) -> String {
    Manifest::parse(manifest.to_text().as_bytes(), &Limits::default()).unwrap_err().to_string()
}

#[test]
fn a_manifest_comes_back_and_says_what_is_needed() {
    let good = good();
    assert_eq!(Manifest::parse(good.to_text().as_bytes(), &Limits::default()).unwrap(), good);
    assert_eq!(
        (good.tag.as_str(), good.chain.len(), good.chain[1].parent.as_ref()),
        ("next", 2, Some(&good.chain[0].id))
    );
    assert_eq!((&good.requires.arch[..], good.requires.vcpus), (std::env::consts::ARCH, 1));
    assert_eq!(good.description.as_deref(), Some("a word"));
    assert!(good.to_text().starts_with("forkd_pack_version = 3\n"));
}

#[test]
fn other_versions_are_refused_by_their_number() {
    for (version, words) in [(1, "made for another VMM"), (2, "made for another VMM"), (4, "use a newer forkd")] {
        let text = format!("forkd_pack_version = {version}\nwhat = \"ever\"\n");
        let error = Manifest::parse(text.as_bytes(), &Limits::default()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    for bad in ["", "forkd_pack_version = -1", "forkd_pack_version = 3", "\u{1b}", "x"] {
        let error = Manifest::parse(bad.as_bytes(), &Limits::default()).unwrap_err();
        assert!(matches!(&error, ManifestError::Toml(_)) && !error.to_string().contains('\u{1b}'), "{error}");
    }
    let unknown = format!("surprise = 1\n{}", good().to_text());
    assert!(
        Manifest::parse(unknown.as_bytes(), &Limits::default())
            .is_err_and(|error| error.to_string().contains("surprise"))
    );
}

#[test]
fn a_chain_is_one_and_ends_with_its_head() {
    let change = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good();
        change(&mut manifest);
        refused(&manifest)
    };
    assert!(change(&|manifest| manifest.tag = "other".parse().unwrap()).contains("does not end"));
    assert!(change(&|manifest| manifest.chain.clear()).contains("does not end"));
    assert!(change(&|manifest| manifest.chain[1].parent = None).contains("no chain"));
    assert!(change(&|manifest| manifest.chain[1].id = manifest.chain[0].id.clone()).contains("twice"));
    assert!(change(&|manifest| manifest.chain[0].tag = manifest.chain[1].tag.clone()).contains("twice"));
    assert!(change(&|manifest| manifest.chain[0].id = "../x".into()).contains("an id that is none"));
    assert!(change(&|manifest| manifest.chain = vec![manifest.chain[1].clone(); 99]).contains("there can be 64"));
}

#[test]
fn what_is_listed_is_needed_and_bounded() {
    let change = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good();
        change(&mut manifest);
        refused(&manifest)
    };
    let is = |path: Path| move |member: &Member| member.path == path;
    let drop = |path: Path| change(&move |manifest| manifest.files.retain(|member| !is(path)(member)));
    assert!(drop(Path::State(1)).contains("`snapshots/1/state` is not listed"));
    assert!(drop(Path::Manifest(0)).contains("`snapshots/0/manifest.json` is not listed"));
    let resize = |path: Path, size| {
        change(&move |manifest| manifest.files.iter_mut().find(|member| is(path)(member)).unwrap().size = size)
    };
    assert!(resize(Path::State(0), MAX_STATE + 1).contains("there can be"));
    assert!(resize(Path::Manifest(0), MAX_SNAPSHOT_MANIFEST + 1).contains("there can be"));
    assert!(
        change(&|manifest| manifest.files.last_mut().unwrap().size = i64::MAX.unsigned_abs()).contains("there can be")
    );
    assert!(change(&|manifest| manifest.files[0].path = Path::State(2)).contains("of no snapshot"));
    assert!(change(&|manifest| manifest.description = Some("x".repeat(5000))).contains("a text of more than"));
    assert!(change(&|manifest| manifest.requires.cpu_flags = vec!["x".into(); 600]).contains("more than 512"));
}

#[test]
fn names_of_members_have_one_spelling() {
    let digest = "0".repeat(64);
    for good in ["snapshots/0/state", "snapshots/12/manifest.json", &format!("layers/{digest}")] {
        assert_eq!(good.parse::<Path>().unwrap().to_string(), good);
    }
    for bad in
        ["", "/", "snapshots/00/state", "snapshots/+1/state", "snapshots/-1/state", "snapshots/0/state/", "layers/x"]
    {
        assert!(bad.parse::<Path>().is_err(), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn any_path_that_is_read_stays_within(text in "(snapshots|layers|\\.\\.|/)?(/[0-9a-f.]{0,3}){0,3}(/state)?") {
        if let Ok(path) = text.parse::<Path>() {
            prop_assert_eq!(path.to_string(), text.clone());
            prop_assert!(!text.starts_with('/') && !text.contains(".."));
        }
    }
}
