//! Pulls from the registry that Debian ships what Debian's tools have pushed there; over lines good and bad.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use oci::{DiskSize, Image, ImageError, Limits, Platform, RegistryError, Settings};
use types::progress::Silent;

use crate::images::Images;
use crate::proxy::{Fault, Proxy};
use crate::server::Registry;

/// `me:pw`, as its file of passwords has it.
const PASSWORDS: &str = "me:$2b$04$SwNYM1pWpSSwC11Y5joK7.f3.UMWY41N/l24N7iiESdB94V7JEUIS\n";
const LOGIN: &str = "bWU6cHc=";
const PLAIN: &[&str] = &["--dest-tls-verify=false"];

fn settings(work: &Path) -> Settings {
    Settings {
        auth_files: vec![work.join("auth.json")],
        programs: std::ffi::OsString::new(),
        registries_conf: None,
        registries_dirs: Vec::new(),
        certificate_dirs: vec![work.join("certs.d")],
        idle: Duration::from_secs(30),
        pause: Duration::from_millis(10),
    }
}

/// A registry with images in it.
struct Bench {
    work: tempfile::TempDir,
    images: Images,
    registry: Registry,
}

impl Bench {
    fn new() -> Self {
        let work = tempfile::tempdir().unwrap();
        let images = Images::build(work.path());
        let registry = Registry::start(work.path());
        let bench = Self { work, images, registry };
        bench.push("ours", "latest", PLAIN);
        bench
    }

    fn push(&self, name: &str, tag: &str, options: &[&str]) {
        let to = format!("docker://localhost:{}/team/image:{tag}", self.registry.port);
        self.images.copy(name, &to, options);
    }

    fn pull(&self, version: &str) -> Result<Image, ImageError> {
        self.pull_over(self.registry.port, version, &settings(self.work.path()))
    }

    fn pull_over(&self, port: u16, version: &str, settings: &Settings) -> Result<Image, ImageError> {
        let cache = tempfile::tempdir_in(&self.work).unwrap();
        let reference = format!("localhost:{port}/team/image{version}").parse().unwrap();
        Image::pull(&reference, &Platform::default(), cache.path(), settings, &Silent)
    }
}

fn registry_error(result: Result<Image, ImageError>) -> RegistryError {
    match result.unwrap_err() {
        ImageError::Registry(error) => error,
        error => panic!("{error}"),
    }
}

fn written(image: &Image) -> tempfile::NamedTempFile {
    let disk = tempfile::NamedTempFile::new().unwrap();
    image.write(disk.as_file(), DiskSize::Bytes(16 << 20), Limits::default(), &Silent).unwrap();
    disk
}

#[test]
fn one_image_is_the_same_wherever_it_is() {
    let bench = Bench::new();
    let image = bench.pull(":latest").unwrap();
    assert_eq!((image.run().env.last().unwrap().as_str(), image.run().working_dir.as_str()), ("A=1", "/srv"));
    let disk = written(&image);
    let cat = |path: &str| {
        Command::new("/sbin/debugfs").arg("-R").arg(format!("cat {path}")).arg(disk.path()).output().unwrap().stdout
    };
    assert_eq!((cat("/srv/file").as_slice(), cat("/srv/hidden").as_slice()), (&b"from a registry"[..], &b""[..]));
    assert_eq!(cat("/srv/noise").len(), 640_000);
    let work = bench.work.path().display();
    bench.images.copy("ours", &format!("docker-archive:{work}/docker.tar:me/image:1"), &[]);
    bench.images.copy("ours", &format!("oci-archive:{work}/oci.tar:mine"), &[]);
    let digest = bench.images.digest("ours");
    assert_eq!(bench.pull(&format!("@{digest}")).unwrap().id(), image.id());
    for source in [
        format!("oci:{work}/layout:ours"),
        format!("oci:{work}/layout:both"),
        format!("oci-archive:{work}/oci.tar"),
        format!("docker-archive:{work}/docker.tar"),
        format!("docker-archive:{work}/docker.tar:me/image:1"),
    ] {
        let same = Image::open(&source.parse().unwrap(), &Platform::default()).unwrap();
        assert_eq!(same.id(), image.id(), "{source}");
        assert!(fs::read(written(&same).path()).unwrap() == fs::read(disk.path()).unwrap(), "{source}");
    }
}

#[test]
fn an_index_of_the_registry_leads_to_our_platform() {
    let bench = Bench::new();
    bench.push("both", "both", &["--all", "--dest-tls-verify=false"]);
    bench.push("others", "others", PLAIN);
    assert_eq!(bench.pull(":both").unwrap().id(), bench.pull(":latest").unwrap().id());
    let error = bench.pull(":others").unwrap_err().to_string();
    assert_eq!(error, "the image is not for linux/amd64; it is for: linux/s390x");
    assert!(matches!(registry_error(bench.pull(":none")), RegistryError::NotFound { .. }));
}

#[test]
fn tls_and_a_login() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name);
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    fs::write(path("cert.pem"), signed.cert.pem()).unwrap();
    fs::write(path("key.pem"), signed.signing_key.serialize_pem()).unwrap();
    fs::write(path("passwords"), PASSWORDS).unwrap();
    let http = format!(", tls: {{certificate: {}, key: {}}}", path("cert.pem").display(), path("key.pem").display());
    let auth = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", path("passwords").display());
    let images = Images::build(work.path());
    let registry = Registry::start_with(work.path(), &http, &auth);
    let certs = path("certs.d").join(format!("localhost:{}", registry.port));
    let bench = Bench { work, images, registry };
    bench.push("ours", "latest", &["--dest-creds=me:pw", "--dest-tls-verify=false"]);
    bench.pull("").map(drop).expect_err("nobody vouches for it");
    fs::create_dir_all(&certs).unwrap();
    fs::write(certs.join("ca.crt"), signed.cert.pem()).unwrap();
    assert!(matches!(registry_error(bench.pull("")), RegistryError::Denied { .. }));
    let login = format!(r#"{{"auths": {{"localhost:{}": {{"auth": "{LOGIN}"}}}}}}"#, bench.registry.port);
    fs::write(bench.work.path().join("auth.json"), login).unwrap();
    bench.pull("").unwrap();
}

#[test]
fn what_the_registrys_disk_has_lost_is_noticed() {
    let bench = Bench::new();
    let layer = bench.images.layers().remove(0);
    let path = bench.registry.blob(&layer);
    let whole = fs::read(&path).unwrap();
    let mut wrong = whole.clone();
    wrong[300_000] ^= 1;
    fs::write(&path, &wrong).unwrap();
    let error = registry_error(bench.pull(""));
    assert!(matches!(&error, RegistryError::Digest { expected, .. } if expected.to_string() == layer), "{error}");
    fs::write(&path, &whole[..200_000]).unwrap();
    let error = registry_error(bench.pull(""));
    assert!(matches!(error, RegistryError::Broken { found: 200_000, .. }), "{error}");
    fs::write(&path, [whole.as_slice(), &[0; 10]].concat()).unwrap();
    let error = registry_error(bench.pull(""));
    assert!(matches!(error, RegistryError::TooLong { .. }), "{error}");
    fs::remove_file(&path).unwrap();
    let error = registry_error(bench.pull(""));
    assert!(matches!(error, RegistryError::NotFound { .. }), "{error}");
    fs::write(&path, &whole).unwrap();
    bench.pull("").unwrap();
    let manifest = bench.registry.blob(&bench.images.digest("ours"));
    fs::write(&manifest, "{}").unwrap();
    let error = bench.pull("").unwrap_err();
    assert!(!error.to_string().is_empty() && !matches!(error, ImageError::Layers { .. }), "{error}");
}

#[test]
fn a_bad_line_is_got_over() {
    let bench = Bench::new();
    let id = bench.pull("").unwrap().id().clone();
    let patient = settings(bench.work.path());
    for (fault, settings) in [
        (Fault::Drips { bytes: 4000, pause: Duration::from_millis(2) }, &patient),
        (Fault::Cuts { after: 150_000 }, &patient),
        (
            Fault::Stalls { after: 100_000, connections: 2 },
            &Settings { idle: Duration::from_millis(800), ..patient.clone() },
        ),
    ] {
        let proxy = Proxy::start(bench.registry.port, fault);
        let pulled = bench.pull_over(proxy.port, "", settings).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(*pulled.id(), id);
        assert!(matches!(fault, Fault::Drips { .. }) || proxy.faults() >= 2, "{fault:?} did not come about");
    }
}

#[test]
fn a_dead_line_is_given_up() {
    let bench = Bench::new();
    let impatient = Settings { idle: Duration::from_millis(300), ..settings(bench.work.path()) };
    for fault in [Fault::Cuts { after: 0 }, Fault::Stalls { after: 0, connections: usize::MAX }] {
        let proxy = Proxy::start(bench.registry.port, fault);
        let begun = Instant::now();
        let error = registry_error(bench.pull_over(proxy.port, "", &impatient));
        assert!(matches!(error, RegistryError::Transport { .. }), "{fault:?}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{fault:?}");
    }
}
