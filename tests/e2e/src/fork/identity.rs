//! Every child is somebody of its own.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use engine::Child;
use serde_json::{Map, Value};
use session::EvalRequest;

use super::Parent;
use super::children::{Children, Py};
use crate::Test;
use crate::finding::ensure_always;
use crate::host::Host;

/// To be run when nothing else runs: it takes all there is.
pub(crate) const TESTS: &[Test] =
    &[("fork::no_two_children_share_an_identity", |host| no_two_share_an_identity(host, FEW))];
pub(crate) const LONG_TESTS: &[Test] =
    &[("fork::no_two_of_many_share_an_identity", |host| no_two_share_an_identity(host, MANY))];

const FEW: usize = 16;
const MANY: usize = 50;
/// How many children are asked at once.
const ASKERS: usize = 8;
/// How far a child's wall clock may be from the host's.
const CLOCK_ERROR: Duration = Duration::from_millis(50);
/// Everything that no two may share. The generators had all been used before the fork.
const WHO: &str = "import json\n\
    def text(path): return open(path).read().strip()\n\
    print(json.dumps(dict(\n\
      getrandom=os.getrandom(16).hex(), random=random.random(), numpy=numpy.random.random(),\n\
      numpy_generator=numpy.random.default_rng().random(), uuid=str(uuid.uuid4()), openssl=ssl.RAND_bytes(16).hex(),\n\
      hostname=os.uname().nodename, etc_hostname=text('/etc/hostname'), machine_id=text('/etc/machine-id'),\n\
      sandbox_id=text('/run/forkd/sandbox-id'), generation=text('/run/forkd/generation'))))";

fn no_two_share_an_identity(host: &Host, count: usize) -> Result<()> {
    let children = Children::fork(host, Parent::Warm, count)?;
    let shares = children.chunks(count.div_ceil(ASKERS));
    let told = thread::scope(|scope| {
        let askers: Vec<_> =
            shares.map(|share| scope.spawn(|| share.iter().map(ask).collect::<Result<Vec<_>>>())).collect();
        askers.into_iter().map(|asker| asker.join().ok().context("an asker died")?).collect::<Result<Vec<_>>>()
    })?;
    let told = told.concat();
    ensure!(told.len() == count);
    for name in told[0].keys() {
        let distinct: BTreeSet<String> = told.iter().map(|who| who[name].to_string()).collect();
        ensure_always!(distinct.len() == count, "{name}: only {} of {count} differ", distinct.len());
    }
    children.iter().try_for_each(has_the_right_time)
}

fn ask(child: &Child) -> Result<Map<String, Value>> {
    let who: Map<String, Value> = serde_json::from_str(&child.py(WHO)?)?;
    for name in ["hostname", "etc_hostname", "sandbox_id"] {
        ensure!(who[name] == child.id(), "{}: its {name} is {}", child.id(), who[name]);
    }
    Ok(who)
}

/// Asked over an open connection, a child's clock is read somewhere between question and answer.
fn has_the_right_time(child: &Child) -> Result<()> {
    let mut connection = child.connect()?;
    let request =
        EvalRequest { code: "time.time_ns(), time.monotonic() >= parent_monotonic".into(), timeout_ms: 60_000 };
    let asked = unix_time()?;
    let told = connection.eval(&request)?.value.context("no time")?;
    let answered = unix_time()?;
    let (wall, monotonic) = told.trim_matches(['(', ')']).split_once(", ").context("two values")?;
    ensure!(monotonic == "True", "{}: its monotonic clock went back", child.id());
    let wall = Duration::from_nanos(wall.parse()?);
    let early = (asked.saturating_sub(wall), wall.saturating_sub(answered));
    ensure!(
        early.0.max(early.1) <= CLOCK_ERROR,
        "{}: its clock is {:?} late or {:?} early",
        child.id(),
        early.0,
        early.1
    );
    Ok(())
}

fn unix_time() -> Result<Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}
