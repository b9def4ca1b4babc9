//! The same work on many things, some at a time.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;

/// How many threads work at once. They wait for others most of the time, so there may be more than CPUs.
pub(crate) const WORKERS: usize = 64;

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
        for _ in 1..count.min(WORKERS) {
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
