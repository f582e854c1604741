//! Reshapes as boxes: which boxes of one shape are which boxes of another with the same elements.

use planaria_layout::{Dims, Region, flat_boxes};
use std::ops::Range;

/// A box of the shape after the reshape, and the same elements as a box of the shape before.
pub(crate) type Pair = (Region, Region);

/// More boxes than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Cuts `want`, a box of a tensor of shape `after`, into boxes that are also boxes under the shape
/// `before`. Both shapes have the same number of elements, and `want` is not empty.
pub(crate) fn pairs(
    before: &[usize],
    after: &[usize],
    want: &Region,
    limit: usize,
) -> Result<Vec<Pair>, TooMany> {
    let mut all: Vec<(Bounds, Bounds)> = vec![Default::default()];
    for (old, new) in groups(before, after) {
        let found = group_pairs(&before[old], &after[new.clone()], &narrow(want, new), limit)?;
        if all.len().saturating_mul(found.len()) > limit {
            return Err(TooMany);
        }
        let joined = |(a, b): &(Bounds, Bounds)| {
            let (a, b) = (a.clone(), b.clone());
            found.iter().map(move |(x, y)| (a.with(x), b.with(y)))
        };
        all = all.iter().flat_map(joined).collect();
    }
    Ok(all.into_iter().filter_map(|(a, b)| Some((a.region()?, b.region()?))).collect())
}

#[derive(Clone, Debug, Default)]
struct Bounds {
    lo: Dims,
    hi: Dims,
}

impl Bounds {
    /// These bounds followed by those of a region.
    fn with(&self, region: &Region) -> Bounds {
        let mut bounds = self.clone();
        bounds.lo.extend_from_slice(region.lo());
        bounds.hi.extend_from_slice(region.hi());
        bounds
    }

    fn region(&self) -> Option<Region> {
        Region::new(&self.lo, &self.hi).ok()
    }
}

/// Some dims of a region.
fn narrow(region: &Region, dims: Range<usize>) -> Region {
    // Bounds inside a valid region are valid.
    Region::new(&region.lo()[dims.clone()], &region.hi()[dims]).unwrap_or_else(|_| region.clone())
}

/// The shortest runs of dims with the same number of elements on both sides.
fn groups(before: &[usize], after: &[usize]) -> Vec<(Range<usize>, Range<usize>)> {
    let (mut i, mut j) = (0, 0);
    let mut groups = Vec::new();
    while i < before.len() || j < after.len() {
        let (start_i, start_j) = (i, j);
        let (mut a, mut b) = (1usize, 1usize);
        let take = |from: &[usize], at: &mut usize, product: &mut usize| {
            if let Some(extent) = from.get(*at) {
                *product *= extent;
                *at += 1;
            }
        };
        take(before, &mut i, &mut a);
        take(after, &mut j, &mut b);
        while a != b && (i < before.len() || j < after.len()) {
            if a < b { take(before, &mut i, &mut a) } else { take(after, &mut j, &mut b) }
        }
        groups.push((start_i..i, start_j..j));
    }
    groups
}

/// The pairs within one group of dims.
fn group_pairs(before: &[usize], after: &[usize], want: &Region, limit: usize) -> Result<Vec<Pair>, TooMany> {
    if before == after {
        return Ok(vec![(want.clone(), want.clone())]);
    }
    let Ok(whole) = Region::new(&vec![0; after.len()], after) else { return Ok(Vec::new()) };
    let runs = want.runs(&whole);
    if runs.len() > limit {
        return Err(TooMany);
    }
    let mut pairs = Vec::new();
    let mut open: Vec<Range<usize>> = Vec::new();
    for (offset, len) in runs {
        open.push(offset..offset + len);
        while let Some(range) = open.pop() {
            let (new, old) = (flat_boxes(after, range.clone()), flat_boxes(before, range.clone()));
            if let ([new], [old]) = (&new[..], &old[..]) {
                pairs.push((new.clone(), old.clone()));
                continue;
            }
            // Cut where the side with more boxes is cut; boxes of a range stand in order.
            let boxes = if new.len() >= old.len() { new } else { old };
            let mut at = range.start;
            let first = open.len();
            for part in boxes {
                open.push(at..at + part.numel());
                at += part.numel();
            }
            open[first..].reverse();
            if pairs.len() + open.len() > limit {
                return Err(TooMany);
            }
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(before: &[usize], after: &[usize], want: &str) -> Vec<String> {
        let want: Region = want.parse().unwrap();
        let pairs = pairs(before, after, &want, 1 << 10).unwrap();
        pairs.iter().map(|(new, old)| format!("{new} = {old}")).collect()
    }

    #[test]
    fn split_and_merged_dims_stay_boxes() {
        assert_eq!(shown(&[6, 5], &[2, 3, 5], "[1..2, 0..3, 1..4]"), ["[1..2, 0..3, 1..4] = [3..6, 1..4]"]);
        assert_eq!(
            shown(&[2, 3, 5], &[6, 5], "[2..5, 0..2]"),
            ["[2..3, 0..2] = [0..1, 2..3, 0..2]", "[3..5, 0..2] = [1..2, 0..2, 0..2]"]
        );
        assert_eq!(shown(&[4], &[1, 4, 1], "[0..1, 1..3, 0..1]"), ["[0..1, 1..3, 0..1] = [1..3]"]);
        assert_eq!(shown(&[], &[1], "[0..1]"), ["[0..1] = []"]);
    }

    #[test]
    fn unaligned_dims_are_cut_where_both_sides_agree() {
        let found = shown(&[8, 3], &[6, 4], "[0..4, 0..4]");
        assert_eq!(
            found,
            ["[0..3, 0..4] = [0..4, 0..3]", "[3..4, 0..3] = [4..5, 0..3]", "[3..4, 3..4] = [5..6, 0..1]"]
        );
        assert_eq!(pairs(&[24], &[24, 1], &"[0..24, 0..1]".parse().unwrap(), 1).map(|p| p.len()), Ok(1));
        assert_eq!(pairs(&[24], &[6, 4], &"[0..6, 0..1]".parse().unwrap(), 2), Err(TooMany));
    }
}
