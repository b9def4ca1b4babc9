use std::sync::Mutex;

use types::progress::Silent;

use super::*;

fn recipe(name: &str) -> CreateSnapshot {
    CreateSnapshot { tag: "t".into(), recipe: Some(name.into()), vcpus: Some(2), ..CreateSnapshot::default() }
}

/// A daemon that asks for this, and a builder that answers; what came of it at both ends.
fn asked(
    wanted: &CreateSnapshot,
    build: impl FnOnce(CreateSnapshot, Recipe, &dyn Progress) -> Result<CreateSnapshot, String> + Send,
) -> Result<CreateSnapshot, ApiError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("builder.sock");
    let outside = Outside::listen(&path).unwrap();
    thread::scope(|scope| {
        let builder = scope.spawn(|| build_for(UnixStream::connect(&path).unwrap(), build));
        let built = outside.build(wanted, &Silent, &|| false);
        builder.join().unwrap().unwrap();
        built
    })
}

#[test]
fn who_waits_outside_builds_what_is_wanted() {
    let built = asked(&recipe("python-numpy"), |asked, recipe, progress| {
        let stage = progress.stage("Building", Some(9));
        (1..=9).for_each(|done| stage.advance(done));
        drop(stage);
        Ok(CreateSnapshot { rootfs: Some(recipe.name.to_string()), recipe: None, ..asked })
    });
    let expected = CreateSnapshot { rootfs: Some("python-numpy".into()), recipe: None, ..recipe("") };
    assert_eq!(built.unwrap(), expected);
    let error = asked(&recipe("debian"), |_, _, _| Err("no apt".into())).unwrap_err();
    assert_eq!((error.code, &*error.message), (Code::VmFailed, "no apt"));
    let error = asked(&recipe("nobody-has-it"), |_, _, _| panic!("it was built")).unwrap_err();
    assert_eq!(error.status.as_u16(), 400);
}

#[test]
fn a_builder_takes_no_paths_from_a_daemon_that_somebody_took_over() {
    let (daemon, builder) = UnixStream::pair().unwrap();
    let said = thread::spawn(move || build_for(builder, |_, _, _| panic!("it was built")));
    let mut line = serde_json::to_vec(&recipe("/etc/shadow.toml")).unwrap();
    line.push(b'\n');
    (&daemon).write_all(&line).unwrap();
    let answer = read_line(&mut BufReader::new(&daemon), &|| false).unwrap();
    assert!(matches!(serde_json::from_slice(&answer).unwrap(), Said::Refused(_)));
    said.join().unwrap().unwrap();
}

#[test]
fn a_daemon_does_not_wait_for_what_nobody_wants_nor_for_who_went_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("builder.sock");
    let outside = Outside::listen(&path).unwrap();
    outside.build(&recipe("debian"), &Silent, &|| true).unwrap_err();
    let silent = UnixStream::connect(&path).unwrap();
    outside.build(&recipe("debian"), &Silent, &|| true).unwrap_err();
    drop(silent);
    drop(UnixStream::connect(&path).unwrap());
    let error = outside.build(&recipe("debian"), &Silent, &|| false).unwrap_err();
    assert!(error.message.contains("went away"), "{}", error.message);
}

#[test]
fn how_far_a_build_is_comes_through() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&lines);
    let teller = Teller::new(move |line| {
        to.lock().unwrap().push(serde_json::from_slice::<Said>(line).unwrap());
        Ok(())
    });
    drop(teller.stage("Building", Some(2)));
    let told = lines.lock().unwrap();
    let over: Vec<bool> =
        told.iter().map(|said| matches!(said, Said::Progress(told) if told.over && told.total == Some(2))).collect();
    assert_eq!(over, [false, true]);
}
