//! How the elements of pieces are shared out over data ranks: contiguous ranges, one after the other.

use std::ops::Range;
use std::sync::Arc;

/// Ranges of a flat piece, one per data rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Where each rank's range begins, and the end.
    bounds: Arc<[usize]>,
}

impl Share {
    /// Ranges of equal length, the last ones shorter or empty.
    pub fn even(numel: usize, ranks: usize) -> Share {
        Share::within(0..numel, numel, ranks)
    }

    /// Of pieces that lie end to end and are shared out as one: a piece may lie with some ranks only.
    pub fn flat(numels: &[usize], ranks: usize) -> Vec<Share> {
        let total = numels.iter().sum();
        let end_to_end = numels.iter().scan(0, |at, numel| {
            let start = std::mem::replace(at, *at + numel);
            Some(start..*at)
        });
        end_to_end.map(|piece| Share::within(piece, total, ranks)).collect()
    }

    /// What equal ranges of `total` elements are of one piece of them.
    fn within(piece: Range<usize>, total: usize, ranks: usize) -> Share {
        let ranks = ranks.max(1);
        let chunk = total.div_ceil(ranks);
        let bound = |rank: usize| chunk.saturating_mul(rank).clamp(piece.start, piece.end) - piece.start;
        Share { bounds: (0..=ranks).map(bound).collect() }
    }

    /// Elements in all.
    pub fn numel(&self) -> usize {
        self.bounds[self.ranks()]
    }

    /// Data ranks.
    pub fn ranks(&self) -> usize {
        self.bounds.len() - 1
    }

    /// One rank's range.
    pub fn range(&self, rank: usize) -> Range<usize> {
        self.bounds[rank]..self.bounds[rank + 1]
    }

    /// Elements of each rank.
    pub fn counts(&self) -> Vec<usize> {
        (0..self.ranks()).map(|rank| self.range(rank).len()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(share: &Share, numel: usize) {
        let mut at = 0;
        for rank in 0..share.ranks() {
            assert_eq!(share.range(rank).start, at);
            at = share.range(rank).end;
        }
        assert_eq!((at, share.numel(), share.counts().iter().sum::<usize>()), (numel, numel, numel));
    }

    #[test]
    fn ranges_follow_each_other_and_cover_everything() {
        for numel in [0, 1, 5, 6, 7, 100] {
            for ranks in [1, 2, 3, 8] {
                check(&Share::even(numel, ranks), numel);
                assert_eq!(Share::flat(&[numel], ranks), [Share::even(numel, ranks)], "alone it is the same");
            }
        }
    }

    #[test]
    fn small_pieces_together_are_balanced() {
        let numels = [5, 0, 3, 3, 1, 100, 7];
        for ranks in [1, 2, 3, 4, 7] {
            let shares = Share::flat(&numels, ranks);
            shares.iter().zip(numels).for_each(|(share, numel)| check(share, numel));
            let total: usize = numels.iter().sum();
            let of = |rank| shares.iter().map(|share| share.range(rank).len()).sum::<usize>();
            let most = (0..ranks).map(of).max().unwrap();
            assert_eq!(most, total.div_ceil(ranks));
        }
    }
}
