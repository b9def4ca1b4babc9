//! A child's wall clock: right when the child is ready, however long it waited for a CPU before it could listen.
//!
//! A clock is set to the time at which it was told, and is late by as long as that was under way. Where many children
//! start on few CPUs that can be a tenth of a second, so what was told late is told again.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use session::{Connection, SessionError};

/// How far the clock of a ready child may be off.
const MAX_ERROR: Duration = Duration::from_millis(25);
/// How often it is told. Each time is another chance that nobody is in the way.
const MAX_TRIES: usize = 16;

/// The wall clock in so long a time, in nanoseconds since 1970.
pub(super) fn unix_ns(ahead: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from((now + ahead).as_nanos()).unwrap_or(u64::MAX)
}

/// Sets the clock again, until question and answer were quick enough to say that it is right. `under_way` is how long
/// question and answer of the renewal, which told the time first, were not in anybody's hands.
pub(super) fn adjust(connection: &mut Connection, mut under_way: Duration) -> Result<(), SessionError> {
    let mut ahead = Duration::ZERO;
    for _ in 0..MAX_TRIES {
        // It was set at some moment of the way to `ahead` of the way's beginning.
        if under_way <= ahead + MAX_ERROR {
            return Ok(());
        }
        ahead = (under_way / 2).min(MAX_ERROR);
        let asked = Instant::now();
        connection.set_clock(unix_ns(ahead))?;
        under_way = asked.elapsed();
    }
    log::info!("a child's clock may be off by {under_way:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use proto::codec::{read_message, write_message};
    use proto::guest::{AgentHello, GENERATION, Reply, Request};

    use super::*;

    /// How often a clock is set when its renewal was so long under way and every answer takes `slow`.
    fn times_set(under_way: Duration, slow: Duration) -> usize {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let agent = thread::spawn(move || {
            let mut times = 0;
            while let Some(request) = read_message(&mut theirs).unwrap() {
                let reply = match request {
                    Request::Hello { .. } => Reply::Hello(AgentHello {
                        generation: GENERATION,
                        agent: String::new(),
                        kernel: String::new(),
                        boot_ms: 0,
                    }),
                    Request::SetClock { .. } => {
                        times += 1;
                        thread::sleep(slow);
                        Reply::Done
                    }
                    other => panic!("{other:?}"),
                };
                write_message(&mut theirs, &reply).unwrap();
            }
            times
        });
        let mut connection = Connection::open(ours, None, Duration::from_secs(10)).unwrap();
        adjust(&mut connection, under_way).unwrap();
        drop(connection);
        agent.join().unwrap()
    }

    #[test]
    fn a_clock_that_was_told_in_time_is_left_alone() {
        assert_eq!(times_set(MAX_ERROR, Duration::ZERO), 0);
    }

    #[test]
    fn one_that_was_told_late_is_told_again_and_not_for_ever() {
        let late = Duration::from_secs(1);
        assert!((1..=MAX_TRIES).contains(&times_set(late, Duration::ZERO)));
        assert_eq!(times_set(late, MAX_ERROR * 2 + Duration::from_millis(1)), MAX_TRIES);
    }
}
