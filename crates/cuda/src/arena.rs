//! Who has which part of the segments of one lane: best fit, neighbours merged. Addresses only, no device.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Blocks start at multiples of this.
pub(crate) const ALIGN: usize = 512;

/// The parts of some segments: free ones by size and by address, taken ones by address.
#[derive(Default)]
pub(crate) struct Arena {
    segments: BTreeMap<u64, usize>,
    free: BTreeMap<u64, usize>,
    by_size: BTreeSet<(usize, u64)>,
    taken: HashMap<u64, Taken>,
}

/// A part in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: usize,
    pub(crate) op: &'static str,
}

impl Arena {
    /// Adds a fresh segment, which is free.
    pub(crate) fn add(&mut self, address: u64, bytes: usize) {
        self.segments.insert(address, bytes);
        self.insert_free(address, bytes);
    }

    /// The smallest free part that holds `bytes` (a multiple of [`ALIGN`]), cut to size.
    pub(crate) fn take(&mut self, bytes: usize, op: &'static str) -> Option<u64> {
        let &(size, address) = self.by_size.range((bytes, 0)..).next()?;
        self.remove_free(address, size);
        if size > bytes {
            self.insert_free(address + bytes as u64, size - bytes);
        }
        self.taken.insert(address, Taken { bytes, op });
        Some(address)
    }

    /// Frees what starts at `address`; answers what it was.
    pub(crate) fn give(&mut self, address: u64) -> Option<Taken> {
        let taken = self.taken.remove(&address)?;
        let (mut start, mut bytes) = (address, taken.bytes);
        let segment = self.segment_of(address);
        let before = self.free.range(..address).next_back().map(|(&a, &b)| (a, b));
        if let Some((a, b)) =
            before.filter(|&(a, b)| a + b as u64 == address && self.segment_of(a) == segment)
        {
            self.remove_free(a, b);
            (start, bytes) = (a, b + bytes);
        }
        let after = address + taken.bytes as u64;
        let next = self.free.get(&after).copied().filter(|_| self.segment_of(after) == segment);
        if let Some(b) = next {
            self.remove_free(after, b);
            bytes += b;
        }
        self.insert_free(start, bytes);
        Some(taken)
    }

    /// Takes out the segments of which nothing is in use.
    pub(crate) fn release(&mut self) -> Vec<(u64, usize)> {
        let empty: Vec<(u64, usize)> = self
            .segments
            .iter()
            .map(|(&a, &b)| (a, b))
            .filter(|(a, b)| self.free.get(a) == Some(b))
            .collect();
        for &(address, bytes) in &empty {
            self.segments.remove(&address);
            self.remove_free(address, bytes);
        }
        empty
    }

    /// All segments, whatever they hold.
    pub(crate) fn segments(&self) -> impl Iterator<Item = u64> {
        self.segments.keys().copied()
    }

    /// Bytes of all segments.
    pub(crate) fn reserved(&self) -> usize {
        self.segments.values().sum()
    }

    /// The largest free part.
    pub(crate) fn largest(&self) -> usize {
        self.by_size.last().map_or(0, |&(size, _)| size)
    }

    /// Bytes in use by operation.
    pub(crate) fn held(&self) -> BTreeMap<&'static str, usize> {
        let mut held = BTreeMap::new();
        for taken in self.taken.values() {
            *held.entry(taken.op).or_insert(0) += taken.bytes;
        }
        held
    }

    fn segment_of(&self, address: u64) -> Option<u64> {
        self.segments.range(..=address).next_back().map(|(&a, _)| a)
    }

    fn insert_free(&mut self, address: u64, bytes: usize) {
        self.free.insert(address, bytes);
        self.by_size.insert((bytes, address));
    }

    fn remove_free(&mut self, address: u64, bytes: usize) {
        self.free.remove(&address);
        self.by_size.remove(&(bytes, address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any order of taking and giving: parts never overlap, and when all is given back each segment is whole.
        #[test]
        fn parts_never_overlap_and_merge_again(
            steps in prop::collection::vec((1usize..40, any::<prop::sample::Index>(), any::<bool>()), 1..120),
        ) {
            let mut arena = Arena::default();
            // Two segments that touch: parts must not merge across them.
            arena.add(1 << 20, 64 * ALIGN);
            arena.add((1 << 20) + (64 * ALIGN) as u64, 64 * ALIGN);
            let mut live: Vec<(u64, usize)> = Vec::new();
            for (size, pick, give) in steps {
                if give && !live.is_empty() {
                    let (address, bytes) = live.swap_remove(pick.index(live.len()));
                    prop_assert_eq!(arena.give(address).map(|t| t.bytes), Some(bytes));
                } else if let Some(address) = arena.take(size * ALIGN, "test") {
                    let bytes = size * ALIGN;
                    for &(a, b) in &live {
                        prop_assert!(address + bytes as u64 <= a || a + b as u64 <= address);
                    }
                    live.push((address, bytes));
                }
            }
            for (address, _) in live {
                arena.give(address);
            }
            prop_assert_eq!(arena.largest(), 64 * ALIGN);
            prop_assert_eq!(arena.release().len(), 2);
            prop_assert_eq!(arena.reserved(), 0);
        }
    }

    #[test]
    fn the_best_fit_is_taken_and_holders_are_named() {
        let mut arena = Arena::default();
        arena.add(0x10000, 10 * ALIGN);
        arena.add(0x90000, 3 * ALIGN);
        assert_eq!(arena.take(3 * ALIGN, "small"), Some(0x90000));
        assert_eq!(arena.take(11 * ALIGN, "big"), None);
        assert_eq!(arena.held().into_iter().collect::<Vec<_>>(), [("small", 3 * ALIGN)]);
        assert_eq!(arena.release(), [(0x10000, 10 * ALIGN)]);
        assert_eq!(arena.give(0x10000), None);
    }
}
