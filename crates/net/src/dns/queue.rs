//! The questions on their way: how many there are of each sandbox, and who makes room when there is none.
//!
//! No sandbox can keep the others from asking: when all places are taken, the one that has the most gives up its oldest
//! for one that has fewer.

use std::collections::HashMap;

use crate::plan::Number;

/// How many questions may wait for an answer, of one sandbox and of all.
const MAX_OF_ONE: usize = 32;
const MAX: usize = 1024;
/// Beyond the numbers of networks, which share a space with these.
pub(super) const FIRST: u64 = 1 << 32;

/// No place is left that this sandbox could have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many questions wait for an answer")]
pub(super) struct Full;

/// Questions, by numbers that are never given out again.
#[derive(Debug)]
pub(super) struct Queue<T> {
    waiting: HashMap<u64, (Number, T)>,
    counts: HashMap<Number, usize>,
    next: u64,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { waiting: HashMap::new(), counts: HashMap::new(), next: FIRST }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.waiting.get(&number).map(|(_, question)| question)
    }

    /// Sees to it that this sandbox can have one more question; the answer is one that is given up for it.
    pub(super) fn make_room(&mut self, asker: Number) -> Result<Option<T>, Full> {
        let own = self.count(asker);
        if own >= MAX_OF_ONE {
            return Err(Full);
        }
        if self.waiting.len() < MAX {
            return Ok(None);
        }
        let greediest = self.counts.iter().max_by_key(|(_, count)| **count).map(|(number, count)| (*number, *count));
        let (greediest, _) = greediest.filter(|(_, count)| *count > own + 1).ok_or(Full)?;
        let oldest = self.waiting.iter().filter(|(_, (of, _))| *of == greediest).map(|(number, _)| *number).min();
        Ok(oldest.and_then(|oldest| self.remove(oldest)))
    }

    /// Takes in a question.
    pub(super) fn add(&mut self, asker: Number, question: T) -> u64 {
        let number = self.next;
        // 64 bits do not run out.
        self.next += 1;
        self.waiting.insert(number, (asker, question));
        *self.counts.entry(asker).or_default() += 1;
        number
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let (asker, question) = self.waiting.remove(&number)?;
        if let Some(count) = self.counts.get_mut(&asker) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&asker);
            }
        }
        Some(question)
    }

    /// Nobody asks any more.
    pub(super) fn forget(&mut self, asker: Number) {
        self.waiting.retain(|_, (of, _)| *of != asker);
        self.counts.remove(&asker);
    }

    /// The numbers of those that are so.
    pub(super) fn those(&self, are_so: impl Fn(&T) -> bool) -> Vec<u64> {
        self.waiting.iter().filter(|(_, (_, question))| are_so(question)).map(|(number, _)| *number).collect()
    }

    fn count(&self, asker: Number) -> usize {
        self.counts.get(&asker).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(queue: &mut Queue<u16>, asker: u16) -> Result<Option<u16>, Full> {
        let evicted = queue.make_room(Number::new(asker))?;
        queue.add(Number::new(asker), asker);
        Ok(evicted)
    }

    #[test]
    fn one_has_so_many_and_no_more() {
        let mut queue = Queue::new();
        (0..MAX_OF_ONE).for_each(|_| assert_eq!(ask(&mut queue, 1), Ok(None)));
        assert_eq!(ask(&mut queue, 1), Err(Full));
        assert_eq!(ask(&mut queue, 2), Ok(None));
        assert_eq!(queue.remove(FIRST), Some(1));
        assert_eq!(ask(&mut queue, 1), Ok(None));
        queue.forget(Number::new(1));
        assert_eq!((queue.those(|_| true).len(), queue.counts.len()), (1, 1));
    }

    #[test]
    fn those_who_have_few_are_not_kept_out_by_those_who_have_many() {
        let mut queue = Queue::new();
        let greedy = u16::try_from(MAX / MAX_OF_ONE).unwrap();
        for asker in (0..greedy).cycle().take(MAX) {
            assert_eq!(ask(&mut queue, asker), Ok(None));
        }
        let evicted = ask(&mut queue, 1000).unwrap().unwrap();
        assert!(evicted < greedy);
        assert_eq!(queue.those(|_| true).len(), MAX);
        // In the end all of them have as many.
        let newcomers = 1000..1000 + greedy;
        newcomers.cycle().take(10 * MAX).for_each(|asker| drop(ask(&mut queue, asker)));
        let half = MAX_OF_ONE / 2;
        assert!(queue.counts.values().all(|count| (half - 1..=half + 1).contains(count)), "{:?}", queue.counts);
    }
}
