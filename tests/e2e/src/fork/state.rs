//! What a child changes is its own, and its interpreter keeps what it is given.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::Store;
use proto::guest::{EvalError, InterpreterState};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use types::Tag;

use super::Parent;
use super::children::{Children, Py};
use crate::Test;
use crate::finding::ensure_always;
use crate::host::{Host, Sh};

pub(crate) const TESTS: &[Test] = &[
    ("fork::state_is_isolated", state_is_isolated),
    ("fork::eval_works", eval_works),
    ("fork::four_vcpus", four_vcpus),
];

fn state_is_isolated(host: &Host) -> Result<()> {
    let tag = host.parent(Parent::Warm)?;
    let before = fingerprints(host, &tag)?;
    let children = Children::fork(host, Parent::Warm, 3)?;
    for (number, child) in (1..).zip(children.iter()) {
        child.sh(&format!("echo {number} > /etc/whose && sync && echo 3 > /proc/sys/vm/drop_caches"))?;
        child.py(&format!("word = 'child {number}'; numbers += {number}"))?;
    }
    for (number, child) in (1..).zip(children.iter()) {
        ensure!(child.sh("cat /etc/whose")? == number.to_string());
        let seen = child.py("word, int(numbers.sum())")?;
        ensure_always!(seen == format!("('child {number}', {})", 45 + 10 * number), "child {number} sees {seen}");
    }
    drop(children);
    // Neither the template nor the snapshot it came from has changed.
    let late = Children::fork(host, Parent::Warm, 1)?;
    ensure!(late[0].py("word, int(numbers.sum())")? == "('parent', 45)");
    ensure!(late[0].sh("test ! -e /etc/whose && echo none")? == "none");
    ensure_always!(fingerprints(host, &tag)? == before, "the snapshot's files changed");
    Ok(())
}

/// Every file of a snapshot, with a hash of all that is not a hole.
fn fingerprints(host: &Host, tag: &Tag) -> Result<Vec<(PathBuf, u64)>> {
    let store = Store::new(&host.dirs);
    let entries = fs::read_dir(store.path(tag))?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    files.extend(store.get(tag)?.manifest().layers().map(|layer| store.layer_path(&layer.digest)));
    files.sort();
    ensure!(files.len() == 4, "{files:?} are not a manifest, a state, and a layer each of memory and disk");
    files.into_iter().map(|path| Ok((path.clone(), fingerprint(&path)?))).collect()
}

fn fingerprint(path: &Path) -> Result<u64> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let (mut hasher, mut chunk, mut at) = (DefaultHasher::new(), vec![0; 1 << 20], 0);
    loop {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        hasher.write_u64(start);
        at = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
        for from in (start..at).step_by(chunk.len()) {
            let length = usize::try_from(at - from)?.min(chunk.len());
            file.read_exact_at(&mut chunk[..length], from)?;
            hasher.write(&chunk[..length]);
        }
    }
    hasher.write_u64(file.metadata()?.len());
    Ok(hasher.finish())
}

fn eval_works(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Warm, 1)?;
    let child = &children[0];
    ensure!(child.py("numpy.zeros(5).tolist()")? == "[0.0, 0.0, 0.0, 0.0, 0.0]");
    ensure!(child.py("total = 40")?.is_empty(), "a statement has a value");
    ensure!(child.py("total += 2; print('said'); total")? == "said\n42");

    let limit = Duration::from_secs(60);
    let raised = child.eval("def f(): return {}['key']\nf()", limit)?;
    let Some(EvalError::Exception(exception)) = raised.error else { anyhow::bail!("{raised:?}") };
    ensure!((exception.class.as_str(), exception.message.as_str()) == ("KeyError", "'key'"));
    ensure!(exception.traceback.contains("in f"), "{}", exception.traceback);

    let endless = child.eval("while True: total += 1", Duration::from_millis(500))?;
    ensure!(matches!(endless.error, Some(EvalError::Timeout { .. })), "{endless:?}");
    ensure!(endless.interpreter == InterpreterState::Alive, "{endless:?}");
    ensure!(child.py("total > 42")? == "True", "the state is gone");
    Ok(())
}

fn four_vcpus(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Wide, 2)?;
    let script = "for c in 0 1 2 3; do \
                  taskset -c $c sh -c 'for i in $(seq 1000); do :; done; cut -d\" \" -f39 /proc/self/stat' & \
                  done | sort | tr -d '\\n'";
    for child in children.iter() {
        ensure!(child.sh("nproc")? == "4");
        ensure!(child.sh(script)? == "0123", "not every CPU did its task");
    }
    Ok(())
}
