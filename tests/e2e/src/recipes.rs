//! What recipes have done in VMs: steps that complete a disk, and warm-ups that are waited for.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use engine::{
    BootSpec, BuildError, BuildSpec, Existing, Lifetime, ReadyCheck, Removal, SnapshotError, SnapshotSpec, Store,
    StoreError, WarmError, WarmUp, build, remove_snapshot, snapshot,
};
use types::Tag;
use types::progress::Silent;

use crate::Test;
use crate::fork::Children;
use crate::host::{Host, Sh};

pub(crate) const TESTS: &[Test] = &[
    ("recipes::steps_complete_a_disk", steps_complete_a_disk),
    ("recipes::a_server_is_waited_for", a_server_is_waited_for),
    ("recipes::what_never_gets_ready_is_told", what_never_gets_ready_is_told),
];

const LIMIT: Duration = Duration::from_secs(90);
/// A server that says when it listens and answers with its variable; perl is in every Debian.
const SERVER: &str = r#"echo starting; exec perl -MIO::Socket::INET -e '
    $| = 1; sleep 1;
    $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die;
    print "listening now\n";
    while ($c = $s->accept) { $l = <$c>; print $c "HTTP/1.0 " . ($l =~ m{ /ready } ? 200 : 404) . " X\r\n\r\npid $$\n"; close $c }'"#;

fn tiny(host: &Host) -> Result<BootSpec> {
    Ok(BootSpec { memory: "128M".parse()?, image: host.artifacts.tiny.clone(), ..host.spec() })
}

fn steps_complete_a_disk(host: &Host) -> Result<()> {
    let work = tempfile::tempdir_in(&host.dirs.cache)?;
    let path = work.path().join("disk");
    let run = |steps: &[&str], limit: Duration| {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        let steps = steps.iter().map(ToString::to_string).collect();
        let built = build(BuildSpec { boot: tiny(host)?, steps, limit }, &file, &host.dirs, &Silent);
        Ok::<_, anyhow::Error>(built)
    };
    run(&["echo one > /etc/one; sleep 100 &", "cat /etc/one > /root/two; echo done"], LIMIT)??;
    let checked = Command::new("/sbin/e2fsck").arg("-fn").arg(&path).output()?;
    ensure!(checked.status.success(), "the file system is not clean: {}", String::from_utf8_lossy(&checked.stdout));
    let vm = host.boot(BootSpec { image: path.clone(), ..tiny(host)? })?;
    ensure!(vm.sh("cat /root/two; cat /etc/one")? == "one\none");
    drop(vm);
    let error = run(&["true", "echo so far; echo and why >&2; exit 3", "false"], LIMIT)?.expect_err("a step failed");
    let BuildError::Step { number: 2, total: 3, code: 3, said, .. } = &error else { bail!("{error}") };
    ensure!(said == "so far\nand why", "{said}");
    let error = run(&["echo slow; sleep 1000"], Duration::from_secs(2))?.expect_err("it takes longer");
    ensure!(matches!(&error, BuildError::Slow { said, .. } if said == "slow"), "{error}");
    ensure!(path.metadata()?.len() == 0, "a disk was written");
    Ok(())
}

/// A snapshot of its own for a test, gone with it.
struct Taken<'a> {
    host: &'a Host,
    tag: Tag,
}

impl<'a> Taken<'a> {
    fn of(host: &'a Host, boot: BootSpec, warm_up: WarmUp, limit: Duration) -> Result<Self, SnapshotError> {
        let tag: Tag = "e2e-recipes".parse().expect("it is a tag");
        let ports = vec![std::num::NonZeroU16::MIN];
        let (existing, recipe, egress) = (Existing::Replace, None, None);
        let spec = SnapshotSpec { tag: tag.clone(), existing, boot, egress, recipe, ports, warm_up, limit };
        snapshot(spec, &host.dirs, &Silent).map(|_| Self { host, tag })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // The next one replaces what cannot be removed.
        drop(remove_snapshot(&self.tag, Removal::Force, &self.host.dirs));
    }
}

fn a_server_is_waited_for(host: &Host) -> Result<()> {
    let ready = Some(ReadyCheck::Http { port: 8080, path: "/ready".into() });
    let warm_up = WarmUp { start: shell_line(SERVER), ready, ..WarmUp::default() };
    let taken = Taken::of(host, host.spec(), warm_up, LIMIT)?;
    let info = Store::new(&host.dirs).info(&taken.tag)?;
    ensure!(info.manifest().is_some_and(|manifest| manifest.ports.len() == 1), "its ports are told");
    let children = Children::fork_in(&host.dirs, &taken.tag, 2, Lifetime::Connection)?;
    for child in children.iter() {
        let processes = child.processes()?;
        let server = processes.first().context("what was started is a process like any other")?;
        ensure!(server.status.is_none() && processes.len() == 1, "{processes:?}");
        let ask = "perl -MIO::Socket::INET -e '$c = IO::Socket::INET->new(\"127.0.0.1:8080\"); \
                   print $c \"GET /ready HTTP/1.0\\r\\n\\r\\n\"; print <$c>'";
        let answer = child.sh(ask)?;
        ensure!(answer.contains("200") && answer.ends_with(&format!("pid {}", server.pid)), "{answer}");
    }
    Ok(())
}

fn what_never_gets_ready_is_told(host: &Host) -> Result<()> {
    let fail = |start: &str, ready: ReadyCheck, limit: u64| {
        let warm_up = WarmUp { start: shell_line(start), ready: Some(ready), ..WarmUp::default() };
        match Taken::of(host, tiny(host)?, warm_up, Duration::from_secs(limit)) {
            Err(SnapshotError::Warm(error)) => Ok(error),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("it was taken for ready"),
        }
    };
    let error = fail("echo last words; sleep 1000", ReadyCheck::Command("false".into()), 3)?;
    let WarmError::Slow { said, waiting_for, .. } = &error else { bail!("{error}") };
    ensure!(said == "last words" && waiting_for.contains("`false`"), "{error}");
    let error = fail("echo too early; exit 3", ReadyCheck::Line("never".into()), 60)?;
    ensure!(matches!(&error, WarmError::Ended { code: 3, said } if said == "too early"), "{error}");
    let tag: Tag = "e2e-recipes".parse()?;
    let left = Store::new(&host.dirs).status(&tag);
    ensure!(matches!(left, Err(StoreError::Unknown { .. })), "something is left: {left:?}");
    // What takes a while is waited for, whichever way it is known by.
    let line = ("echo starting; sleep 1; echo it is ready; sleep 1000", ReadyCheck::Line("is ready".into()));
    let command = ("sleep 2; : > /root/up; sleep 1000", ReadyCheck::Command("test -e /root/up".into()));
    for (start, ready) in [line, command] {
        let warm_up = WarmUp { start: shell_line(start), ready: Some(ready), ..WarmUp::default() };
        drop(Taken::of(host, tiny(host)?, warm_up, LIMIT)?);
    }
    Ok(())
}

/// A line for the guest's shell.
fn shell_line(text: &str) -> Option<Vec<String>> {
    Some(["/bin/sh", "-c", text].map(Into::into).into())
}
