//! Disks: each VM writes to its own, and never to the image.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::Test;
use crate::host::{Host, Sh};

pub(crate) const TESTS: &[Test] = &[
    ("disk::two_vms_write_the_same_file_apart", two_vms_write_the_same_file_apart),
    ("disk::what_is_written_is_read_back", what_is_written_is_read_back),
];

fn two_vms_write_the_same_file_apart(host: &Host) -> Result<()> {
    let before = traces(&host.artifacts.debian)?;
    let (one, two) = (host.boot(host.spec())?, host.boot(host.spec())?);
    for (vm, word) in [(&one, "one"), (&two, "two")] {
        vm.sh(&format!("echo {word} > /etc/whose && sync && echo 3 > /proc/sys/vm/drop_caches"))?;
    }
    ensure!(one.sh("cat /etc/whose")? == "one");
    ensure!(two.sh("cat /etc/whose")? == "two");
    drop((one, two));
    ensure!(traces(&host.artifacts.debian)? == before, "the image was written to");
    Ok(())
}

fn what_is_written_is_read_back(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let script = "f=/var/tmp/big; head -c 32M /dev/urandom > $f && a=$(sha256sum < $f) && sync && \
                  echo 3 > /proc/sys/vm/drop_caches && b=$(sha256sum < $f) && rm $f && test \"$a\" = \"$b\"";
    vm.sh(script).with_context(|| vm.sh("dmesg | tail -n 30").unwrap_or_default())?;
    ensure!(vm.sh("dmesg | grep -ci 'I/O error' || true")? == "0", "the disk reported errors");
    Ok(())
}

/// What any write to a file changes.
fn traces(path: &Path) -> Result<(i64, i64, i64, i64, u64)> {
    let meta = path.metadata()?;
    Ok((meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec(), meta.blocks()))
}
