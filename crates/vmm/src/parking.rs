//! How the loop stops all vCPUs at a known point, and lets them go on.
//!
//! ```text
//! loop: park()  ──kick──▶  vCPU thread: out of KVM_RUN, last exit answered, I/O completed
//!       │                  waits until all of them have come so far
//!       ◀───────────────── takes its state, hands it in, waits
//!       resume() ───────▶  back into KVM_RUN          (or the process ends with them waiting)
//! ```
//!
//! No state is taken before the last vCPU has stopped: a CPU that still runs sends interrupts to the others, and memory
//! would say that they were sent where the receiver's state says that they never came.
//!
//! A parked thread holds no lock and no device; it sits in [`Parking::stop_here`].

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::thread::Pid;

use crate::sys::kick::Kick;
use crate::x86::vcpu_state::{VcpuStateError, VcpuStateV1};

/// Why the vCPUs could not be stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParkError {
    /// The VM ended meanwhile.
    #[error("the VM ended before it could be stopped")]
    Ended,
    /// A vCPU's state could not be taken; its sentence.
    #[error("vCPU {vcpu}: {source}")]
    State {
        /// Which.
        vcpu: usize,
        /// What went wrong.
        source: VcpuStateError,
    },
    /// A thread cannot be reached.
    #[error("a vCPU's thread cannot be called out of its guest: {source}")]
    Kick {
        /// What the system says.
        source: std::io::Error,
    },
}

#[derive(Debug)]
enum Place {
    Running,
    /// It has stopped, and its state is to be taken.
    Stopped,
    Parked(Box<Result<VcpuStateV1, VcpuStateError>>),
    /// Its thread is over.
    Gone,
}

/// Where vCPU threads stop when asked to.
#[derive(Debug)]
pub(crate) struct Parking {
    wanted: AtomicBool,
    lot: Mutex<Lot>,
    changed: Condvar,
}

#[derive(Debug)]
struct Lot {
    places: Vec<Place>,
    /// Who they are, of those that have come.
    threads: Vec<Option<Pid>>,
    /// How often the vCPUs were let go. Who waits waits for this to change, and not for the wish to end: the next wish
    /// may come before it has woken up.
    released: u64,
}

impl Parking {
    /// For so many vCPUs, all running.
    pub(crate) fn new(vcpus: usize) -> Self {
        let places = (0..vcpus).map(|_| Place::Running).collect();
        Self {
            wanted: AtomicBool::new(false),
            lot: Mutex::new(Lot { places, threads: vec![None; vcpus], released: 0 }),
            changed: Condvar::new(),
        }
    }

    fn lot(&self) -> MutexGuard<'_, Lot> {
        self.lot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops all vCPUs and takes their states, in order. After an error they run again.
    pub(crate) fn park(&self) -> Result<Vec<VcpuStateV1>, ParkError> {
        self.wanted.store(true, Ordering::SeqCst);
        let parked = self.gather();
        if parked.is_err() {
            self.resume();
        }
        parked
    }

    fn gather(&self) -> Result<Vec<VcpuStateV1>, ParkError> {
        // One that has not come yet will look before it runs.
        let threads = self.lot().threads.clone();
        let kicks: io::Result<Vec<Option<Kick>>> = threads.into_iter().flatten().map(Kick::give).collect();
        let _kicks = kicks.map_err(|source| ParkError::Kick { source })?;
        let mut lot = self.lot();
        while lot.places.iter().any(|place| matches!(place, Place::Running | Place::Stopped)) {
            lot = self.changed.wait(lot).unwrap_or_else(PoisonError::into_inner);
        }
        if lot.places.iter().any(|place| matches!(place, Place::Gone)) {
            return Err(ParkError::Ended);
        }
        let states = lot.places.iter_mut().map(|place| std::mem::replace(place, Place::Running));
        states
            .enumerate()
            .map(|(vcpu, place)| match place {
                Place::Parked(state) => (*state).map_err(|source| ParkError::State { vcpu, source }),
                Place::Running | Place::Stopped | Place::Gone => Err(ParkError::Ended),
            })
            .collect()
    }

    /// Lets the vCPUs go on.
    pub(crate) fn resume(&self) {
        let mut lot = self.lot();
        for place in lot.places.iter_mut().filter(|place| !matches!(place, Place::Gone)) {
            *place = Place::Running;
        }
        lot.released += 1;
        self.wanted.store(false, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// For a vCPU's thread: this is it. Before it first looks whether to stop.
    pub(crate) fn arrive(&self, vcpu: usize) {
        if let Some(thread) = self.lot().threads.get_mut(vcpu) {
            *thread = Some(rustix::thread::gettid());
        }
    }

    /// For a vCPU's thread: whether to stop now.
    pub(crate) fn wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// For a vCPU's thread: waits until all have stopped, hands in its state, and waits until it may go on.
    pub(crate) fn stop_here(&self, vcpu: usize, capture: impl FnOnce() -> Result<VcpuStateV1, VcpuStateError>) {
        let mut lot = self.lot();
        // The wish may have ended since it was seen; then nobody will ever let go who stops now.
        if !self.wanted() {
            return;
        }
        let released = lot.released;
        lot = self.stand(lot, vcpu, Place::Stopped);
        while lot.released == released && lot.places.iter().any(|place| matches!(place, Place::Running)) {
            lot = self.changed.wait(lot).unwrap_or_else(PoisonError::into_inner);
        }
        if lot.released != released {
            return;
        }
        drop(lot);
        let state = Place::Parked(Box::new(capture()));
        lot = self.lot();
        if lot.released == released {
            lot = self.stand(lot, vcpu, state);
        }
        while lot.released == released {
            lot = self.changed.wait(lot).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn stand<'a>(&self, mut lot: MutexGuard<'a, Lot>, vcpu: usize, here: Place) -> MutexGuard<'a, Lot> {
        if let Some(place) = lot.places.get_mut(vcpu) {
            *place = here;
        }
        self.changed.notify_all();
        lot
    }

    /// For a vCPU's thread: it will never stop here again.
    pub(crate) fn leave(&self, vcpu: usize) {
        if let Some(place) = self.lot().places.get_mut(vcpu) {
            *place = Place::Gone;
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::sys;

    /// Threads that count while they run, and stop when asked to.
    fn counters(parking: &Arc<Parking>, count: usize, rounds: &Arc<AtomicU64>) -> Vec<JoinHandle<()>> {
        sys::kick::install().unwrap();
        let counter = |id| {
            let (parking, rounds) = (Arc::clone(parking), Arc::clone(rounds));
            thread::spawn(move || {
                parking.arrive(id);
                while rounds.load(Ordering::SeqCst) < u64::MAX / 2 {
                    rounds.fetch_add(1, Ordering::SeqCst);
                    if parking.wanted() {
                        parking.stop_here(id, || Ok(VcpuStateV1::default()));
                    }
                }
                parking.leave(id);
            })
        };
        (0..count).map(counter).collect()
    }

    #[test]
    fn all_stand_still_until_they_may_go_on() {
        let (parking, rounds) = (Arc::new(Parking::new(3)), Arc::new(AtomicU64::new(0)));
        let threads = counters(&parking, 3, &rounds);
        for _ in 0..200 {
            assert_eq!(parking.park().unwrap().len(), 3);
            let before = rounds.load(Ordering::SeqCst);
            thread::yield_now();
            assert_eq!(rounds.load(Ordering::SeqCst), before);
            parking.resume();
            while rounds.load(Ordering::SeqCst) == before {
                thread::yield_now();
            }
        }
        rounds.store(u64::MAX / 2, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    /// What a thread takes for its state is taken when no other thread moves any more.
    #[test]
    fn no_state_is_taken_before_all_stand_still() {
        let (parking, rounds, torn) =
            (Arc::new(Parking::new(3)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        sys::kick::install().unwrap();
        let mover = |id| {
            let (parking, rounds, torn) = (Arc::clone(&parking), Arc::clone(&rounds), Arc::clone(&torn));
            thread::spawn(move || {
                parking.arrive(id);
                while rounds.fetch_add(1, Ordering::SeqCst) < u64::MAX / 2 {
                    if parking.wanted() {
                        parking.stop_here(id, || {
                            let before = rounds.load(Ordering::SeqCst);
                            (0..20).for_each(|_| thread::yield_now());
                            if rounds.load(Ordering::SeqCst) != before {
                                torn.store(true, Ordering::SeqCst);
                            }
                            Ok(VcpuStateV1::default())
                        });
                    }
                }
                parking.leave(id);
            })
        };
        let threads: Vec<_> = (0..3).map(mover).collect();
        for _ in 0..200 {
            parking.park().unwrap();
            parking.resume();
        }
        rounds.store(u64::MAX / 2, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!torn.load(Ordering::SeqCst));
    }

    #[test]
    fn who_is_gone_cannot_be_parked_and_the_others_go_on() {
        let (parking, rounds) = (Arc::new(Parking::new(2)), Arc::new(AtomicU64::new(0)));
        let threads = counters(&parking, 1, &rounds);
        parking.leave(1);
        assert!(matches!(parking.park(), Err(ParkError::Ended)));
        let before = rounds.load(Ordering::SeqCst);
        while rounds.load(Ordering::SeqCst) == before {
            thread::yield_now();
        }
        rounds.store(u64::MAX / 2, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
