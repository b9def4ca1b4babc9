//! Against a registry of this test's own, which does as it is told, honest or not.

mod server;

use std::sync::Arc;
use std::time::Duration;

use types::progress::Silent;

use server::{Conduct, Login, Server};

use super::*;
use crate::testing::{Layout, Tar, gzip};
use crate::{DiskSize, Limits};

const RUN: &str = r#"{"Env": ["A=1"], "Cmd": ["sh"]}"#;

fn layout(text: &[u8]) -> Layout {
    let base = Tar::default().file("base", &noise()).end();
    let top = Tar::default().file("top", text).end();
    Layout::new(&[base.clone(), top.clone()], &[gzip(&base), gzip(&top)], RUN)
}

/// Bytes that do not shrink much, so that a layer does not come in one piece.
fn noise() -> Vec<u8> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u8::try_from(state >> 24).unwrap()
    };
    std::iter::repeat_with(next).take(400_000).collect()
}

struct Bench {
    server: Server,
    cache: tempfile::TempDir,
    settings: Settings,
}

impl Bench {
    fn new(layout: &Layout, conduct: Conduct) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let settings = Settings {
            auth_files: vec![cache.path().join("auth.json")],
            programs: OsString::new(),
            registries_conf: None,
            registries_dirs: Vec::new(),
            certificate_dirs: vec![cache.path().join("certs.d")],
            // Longer than any computer is too busy to answer.
            idle: Duration::from_secs(20),
            pause: Duration::from_millis(1),
        };
        Self { server: Server::start(layout, conduct), cache, settings }
    }

    fn pull(&self, version: &str) -> Result<Image, ImageError> {
        let reference = format!("localhost:{}/team/image{version}", self.server.port).parse().unwrap();
        Image::pull(&reference, &Platform::default(), self.cache.path(), &self.settings, &Silent)
    }

    /// The other one is to be asked first.
    fn mirrored_by(&mut self, mirror: &Self) {
        let conf = self.cache.path().join("registries.conf");
        let (from, to) = (self.server.port, mirror.server.port);
        let text = format!(
            "[[registry]]\nprefix = \"localhost:{from}\"\n[[registry.mirror]]\nlocation = \"127.0.0.1:{to}/m\"\n"
        );
        fs::write(&conf, text).unwrap();
        self.settings.registries_conf = Some(conf);
    }

    fn login(&self, auth: &str) {
        self.write_login("auth", auth);
    }

    fn write_login(&self, kind: &str, secret: &str) {
        let text = format!(r#"{{"auths": {{"localhost:{}": {{"{kind}": "{secret}"}}}}}}"#, self.server.port);
        fs::write(self.cache.path().join("auth.json"), text).unwrap();
    }
}

fn error(bench: &Bench, version: &str) -> RegistryError {
    match bench.pull(version).unwrap_err() {
        ImageError::Registry(error) => error,
        error => panic!("{error}"),
    }
}

#[test]
fn layers_are_fetched_once_and_shared() {
    let one = layout(b"one");
    let bench = Bench::new(&one, Conduct::default());
    let image = bench.pull(":latest").unwrap();
    assert_eq!(image.run().env, ["A=1"]);
    let disk = tempfile::NamedTempFile::new().unwrap();
    image.write(disk.as_file(), DiskSize::Free(0), Limits::default(), &Silent).unwrap();
    assert_eq!(bench.server.served("blobs/"), 3);
    assert_eq!(bench.pull(&format!("@{}", one.manifest)).unwrap().id(), image.id());
    assert_eq!(bench.server.served("blobs/"), 3, "everything was there");
    bench.server.publish(&layout(b"two"));
    assert_ne!(bench.pull(":latest").unwrap().id(), image.id());
    assert_eq!(bench.server.served("blobs/"), 5, "the lower layer was there");
    assert!(matches!(error(&bench, ":none"), RegistryError::NotFound { .. }));
}

/// Longer than a document, so that it is not compared whenever it is used.
fn long_layout() -> Layout {
    let long = [Tar::default().file("long", &noise().repeat(12)).end()];
    Layout::new(&long, &long, RUN)
}

#[test]
fn what_was_damaged_in_the_cache_is_fetched_anew() {
    let image = long_layout();
    let bench = Bench::new(&image, Conduct::default());
    let write = |image: &Image| {
        let disk = tempfile::NamedTempFile::new().unwrap();
        image.write(disk.as_file(), DiskSize::Free(0), Limits::default(), &Silent)
    };
    let pulled = bench.pull("").unwrap();
    let damage = |path: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    };
    let dir = bench.cache.path().join(LAYERS);
    let paths: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    let layer = dir.join(format!("sha256-{}", image.layers()[0].hex()));
    let config = paths.iter().find(|path| **path != layer).unwrap();
    // How it is run is believed at once, so it is compared at once.
    damage(config, &|bytes| {
        let at = bytes.windows(3).position(|text| text == b"A=1").unwrap();
        bytes[at + 2] = b'2';
    });
    let again = bench.pull("").unwrap();
    assert_eq!((again.run().env.as_slice(), again.id()), (&["A=1".to_owned()][..], pulled.id()));
    // A layer that was cut off is, too.
    damage(&layer, &|bytes| bytes.truncate(1000));
    write(&bench.pull("").unwrap()).unwrap();
    // One with other contents is found when a disk is to be made of it.
    damage(&layer, &|bytes| bytes[1 << 20] ^= 1);
    let damaged = bench.pull("").unwrap();
    write(&damaged).unwrap_err();
    assert!(damaged.drop_damaged(&Silent).unwrap());
    let mended = bench.pull("").unwrap();
    assert!(!mended.drop_damaged(&Silent).unwrap());
    write(&mended).unwrap();
    assert!(!bench.pull("").unwrap().drop_damaged(&Silent).unwrap(), "nothing is wrong with it");
    assert_eq!(bench.server.served("blobs/"), 2 + 1 + 1 + 1);
}

#[test]
fn broken_connections_are_continued() {
    let image = layout(b"x");
    let whole = Bench::new(&image, Conduct::default()).pull("").unwrap().id().clone();
    let conduct = Conduct { cut_after: Some(100_000), ..Conduct::default() };
    let bench = Bench::new(&image, conduct);
    assert_eq!(*bench.pull("").unwrap().id(), whole);
    assert!(bench.server.served("bytes=") >= 3, "it was asked for the rest");
    // One that begins at the beginning each time gets nowhere.
    let bench = Bench::new(&image, Conduct { no_ranges: true, ..conduct });
    let RegistryError::Broken { found, expected, .. } = error(&bench, "") else { panic!("no end") };
    assert!(found < expected);
    let mut silent = Bench::new(&image, Conduct { stall_after: Some(50_000), ..Conduct::default() });
    silent.settings.idle = Duration::from_millis(800);
    assert_eq!(*silent.pull("").unwrap().id(), whole, "a connection that hangs is left for another");
}

#[test]
fn a_wrong_beginning_is_not_the_fault_of_who_sends_the_rest() {
    let image = layout(b"x");
    let mirror = Bench::new(&image, Conduct { cut_after: Some(100_000), no_ranges: true, ..Conduct::default() });
    let first = image.layers()[0].clone();
    mirror.server.change(&first, &|bytes| bytes[5000] ^= 1);
    let mut bench = Bench::new(&image, Conduct::default());
    bench.mirrored_by(&mirror);
    bench.pull("").unwrap();
    assert!(mirror.server.served(&first.to_string()) > 0, "the mirror was not asked");
    let of_first = |part: &str| bench.server.served(&format!("{first}{part}"));
    assert_eq!((of_first(""), of_first(" bytes=100000-")), (2, 1), "the rest, and then all of it");
    // Who sends what is wrong from the beginning to the end is not asked twice.
    let liar = Bench::new(&image, Conduct::default());
    liar.server.change(&first, &|bytes| bytes[5000] ^= 1);
    assert!(matches!(error(&liar, ""), RegistryError::Digest { .. }));
    assert_eq!(liar.server.served(&first.to_string()), 1);
}

#[test]
fn a_part_that_begins_elsewhere_is_not_taken() {
    let image = layout(b"x");
    let bench = Bench::new(&image, Conduct { cut_after: Some(100_000), shifted: true, ..Conduct::default() });
    assert!(matches!(error(&bench, ""), RegistryError::Broken { .. }), "it never sends what it is asked for");
}

#[test]
fn what_is_not_what_was_asked_for_is_refused() {
    let image = layout(b"x");
    let first = image.layers()[0].clone();
    let lies = |change: &dyn Fn(&mut Vec<u8>)| {
        let bench = Bench::new(&image, Conduct::default());
        bench.server.change(&first, change);
        error(&bench, "")
    };
    assert!(matches!(lies(&|bytes| bytes[5000] ^= 1), RegistryError::Digest { .. }));
    assert!(matches!(lies(&|bytes| bytes.truncate(1000)), RegistryError::Broken { .. }));
    assert!(matches!(lies(&|bytes| bytes.extend([0; 10])), RegistryError::TooLong { .. }));
    let bench = Bench::new(&image, Conduct::default());
    bench.server.remove(&first);
    assert!(matches!(error(&bench, ""), RegistryError::NotFound { .. }));
    let bench = Bench::new(&image, Conduct::default());
    bench.server.change(&image.manifest, &|bytes| bytes.push(b' '));
    assert!(matches!(bench.pull(&format!("@{}", image.manifest)), Err(ImageError::Digest { .. })));
    bench.server.change(&image.manifest, &|bytes| bytes.resize(5 << 20, b' '));
    assert!(matches!(error(&bench, ""), RegistryError::TooLong { .. }));
    bench.server.change(&image.manifest, &|bytes| *bytes = b"<html>".to_vec());
    assert!(matches!(bench.pull(""), Err(ImageError::Malformed { .. })));
    let down = Bench::new(&image, Conduct { status: Some(503), ..Conduct::default() });
    assert!(matches!(error(&down, ""), RegistryError::Status { status: 503, .. }));
}

#[test]
fn whoever_wants_to_know_is_told_who_asks() {
    let image = layout(b"x");
    for login in [Login::Basic, Login::Bearer] {
        let bench = Bench::new(&image, Conduct { login: Some(login), ..Conduct::default() });
        assert!(matches!(error(&bench, ""), RegistryError::Denied { .. }), "nobody was let in");
        bench.login("d3Jvbmc6cHc=");
        assert!(matches!(error(&bench, ""), RegistryError::Denied { .. }), "the wrong one was let in");
        bench.login("bWU6cHc=");
        bench.pull("").unwrap();
    }
}

#[test]
fn an_identity_token_is_exchanged_for_one_of_the_registry() {
    let bench = Bench::new(&layout(b"x"), Conduct { login: Some(Login::Bearer), ..Conduct::default() });
    bench.write_login("identitytoken", "wrong");
    assert!(matches!(error(&bench, ""), RegistryError::Denied { .. }));
    bench.write_login("identitytoken", "who+i/am");
    bench.pull("").unwrap();
}

#[test]
fn a_token_that_ends_is_had_anew() {
    let conduct = Conduct { login: Some(Login::Bearer), token_uses: Some(2), ..Conduct::default() };
    let bench = Bench::new(&layout(b"x"), conduct);
    bench.login("bWU6cHc=");
    bench.pull("").unwrap();
    assert_eq!(bench.server.served("/token"), 2, "a manifest and three blobs, two at a time");
}

#[test]
fn who_is_elsewhere_is_not_told_who_asks() {
    let image = layout(b"x");
    let elsewhere = Bench::new(&image, Conduct::default());
    let conduct = Conduct { login: Some(Login::Basic), blobs_at: Some(elsewhere.server.port), ..Conduct::default() };
    let bench = Bench::new(&image, conduct);
    bench.login("bWU6cHc=");
    bench.pull("").unwrap();
    assert_eq!((elsewhere.server.served("/blobs/"), elsewhere.server.served("Basic")), (3, 0));
    assert!(bench.server.served("Basic bWU6cHc=") > 0);
}

#[test]
fn settings_are_those_of_docker_and_podman() {
    let of = |variables: &[(&str, &str)]| {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        Settings::of(find, 1000)
    };
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    let usual = of(&[("HOME", "/h"), ("PATH", "/p")]);
    let files = ["/run/containers/1000/auth.json", "/h/.config/containers/auth.json", "/h/.docker/config.json"];
    assert_eq!((usual.auth_files, usual.programs), (paths(&files), "/p".into()));
    assert_eq!(usual.certificate_dirs[0], PathBuf::from("/h/.config/containers/certs.d"));
    let own = of(&[
        ("HOME", "/h"),
        ("REGISTRY_AUTH_FILE", "/a.json"),
        ("XDG_RUNTIME_DIR", "/run/user/1000"),
        ("XDG_CONFIG_HOME", "/c"),
        ("DOCKER_CONFIG", "/d"),
        ("CONTAINERS_REGISTRIES_CONF", "/r.conf"),
    ]);
    let files = ["/a.json", "/run/user/1000/containers/auth.json", "/c/containers/auth.json", "/d/config.json"];
    assert_eq!(own.auth_files, paths(&files));
    assert_eq!(own.registries_conf, Some("/r.conf".into()));
    let dirs = ["/etc/containers/registries.conf.d", "/h/.config/containers/registries.conf.d"];
    assert_eq!(usual.registries_dirs, paths(&dirs));
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join(".config/containers");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("registries.conf"), "").unwrap();
    let of_file = of(&[("HOME", home.path().to_str().unwrap())]);
    assert_eq!(
        (of_file.registries_conf, of_file.registries_dirs),
        (Some(dir.join("registries.conf")), vec![dir.join("registries.conf.d")])
    );
    assert_eq!(of(&[("DOCKER_CONFIG", "")]).auth_files, paths(&["/run/containers/1000/auth.json"]));
}

#[test]
fn tls_is_used_where_it_is_spoken_and_only_for_whom_is_trusted() {
    let image = layout(b"x");
    let conduct = Conduct { login: Some(Login::Bearer), ..Conduct::default() };
    let cache = tempfile::tempdir().unwrap();
    let (server, certificate) = Server::start_tls(&image, conduct);
    let bench = Bench { server, settings: Bench::new(&image, conduct).settings, cache };
    let bench = Bench {
        settings: Settings {
            auth_files: vec![bench.cache.path().join("auth.json")],
            certificate_dirs: vec![bench.cache.path().join("certs.d")],
            ..bench.settings
        },
        ..bench
    };
    bench.login("bWU6cHc=");
    bench.pull("").unwrap_err();
    assert_eq!(bench.server.served("/v2/team"), 0, "a stranger was asked");
    let dir = bench.cache.path().join(format!("certs.d/localhost:{}", bench.server.port));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("ca.crt"), certificate).unwrap();
    bench.pull("").unwrap();
}

#[test]
fn an_index_leads_to_our_platform() {
    let image = layout(b"x");
    let bench = Bench::new(&image, Conduct::default());
    let other = "ab".repeat(32);
    let (ours, size) = (&image.manifest, image.blobs[&image.manifest].len());
    let index = |arch: &str| {
        format!(
            r#"{{"manifests": [{{"digest": "sha256:{other}", "size": 7, "platform": {{"os": "linux", "architecture": "s390x"}}}},
               {{"digest": "{ours}", "size": {size}, "platform": {{"os": "linux", "architecture": "{arch}"}}}}]}}"#
        )
    };
    bench.server.tag("multi", index("amd64").as_bytes());
    bench.pull(":multi").unwrap();
    bench.server.tag("foreign", index("riscv64").as_bytes());
    let error = bench.pull(":foreign").unwrap_err().to_string();
    assert_eq!(error, "the image is not for linux/amd64; it is for: linux/s390x, linux/riscv64");
}

#[test]
fn what_is_more_than_an_image_is_not_fetched() {
    let image = layout(b"x");
    let bench = Bench::new(&image, Conduct::default());
    bench.server.change(&image.manifest, &|bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let size = image.blobs[&image.layers()[1]].len();
        *bytes = text.replace(&format!("\"size\": {size}}}"), &format!("\"size\": {}}}", 64u64 << 30)).into();
    });
    assert!(matches!(bench.pull(""), Err(ImageError::TooLarge { bytes }) if bytes > 64 << 30));
    assert_eq!(bench.server.served("/blobs/"), 1, "more than the configuration was fetched");
}

#[test]
fn a_mirror_is_asked_first_and_the_registry_when_it_fails() {
    let image = layout(b"x");
    let mirror = Bench::new(&image, Conduct { status: Some(500), ..Conduct::default() });
    let mut bench = Bench::new(&image, Conduct::default());
    bench.mirrored_by(&mirror);
    bench.pull("").unwrap();
    assert_eq!(mirror.server.served("/v2/m/team/image/manifests/latest"), 1);
}

#[test]
fn two_who_want_the_same_fetch_it_once() {
    let image = layout(b"x");
    let bench = Arc::new(Bench::new(&image, Conduct { cut_after: Some(150_000), ..Conduct::default() }));
    let pulls: Vec<_> = (0..4).map(|_| Arc::clone(&bench)).collect();
    std::thread::scope(|scope| {
        let pulls: Vec<_> = pulls.iter().map(|bench| scope.spawn(|| bench.pull("").unwrap().id().clone())).collect();
        let ids: Vec<_> = pulls.into_iter().map(|pull| pull.join().unwrap()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]));
    });
    let parts = fs::read_dir(bench.cache.path().join(LAYERS)).unwrap();
    let parts = parts.filter(|entry| entry.as_ref().unwrap().path().extension().is_some()).count();
    assert_eq!(parts, 0, "a part was left behind");
    assert_eq!(bench.server.served(&image.layers()[1].to_string()), 1);
}
