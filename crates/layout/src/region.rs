//! Regions: half-open boxes in the index space of a tensor.

use crate::error::{Error, Result};
use crate::shape::{Dims, Shape};
use crate::text::Scan;
use smallvec::smallvec;
use std::{fmt, str::FromStr};

/// A half-open box `lo..hi`, one range per dim. Extents form a valid [`Shape`],
/// so element counts and offsets inside a region never overflow.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region {
    lo: Dims,
    hi: Dims,
}

// A derived clone goes through the dims one by one, and plans copy many boxes.
impl Clone for Region {
    fn clone(&self) -> Region {
        Region { lo: Dims::from_slice(&self.lo), hi: Dims::from_slice(&self.hi) }
    }
}

impl Region {
    /// The box from `lo` (inside) to `hi` (outside).
    pub fn new(lo: &[usize], hi: &[usize]) -> Result<Region> {
        if lo.len() != hi.len() || lo.iter().zip(hi).any(|(l, h)| l > h) {
            return Err(Error::BadRegion { lo: lo.to_vec(), hi: hi.to_vec() });
        }
        // The far corner bounds every offset computed later.
        Shape::new(hi)?;
        Ok(Region { lo: Dims::from_slice(lo), hi: Dims::from_slice(hi) })
    }

    /// All of a tensor of this shape.
    pub fn whole(shape: &Shape) -> Region {
        Region { lo: smallvec![0; shape.ndim()], hi: Dims::from_slice(shape) }
    }

    /// Bounds known to be ordered and inside a valid shape.
    pub(crate) fn from_bounds(lo: Dims, hi: Dims) -> Region {
        debug_assert!(lo.len() == hi.len() && lo.iter().zip(&hi).all(|(l, h)| l <= h));
        Region { lo, hi }
    }

    /// First index of each dim.
    pub fn lo(&self) -> &[usize] {
        &self.lo
    }

    /// One past the last index of each dim.
    pub fn hi(&self) -> &[usize] {
        &self.hi
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.lo.len()
    }

    /// Extent of one dim.
    pub fn len(&self, dim: usize) -> usize {
        self.hi[dim] - self.lo[dim]
    }

    /// Extents of all dims.
    pub fn extents(&self) -> Dims {
        self.lo.iter().zip(&self.hi).map(|(l, h)| h - l).collect()
    }

    /// Number of elements; 1 for a 0-d region.
    pub fn numel(&self) -> usize {
        (0..self.ndim()).map(|d| self.len(d)).product()
    }

    /// True when no element is inside.
    pub fn is_empty(&self) -> bool {
        self.lo.iter().zip(&self.hi).any(|(l, h)| l == h)
    }

    /// The common box, or `None` when no element is shared or the dims differ in number.
    pub fn intersect(&self, other: &Region) -> Option<Region> {
        if self.ndim() != other.ndim() {
            return None;
        }
        let lo: Dims = self.lo.iter().zip(&other.lo).map(|(a, b)| *a.max(b)).collect();
        let hi: Dims = self.hi.iter().zip(&other.hi).map(|(a, b)| *a.min(b)).collect();
        lo.iter().zip(&hi).all(|(l, h)| l < h).then_some(Region { lo, hi })
    }

    /// True when every element of `other` is inside; an empty box is inside anything.
    pub fn contains(&self, other: &Region) -> bool {
        let inside = || (0..self.ndim()).all(|d| self.lo[d] <= other.lo[d] && other.hi[d] <= self.hi[d]);
        other.is_empty() || self.ndim() == other.ndim() && inside()
    }

    /// What is left of this box without `other`, as disjoint boxes.
    pub fn minus(&self, other: &Region) -> Vec<Region> {
        let Some(common) = self.intersect(other) else {
            return if self.is_empty() { Vec::new() } else { vec![self.clone()] };
        };
        let mut parts = Vec::new();
        let mut rest = self.clone();
        for d in 0..self.ndim() {
            for (lo, hi) in [(rest.lo[d], common.lo[d]), (common.hi[d], rest.hi[d])] {
                if lo < hi {
                    let mut part = rest.clone();
                    (part.lo[d], part.hi[d]) = (lo, hi);
                    parts.push(part);
                }
            }
            (rest.lo[d], rest.hi[d]) = (common.lo[d], common.hi[d]);
        }
        parts
    }

    /// This box in coordinates relative to the low corner of `outer`, or `None` when it sticks out.
    pub fn relative_to(&self, outer: &Region) -> Option<Region> {
        if self.ndim() != outer.ndim() || !outer.contains(self) || self.is_empty() {
            return None;
        }
        let shift = |at: &Dims| at.iter().zip(&outer.lo).map(|(a, o)| a - o).collect();
        Some(Region { lo: shift(&self.lo), hi: shift(&self.hi) })
    }

    /// The contiguous runs `(offset, len)` this box makes in the row-major storage of `outer`,
    /// in ascending order; nothing when it is empty or sticks out.
    pub fn runs(&self, outer: &Region) -> Runs {
        let Some(inner) = self.relative_to(outer) else {
            return Runs {
                extents: Dims::new(),
                strides: Dims::new(),
                at: Dims::new(),
                offset: 0,
                len: 0,
                left: 0,
            };
        };
        let sizes = outer.extents();
        let extents = inner.extents();
        let mut strides: Dims = smallvec![1; sizes.len()];
        for d in (1..sizes.len()).rev() {
            strides[d - 1] = strides[d] * sizes[d];
        }
        let offset = inner.lo.iter().zip(&strides).map(|(l, s)| l * s).sum();
        // Trailing dims taken whole melt into one run with the dim before them.
        let mut outer_dims = extents.len();
        let mut len = 1;
        while outer_dims > 0 {
            outer_dims -= 1;
            len *= extents[outer_dims];
            if extents[outer_dims] != sizes[outer_dims] {
                break;
            }
        }
        let extents = Dims::from_slice(&extents[..outer_dims]);
        let left = extents.iter().product();
        Runs { at: smallvec![0; outer_dims], extents, strides, offset, len, left }
    }
}

/// Iterator over the contiguous runs of one region inside another; see [`Region::runs`].
#[derive(Clone, Debug)]
pub struct Runs {
    extents: Dims,
    strides: Dims,
    at: Dims,
    offset: usize,
    len: usize,
    left: usize,
}

impl Iterator for Runs {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        self.left = self.left.checked_sub(1)?;
        let run = (self.offset, self.len);
        for d in (0..self.at.len()).rev() {
            self.at[d] += 1;
            self.offset += self.strides[d];
            if self.at[d] < self.extents[d] {
                break;
            }
            self.offset -= self.at[d] * self.strides[d];
            self.at[d] = 0;
        }
        Some(run)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Runs {}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (d, (lo, hi)) in self.lo.iter().zip(&self.hi).enumerate() {
            let comma = if d == 0 { "" } else { ", " };
            write!(f, "{comma}{lo}..{hi}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Region {
    type Err = Error;

    fn from_str(text: &str) -> Result<Region> {
        let mut scan = Scan::new("region", text);
        let (mut lo, mut hi) = (Dims::new(), Dims::new());
        scan.list(|scan| {
            lo.push(scan.number()?);
            scan.expect("..")?;
            hi.push(scan.number()?);
            Ok(())
        })?;
        scan.end()?;
        Region::new(&lo, &hi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(text: &str) -> Region {
        text.parse().unwrap()
    }

    #[test]
    fn runs_melt_whole_trailing_dims() {
        let outer = region("[2..6, 0..3, 0..4]");
        let runs = |text: &str| region(text).runs(&outer).collect::<Vec<_>>();
        assert_eq!(runs("[3..5, 0..3, 0..4]"), [(12, 24)]);
        assert_eq!(runs("[3..5, 1..2, 0..4]"), [(16, 4), (28, 4)]);
        assert_eq!(runs("[2..4, 1..3, 1..2]"), [(5, 1), (9, 1), (17, 1), (21, 1)]);
        assert_eq!(runs("[2..2, 0..3, 0..4]"), []);
        assert_eq!(runs("[0..3, 0..3, 0..4]"), [], "sticks out");
        assert_eq!(region("[]").runs(&region("[]")).collect::<Vec<_>>(), [(0, 1)]);
    }

    #[test]
    fn bounds_are_checked() {
        assert!(Region::new(&[2], &[1]).is_err());
        assert!(Region::new(&[0], &[1, 2]).is_err());
        assert!(Region::new(&[0, 0], &[usize::MAX, 2]).is_err());
        assert!("[0..99999999999999999999999]".parse::<Region>().is_err());
    }

    #[test]
    fn empty_boxes_are_inside_everything_and_meet_nothing() {
        let empty = region("[1..1, 0..4]");
        assert!(region("[0..2, 0..2]").contains(&empty));
        assert_eq!(empty.intersect(&region("[0..9, 0..9]")), None);
    }
}
