//! Pulls from the registry that Debian ships, over plain HTTP and over TLS with a login.
//!
//! The registry is downloaded as a package and never installed; its storage is written as a push would have.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use oci::{DiskSize, Image, ImageError, Limits, Platform, RegistryError, Settings};
use sha2::{Digest, Sha256};
use types::progress::Silent;

/// `me:pw`, as its file of passwords has it.
const PASSWORDS: &str = "me:$2b$04$SwNYM1pWpSSwC11Y5joK7.f3.UMWY41N/l24N7iiESdB94V7JEUIS\n";
const LOGIN: &str = "bWU6cHc=";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The program; fetched by whoever wants it first.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(program);

/// The program, out of its package.
fn program() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docker-registry");
    let program = dir.join("root/usr/bin/docker-registry");
    if !program.exists() {
        fs::create_dir_all(&dir).unwrap();
        let run = |command: &mut Command| assert!(command.current_dir(&dir).status().unwrap().success(), "{command:?}");
        run(Command::new("apt-get").args(["-qq", "download", "docker-registry"]));
        run(Command::new("sh").args(["-c", "dpkg-deb -x docker-registry_*.deb root"]));
    }
    program
}

/// A registry's storage.
struct Storage(PathBuf);

impl Storage {
    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.0.join("docker/registry/v2").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Stores a blob; its digest, and what points to it.
    fn blob(&self, kind: &str, bytes: &[u8], more: &str) -> (String, String) {
        let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let link = format!("sha256:{hex}");
        self.write(&format!("blobs/sha256/{}/{hex}/data", &hex[..2]), bytes);
        let place =
            if kind.contains("manifest") || kind.contains("index") { "_manifests/revisions" } else { "_layers" };
        self.write(&format!("repositories/team/image/{place}/sha256/{hex}/link"), link.as_bytes());
        let descriptor = format!(r#"{{"mediaType": "{kind}", "digest": "{link}", "size": {}{more}}}"#, bytes.len());
        (link, descriptor)
    }

    /// An image for two platforms, called `latest`; the digest of ours.
    fn fill(&self, work: &Path) -> String {
        fs::create_dir_all(work.join("tree")).unwrap();
        fs::write(work.join("tree/file"), "from a registry").unwrap();
        let tar = Command::new("tar").arg("-C").arg(work.join("tree")).args(["-c", "file"]).output().unwrap();
        let (diff_id, layer) = self.blob("application/vnd.oci.image.layer.v1.tar", &tar.stdout, "");
        let config = format!(
            r#"{{"architecture": "amd64", "os": "linux", "config": {{}}, "rootfs": {{"type": "layers", "diff_ids": ["{diff_id}"]}}}}"#
        );
        let (_, config) = self.blob("application/vnd.oci.image.config.v1+json", config.as_bytes(), "");
        let text =
            format!(r#"{{"schemaVersion": 2, "mediaType": "{MANIFEST}", "config": {config}, "layers": [{layer}]}}"#);
        let platform = |arch: &str| format!(r#", "platform": {{"os": "linux", "architecture": "{arch}"}}"#);
        let (ours, for_us) = self.blob(MANIFEST, text.as_bytes(), &platform("amd64"));
        let (_, for_others) = self.blob(MANIFEST, text.replace(": 2,", ":  2,").as_bytes(), &platform("arm64"));
        let index = format!(r#"{{"schemaVersion": 2, "mediaType": "{INDEX}", "manifests": [{for_others}, {for_us}]}}"#);
        let (index, _) = self.blob(INDEX, index.as_bytes(), "");
        let tags = "repositories/team/image/_manifests/tags/latest";
        self.write(&format!("{tags}/current/link"), index.as_bytes());
        self.write(&format!("{tags}/index/sha256/{}/link", &index[7..]), index.as_bytes());
        ours
    }
}

struct Registry {
    child: Child,
    port: u16,
}

impl Registry {
    fn start(work: &Path, http: &str, auth: &str) -> Self {
        // Free a moment ago; somebody who takes it meanwhile makes the test fail, not lie.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let root = work.join("storage");
        let config = work.join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: '127.0.0.1:{port}', secret: test{http}}}\n{auth}",
            root.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(&*PROGRAM);
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { child: command.spawn().unwrap(), port };
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn settings(work: &Path) -> Settings {
    Settings {
        auth_files: vec![work.join("auth.json")],
        registries_conf: None,
        certificate_dirs: vec![work.join("certs.d")],
        idle: Duration::from_secs(30),
        pause: Duration::from_millis(10),
    }
}

fn pull(registry: &Registry, version: &str, work: &Path) -> Result<Image, ImageError> {
    let reference = format!("localhost:{}/team/image{version}", registry.port).parse().unwrap();
    Image::pull(&reference, &Platform::default(), &work.join("cache"), &settings(work), &Silent)
}

#[test]
fn plain_http_on_this_computer() {
    let work = tempfile::tempdir().unwrap();
    let ours = Storage(work.path().join("storage")).fill(work.path());
    let registry = Registry::start(work.path(), "", "");
    let image = pull(&registry, ":latest", work.path()).unwrap();
    assert_eq!(pull(&registry, &format!("@{ours}"), work.path()).unwrap().id(), image.id());
    let disk = tempfile::NamedTempFile::new().unwrap();
    image.write(disk.as_file(), DiskSize::Bytes(16 << 20), Limits::default(), &Silent).unwrap();
    let found = Command::new("/sbin/debugfs").args(["-R", "cat /file"]).arg(disk.path()).output().unwrap();
    assert_eq!(found.stdout, b"from a registry");
    let error = pull(&registry, ":other", work.path()).unwrap_err();
    assert!(matches!(error, ImageError::Registry(RegistryError::NotFound { .. })), "{error}");
}

#[test]
fn tls_and_a_login() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name);
    Storage(path("storage")).fill(work.path());
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    fs::write(path("cert.pem"), signed.cert.pem()).unwrap();
    fs::write(path("key.pem"), signed.signing_key.serialize_pem()).unwrap();
    fs::write(path("passwords"), PASSWORDS).unwrap();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let http = format!(", tls: {{certificate: {}, key: {}}}", cert.display(), key.display());
    let auth = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", path("passwords").display());
    let registry = Registry::start(work.path(), &http, &auth);
    pull(&registry, "", work.path()).map(drop).expect_err("nobody vouches for it");
    let certs = path("certs.d").join(format!("localhost:{}", registry.port));
    fs::create_dir_all(&certs).unwrap();
    fs::copy(&cert, certs.join("ca.crt")).unwrap();
    let error = pull(&registry, "", work.path()).unwrap_err();
    assert!(matches!(error, ImageError::Registry(RegistryError::Denied { .. })), "{error}");
    let login = format!(r#"{{"auths": {{"localhost:{}": {{"auth": "{LOGIN}"}}}}}}"#, registry.port);
    fs::write(path("auth.json"), login).unwrap();
    pull(&registry, "", work.path()).unwrap();
}
