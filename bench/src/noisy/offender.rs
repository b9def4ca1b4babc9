//! A guest that is at it, and what the host says of it.

use std::fmt;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use engine::{Child, Forked, Pool};

use super::offence::{CONNECTIONS, CPU_MILLIS, Limit, PACKETS_PER_SECOND};

/// How much more than its share somebody may get: shares are dealt out by periods, of which one may be cut.
const LEEWAY: f64 = 1.25;

/// One that is at it; ends with this.
pub(super) struct Offender {
    pub(super) child: Child,
    pub(super) limit: Limit,
    /// Where it floods the host. Nobody takes its connections, and nobody has to: the system keeps them open.
    pub(super) doors: Vec<TcpListener>,
    pub(super) since: Instant,
    /// What it had used of the CPU then.
    pub(super) cpu_then: Duration,
    pub(super) _alive: Forked,
}

impl fmt::Debug for Offender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offender").field("limit", &self.limit).field("hits", &self.child.hits()).finish_non_exhaustive()
    }
}

impl Offender {
    /// Whether the host says that it hit its limit.
    pub(super) fn is_stopped(&self, pool: &Pool) -> Result<bool> {
        let hits = self.child.hits()?;
        Ok(match self.limit {
            Limit::Cpu => hits.throttled,
            Limit::Memory => hits.oom_killed,
            Limit::Disk => hits.disk_full,
            Limit::Packets | Limit::Connections => self.child.managed_network(pool)?.report()?.limited.packets > 0,
        })
    }

    /// Fails when it got more than it may have. Who is over its memory is ended, and who is over its disk is told so.
    #[expect(clippy::cast_precision_loss, reason = "no number here comes near what a float cannot hold")]
    pub(super) fn is_held(&self, pool: &Pool) -> Result<()> {
        let seconds = self.since.elapsed().as_secs_f64();
        let within = |got: f64, share: f64, what: &str| {
            ensure!(got <= share * LEEWAY, "it got {got:.2} {what}, and may have {share:.2}");
            Ok(())
        };
        match self.limit {
            Limit::Memory | Limit::Disk => Ok(()),
            Limit::Cpu => {
                let (got, share) = ((cpu_time(&self.child)? - self.cpu_then).as_secs_f64(), CPU_MILLIS as f64 / 1e3);
                ensure!(got > seconds * share / 2.0, "it took only {got:.2} s of the CPU in {seconds:.2} s");
                within(got / seconds, share, "CPUs")
            }
            Limit::Packets => {
                let sent = self.child.managed_network(pool)?.report()?.sent.packets;
                // The first second's may come at once.
                within(sent as f64, f64::from(PACKETS_PER_SECOND) * (seconds + 1.0), "packets")
            }
            Limit::Connections => {
                let open: usize = self.doors.iter().map(waiting).sum::<io::Result<_>>()?;
                ensure!((1..=CONNECTIONS as usize).contains(&open), "it has {open} connections, of {CONNECTIONS}");
                Ok(())
            }
        }
    }
}

/// How many connections are open that nobody took.
fn waiting(door: &TcpListener) -> io::Result<usize> {
    door.set_nonblocking(true)?;
    let mut count = 0;
    loop {
        match door.accept() {
            Ok(_) => count += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
            Err(error) => return Err(error),
        }
    }
}

/// What a child's process has used of CPUs, its guest's use included.
pub(super) fn cpu_time(child: &Child) -> Result<Duration> {
    let pid = child.pid()?.context("its process")?;
    let mut used = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let said = fs::read_to_string(thread?.path().join("schedstat"))?;
        used += Duration::from_nanos(said.split(' ').next().context("nanoseconds")?.parse()?);
    }
    Ok(used)
}
