//! Forked guests on networks of their own: alike inside, somebody else outside, and closed until a policy opens them.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::{
    BootSpec, Child, Egress, Existing, Networks, Pool, Removal, SnapshotSpec, Tap, WarmUp, networks, plan,
    remove_snapshot, snapshot,
};
use types::Tag;
use types::progress::Silent;

use crate::Test;
use crate::fork::Children;
use crate::host::{Host, Sh};
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] =
    &[("egress::a_fork_is_closed_until_it_is_opened", a_fork_is_closed_until_it_is_opened)];

const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// What the snapshot says that its children may reach.
const USUAL: &str = "usual.example:80";
const WARM_LIMIT: Duration = Duration::from_secs(120);
/// How long what a VM left may take to be ready for the next.
const TIDY: Duration = Duration::from_secs(30);

fn a_fork_is_closed_until_it_is_opened(host: &Host) -> Result<()> {
    let pool = Arc::new(networks(2)?);
    let tag: Tag = "e2e-egress".parse()?;
    take(host, &tag, &pool)?;
    let given = || Ok(Arc::clone(&pool));
    let children =
        Children::fork_on(&host.dirs, &tag, 2, &Networks { pool: &given, egress: Some(Egress::None), limits: None })?;
    let [one, other] = &*children else { anyhow::bail!("two were asked for") };
    let number = one.network()?.context("it has a network")?.number;
    ensure!(Some(number) != other.network()?.map(|network| network.number), "each has its own");
    for child in [one, other] {
        ensure!(child.sh("hostname -I")?.trim() == plan::GUEST.to_string(), "all are alike inside");
    }
    // The host's end of an uplink, which nobody reaches who does not name it.
    let (open, shut) = (serve(number.host())?, serve(number.host())?);
    ensure!(!reaches(one, number.host(), open)? && !reaches(one, METADATA, 80)?, "it is closed");
    let network = one.set_network(&pool, Some(&format!("{}:{open},a.example:80", number.host()).parse()?), None)?;
    ensure!(reaches(one, number.host(), open)?, "what is named is open at once");
    ensure!(!reaches(one, number.host(), shut)? && !reaches(one, METADATA, 80)?, "and nothing else");
    ensure!(!reaches(other, number.host(), open)?, "nor to another");
    ensure!(one.sh("getent hosts evil.example || echo no")?.trim() == "no");
    ensure!(network.names_report().last_refused.contains(&"evil.example".to_owned()), "{:?}", network.names_report());
    let report = network.report()?;
    ensure!(report.sent.packets > 0 && report.received.bytes > 0, "{report:?}");
    let seen =
        |address: Ipv4Addr, port| report.attempts.iter().any(|it| it.address == address && it.port == Some(port));
    ensure!(seen(METADATA, 80) && seen(number.host(), shut) && seen(number.host(), open), "{report:?}");
    one.set_network(&pool, Some(&Egress::None), None)?;
    ensure!(!reaches(one, number.host(), open)?, "and it is closed again");
    drop(children);
    let usual = Children::fork_on(&host.dirs, &tag, 1, &Networks { pool: &given, egress: None, limits: None })?;
    ensure!(usual[0].network()?.context("it has a network")?.egress == USUAL.parse()?, "unless something else is said");
    drop(usual);
    wait_until("the networks come back", TIDY, || pool.counts() == (2, 0))?;
    remove_snapshot(&tag, Removal::Force, &host.dirs)?;
    Ok(())
}

/// A snapshot that has a network card.
fn take(host: &Host, tag: &Tag, pool: &Pool) -> Result<()> {
    let lease = pool.take(1)?.pop().context("there is a network")?;
    let boot = BootSpec { tap: Some(Tap::of_network(lease.tap)), ..host.spec() };
    let (existing, warm_up) = (Existing::Replace, WarmUp::default());
    let (egress, recipe) = (Some(USUAL.parse()?), None);
    let spec = SnapshotSpec { tag: tag.clone(), existing, boot, egress, recipe, warm_up, limit: WARM_LIMIT };
    snapshot(spec, &host.dirs, &Silent)?;
    Ok(())
}

/// Says hello to whoever connects, until the test program ends.
fn serve(address: Ipv4Addr) -> Result<u16> {
    let listener = TcpListener::bind((address, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::Builder::new().spawn(move || {
        // Who is cut off has no use for it.
        listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"hello")));
    })?;
    Ok(port)
}

fn reaches(child: &Child, address: Ipv4Addr, port: u16) -> Result<bool> {
    let script = format!("timeout 20 bash -c 'exec 3<>/dev/tcp/{address}/{port} && cat <&3' 2>/dev/null || echo no");
    Ok(child.sh(&script)?.trim() == "hello")
}
