//! The cache-blocked product of one thread, for any strides.
#![allow(unsafe_code)]

use super::arch::{Arch, Order, Start, Tile, reads_rows};
use super::pack::{pack_columns, pack_group};
use super::scratch::Scratch;
use super::vector::{Element, Lanes, MAX_LANES, Vector};
use crate::machine::{Caches, caches};
use std::any::TypeId;

/// A strided matrix by pointer; the product around it checked the bounds.
#[derive(Debug)]
pub(super) struct Strided<T> {
    pub(super) ptr: *const T,
    pub(super) row_stride: isize,
    pub(super) col_stride: isize,
}

impl<T> Clone for Strided<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Strided<T> {}

impl<T> Strided<T> {
    /// The matrix whose first element is (i, j) of this one.
    pub(super) fn at(self, i: usize, j: usize) -> Self {
        let offset = i as isize * self.row_stride + j as isize * self.col_stride;
        Self { ptr: self.ptr.wrapping_offset(offset), ..self }
    }

    /// Rows and columns exchanged.
    pub(super) fn transposed(self) -> Self {
        Self { ptr: self.ptr, row_stride: self.col_stride, col_stride: self.row_stride }
    }
}

/// `c (rows by cols, ldc apart) = a · b`, or `+=`, over `depth`.
pub(super) struct Block<E: Element> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) depth: usize,
    pub(super) a: Strided<E>,
    pub(super) b: Strided<E>,
    pub(super) c: *mut E::Acc,
    pub(super) ldc: usize,
    pub(super) start: Start,
}

/// Panels packed together where rows lie side by side.
const GROUP: usize = 32;
/// Widest product that does not repay packing its left operand, contiguous along rows: the kernel of packed panels needs
/// fewer instructions, which counts where a busy sibling takes its share of them.
const IN_PLACE_COLS: usize = 128;
/// The same where there are few rows to hide the packing behind.
const FEW_ROWS_COLS: usize = 512;
/// The same, contiguous along columns: packing copies runs then, which is cheap.
const COLUMNS_COLS: usize = 64;
/// Lowest product that repays packing its right operand.
const IN_PLACE_ROWS: usize = 64;
/// Bytes between rows of a right operand read in place.
const IN_PLACE_PITCH: usize = 2048;
/// Longest chain of sums; a constant, because it decides the rounding.
const MAX_DEPTH: usize = 512;

/// The depth of one pass: a function of the whole depth alone, so that rounding depends on nothing else.
pub(super) fn pass_depth(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(MAX_DEPTH).max(1)).max(1)
}

/// Columns of packed `b`, of `column` bytes each, that stay in the second-level cache: five eighths of it, because `a` and the
/// output pass through. `a` passes once for every block of columns, so fewer would cost more than a sibling thread does.
fn fitting_columns(caches: Caches, column: usize, unit: usize) -> usize {
    (caches.second / 8 * 5 / column / unit * unit).max(unit)
}

/// Parts of equal size, a multiple of `unit` and at most `fitting`, which is one too.
pub(super) fn even(total: usize, fitting: usize, unit: usize) -> usize {
    total.div_ceil(total.div_ceil(fitting).max(1)).next_multiple_of(unit)
}

/// Runs `block`; its depth is at least 1.
///
/// # Safety
/// The CPU has the instructions of `R`; every element of `a`, `b` and `c` that the sizes name is
/// valid, and nothing else touches `c` meanwhile.
#[inline(always)]
pub(super) unsafe fn blocked<E: Lanes<R::V>, R: Arch>(block: &Block<E>) {
    let pass = pass_depth(block.depth);
    let size = size_of::<E::Acc>();
    let fitting = fitting_columns(caches(), pass * size, R::NR);
    let block_cols = even(block.cols, fitting, R::NR);
    let left = left(block);
    let b_in_place = columns_in_place::<E, R>(block);
    let group = if block.a.row_stride == 1 { GROUP } else { 1 };
    // With one block of columns a packed panel is used once: the next ones take its place, which stays in a near cache.
    let used_once = block.cols <= block_cols;
    let kept = if used_once { block.rows.min(group * R::MR) } else { block.rows };
    // Packing rows writes whole registers: leave room behind the last one.
    let slab = if left != Left::Packed { 0 } else { (kept * pass + MAX_LANES).next_multiple_of(64) };
    let mut space = Scratch::take((slab + block_cols * pass) * size);
    let rows_space = space.ptr().cast::<E::Acc>();
    // SAFETY: the space holds the slab and a block of columns.
    let cols_space = unsafe { rows_space.add(slab) };
    for p in (0..block.depth).step_by(pass) {
        let depth = pass.min(block.depth - p);
        let start = if p == 0 { block.start } else { Start::Add };
        for j in (0..block.cols).step_by(block_cols) {
            let cols = block_cols.min(block.cols - j);
            let b = block.b.at(p, j);
            let (b, ldb, column_pitch) = if b_in_place {
                (b.ptr.cast(), b.row_stride as usize, 1)
            } else {
                // SAFETY: the sub-block (p.., j..) is inside `b`; the space holds it padded to NR.
                unsafe { pack_columns::<E, R>(b, depth, cols, cols_space) };
                (cols_space.cast_const(), R::NR, depth)
            };
            let mut first = 0;
            for (n, (i, rows)) in panels(block.rows, R::MR).enumerate() {
                if used_once && n.is_multiple_of(group) {
                    first = i;
                }
                let a = block.a.at(i, p);
                // SAFETY: the sub-block (i.., p..) is inside `a`, its panel inside the slab, which has room for the rows from
                // `first` on; the panels come in rising order, so slack written behind one is overwritten by the
                // next; the output rows are inside `c`.
                unsafe {
                    let panel = rows_space.add((i - first) * depth);
                    if j == 0 && left == Left::Packed && n.is_multiple_of(group) {
                        pack_group::<E, R>(a, panels(block.rows - i, R::MR).take(group), depth, panel);
                    }
                    let (a, order) = match left {
                        Left::Packed => (panel.cast_const(), Order::Groups(rows)),
                        Left::Rows => (a.ptr.cast(), Order::Rows(a.row_stride)),
                        Left::Columns => (a.ptr.cast(), Order::Groups(a.col_stride as usize)),
                    };
                    let c = block.c.add(i * block.ldc + j);
                    let tile = Tile { depth, a, order, b, ldb, c, ldc: block.ldc, cols, start };
                    row_of_tiles::<R>(rows, column_pitch, &tile);
                }
            }
        }
    }
}

/// How the kernel reads `a`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// From panels in the order of use.
    Packed,
    /// Where it is, contiguous along rows.
    Rows,
    /// Where it is, contiguous along columns.
    Columns,
}

/// `a` stays where it is when it needs no widening, is used too seldom to repay packing, and its rows do not lie a
/// multiple of 4 KiB apart, where they would push each other out of the first-level cache.
#[inline(always)]
fn left<E: Element>(block: &Block<E>) -> Left {
    let far = |stride: isize| stride.unsigned_abs().wrapping_mul(size_of::<E>()).is_multiple_of(4096);
    let Strided { row_stride, col_stride, .. } = block.a;
    let widest = if block.rows <= IN_PLACE_ROWS { FEW_ROWS_COLS } else { IN_PLACE_COLS };
    if TypeId::of::<E>() != TypeId::of::<E::Acc>() {
        Left::Packed
    } else if reads_rows::<E>() && col_stride == 1 && block.cols <= widest && !far(row_stride) {
        Left::Rows
    } else if row_stride == 1 && col_stride > 0 && block.cols <= COLUMNS_COLS && !far(col_stride) {
        Left::Columns
    } else {
        Left::Packed
    }
}

/// Whether the kernel reads `b` where it is: whole panels of short rows, used too seldom to repay packing.
#[inline(always)]
fn columns_in_place<E: Element, R: Arch>(block: &Block<E>) -> bool {
    TypeId::of::<E>() == TypeId::of::<E::Acc>()
        && block.b.col_stride == 1
        && block.cols.is_multiple_of(R::NR)
        && block.rows <= IN_PLACE_ROWS
        && block.b.row_stride > 0
        && block.b.row_stride as usize * size_of::<E>() <= IN_PLACE_PITCH
}

/// Where panels of `rows` begin, and how many rows each has: all of a register tile while they last; what would leave a last
/// panel too low to keep the multipliers busy is halved.
pub(super) fn panels(rows: usize, full: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let mut start = 0;
    std::iter::from_fn(move || {
        let left = rows - start;
        let low = left > full && left < full + 4;
        let panel = if low { left.div_ceil(2) } else { left.min(full) };
        start += panel;
        (panel > 0).then_some((start - panel, panel))
    })
}

/// One panel of rows times all columns; `first` is the first tile with the width of all, and columns
/// of `b` lie `column_pitch` apart.
#[inline(always)]
unsafe fn row_of_tiles<R: Arch>(rows: usize, column_pitch: usize, first: &Tile<<R::V as Vector>::Elem>) {
    for j in (0..first.cols).step_by(R::NR) {
        // SAFETY: panel j / NR of `b` starts at column j; column j is inside `c`.
        unsafe {
            let (b, c) = (first.b.add(j * column_pitch), first.c.add(j));
            R::tile(rows, &Tile { b, c, cols: R::NR.min(first.cols - j), ..*first });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_cover_all_rows_and_none_is_low() {
        for (full, rows) in [4, 6, 14].into_iter().flat_map(|full| (1..100).map(move |rows| (full, rows))) {
            let all: Vec<_> = panels(rows, full).collect();
            assert!(all.iter().zip(&all[1..]).all(|(a, b)| a.0 + a.1 == b.0), "{all:?}");
            assert_eq!(all.last().map(|(start, panel)| start + panel), Some(rows));
            let low = rows.min(4).min(full.div_ceil(2));
            assert!(all.iter().all(|&(_, panel)| panel >= low && panel <= full), "{rows} in {full}: {all:?}");
        }
    }

    #[test]
    fn blocks_of_columns_follow_the_cache() {
        let with = |kib: usize| fitting_columns(Caches { first: 32 << 10, second: kib << 10 }, 2048, 32);
        assert_eq!([with(2048), with(1024), with(512), with(16)], [640, 320, 160, 32]);
    }
}
