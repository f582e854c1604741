//! Which elements of a global tensor a local slice holds.

use crate::error::{Error, Result};
use planaria_layout::{Dims, Region, Shape};
use std::ops::Range;

/// A box of a global tensor, or a range of its flat index: the elements a local slice holds in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    shape: Dims,
    /// Extents of the box without trailing dims that are whole; the last one is the length of a run.
    local: Dims,
    /// Global index steps for each of `local`.
    steps: Dims,
    /// Global index of the first element.
    start: u64,
    len: usize,
}

impl Window {
    /// Elements `start..start + len` of the flat global index.
    pub fn flat(start: u64, len: usize) -> Window {
        let one_dim = Dims::from_slice(&[len]);
        Window { shape: one_dim.clone(), local: one_dim, steps: Dims::from_slice(&[1]), start, len }
    }

    /// A whole tensor.
    pub fn whole(shape: &Shape) -> Window {
        Window { shape: Dims::from_slice(shape), ..Window::flat(0, shape.numel()) }
    }

    /// The half-open box `lo..hi` of a tensor of shape `global`.
    pub fn of_box(global: &[usize], lo: &[usize], hi: &[usize]) -> Result<Window> {
        let global = Shape::new(global)?;
        let inside = |d: usize| lo[d] <= hi[d] && hi[d] <= global[d];
        if lo.len() != global.ndim() || hi.len() != global.ndim() || !(0..global.ndim()).all(inside) {
            let what = format!("box {lo:?}..{hi:?} does not lie inside shape {global}");
            return Err(Error::argument("window", what));
        }
        // Innermost dims that the box covers whole merge into one run with the dim before them.
        let (mut local, mut steps) = (Dims::from_slice(&[1]), Dims::from_slice(&[1]));
        let (mut start, mut step, mut whole) = (0u64, 1usize, true);
        for d in (0..global.ndim()).rev() {
            start += lo[d] as u64 * step as u64;
            let extent = hi[d] - lo[d];
            if whole {
                local[0] *= extent;
            } else {
                local.insert(0, extent);
                steps.insert(0, step);
            }
            whole = whole && extent == global[d];
            step *= global[d].max(1);
        }
        let len = local.iter().product();
        let shape = lo.iter().zip(hi).map(|(l, h)| h - l).collect();
        Ok(Window { shape, local, steps, start, len })
    }

    /// A region of a tensor of shape `global`.
    pub fn of_region(global: &Shape, region: &Region) -> Result<Window> {
        Window::of_box(global, region.lo(), region.hi())
    }

    /// Extents of the local box.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is nothing to fill.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Extents of the box, the global index step of each, and the global index of its first element.
    pub(crate) fn steps(&self) -> (&[usize], &[usize], u64) {
        (&self.local, &self.steps, self.start)
    }

    /// Calls `run(local index, global index, length)` for each contiguous piece of the local range.
    pub(crate) fn for_runs(&self, range: Range<usize>, mut run: impl FnMut(usize, u64, usize)) {
        let last = self.local.len() - 1;
        let row = self.local[last];
        let mut at = range.start;
        while at < range.end {
            let (mut rest, column) = (at / row, at % row);
            let mut start = self.start + column as u64;
            for d in (0..last).rev() {
                start += (rest % self.local[d]) as u64 * self.steps[d] as u64;
                rest /= self.local[d];
            }
            let len = (row - column).min(range.end - at);
            run(at, start, len);
            at += len;
        }
    }
}
