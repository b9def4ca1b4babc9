//! What is in the store is what children are made of, however it is stored.

use anyhow::{Result, ensure};
use engine::{Lifetime, Removal, Store, remove_snapshot};
use types::Tag;
use types::progress::Silent;

use super::Parent;
use super::children::{Children, Run};
use super::own::Own;
use super::parents::WORD;
use crate::Test;
use crate::host::Host;

pub(crate) const NATIVE_TESTS: &[Test] =
    &[("fork::a_compacted_snapshot_is_the_same", a_compacted_snapshot_is_the_same)];

fn a_compacted_snapshot_is_the_same(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    let store = Store::new(&own.dirs);
    let flat: Tag = "e2e-flat".parse()?;
    store.compact(&own.tag, &flat, &Silent)?;
    let found = works(&own, &flat);
    let removed = remove_snapshot(&flat, Removal::Plain, &own.dirs);
    found?;
    ensure!(removed? == [flat]);
    let findings = store.verify(std::slice::from_ref(&own.tag), &Silent)?.findings;
    ensure!(findings.is_empty(), "what it was made of suffered: {findings:?}");
    Ok(())
}

fn works(own: &Own, flat: &Tag) -> Result<()> {
    let findings = Store::new(&own.dirs).verify(std::slice::from_ref(flat), &Silent)?.findings;
    ensure!(findings.is_empty(), "{findings:?}");
    let children = Children::fork_in(&own.dirs, flat, 2, Lifetime::Connection)?;
    for child in children.iter() {
        ensure!(child.word()? == WORD);
        ensure!(child.run(&["read", "0"])? == WORD);
        child.run(&["write", "1", child.id()])?;
        ensure!(child.run(&["read", "1"])? == child.id());
    }
    Ok(())
}
