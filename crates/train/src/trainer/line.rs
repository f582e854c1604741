//! Snapshots that wait to be written, oldest first: of more than may wait, the newest stay.

use planaria_ckpt::Retain;
use std::collections::{BTreeMap, VecDeque};

/// Snapshots that wait at most. All ranks have taken a snapshot before one of them takes the next but one, so that of two that wait
/// on each rank one is the same.
const WAITING: usize = 2;

/// A snapshot that waits.
#[derive(Debug)]
pub(crate) struct Held<T> {
    pub(crate) step: u64,
    /// Where it goes, with what stays there beside it.
    pub(crate) to: BTreeMap<usize, Retain>,
    pub(crate) what: T,
}

/// A snapshot whose place a newer one took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) step: u64,
    pub(crate) by: u64,
}

/// The line.
#[derive(Debug)]
pub(crate) struct Waiting<T>(VecDeque<Held<T>>);

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting(VecDeque::new())
    }
}

impl<T> Waiting<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True where one more would drop one.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= WAITING
    }

    /// Steps of the oldest and the newest.
    pub(crate) fn ends(&self) -> Option<[u64; 2]> {
        Some([self.0.front()?.step, self.0.back()?.step])
    }

    /// Adds a snapshot; of more than can wait, the oldest is dropped.
    pub(crate) fn post(&mut self, held: Held<T>) -> Option<Dropped> {
        self.0.push_back(held);
        if self.0.len() > WAITING { self.drop_first() } else { None }
    }

    /// Drops those before a step, as far as others are there to take their places.
    pub(crate) fn drop_before(&mut self, step: u64) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        while self.0.len() > 1 && self.0.front().is_some_and(|first| first.step < step) {
            dropped.extend(self.drop_first());
        }
        dropped
    }

    /// The oldest, to be written.
    pub(crate) fn pop(&mut self) -> Option<Held<T>> {
        self.0.pop_front()
    }

    /// Drops the first one; the one after it goes where that one should have gone.
    fn drop_first(&mut self) -> Option<Dropped> {
        let old = self.0.pop_front()?;
        let next = self.0.front_mut()?;
        for (place, retain) in old.to {
            next.to.entry(place).or_insert(retain);
        }
        Some(Dropped { step: old.step, by: next.step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_snapshot_goes_where_the_dropped_one_should_have_gone() {
        let held = |step: u64, to: &[usize]| Held {
            step,
            to: to.iter().map(|&place| (place, Retain::default())).collect(),
            what: (),
        };
        let mut line = Waiting::default();
        assert_eq!(line.post(held(4, &[0, 1])), None);
        assert_eq!((line.post(held(5, &[1])), line.is_full()), (None, true));
        assert_eq!(line.post(held(6, &[1])), Some(Dropped { step: 4, by: 5 }));
        assert_eq!(line.ends(), Some([5, 6]));
        assert_eq!(line.drop_before(9), [Dropped { step: 5, by: 6 }], "the last one stays");
        assert_eq!(line.pop().unwrap().to.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert!(line.is_empty());
    }
}
