//! Forked guests on networks of their own: alike inside, somebody else outside, and closed but for what a policy names.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::{
    BootSpec, BuildSpec, Child, Egress, Existing, Namespaces, NetworkReport, Networks, Pool, Removal, SnapshotSpec,
    Tap, WarmUp, build, plan, remove_snapshot, snapshot,
};
use serde_json::{Value, json};
use session::lines;
use types::Tag;
use types::progress::Silent;

use crate::Test;
use crate::fork::Children;
use crate::host::{Host, Sh};
use crate::internet::{HOST, Internet, METADATA, ONE, OTHER};
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[
    ("egress::a_list_lets_what_it_names_through_and_nothing_else", a_list_lets_what_it_names_through_and_nothing_else),
    ("egress::a_build_reaches_what_its_list_names", a_build_reaches_what_its_list_names),
];

/// What the internet's name server knows. Two names stand for one address.
const KNOWN: &[(&str, Ipv4Addr)] = &[("one.example", ONE), ("twin.example", ONE), ("other.example", OTHER)];
/// What the snapshot says that its children may reach.
const USUAL: &str = "usual.example:80";
const WARM_LIMIT: Duration = Duration::from_secs(120);
/// How long what a VM left may take to be ready for the next, and anything in a guest to happen.
const TIDY: Duration = Duration::from_secs(30);
const TCP: u8 = 6;
const UDP: u8 = 17;

fn a_list_lets_what_it_names_through_and_nothing_else(host: &Host) -> Result<()> {
    let internet = Internet::new(2, KNOWN)?;
    let pool = internet.pool()?;
    let tag: Tag = "e2e-egress".parse()?;
    take(host, &tag, &pool)?;
    let given = || Ok(Arc::clone(&pool));
    let on = |egress| Networks { pool: &given, egress, limits: None };
    let children = Children::fork_on(&host.dirs, &tag, 2, &on(Some(Egress::None)))?;
    let [one, other] = &*children else { anyhow::bail!("two were asked for") };
    let number = one.network()?.context("it has a network")?.number;
    let beside = other.network()?.context("so has the other")?.number;
    ensure!(number != beside, "each has its own");
    for child in [one, other] {
        ensure!(child.sh("hostname -I")? == plan::GUEST.to_string(), "all are alike inside");
    }
    answers_its_namespace(one, &internet.names, &number.namespace())?;
    for (address, port) in [(ONE, 80), (ONE, 81), (OTHER, 80), (METADATA, 80), (HOST, 80), (number.host(), 80)] {
        internet.greet(address, port)?;
    }
    // All that is not named: by address, by another port, the host, the neighbour, the metadata service.
    let shut = [
        (OTHER, 80),
        (ONE, 81),
        (METADATA, 80),
        (HOST, 80),
        (number.host(), 80),
        (plan::GATEWAY, 80),
        (beside.outside(), 80),
    ];
    let all = [&shut[..], &[(ONE, 80)]].concat();
    ensure!(reached(one, &all)?.is_empty(), "it is closed");
    let network = one.set_network(&pool, Some(&"one.example:80".parse()?), None)?;
    ensure!(reached(one, &[(ONE, 80)])?.is_empty(), "an address is not the name that is allowed");
    ensure!(reached(one, &[("one.example", 80)])? == ["one.example/80"], "what is named is open at once");
    ensure!(reached(one, &shut)?.is_empty(), "and nothing else");
    ensure!(reached(other, &[("one.example", 80)])?.is_empty(), "nor to another");
    names_say_nothing(one, &network)?;
    pretends_to_be_another(one, &network)?;
    let report = network.report()?;
    for (address, port) in all {
        let told = report.attempts.iter().any(|it| (it.address, it.port, it.protocol) == (address, Some(port), TCP));
        ensure!(told, "{address}:{port} is not among {:?}", report.attempts);
    }
    ensure!(report.sent.packets > 0 && report.received.bytes > 0, "{report:?}");
    a_change_cuts_what_is_open(one, &pool)?;
    drop(children);
    let usual = Children::fork_on(&host.dirs, &tag, 1, &on(None))?;
    ensure!(usual[0].network()?.context("it has a network")?.egress == USUAL.parse()?, "unless something else is said");
    drop(usual);
    wait_until("the networks come back", TIDY, || pool.counts() == (2, 0))?;
    remove_snapshot(&tag, Removal::Force, &host.dirs)?;
    Ok(())
}

/// Steps of a build go where the recipe lets them, and nowhere else; what they fetched is on the disk that they leave.
fn a_build_reaches_what_its_list_names(host: &Host) -> Result<()> {
    let internet = Internet::new(1, KNOWN)?;
    let lease = internet.pool()?.take(1)?.pop().context("there is a network")?;
    internet.greet(ONE, 80)?;
    internet.greet(OTHER, 80)?;
    lease.network.set_egress(&"one.example:80".parse()?)?;
    let fetch = |from: &str| format!("timeout 20 bash -c 'exec 3<>/dev/tcp/{from}/80 && head -c 5 <&3'");
    let steps = vec![
        format!("{} > /fetched", fetch("one.example")),
        format!("! {}", fetch("other.example")),
        format!("! {}", fetch(&OTHER.to_string())),
    ];
    let work = tempfile::tempdir_in(&host.dirs.cache)?;
    let path = work.path().join("disk");
    let disk = File::options().read(true).write(true).create_new(true).open(&path)?;
    let boot = BootSpec { tap: Some(Tap::of_network(lease.tap)), ..host.spec() };
    build(BuildSpec { boot, steps, limit: WARM_LIMIT }, &disk, &host.dirs, &Silent)?;
    let fetched = Command::new("/sbin/debugfs").args(["-R", "cat /fetched"]).arg(&path).output()?;
    ensure!(fetched.stdout == b"hello", "{fetched:?}");
    Ok(())
}

/// Names that are not allowed are asked of nobody, whoever is asked: what is in them stays in the guest.
fn names_say_nothing(child: &Child, network: &engine::Network) -> Result<()> {
    let asked = "twin.example secret-data.tunnel.example";
    let script = format!("for name in {asked}; do getent hosts $name && echo reached; done; true");
    ensure!(child.sh(&script)?.is_empty(), "neither another name of the same address, nor one of nobody's");
    let names = network.names_report();
    ensure!(asked.split(' ').all(|name| names.last_refused.contains(&name.to_owned())), "{names:?}");
    // A name server of its own choice.
    child.sh("bash -c 'echo question > /dev/udp/203.0.113.2/53' 2> /dev/null || true")?;
    let seen = |report: &NetworkReport| report.attempts.iter().any(|it| (it.port, it.protocol) == (Some(53), UDP));
    wait_until("its question is noted", TIDY, || network.report().is_ok_and(|report| seen(&report)))
}

/// With another address, another hardware address, or IPv6 a guest is heard by nobody.
fn pretends_to_be_another(child: &Child, network: &engine::Network) -> Result<()> {
    let spoofed = || network.report().map(|report| report.spoofed.packets);
    let knock = "timeout 2 bash -c '< /dev/tcp/198.51.100.7/80' 2> /dev/null || true";
    let before = spoofed()?;
    child.sh(&format!(
        "ip addr add 10.42.0.9/24 dev eth0 && ip route add 198.51.100.7 via 10.42.0.1 src 10.42.0.9 && {knock} && \
         ip route del 198.51.100.7 && ip addr del 10.42.0.9/24 dev eth0"
    ))?;
    wait_until("its other address is seen", TIDY, || spoofed().is_ok_and(|now| now > before))?;
    let before = spoofed()?;
    let own = child.sh("cat /sys/class/net/eth0/address")?;
    let as_another = |address: &str| format!("ip link set eth0 address {address}");
    child.sh(&format!("{} && {knock} && {}", as_another("02:00:00:00:00:09"), as_another(&own)))?;
    wait_until("its other hardware is seen", TIDY, || spoofed().is_ok_and(|now| now > before))?;
    let ipv6 = || network.report().map(|report| report.ipv6.packets);
    let before = ipv6()?;
    child.sh(
        "ip -6 addr add fd00::2/64 dev eth0 nodad && timeout 2 bash -c '< /dev/tcp/fd00::1/80' 2> /dev/null || true",
    )?;
    wait_until("its IPv6 is seen", TIDY, || ipv6().is_ok_and(|now| now > before))?;
    ensure!(reached(child, &[(ONE, 80)])? == [format!("{ONE}/80")], "as itself it is heard again");
    Ok(())
}

/// A connection that is open when the policy changes is judged by its next packet.
fn a_change_cuts_what_is_open(child: &Child, pool: &Pool) -> Result<()> {
    let talk = "exec 3<>/dev/tcp/one.example/80; head -c 5 <&3 > /tmp/up; until [ -e /tmp/go ]; do sleep 0.1; done; \
        echo x >&3; timeout 5 head -c 1 <&3";
    child.sh(&format!("rm -f /tmp/up /tmp/go /tmp/said; (bash -c '{talk}'; echo over) > /tmp/said 2> /dev/null &"))?;
    wait_until("it talks", TIDY, || child.sh("cat /tmp/up").is_ok_and(|said| said == "hello"))?;
    child.set_network(pool, Some(&Egress::None), None)?;
    child.sh("touch /tmp/go")?;
    let mut said = String::new();
    wait_until("it is over", TIDY, || {
        said = child.sh("cat /tmp/said").unwrap_or_default();
        said.ends_with("over")
    })?;
    ensure!(said == "over", "nothing came back: {said}");
    ensure!(reached(child, &[(ONE, 80)])?.is_empty(), "and it is closed again");
    Ok(())
}

/// Published clients of the host's reach a guest in its namespace; nobody in the guest, where it would make them root.
fn answers_its_namespace(child: &Child, names: &Namespaces, namespace: &str) -> Result<()> {
    let at = SocketAddr::from((plan::GUEST, lines::PORT));
    let ask = |question: Value| {
        let asked = names.enter(namespace, || Ok(lines::ask(at, &question, WARM_LIMIT)));
        Ok::<_, anyhow::Error>(asked??)
    };
    ensure!(ask(json!({ "action": "ping" }))?["pong"] == true);
    let ran = ask(json!({ "action": "exec", "args": ["hostname", "-I"] }))?;
    ensure!(ran["stdout"].as_str().is_some_and(|said| said.trim() == plan::GUEST.to_string()), "{ran}");
    let own = child.sh("for own in 10.42.0.2 127.0.0.1; do \
        timeout 5 bash -c \"exec 3<>/dev/tcp/$own/8888; echo '{\\\"action\\\":\\\"ping\\\"}' >&3; cat <&3\"; done 2> /dev/null; true")?;
    ensure!(own.is_empty(), "{own}");
    Ok(())
}

/// A snapshot that has a network card.
pub(crate) fn take(host: &Host, tag: &Tag, pool: &Pool) -> Result<()> {
    let lease = pool.take(1)?.pop().context("there is a network")?;
    let boot = BootSpec { tap: Some(Tap::of_network(lease.tap)), ..host.spec() };
    let (existing, warm_up) = (Existing::Replace, WarmUp::default());
    let (egress, recipe) = (Some(USUAL.parse()?), None);
    let spec = SnapshotSpec {
        tag: tag.clone(),
        existing,
        boot,
        egress,
        recipe,
        ports: Vec::new(),
        warm_up,
        limit: WARM_LIMIT,
    };
    snapshot(spec, &host.dirs, &Silent)?;
    Ok(())
}

/// Which of these greet the guest.
fn reached(child: &Child, places: &[(impl ToString, u16)]) -> Result<Vec<String>> {
    Ok(child.sh(&try_to_reach(places))?.lines().map(String::from).collect())
}

/// A script for a guest's shell that names those of these that greet it, one in a line.
pub(crate) fn try_to_reach(places: &[(impl ToString, u16)]) -> String {
    let list: Vec<String> = places.iter().map(|(host, port)| format!("{}/{port}", host.to_string())).collect();
    format!(
        r#"for at in {}; do [ "$(timeout 20 bash -c "exec 3<>/dev/tcp/$at && head -c 5 <&3")" = hello ] && echo $at; done 2> /dev/null; true"#,
        list.join(" ")
    )
}
