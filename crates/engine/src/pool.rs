//! The same work on many things, some at a time.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;

/// For each CPU so many threads work at once: they wait for a guest most of the time, and the guests need the CPUs. With
/// many more, every guest is slow at the same time and none is done.
const PER_CPU: usize = 2;
/// The fewest and the most.
const BOUNDS: (usize, usize) = (4, 64);

/// How many threads work at once on things that wait for guests.
pub(crate) fn workers() -> usize {
    thread::available_parallelism().map_or(BOUNDS.0, |cpus| cpus.get() * PER_CPU).clamp(BOUNDS.0, BOUNDS.1)
}

/// Does `work` to each thing and returns the results in the order of the things.
pub(crate) fn each<T: Send, R: Send>(things: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = things.len();
    let queue = Mutex::new(things.into_iter().enumerate());
    let done = Mutex::new((0..count).map(|_| None).collect::<Vec<Option<R>>>());
    let worker = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, thing)) = next else { return };
            let result = work(thing);
            done.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
        }
    };
    thread::scope(|scope| {
        for _ in 1..count.min(workers()) {
            // With fewer threads than wanted it only takes longer: this one works too.
            if let Err(error) = thread::Builder::new().name("worker".into()).spawn_scoped(scope, worker) {
                log::debug!("a worker is missing: {error}");
                break;
            }
        }
        worker();
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter().map(|result| result.expect("every thing was worked on")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order() {
        let doubled = each((0..500_u32).collect(), |n| n * 2);
        assert_eq!(doubled, (0..500).map(|n| n * 2).collect::<Vec<_>>());
        assert!(each(Vec::<u8>::new(), |n| n).is_empty());
    }
}
