//! The two programs in the guest. Each ends by itself after a while, so that nobody waits for ever.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use engine::Child;
use serde::Deserialize;
use session::{Event, Exec, ExecRequest, StdinWriter, Stdio};

/// Longer than a round takes, also in the emulated host.
const LIFE: Duration = Duration::from_secs(600);
/// More than a line of theirs has.
const MAX_LINE: usize = 64 << 10;
/// How often the guest is asked for the time, to know it from the quickest answer.
const ASKED_FOR_TIME: usize = 5;

/// Writes memory and a file until dropped.
pub(super) struct Writer(#[expect(dead_code, reason = "the program ends with it")] Exec);

impl Writer {
    /// Starts it and waits until it has written everything once.
    pub(super) fn start(child: &Child, mib: u64) -> Result<Self> {
        let mut exec = child.exec(&python(include_str!("../../../writer.py"), &[mib.to_string()], Stdio::Output))?;
        let line = read_line(&mut exec)?;
        ensure!(line == "written\n", "the writer said {line:?}");
        Ok(Self(exec))
    }
}

/// Notices when it does not run.
pub(super) struct Stamper {
    exec: Exec,
    stdin: StdinWriter,
}

/// What it says, in microseconds of the guest's clock.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Stamps {
    now_us: f64,
    /// The longest since it was last asked: when they ended, and how long they were.
    pub(super) gaps: Vec<(f64, f64)>,
}

impl Stamps {
    pub(super) fn longest_us(&self) -> f64 {
        self.gaps.iter().map(|(_, gap)| *gap).fold(0.0, f64::max)
    }
}

/// The guest's clock as the host's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    instant: Instant,
    guest_us: f64,
    /// How far it may be off.
    pub(super) error_us: f64,
}

impl Clock {
    /// Microseconds from an instant of the host's, which is not earlier than the clock, to one of the guest's.
    pub(super) fn since(&self, instant: Instant, guest_us: f64) -> f64 {
        guest_us - self.guest_us - us(instant.saturating_duration_since(self.instant))
    }
}

impl Stamper {
    pub(super) fn start(child: &Child) -> Result<Self> {
        let exec = child.exec(&python(include_str!("../../../stamper.py"), &[], Stdio::Pipes))?;
        let stdin = exec.stdin();
        Ok(Self { exec, stdin })
    }

    pub(super) fn ask(&mut self) -> Result<Stamps> {
        self.stdin.write_all(b"\n")?;
        Ok(serde_json::from_str(&read_line(&mut self.exec)?)?)
    }

    /// Forgets what it noticed so far.
    pub(super) fn clock(&mut self) -> Result<Clock> {
        let mut best: Option<Clock> = None;
        for _ in 0..ASKED_FOR_TIME {
            let asked = Instant::now();
            let guest_us = self.ask()?.now_us;
            let took = asked.elapsed();
            let clock = Clock { instant: asked + took / 2, guest_us, error_us: us(took / 2) };
            if best.is_none_or(|best| clock.error_us < best.error_us) {
                best = Some(clock);
            }
        }
        best.ok_or_else(|| anyhow::anyhow!("the guest was never asked"))
    }
}

fn python(program: &str, words: &[String], stdio: Stdio) -> ExecRequest {
    let argv = ["python3", "-c", program].map(str::to_owned).into_iter().chain(words.iter().cloned()).collect();
    let timeout_ms = u64::try_from(LIFE.as_millis()).ok();
    ExecRequest { argv, timeout_ms, stdio, ..ExecRequest::default() }
}

/// What it says up to the end of a line, which is all it says at a time.
fn read_line(exec: &mut Exec) -> Result<String> {
    let (mut line, mut complaints) = (Vec::new(), Vec::new());
    while line.last() != Some(&b'\n') {
        match exec.next_event()? {
            Event::Stdout(bytes) => line.extend(bytes),
            Event::Stderr(bytes) => complaints.extend(bytes),
            Event::Exited { status, .. } => {
                bail!("a program in the guest ended with {status:?}: {}", String::from_utf8_lossy(&complaints))
            }
        }
        ensure!(line.len() + complaints.len() <= MAX_LINE, "a program in the guest says more than {MAX_LINE} bytes");
    }
    Ok(String::from_utf8(line)?)
}

pub(super) fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_tells_the_guests_time_from_an_instant_of_the_hosts() {
        let instant = Instant::now();
        let clock = Clock { instant, guest_us: 5000.0, error_us: 10.0 };
        assert_eq!(clock.since(instant + Duration::from_millis(2), 8500.0), 1500.0);
        assert_eq!(clock.since(instant, 4000.0), -1000.0);
    }
}
