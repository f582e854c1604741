//! How the elements of one piece are shared out over data ranks: contiguous ranges of equal length, the last ones
//! shorter or empty.

use std::ops::Range;

/// Ranges of a flat piece, one per data rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    numel: usize,
    ranks: usize,
}

impl Share {
    /// The ranges of `numel` elements over `ranks` ranks.
    pub fn new(numel: usize, ranks: usize) -> Share {
        Share { numel, ranks: ranks.max(1) }
    }

    /// Elements in all.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// One rank's range.
    pub fn range(&self, rank: usize) -> Range<usize> {
        let chunk = self.numel.div_ceil(self.ranks);
        let at = |rank: usize| chunk.saturating_mul(rank).min(self.numel);
        at(rank)..at(rank + 1)
    }

    /// Elements of each rank.
    pub fn counts(&self) -> Vec<usize> {
        (0..self.ranks).map(|rank| self.range(rank).len()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_each_other_and_cover_everything() {
        for numel in [0, 1, 5, 6, 7, 100] {
            for ranks in [1, 2, 3, 8] {
                let share = Share::new(numel, ranks);
                let mut at = 0;
                for rank in 0..ranks {
                    assert_eq!(share.range(rank).start, at);
                    at = share.range(rank).end;
                }
                assert_eq!(at, numel);
                assert_eq!(share.counts().iter().sum::<usize>(), numel);
            }
        }
    }
}
