//! Copies between strided and contiguous memory, with a tiled path for transposed views.

use super::stream::{self, Store};
use super::strided::{Operand, OperandMut};
use super::transpose::{SIDE, tile};
use bytemuck::Pod;
use planaria_cpu::pool;
use smallvec::SmallVec;
use std::ops::Range;

/// Geometry of a view: extents and element steps, outermost first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry<'a> {
    pub(crate) offset: usize,
    pub(crate) shape: &'a [usize],
    pub(crate) strides: &'a [isize],
}

/// Writes the view's elements to `out` in row-major order.
pub(crate) fn to_contiguous<T: Pod + Send + Sync>(data: &[T], view: Geometry<'_>, out: &mut [T]) {
    let operand = Operand::new(data, view.offset, view.shape, view.strides);
    if let Some(src) = operand.as_slice() {
        return stream::copy_all(src, out);
    }
    if let Some(plan) = Transpose::find(view) {
        return plan.run(data, out);
    }
    let unit = operand.block_len();
    pool::for_chunks_mut(out, unit, 2 * size_of::<T>(), |at, piece| {
        operand.gather(at..at + piece.len(), piece)
    });
}

/// Dims by decreasing step in memory.
fn memory_order(strides: &[isize]) -> SmallVec<[usize; 6]> {
    let mut order: SmallVec<[usize; 6]> = (0..strides.len()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d].unsigned_abs()));
    order
}

/// Writes `src` (a view of the same shape) to the view `dst`; false when the cells of `dst` overlap.
pub(crate) fn strided<T: Pod + Send + Sync>(
    dst: &mut [T],
    dst_view: Geometry<'_>,
    src: &[T],
    src_view: Geometry<'_>,
) -> bool {
    // Walk in the order of the destination's memory: writes stay sequential whatever the views look like.
    let order = memory_order(dst_view.strides);
    let shape: SmallVec<[usize; 6]> = order.iter().map(|&d| dst_view.shape[d]).collect();
    let dst_strides: SmallVec<[isize; 6]> = order.iter().map(|&d| dst_view.strides[d]).collect();
    let src_strides: SmallVec<[isize; 6]> = order.iter().map(|&d| src_view.strides[d]).collect();
    let src_view = Geometry { offset: src_view.offset, shape: &shape, strides: &src_strides };
    let numel: usize = shape.iter().product();
    if numel == 0 {
        // An empty view may start past the end of its storage.
        return true;
    }
    if dst_strides[..] == crate::array::contiguous_strides(&shape)[..] {
        to_contiguous(src, src_view, &mut dst[dst_view.offset..dst_view.offset + numel]);
        return true;
    }
    let src = Operand::new(src, src_view.offset, &shape, &src_strides);
    let Some(dst) = OperandMut::new(dst, dst_view.offset, &shape, &dst_strides) else { return false };
    dst.copy_from(&src);
    true
}

/// A copy whose source runs along another dim than its destination.
struct Transpose<'a> {
    view: Geometry<'a>,
    /// The dim along which the source is contiguous.
    along: usize,
    out_strides: SmallVec<[isize; 6]>,
}

impl<'a> Transpose<'a> {
    fn find(view: Geometry<'a>) -> Option<Transpose<'a>> {
        let last = view.shape.len().checked_sub(1)?;
        let along = (0..last).rev().find(|&d| view.strides[d] == 1 && view.shape[d] >= 8)?;
        let worth = view.shape[last] >= 2 && view.strides[last] != 1;
        worth.then(|| Transpose { view, along, out_strides: crate::array::contiguous_strides(view.shape) })
    }

    fn run<T: Pod + Send + Sync>(&self, data: &[T], out: &mut [T]) {
        let last = self.view.shape.len() - 1;
        // Whole slabs of dim 0 can be written by different threads; tiles never cross a slab unless dim 0 is tiled.
        let rows = if self.along == 0 { SQUARE } else { 1 };
        let slab = self.out_strides[0] as usize;
        let store = stream::store_for(out);
        pool::for_chunks_mut(out, rows * slab, 2 * size_of::<T>(), |at, piece| {
            let first = at / slab;
            let count = piece.len() / slab;
            let mut coord: SmallVec<[usize; 6]> = SmallVec::from_elem(0, last + 1);
            self.matrices(0, first, count, &mut coord, &mut |coord, k0, k1| {
                let (mut src, mut dst) = (self.view.offset as isize, 0isize);
                for d in 0..=last {
                    if d != self.along && d != last {
                        src += coord[d] as isize * self.view.strides[d];
                        dst += (coord[d] - if d == 0 { first } else { 0 }) as isize * self.out_strides[d];
                    }
                }
                let base = if self.along == 0 { first } else { 0 };
                self.matrix(data, src, piece, dst, (k0..k1, base), store);
            });
            stream::fence();
        });
    }

    /// Visits every (along, last) matrix of rows `first..first + count` of dim 0.
    fn matrices(
        &self,
        d: usize,
        first: usize,
        count: usize,
        coord: &mut SmallVec<[usize; 6]>,
        visit: &mut dyn FnMut(&[usize], usize, usize),
    ) {
        let last = self.view.shape.len() - 1;
        if d == last {
            let (k0, k1) =
                if self.along == 0 { (first, first + count) } else { (0, self.view.shape[self.along]) };
            return visit(coord, k0, k1);
        }
        if d == self.along {
            return self.matrices(d + 1, first, count, coord, visit);
        }
        let range = if d == 0 { first..first + count } else { 0..self.view.shape[d] };
        for i in range {
            coord[d] = i;
            self.matrices(d + 1, first, count, coord, visit);
        }
    }

    /// One matrix: rows along the source's contiguous dim, columns along the last dim, in squares of tiles that use
    /// whole lines of both sides and few pages of the result.
    fn matrix<T: Pod>(
        &self,
        data: &[T],
        src: isize,
        out: &mut [T],
        dst: isize,
        (rows, first_row): (Range<usize>, usize),
        store: Store,
    ) {
        let last = self.view.shape.len() - 1;
        let (columns, step) = (self.view.shape[last], self.view.strides[last]);
        let row_step = self.out_strides[self.along] as usize;
        let target = |k: usize, c: usize| dst as usize + (k - first_row) * row_step + c;
        let source = |k: usize, c: usize| (src + k as isize + c as isize * step) as usize;
        for (c, k) in squares(0..columns, rows.clone(), SQUARE) {
            for (c, k) in squares(c..columns.min(c + SQUARE), k..rows.end.min(k + SQUARE), SIDE) {
                let (height, width) = (SIDE.min(rows.end - k), SIDE.min(columns - c));
                if height == SIDE && width == SIDE && step > 0 {
                    tile(&data[source(k, c)..], step as usize, &mut out[target(k, c)..], row_step, store);
                    continue;
                }
                for j in c..c + width {
                    let run = &data[source(k, j)..source(k, j) + height];
                    for (to, &value) in out[target(k, j)..].iter_mut().step_by(row_step).zip(run) {
                        *to = value;
                    }
                }
            }
        }
    }
}

/// The corners of squares of `side` that cover two ranges.
fn squares(outer: Range<usize>, inner: Range<usize>, side: usize) -> impl Iterator<Item = (usize, usize)> {
    outer.step_by(side).flat_map(move |o| inner.clone().step_by(side).map(move |i| (o, i)))
}

/// Side of a square of tiles: two lines of four-byte elements, which memory delivers in pairs.
const SQUARE: usize = 32;

/// Fills the view `dst` with one value; false when its cells overlap in a way that cannot be walked.
pub(crate) fn fill<T: Pod + Send + Sync>(dst: &mut [T], view: Geometry<'_>, value: T) -> bool {
    let Some(dst) = OperandMut::new(dst, view.offset, view.shape, view.strides) else { return false };
    dst.for_each_run(size_of::<T>(), |_, run| run.fill(value));
    true
}
