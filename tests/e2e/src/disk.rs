//! Disks: each VM writes to its own, and never to the image.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};

use crate::Test;
use crate::host::{Host, Sh};

pub(crate) const TESTS: &[Test] = &[
    ("disk::two_vms_write_the_same_file_apart", two_vms_write_the_same_file_apart),
    ("disk::what_is_written_is_read_back", what_is_written_is_read_back),
];

fn two_vms_write_the_same_file_apart(host: &Host) -> Result<()> {
    let before = digest(&host.artifacts.debian)?;
    let (one, two) = (host.boot(host.spec())?, host.boot(host.spec())?);
    for (vm, word) in [(&one, "one"), (&two, "two")] {
        vm.sh(&format!("echo {word} > /etc/whose && sync && echo 3 > /proc/sys/vm/drop_caches"))?;
    }
    assert_eq!(one.sh("cat /etc/whose")?, "one");
    assert_eq!(two.sh("cat /etc/whose")?, "two");
    drop((one, two));
    ensure!(digest(&host.artifacts.debian)? == before, "the image was written to");
    Ok(())
}

fn what_is_written_is_read_back(host: &Host) -> Result<()> {
    let vm = host.vm()?;
    let script = "f=/var/tmp/big; head -c 32M /dev/urandom > $f && a=$(sha256sum < $f) && sync && \
                  echo 3 > /proc/sys/vm/drop_caches && b=$(sha256sum < $f) && rm $f && test \"$a\" = \"$b\"";
    vm.sh(script)?;
    ensure!(vm.sh("dmesg | grep -ci 'I/O error' || true")? == "0", "the disk reported errors");
    Ok(())
}

fn digest(path: &Path) -> Result<Vec<u8>> {
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().to_vec()),
            count => hash.update(&buffer[..count]),
        }
    }
}
