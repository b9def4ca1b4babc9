//! Sandboxes with all they can have behind the daemon, as its clients get them.
//!
//! ```text
//! networks    what each may reach, what it was refused, who is told; and all of it after the daemon was killed
//! ports       a server in a guest: by HTTP, as bytes, and on an address of the host's
//! limits      sandboxes of one request, each held to its own
//! ```

mod limits;
mod networks;
mod ports;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Test;
use crate::fork::groups;
use crate::fork::jail::{taken, user};
use crate::host::Host;
use crate::internet::{Internet, ONE};
use crate::serving::{Daemon, PATIENCE};
use crate::world::{names, wait_until};

/// To be run when nothing else runs: its networks have the names that every daemon gives.
pub(crate) const TESTS: &[Test] = &[("behind::networks_ports_and_limits", networks_ports_and_limits)];

const TAG: &str = "e2e-behind";
/// Where a server in every guest says what it was asked, to whoever is inside.
const PORT: u16 = 8080;
const SERVER: &str = r#"
    $SIG{PIPE} = "IGNORE";
    my $listener = IO::Socket::INET->new(LocalAddr => "127.0.0.1:8080", Listen => 9, ReuseAddr => 1) or die;
    while (my $peer = $listener->accept) {
        my $head = "";
        while (my $line = <$peer>) { $head .= $line; last if $line eq "\r\n" }
        print $peer "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: ", length $head, "\r\n\r\n$head";
        close $peer
    }"#;

/// A daemon whose host is a namespace that nothing leads out of.
struct World {
    host: Host,
    internet: Internet,
    daemon: Daemon,
}

fn networks_ports_and_limits(host: &Host) -> Result<()> {
    let (before, mut world) = (groups(), World::new(host)?);
    let done = networks::each_has_its_own(&world)
        .and_then(|ids| {
            ports::a_server_is_reached_by_who_may(&world, &ids[0])?;
            networks::a_killed_daemon_changes_nothing(&mut world, &ids[0])
        })
        .and_then(|()| limits::hold_each_to_its_own(&world));
    // Whatever became of it, a next try finds nothing of it.
    let ended = world.end();
    done?;
    let users = ended?;
    ensure!(users.len() > 2 && groups().is_subset(&before), "of {users:?} there are {:?}", groups());
    wait_until("all users are free", PATIENCE, || taken().is_ok_and(|taken| taken.is_disjoint(&users)))?;
    world.has_no_networks()
}

impl World {
    fn new(host: &Host) -> Result<Self> {
        let mut internet = Internet::new(0, &[])?;
        // The daemon makes all networks there.
        internet.pool = None;
        let daemon = Daemon::start_on(host, Some(internet.host().to_owned()))?;
        let boot = &host.artifacts;
        let snapshot = json!({
            "tag": TAG, "replace": true, "memory_mib": 256, "egress": format!("{ONE}:80"), "ports": [PORT],
            "kernel": boot.kernel, "initramfs": boot.initramfs, "rootfs": boot.debian,
            "warm": { "start": ["perl", "-MIO::Socket::INET", "-e", SERVER], "ready": { "tcp": PORT } },
        });
        daemon.expect(201, "POST", "/v1/snapshots", Some(&snapshot))?;
        Ok(Self { host: host.clone(), internet, daemon })
    }

    /// Ends all sandboxes, and the daemon in order; as whom they ran.
    fn end(&mut self) -> Result<BTreeSet<u32>> {
        let sandboxes = self.get("/v1/sandboxes")?;
        let mut users = BTreeSet::new();
        for sandbox in sandboxes.as_array().into_iter().flatten() {
            let pid = sandbox["pid"].as_i64().filter(|_| sandbox["status"] != "gone");
            users.extend(pid.map(|pid| user(i32::try_from(pid)?)).transpose()?);
            self.daemon.expect(204, "DELETE", &path(sandbox["id"].as_str().context("an id")?), None)?;
        }
        self.daemon.expect(204, "DELETE", &format!("/v1/snapshots/{TAG}?force=true"), None)?;
        self.daemon.stop()?;
        Ok(users)
    }

    /// What the user's program, which must succeed, says of this daemon.
    fn forkd(&self, words: &[&str]) -> Result<String> {
        let output = self.host.forkd().env("FORKD_URL", self.daemon.url()).args(words).output()?;
        ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn get(&self, path: &str) -> Result<Value> {
        self.daemon.expect(200, "GET", path, None)
    }

    /// A daemon that ends in order leaves no network of what has ended.
    fn has_no_networks(&self) -> Result<()> {
        let left = || names(net::Directory::default().path()).into_iter().filter_map(|name| name.into_string().ok());
        wait_until("no namespace is left", PATIENCE, || !left().any(|name| name.starts_with("forkd-child-")))?;
        let links = self.internet.host_has("link")?;
        ensure!(!links.contains("forkd-") && self.internet.opened()? == 0, "{links}");
        Ok(())
    }
}

fn path(id: &str) -> String {
    format!("/v1/sandboxes/{id}")
}
