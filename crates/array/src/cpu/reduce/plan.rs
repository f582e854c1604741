//! How a strided view is walked by a reduction: in the order of its memory, kept and reduced dims merged into runs.

use crate::cpu::copy::Geometry;
use smallvec::SmallVec;

/// A run of neighbouring dims that are all kept or all reduced and step evenly through memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Group {
    reduced: bool,
    len: usize,
    stride: isize,
}

/// A view prepared for reduction. Results come out with the kept dims in memory order, see [`Plan::kept`].
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    offset: usize,
    groups: SmallVec<[Group; 6]>,
    /// The kept dims of the view in the order in which results are laid out.
    pub(crate) kept: SmallVec<[usize; 6]>,
}

/// One dim outside the reduction proper: extent, step through the data, step through the results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    len: usize,
    stride: isize,
    result: usize,
}

/// One sweep over memory that folds a single run of dims: `outer` x `n` x `width`, the last one contiguous.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    offset: usize,
    outer: SmallVec<[Outer; 6]>,
    /// Elements folded into one.
    pub(crate) n: usize,
    /// Step between them; 1 exactly when they lie side by side and `width` is 1.
    pub(crate) stride: usize,
    /// Neighbouring results whose elements lie side by side.
    pub(crate) width: usize,
}

/// What is left to fold after the first pass: slabs of `n` x `width` partial results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) outer: usize,
    pub(crate) n: usize,
    pub(crate) width: usize,
}

impl Plan {
    /// A view that has elements, with the dims to reduce.
    pub(crate) fn new(offset: usize, shape: &[usize], strides: &[isize], reduced: &[bool]) -> Plan {
        let mut order: SmallVec<[usize; 6]> = (0..shape.len()).collect();
        // Dims of size 1 go first: their strides mean nothing and must not disturb the order of the others.
        order.sort_by_key(|&d| if shape[d] == 1 { isize::MIN } else { strides[d].saturating_neg() });
        // Runs must not depend on the sizes of kept dims, because they decide the rounding: reduced dims around a kept
        // one stay apart even where that has size 1.
        let kept_at =
            |stride: isize| (0..shape.len()).any(|d| !reduced[d] && shape[d] == 1 && strides[d] == stride);
        let mut groups: SmallVec<[Group; 6]> = SmallVec::new();
        for &d in order.iter().filter(|&&d| shape[d] != 1) {
            let next = Group { reduced: reduced[d], len: shape[d], stride: strides[d] };
            match groups.last_mut() {
                Some(g)
                    if g.reduced == next.reduced
                        && g.stride == next.stride * next.len as isize
                        && !(g.reduced && kept_at(g.stride)) =>
                {
                    *g = Group { len: g.len * next.len, ..next };
                }
                _ => groups.push(next),
            }
        }
        let kept = order.into_iter().filter(|&d| !reduced[d]).collect();
        Plan { offset, groups, kept }
    }

    /// False when the view cannot be walked in slices (no dim with step 1, repeated or reversed dims):
    /// reduce a contiguous copy then.
    pub(crate) fn walkable(&self) -> bool {
        self.groups.iter().all(|g| g.stride > 0) && self.groups.last().is_none_or(|g| g.stride == 1)
    }

    /// True when all reduced dims were merged into one run (or there are none).
    pub(crate) fn is_one_run(&self) -> bool {
        self.groups.iter().filter(|g| g.reduced).count() <= 1
    }

    /// The sweep over the data, which folds the innermost reduced run.
    pub(crate) fn first_pass(&self) -> Pass {
        let folded = self.groups.iter().rposition(|g| g.reduced);
        let width = self.groups.last().filter(|g| !g.reduced).map_or(1, |g| g.len);
        let end = self.groups.len() - usize::from(width > 1);
        let mut result = width;
        let mut outer: SmallVec<[Outer; 6]> = SmallVec::new();
        for (_, g) in self.groups[..end].iter().enumerate().rev().filter(|&(i, _)| Some(i) != folded) {
            outer.push(Outer { len: g.len, stride: g.stride, result: if g.reduced { 0 } else { result } });
            result *= if g.reduced { 1 } else { g.len };
        }
        outer.reverse();
        let (n, stride) = folded.map_or((1, 1), |i| (self.groups[i].len, self.groups[i].stride as usize));
        Pass { offset: self.offset, outer, n, stride, width }
    }

    /// The reduced runs that the first pass leaves, in the order in which to fold them.
    pub(crate) fn rest(&self) -> SmallVec<[Rest; 2]> {
        let mut steps = SmallVec::new();
        let Some(folded) = self.groups.iter().rposition(|g| g.reduced) else { return steps };
        let mut left: SmallVec<[Group; 6]> = self.groups.clone();
        left.remove(folded);
        while let Some(i) = left.iter().rposition(|g| g.reduced) {
            let product = |groups: &[Group]| groups.iter().map(|g| g.len).product();
            steps.push(Rest { outer: product(&left[..i]), n: left[i].len, width: product(&left[i + 1..]) });
            left.remove(i);
        }
        steps
    }
}

impl Pass {
    /// All places of the dims other than `dim`, in row-major order, and the step along `dim`.
    pub(crate) fn across(view: Geometry<'_>, dim: usize) -> (Pass, isize) {
        let dims = view.shape.iter().zip(view.strides).enumerate();
        let others = dims.filter(|&(d, _)| d != dim);
        let outer = others.map(|(_, (&len, &stride))| Outer { len, stride, result: 0 }).collect();
        let stride = view.strides.get(dim).copied().unwrap_or(1);
        (Pass { offset: view.offset, outer, n: 1, stride: 1, width: 1 }, stride)
    }

    /// Number of results of the pass.
    pub(crate) fn results(&self) -> usize {
        self.outer.iter().map(|d| d.len).product::<usize>() * self.width
    }

    /// True when the elements of one result lie side by side.
    pub(crate) fn is_rows(&self) -> bool {
        self.width == 1
    }

    /// Where outer position `index` and those after it begin.
    #[inline(always)]
    pub(crate) fn walk(&self, index: usize) -> Walk<'_> {
        let mut coord: SmallVec<[usize; 6]> = SmallVec::from_elem(0, self.outer.len());
        let (mut data, mut result, mut rest) = (self.offset as isize, 0, index);
        for (i, d) in self.outer.iter().enumerate().rev() {
            coord[i] = rest % d.len;
            rest /= d.len;
            data += coord[i] as isize * d.stride;
            result += coord[i] * d.result;
        }
        Walk { outer: &self.outer, coord, data, result }
    }
}

/// A position in the outer dims of a [`Pass`].
pub(crate) struct Walk<'a> {
    outer: &'a [Outer],
    coord: SmallVec<[usize; 6]>,
    data: isize,
    result: usize,
}

impl Walk<'_> {
    /// First element in the data.
    #[inline(always)]
    pub(crate) fn data(&self) -> usize {
        self.data as usize
    }

    /// First result.
    #[inline(always)]
    pub(crate) fn result(&self) -> usize {
        self.result
    }

    /// Moves on by one outer position.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        for i in (0..self.outer.len()).rev() {
            let d = self.outer[i];
            self.coord[i] += 1;
            self.data += d.stride;
            self.result += d.result;
            if self.coord[i] < d.len {
                return;
            }
            self.data -= d.stride * d.len as isize;
            self.result -= d.result * d.len;
            self.coord[i] = 0;
        }
    }
}
