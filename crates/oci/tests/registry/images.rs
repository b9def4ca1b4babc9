//! An image built on the spot with Debian's tools: umoci makes it, skopeo brings it everywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// An OCI layout with the images `ours` and `others` (for another platform), and `both`, the index of them.
pub(crate) struct Images {
    pub(crate) layout: PathBuf,
}

impl Images {
    pub(crate) fn build(work: &Path) -> Self {
        let (layout, below, above) = (work.join("layout"), work.join("below"), work.join("above"));
        fs::create_dir_all(&below).unwrap();
        fs::create_dir_all(&above).unwrap();
        fs::write(below.join("hidden"), "by what lies above").unwrap();
        fs::write(below.join("noise"), noise()).unwrap();
        fs::write(above.join("file"), "from a registry").unwrap();
        let images = Self { layout };
        umoci(&["init", "--layout", &images.text()]);
        let ours = images.named("ours");
        umoci(&["new", "--image", &ours]);
        umoci(&["insert", "--rootless", "--image", &ours, &below.display().to_string(), "/srv"]);
        umoci(&["insert", "--rootless", "--image", &ours, &above.display().to_string(), "/srv"]);
        umoci(&["insert", "--rootless", "--image", &ours, "--whiteout", "/srv/hidden"]);
        umoci(&["config", "--image", &ours, "--config.env", "A=1", "--config.workingdir", "/srv", "--config.cmd", "x"]);
        umoci(&["config", "--image", &ours, "--tag", "others", "--architecture", "s390x"]);
        images.index();
        images
    }

    fn text(&self) -> String {
        self.layout.display().to_string()
    }

    fn named(&self, name: &str) -> String {
        format!("{}:{name}", self.text())
    }

    /// Joins both under a third name: no tool of Debian's does.
    fn index(&self) {
        let path = self.layout.join("index.json");
        let mut found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let kind = "application/vnd.oci.image.index.v1+json";
        let manifests = found["manifests"].as_array().unwrap().iter().map(|one| {
            let is_ours = one["annotations"]["org.opencontainers.image.ref.name"] == "ours";
            let platform = json!({"os": "linux", "architecture": if is_ours { "amd64" } else { "s390x" }});
            json!({"mediaType": one["mediaType"], "digest": one["digest"], "size": one["size"], "platform": platform})
        });
        let manifests: Vec<_> = manifests.rev().collect();
        let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": manifests}).to_string();
        let hex: String = Sha256::digest(&index).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(self.layout.join("blobs/sha256").join(&hex), &index).unwrap();
        let annotations = json!({"org.opencontainers.image.ref.name": "both"});
        let entry = json!({
            "mediaType": kind, "digest": format!("sha256:{hex}"), "size": index.len(), "annotations": annotations,
        });
        found["manifests"].as_array_mut().unwrap().push(entry);
        fs::write(&path, found.to_string()).unwrap();
    }

    /// Takes an image to where skopeo is told to.
    pub(crate) fn copy(&self, name: &str, to: &str, options: &[&str]) {
        let mut command = Command::new("skopeo");
        command.args(["--insecure-policy", "copy", "--quiet"]).args(options);
        run(command.arg(format!("oci:{}", self.named(name))).arg(to));
    }

    /// The digest of the manifest that has this name.
    pub(crate) fn digest(&self, name: &str) -> String {
        let index: Value = serde_json::from_slice(&fs::read(self.layout.join("index.json")).unwrap()).unwrap();
        let manifests = index["manifests"].as_array().unwrap();
        let is_it = |one: &&Value| one["annotations"]["org.opencontainers.image.ref.name"] == name;
        manifests.iter().find(is_it).unwrap()["digest"].as_str().unwrap().to_owned()
    }

    /// The digests of the layers of `ours`; the first is a long one.
    pub(crate) fn layers(&self) -> Vec<String> {
        let manifest = self.layout.join("blobs/sha256").join(&self.digest("ours")[7..]);
        let manifest: Value = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
        manifest["layers"].as_array().unwrap().iter().map(|one| one["digest"].as_str().unwrap().to_owned()).collect()
    }
}

/// Bytes that do not shrink.
fn noise() -> Vec<u8> {
    (0u32..20_000).flat_map(|n| Sha256::digest(n.to_le_bytes())).collect()
}

fn umoci(words: &[&str]) {
    run(Command::new("umoci").args(words));
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}; `make setup` installs it"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
