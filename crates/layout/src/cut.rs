//! The arithmetic of one tensor dim cut by mesh axes, in both directions.

use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// One axis cutting a dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Split {
    pub(crate) axis: usize,
    pub(crate) size: usize,
    pub(crate) sections: usize,
}

/// The axes on one dim, major first.
pub(crate) type Splits = SmallVec<[Split; 2]>;

/// Ascending, disjoint, non-adjacent index ranges `(lo, hi)` of one dim.
pub(crate) type Spans = SmallVec<[(usize, usize); 1]>;

/// Indices of one dim found at one set of coordinates.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) lo: usize,
    pub(crate) hi: usize,
    /// One coordinate per split.
    pub(crate) coords: SmallVec<[usize; 2]>,
}

/// Room for what most lookups find.
pub(crate) type Hits = SmallVec<[Hit; 12]>;

/// Length of cut `coord` when `len` indices are cut into `size` ceil chunks.
fn chunk_len(len: usize, size: usize, coord: usize) -> usize {
    let chunk = len.div_ceil(size);
    chunk.min(len - len.min(coord * chunk))
}

impl Split {
    /// Length of one section when `len` indices are left.
    fn section(&self, len: usize) -> usize {
        len.div_ceil(self.sections)
    }

    /// How many of `len` indices coordinate `coord` gets.
    fn kept(&self, len: usize, coord: usize) -> usize {
        let section = self.section(len);
        if section == 0 {
            return 0;
        }
        let whole = len / section;
        whole * chunk_len(section, self.size, coord) + chunk_len(len - whole * section, self.size, coord)
    }
}

/// The indices that the given coordinates hold; `coords` is indexed by mesh axis.
pub(crate) fn spans(len: usize, splits: &[Split], coords: &[usize]) -> Spans {
    let mut held: Spans = if len == 0 { Spans::new() } else { smallvec![(0, len)] };
    let mut left = len;
    for split in splits {
        let coord = coords[split.axis];
        let section = split.section(left);
        let mut next = Spans::new();
        let mut start = 0;
        while start < left {
            let size = section.min(left - start);
            let chunk = size.div_ceil(split.size);
            let lo = start + size.min(coord * chunk);
            extract(&held, lo..lo + chunk_len(size, split.size, coord), &mut next);
            start += section;
        }
        held = next;
        left = split.kept(left, coord);
    }
    held
}

/// How many indices the given coordinates hold.
pub(crate) fn held(len: usize, splits: &[Split], coords: &[usize]) -> usize {
    splits.iter().fold(len, |left, split| split.kept(left, coords[split.axis]))
}

/// Appends the part of `held` that lies at these positions of its concatenation.
fn extract(held: &[(usize, usize)], positions: Range<usize>, out: &mut Spans) {
    let mut before = 0;
    for &(lo, hi) in held {
        let first = positions.start.max(before);
        let last = positions.end.min(before + hi - lo);
        if first < last {
            let (lo, hi) = (lo + first - before, lo + last - before);
            match out.last_mut() {
                Some(previous) if previous.1 == lo => previous.1 = hi,
                _ => out.push((lo, hi)),
            }
        }
        before += hi - lo;
    }
}

/// Adds to `found` which coordinates hold the indices `want`, in ascending order of index. `pinned` gives the only
/// coordinate of interest for some axes. The work grows with the number of hits.
pub(crate) fn hits(
    len: usize,
    splits: &[Split],
    want: Range<usize>,
    pinned: &dyn Fn(usize) -> Option<usize>,
    found: &mut Hits,
) {
    if want.start < want.end {
        let before = found.len();
        let mut search = Search { splits, pinned, coords: SmallVec::new(), found, before };
        search.walk(len, want.clone(), want.start);
    }
}

struct Search<'a> {
    splits: &'a [Split],
    pinned: &'a dyn Fn(usize) -> Option<usize>,
    coords: SmallVec<[usize; 2]>,
    found: &'a mut Hits,
    /// How many were found before this search.
    before: usize,
}

impl Search<'_> {
    /// `want` are positions among the `len` indices held at `coords`; the first is index `index`.
    fn walk(&mut self, len: usize, want: Range<usize>, index: usize) {
        let Some(split) = self.splits.get(self.coords.len()) else {
            return self.push(index, index + want.len());
        };
        let section = split.section(len);
        for s in want.start / section..=(want.end - 1) / section {
            let start = s * section;
            let size = section.min(len - start);
            let lo = want.start.max(start);
            let hi = want.end.min(start + size);
            self.walk_section(split, len, s, (start, size), (lo, hi), index + lo - want.start);
        }
    }

    fn walk_section(
        &mut self,
        split: &Split,
        len: usize,
        s: usize,
        (start, size): (usize, usize),
        (lo, hi): (usize, usize),
        index: usize,
    ) {
        let chunk = size.div_ceil(split.size);
        let (mut first, mut last) = ((lo - start) / chunk, (hi - 1 - start) / chunk);
        if let Some(coord) = (self.pinned)(split.axis) {
            (first, last) = (first.max(coord), last.min(coord));
        }
        for coord in first..last + 1 {
            let from = lo.max(start + coord * chunk);
            let to = hi.min(start + (coord + 1) * chunk);
            // Positions at the next level count through the cuts of the sections before this one.
            let before = s * chunk_len(split.section(len), split.size, coord);
            let position = before + from - start - coord * chunk;
            self.coords.push(coord);
            self.walk(split.kept(len, coord), position..position + to - from, index + from - lo);
            self.coords.pop();
        }
    }

    fn push(&mut self, lo: usize, hi: usize) {
        match self.found[self.before..].last_mut() {
            Some(last) if last.hi == lo && last.coords == self.coords => last.hi = hi,
            _ => self.found.push(Hit { lo, hi, coords: SmallVec::from_slice(&self.coords) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(axis: usize, size: usize, sections: usize) -> Split {
        Split { axis, size, sections }
    }

    #[test]
    fn ceil_chunks_leave_short_and_empty_tails() {
        let held = |len, coord| spans(len, &[split(0, 4, 1)], &[coord]).to_vec();
        assert_eq!([held(10, 0), held(10, 3)], [vec![(0, 3)], vec![(9, 10)]]);
        assert_eq!([held(5, 2), held(5, 3)], [vec![(4, 5)], vec![]]);
    }

    #[test]
    fn sections_are_cut_one_by_one() {
        let held = |coord| spans(16, &[split(0, 4, 2)], &[coord]).to_vec();
        assert_eq!([held(0), held(3)], [vec![(0, 2), (8, 10)], vec![(6, 8), (14, 16)]]);
        assert_eq!(spans(7, &[split(0, 1, 3)], &[0]).to_vec(), [(0, 7)], "one coordinate has it all");
    }

    #[test]
    fn hits_are_the_inverse_of_spans() {
        let cases = [
            vec![split(0, 3, 1), split(1, 2, 1)],
            vec![split(1, 2, 3), split(0, 3, 1)],
            vec![split(0, 3, 2), split(1, 2, 2)],
            vec![split(1, 2, 1)],
            vec![],
        ];
        for splits in &cases {
            for len in 0..25 {
                let mut found = Hits::new();
                hits(len, splits, 0..len, &|_| None, &mut found);
                let mut owner = vec![None; len];
                for hit in &found {
                    for index in hit.lo..hit.hi {
                        assert!(owner[index].replace(hit.coords.clone()).is_none());
                    }
                }
                for (a, b) in (0..3).flat_map(|a| (0..2).map(move |b| (a, b))) {
                    let mine: SmallVec<[usize; 2]> = splits.iter().map(|s| [a, b][s.axis]).collect();
                    let held = spans(len, splits, &[a, b]);
                    let count: usize = held.iter().map(|(lo, hi)| hi - lo).sum();
                    assert_eq!(super::held(len, splits, &[a, b]), count, "{splits:?} {len}");
                    for index in 0..len {
                        let inside = held.iter().any(|(lo, hi)| (*lo..*hi).contains(&index));
                        assert_eq!(inside, owner[index].as_ref() == Some(&mine), "{splits:?} {len} {index}");
                    }
                }
            }
        }
    }
}
