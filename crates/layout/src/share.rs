//! A flat row of elements shared out: contiguous ranges of equal length, one after the other.

use std::ops::Range;

/// How a row of elements is shared out over ranks. The row may stand among others that are shared out as one: rank `q`
/// has the elements `q * chunk - offset .. (q + 1) * chunk - offset` of it.
///
/// ```
/// use planaria_layout::Share;
/// assert_eq!(Share::even(7, 3).counts(), [3, 3, 1]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    numel: usize,
    offset: usize,
    chunk: usize,
    ranks: usize,
}

impl Share {
    /// Ranges of equal length, the last ones shorter or empty.
    pub fn even(numel: usize, ranks: usize) -> Share {
        Share::within(0..numel, numel, ranks)
    }

    /// What equal ranges of `total` elements are of one row of them.
    pub(crate) fn within(row: Range<usize>, total: usize, ranks: usize) -> Share {
        let ranks = ranks.max(1);
        Share { numel: row.len(), offset: row.start, chunk: total.div_ceil(ranks), ranks }
    }

    /// Elements in all.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Over how many ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// One rank's range.
    pub fn range(&self, rank: usize) -> Range<usize> {
        let bound = |rank: usize| self.chunk.saturating_mul(rank).saturating_sub(self.offset).min(self.numel);
        bound(rank)..bound(rank + 1)
    }

    /// Elements of each rank.
    pub fn counts(&self) -> Vec<usize> {
        (0..self.ranks).map(|rank| self.range(rank).len()).collect()
    }

    /// Length of a range, and how much of the first one is not of this row.
    pub(crate) fn chunks(&self) -> (usize, usize) {
        (self.chunk, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows end to end, shared out as one.
    fn flat(numels: &[usize], ranks: usize) -> Vec<Share> {
        let total = numels.iter().sum();
        let start = |row: usize| numels[..row].iter().sum::<usize>();
        (0..numels.len()).map(|row| Share::within(start(row)..start(row + 1), total, ranks)).collect()
    }

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
                assert_eq!(flat(&[numel], ranks), [Share::even(numel, ranks)], "alone it is the same");
            }
        }
    }

    #[test]
    fn small_rows_together_are_balanced() {
        let numels = [5, 0, 3, 3, 1, 100, 7];
        for ranks in [1, 2, 3, 4, 7] {
            let shares = flat(&numels, ranks);
            shares.iter().zip(numels).for_each(|(share, numel)| check(share, numel));
            let total: usize = numels.iter().sum();
            let of = |rank| shares.iter().map(|share| share.range(rank).len()).sum::<usize>();
            let most = (0..ranks).map(of).max().unwrap();
            assert_eq!(most, total.div_ceil(ranks));
        }
    }
}
