//! `pip install` and `apt-get install` in a guest whose list names the servers of packages, and nobody else.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use engine::{BootSpec, Tap};
use sha2::{Digest as _, Sha256};

use crate::Test;
use crate::host::{Host, Sh, shell};
use crate::internet::{Internet, ONE, OTHER};

pub(crate) const TESTS: &[Test] =
    &[("packages::pip_and_apt_install_through_a_list", pip_and_apt_install_through_a_list)];

const KNOWN: &[(&str, Ipv4Addr)] = &[("index.example", ONE), ("deb.example", OTHER)];
/// Made by the guest's own tools: a module that has a word, and a program that says one.
const WHEEL: &str = r#"python3 -c "
import io, sys, zipfile
file = io.BytesIO()
with zipfile.ZipFile(file, 'w') as wheel:
    wheel.writestr('tinywheel.py', 'WORD = 42\n')
    about = 'tinywheel-1.0.dist-info/'
    wheel.writestr(about + 'METADATA', 'Metadata-Version: 2.1\nName: tinywheel\nVersion: 1.0\n')
    wheel.writestr(about + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: e2e\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(about + 'RECORD', '')
sys.stdout.buffer.write(file.getvalue())""#;
const DEB: &str = r"cd $(mktemp -d) && mkdir -p tree/DEBIAN tree/usr/bin && chmod -R 755 tree &&
printf 'Package: tinydeb\nVersion: 1.0\nArchitecture: all\nMaintainer: e2e <e2e@example.org>\nDescription: tiny\n' > tree/DEBIAN/control &&
printf '#!/bin/sh\necho installed\n' > tree/usr/bin/tinydeb && chmod 755 tree/usr/bin/tinydeb &&
dpkg-deb -Znone --build tree tiny.deb > /dev/null && cat tiny.deb";
const PIP: &str = "python3 -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-compile \
    --root-user-action ignore --break-system-packages --index-url http://index.example/simple \
    --trusted-host index.example tinywheel && python3 -c 'import tinywheel; print(tinywheel.WORD)'";
const APT: &str = "rm -rf /etc/apt/sources.list.d && echo 'deb [trusted=yes] http://deb.example/debian ./' > /etc/apt/sources.list && \
    (apt-get -qq update && apt-get -qq install -y tinydeb) > /tmp/apt 2>&1 || { cat /tmp/apt >&2; exit 1; }; tinydeb";

fn pip_and_apt_install_through_a_list(host: &Host) -> Result<()> {
    let internet = Internet::new(1, KNOWN)?;
    let lease = internet.pool()?.take(1)?.pop().context("there is a network")?;
    let tap = Some(Tap::of_network(lease.tap));
    let vm = host.boot(BootSpec { image: host.artifacts.python.clone(), tap, ..host.spec() })?;
    let made = |script: &str| -> Result<Vec<u8>> {
        let output = vm.output(&shell(script), &[])?;
        ensure!(output.status.shell_code() == 0, "{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.stdout)
    };
    serve(&internet, made(WHEEL)?, made(DEB)?)?;
    lease.network.set_egress(&"index.example:80,deb.example:80".parse()?)?;
    ensure!(vm.sh(PIP)? == "42");
    ensure!(vm.sh(APT)? == "installed");
    let (report, names) = (lease.network.report()?, lease.network.names_report());
    ensure!(report.attempts.is_empty() && names.refused == 0, "nothing else was tried: {report:?}, {names:?}");
    ensure!(vm.sh("getent hosts pypi.org deb.debian.org || echo no")? == "no", "nor is anything else known");
    Ok(())
}

/// An index of one wheel, and a flat repository of one package.
fn serve(internet: &Internet, wheel: Vec<u8>, deb: Vec<u8>) -> Result<()> {
    let name = "tinywheel-1.0-py3-none-any.whl";
    let index = format!(r#"<!DOCTYPE html><a href="/files/{name}#sha256={}">{name}</a>"#, digest(&wheel));
    let file = format!("/files/{name}");
    internet.serve(
        ONE,
        Arc::new(move |path| match path {
            "/simple/tinywheel/" => Some(index.clone().into_bytes()),
            path if path == file => Some(wheel.clone()),
            _ => None,
        }),
    )?;
    let packages = format!(
        "Package: tinydeb\nVersion: 1.0\nArchitecture: all\nMaintainer: e2e <e2e@example.org>\nDescription: tiny\n\
         Filename: ./tiny.deb\nSize: {}\nSHA256: {}\n",
        deb.len(),
        digest(&deb)
    );
    let release = format!("SHA256:\n {} {} Packages\n", digest(packages.as_bytes()), packages.len());
    internet.serve(
        OTHER,
        Arc::new(move |path| match path {
            "/debian/./Release" => Some(release.clone().into_bytes()),
            "/debian/./Packages" => Some(packages.clone().into_bytes()),
            "/debian/./tiny.deb" => Some(deb.clone()),
            _ => None,
        }),
    )
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
