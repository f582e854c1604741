//! Flat ranges of a row-major box (ZeRO shards) as boxes, and back.

use crate::region::Region;
use crate::shape::Dims;
use std::ops::Range;

/// The elements `range` of a row-major box with these extents, as boxes in ascending order.
/// At most `2n - 1` boxes for `n` dims (one for 0-d); the range is clipped to the box.
pub fn flat_boxes(extents: &[usize], range: Range<usize>) -> Vec<Region> {
    let numel: usize = extents.iter().product();
    let (start, end) = (range.start, range.end.min(numel));
    let mut boxes = Vec::new();
    if start < end {
        split(extents, &mut Dims::new(), numel, start..end, &mut boxes);
    }
    boxes
}

/// Cuts `range` of the sub-box below `prefix` into a head, whole slabs and a tail.
fn split(extents: &[usize], prefix: &mut Dims, numel: usize, range: Range<usize>, boxes: &mut Vec<Region>) {
    let dim = prefix.len();
    if range.start == range.end {
        return;
    }
    if dim == extents.len() {
        boxes.push(slab(extents, prefix, 0..1));
        return;
    }
    let stride = numel / extents[dim];
    let (first, last) = (range.start / stride, (range.end - 1) / stride);
    let below = |prefix: &mut Dims, index: usize, part: Range<usize>, boxes: &mut Vec<Region>| {
        prefix.push(index);
        split(extents, prefix, stride, part, boxes);
        prefix.pop();
    };
    let offset = range.start - first * stride;
    let rest = range.end - last * stride;
    if first == last && rest - offset < stride {
        return below(prefix, first, offset..rest, boxes);
    }
    let whole = first + usize::from(offset > 0)..last + usize::from(rest == stride);
    if offset > 0 {
        below(prefix, first, offset..stride, boxes);
    }
    if whole.start < whole.end {
        boxes.push(slab(extents, prefix, whole));
    }
    if rest < stride {
        below(prefix, last, 0..rest, boxes);
    }
}

/// The box with the dims of `prefix` fixed, `along` in the next dim, the others whole.
fn slab(extents: &[usize], prefix: &[usize], along: Range<usize>) -> Region {
    let mut lo = Dims::from_slice(prefix);
    let mut hi: Dims = prefix.iter().map(|i| i + 1).collect();
    if prefix.len() < extents.len() {
        lo.push(along.start);
        hi.push(along.end);
        lo.resize(extents.len(), 0);
        hi.extend_from_slice(&extents[hi.len()..]);
    }
    Region::from_bounds(lo, hi)
}

/// Cuts the box `want` (relative to a row-major box of these extents) where the owner of its
/// elements changes. Owner `q` has the flat range `q * chunk - offset .. (q + 1) * chunk - offset`.
/// The work done grows with the number of boxes found, not with the number of owners.
pub(crate) fn flat_owners(
    extents: &[usize],
    want: &Region,
    chunk: usize,
    offset: usize,
    found: &mut dyn FnMut(Region, usize),
) {
    if want.is_empty() || chunk == 0 {
        return;
    }
    let mut strides = Dims::from_elem(1, extents.len());
    for d in (1..extents.len()).rev() {
        strides[d - 1] = strides[d] * extents[d];
    }
    Owners { strides, chunk, offset }.cut(0, want.clone(), found);
}

struct Owners {
    strides: Dims,
    chunk: usize,
    offset: usize,
}

impl Owners {
    fn owner(&self, at: impl Iterator<Item = usize>) -> usize {
        (at.zip(&self.strides).map(|(i, s)| i * s).sum::<usize>() + self.offset) / self.chunk
    }

    /// `want` has a single index in every dim before `dim`.
    fn cut(&self, dim: usize, want: Region, found: &mut dyn FnMut(Region, usize)) {
        let first = self.owner(want.lo().iter().copied());
        let last = self.owner(want.hi().iter().map(|h| h - 1));
        if first == last {
            return found(want, first);
        }
        // Not one owner, so at least two elements: some dim from here on is longer than one.
        let stride = self.strides[dim];
        let flat_lo: usize =
            want.lo().iter().zip(&self.strides).map(|(i, s)| i * s).sum::<usize>() + self.offset;
        // From the low to the high corner of one index of this dim.
        let spread: usize = (dim + 1..want.ndim()).map(|d| (want.len(d) - 1) * self.strides[d]).sum();
        let mut index = 0;
        while index < want.len(dim) {
            let at = flat_lo + index * stride;
            let left = self.chunk - at % self.chunk;
            // How many whole indices, starting here, end before the owner changes.
            let whole =
                if left > spread { ((left - 1 - spread) / stride + 1).min(want.len(dim) - index) } else { 0 };
            let taken = whole.max(1);
            let part = narrow(&want, dim, want.lo()[dim] + index, taken);
            if whole > 0 {
                found(part, at / self.chunk);
            } else {
                self.cut(dim + 1, part, found);
            }
            index += taken;
        }
    }
}

fn narrow(region: &Region, dim: usize, lo: usize, len: usize) -> Region {
    let (mut low, mut high) = (Dims::from_slice(region.lo()), Dims::from_slice(region.hi()));
    low[dim] = lo;
    high[dim] = lo + len;
    Region::from_bounds(low, high)
}
