//! Packages of PyPI and npm in a recipe, from indexes of this test's own: unpacked by the real pip and npm, and never run.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::Test;
use crate::from_image::{cat, ran};
use crate::host::Host;
use crate::internet::serve_on;

pub(crate) const TESTS: &[Test] =
    &[("indexes::packages_of_pypi_and_npm_are_unpacked", packages_of_pypi_and_npm_are_unpacked)];

const WHEEL: &str = "tinywheel-1.0-py3-none-any.whl";
/// A module with a word in it, and a program that says it.
const MAKE_WHEEL: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as wheel:
    wheel.writestr('tinywheel.py', 'WORD = 42\ndef say():\n    print(WORD)\n')
    about = 'tinywheel-1.0.dist-info/'
    wheel.writestr(about + 'METADATA', 'Metadata-Version: 2.1\nName: tinywheel\nVersion: 1.0\n')
    wheel.writestr(about + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: e2e\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(about + 'entry_points.txt', '[console_scripts]\ntinyword = tinywheel:say\n')
    wheel.writestr(about + 'RECORD', '')
"#;
const RECIPE: &str = "description = \"d\"\n[base]\nimage = \"dir:root\"\npip = [\"tinywheel==1.0\"]\n\
                      npm = [\"tinypack@1.0.0\"]\n[disk]\nsize = \"64M\"\n";

fn packages_of_pypi_and_npm_are_unpacked(host: &Host) -> Result<()> {
    let work = tempfile::tempdir()?;
    let at = |name: &str| work.path().join(name);
    ran(Command::new("python3").args(["-c", MAKE_WHEEL]).arg(at(WHEEL)))?;
    let ran_a_script = at("a-script-was-run");
    make_pack(work.path(), &ran_a_script)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    serve(listener, &address, fs::read(at(WHEEL))?, fs::read(at("pack.tgz"))?)?;
    // All that is asked of an image is which Python it has.
    fs::create_dir_all(at("root/usr/bin"))?;
    fs::write(at("root/usr/bin/python3.11"), "")?;
    fs::write(at("mine.toml"), RECIPE)?;
    let mut forkd = Command::new(&host.forkd);
    forkd.args(["parent", "build", "mine.toml", "-o", "disk", "--quiet"]).current_dir(work.path());
    // Nothing of this computer's own settings and caches.
    forkd.env("FORKD_HOME", at("home")).env("PIP_CONFIG_FILE", "/dev/null").env("PIP_NO_CACHE_DIR", "1");
    forkd.env("PIP_INDEX_URL", format!("{address}/simple/")).env("npm_config_registry", &address);
    ran(forkd.env("npm_config_userconfig", "/dev/null").env("npm_config_cache", at("npm-cache")))?;
    let disk = at("disk").display().to_string();
    let module = cat(&disk, "/usr/local/lib/python3.11/dist-packages/tinywheel.py")?;
    ensure!(module.starts_with("WORD = 42"), "{module}");
    let program = cat(&disk, "/usr/local/bin/tinyword")?;
    ensure!(program.starts_with("#!/usr/bin/python3.11\n"), "{program}");
    let pack = cat(&disk, "/usr/local/lib/node_modules/tinypack/index.js")?;
    ensure!(pack == "module.exports = 42\n", "{pack}");
    let shown = Command::new("/sbin/debugfs").args(["-R", "stat /usr/local/bin/tinycmd"]).arg(&disk).output()?;
    ensure!(String::from_utf8_lossy(&shown.stdout).contains("node_modules/tinypack/cmd.js"), "{shown:?}");
    ensure!(!ran_a_script.exists(), "something of a package was run");
    Ok(())
}

/// A package of npm with a program, and a script that it would like to have run.
fn make_pack(work: &Path, trace: &Path) -> Result<()> {
    let dir = work.join("package");
    fs::create_dir(&dir)?;
    let script = format!("touch {}", trace.display());
    let about = json!({ "name": "tinypack", "version": "1.0.0", "main": "index.js", "bin": { "tinycmd": "cmd.js" },
        "scripts": { "preinstall": script, "install": script, "postinstall": script } });
    fs::write(dir.join("package.json"), about.to_string())?;
    fs::write(dir.join("index.js"), "module.exports = 42\n")?;
    fs::write(dir.join("cmd.js"), "#!/usr/bin/env node\n")?;
    ran(Command::new("tar").arg("-C").arg(work).arg("-czf").arg(work.join("pack.tgz")).arg("package"))
}

fn serve(listener: TcpListener, address: &str, wheel: Vec<u8>, pack: Vec<u8>) -> Result<()> {
    let digest: String = Sha256::digest(&wheel).iter().map(|byte| format!("{byte:02x}")).collect();
    let index = format!(r#"<!DOCTYPE html><a href="/files/{WHEEL}#sha256={digest}">{WHEEL}</a>"#);
    let version = json!({ "name": "tinypack", "version": "1.0.0", "bin": { "tinycmd": "cmd.js" },
        "hasInstallScript": true, "dist": { "tarball": format!("{address}/pack.tgz") } });
    let about = json!({ "name": "tinypack", "dist-tags": { "latest": "1.0.0" }, "versions": { "1.0.0": version } });
    let (about, file) = (about.to_string(), format!("/files/{WHEEL}"));
    serve_on(
        listener,
        Arc::new(move |path| match path {
            "/simple/tinywheel/" => Some(index.clone().into_bytes()),
            "/tinypack" => Some(about.clone().into_bytes()),
            "/pack.tgz" => Some(pack.clone()),
            path if path == file => Some(wheel.clone()),
            _ => None,
        }),
    )
    .context("an index")
}
