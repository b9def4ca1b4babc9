//! For how long a source does not run when it is branched, by its own clock: for the pause, and nothing holds it up for much
//! longer while the branch is written down.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use engine::Child;

use super::{Taken, log, take};
use crate::Test;
use crate::fork::{Children, Parent, Run};
use crate::host::{Host, argv};

pub(crate) const NATIVE_TESTS: &[Test] = &[("branch::only_the_pause_is_noticed", only_the_pause_is_noticed)];

const BRANCHES: usize = 15;
/// How much there is to be written each time: enough for it to take a while.
const FILLED_MIB: &str = "32";
/// How many pauses the source may be held up for, beyond what happens to it anyway.
const PAUSES: f64 = 2.0;

/// What the source says: how many ticks its clock has counted, and in how many of them at most it did nothing since it was
/// asked before.
struct Told {
    ticks: u64,
    longest: u64,
}

impl Told {
    fn by(source: &Child) -> Result<Self> {
        let said = source.run(&["gap"])?;
        let (ticks, longest) = said.split_once('\n').context("two numbers")?;
        Ok(Self { ticks: ticks.parse()?, longest: longest.parse()? })
    }
}

/// What one branch was for its source.
struct Noticed {
    /// In microseconds, as the VMM says.
    pause_us: u64,
    /// Its longest stall, in ticks: when it was branched, while the branch was written, and in as long a time without any.
    around: u64,
    after: u64,
    otherwise: u64,
}

#[expect(clippy::cast_precision_loss, reason = "a minute has fewer than 2^53 ticks")]
fn only_the_pause_is_noticed(host: &Host) -> Result<()> {
    let source = Children::fork(host, Parent::Native, 1)?;
    let source = &source[0];
    source.run(&["fill", FILLED_MIB])?;
    let _toil = source.exec(&argv(&["toil"]))?;
    let (begun, first) = (Instant::now(), Told::by(source)?);
    let noticed = (0..BRANCHES).map(|_| notice(source, host)).collect::<Result<Vec<_>>>()?;
    let ticks = Told::by(source)?.ticks - first.ticks;
    let us_per_tick = begun.elapsed().as_secs_f64() * 1e6 / ticks as f64;
    // A host that has other things to do can hold up anybody once, but not every time.
    let median = |of: fn(&Noticed) -> u64| {
        let mut all: Vec<u64> = noticed.iter().map(of).collect();
        all.sort_unstable();
        all[all.len() / 2] as f64
    };
    let pause = median(|it| it.pause_us);
    let stall = |of| median(of) * us_per_tick;
    let (around, after, otherwise) = (stall(|it| it.around), stall(|it| it.after), stall(|it| it.otherwise));
    let told = format!(
        "{BRANCHES} branches, us in the median: pause {pause:.0}, longest stall of the source when branched {around:.0}, \
         while that is written {after:.0}, otherwise {otherwise:.0}"
    );
    log(&told);
    ensure!(around.max(after) <= PAUSES * pause + otherwise, "{told}");
    Ok(())
}

fn notice(source: &Child, host: &Host) -> Result<Noticed> {
    let mut taken = Taken::new(&host.dirs);
    Told::by(source)?;
    let begun = Instant::now();
    let branch = take(source, &"e2e-stall".parse()?, &host.dirs)?;
    let (around, pause_us) = (Told::by(source)?.longest, branch.pause_us());
    taken.keep(branch)?;
    let after = Told::by(source)?.longest;
    std::thread::sleep(begun.elapsed());
    Ok(Noticed { pause_us, around, after, otherwise: Told::by(source)?.longest })
}
