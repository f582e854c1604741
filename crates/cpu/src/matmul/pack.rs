//! Copies blocks of strided matrices into the order the kernels read them, widening on the way.
#![allow(unsafe_code)]

use super::arch::Arch;
use super::blocked::Strided;
use super::vector::{Element, Lanes, MAX_LANES, Vector};
use crate::prefetch::prefetch_at;

/// Blocks of a register's width that a transpose asks for in advance.
const AHEAD: usize = 4;

/// Rows copied side by side.
const RUNS: usize = 16;

/// Packs panels of rows of `a`, each given by its first row and its height, one after the other.
///
/// # Safety
/// As for [`pack_rows`], with room for all rows and one register more.
#[inline(always)]
pub(super) unsafe fn pack_group<E: Lanes<R::V>, R: Arch>(
    a: Strided<E>,
    panels: impl Iterator<Item = (usize, usize)> + Clone,
    depth: usize,
    dst: *mut E::Acc,
) {
    // Rows side by side in memory: a few of depth over all panels at a time, so that lines are used whole.
    // Not where a row is a run too: packing those writes past a panel's end, so it must go in order.
    let chunk = if a.row_stride == 1 && a.col_stride != 1 { RUNS } else { depth };
    for p in (0..depth).step_by(chunk) {
        for (i, rows) in panels.clone() {
            // SAFETY: the block (i.., p..) is inside `a`; its place is inside the panel of row i.
            unsafe {
                let dst = dst.add(i * depth + p * rows);
                pack_rows::<E, R>(a.at(i, p), rows, chunk.min(depth - p), dst);
            }
        }
    }
}

/// Packs `rows` (at most `MR`) rows of `a` as `depth` groups of `rows`.
///
/// # Safety
/// The CPU has the instructions of `R`; the elements of `a` are valid; `dst` has room for
/// `rows * depth` elements and one register more.
#[inline(always)]
unsafe fn pack_rows<E: Lanes<R::V>, R: Arch>(a: Strided<E>, rows: usize, depth: usize, dst: *mut E::Acc) {
    // The full height is spelt as a constant: its loops unroll into registers.
    let full = rows == R::MR;
    // SAFETY: the caller's promise.
    unsafe {
        match (a.row_stride, a.col_stride) {
            (_, 1) if full => transpose_groups::<E, R::V>(a, R::MR, depth, dst),
            (_, 1) if rows > 1 => transpose_groups::<E, R::V>(a, rows, depth, dst),
            (1, _) if full => copy_groups::<E, R::V>(a, R::MR, depth, R::MR, dst),
            (1, _) => copy_groups::<E, R::V>(a, rows, depth, rows, dst),
            _ => pack_any(a, rows, depth, rows, dst),
        }
    }
}

/// Packs `cols` columns of `b` as panels of `NR`, each `depth` rows of `NR`, zero-filled at the edge.
///
/// # Safety
/// The CPU has the instructions of `R`; the elements of `b` are valid; `dst` has room for
/// `depth` times `cols` rounded up to `NR`.
#[inline(always)]
pub(super) unsafe fn pack_columns<E: Lanes<R::V>, R: Arch>(
    b: Strided<E>,
    depth: usize,
    cols: usize,
    dst: *mut E::Acc,
) {
    let whole = if b.col_stride == 1 { cols / R::NR * R::NR } else { 0 };
    // SAFETY: panels start at j * depth; all columns are below `cols`.
    unsafe {
        // A few rows over the whole width at a time, so that memory is read in long runs.
        for p in (0..depth).step_by(RUNS) {
            let count = RUNS.min(depth - p);
            for j in (0..whole).step_by(R::NR) {
                copy_panel::<E, R>(b.at(p, j), count, dst.add(j * depth + p * R::NR));
            }
        }
        for j in (whole..cols).step_by(R::NR) {
            pack_panel::<E, R>(b.at(0, j), depth, R::NR.min(cols - j), dst.add(j * depth));
        }
    }
}

/// `depth` rows of one whole panel, contiguous along the row.
#[inline(always)]
unsafe fn copy_panel<E: Lanes<R::V>, R: Arch>(b: Strided<E>, depth: usize, dst: *mut E::Acc) {
    for p in 0..depth {
        let src = b.at(p, 0).ptr;
        for r in (0..R::NR).step_by(R::V::LANES) {
            // The rows of the next round: whoever reads along a row sees only short runs of each.
            prefetch_at(src.wrapping_offset(RUNS as isize * b.row_stride).wrapping_add(r));
            // SAFETY: the panel is NR wide in both places.
            unsafe { <E as Lanes<R::V>>::load(src.add(r)).store(dst.add(p * R::NR + r)) };
        }
    }
}

/// One panel of `width` columns, zero-filled to `NR`.
#[inline(always)]
unsafe fn pack_panel<E: Lanes<R::V>, R: Arch>(b: Strided<E>, depth: usize, width: usize, dst: *mut E::Acc) {
    let lanes = R::V::LANES;
    // SAFETY: `dst` is a whole panel; only `width` columns of `b` are read.
    unsafe {
        if width < R::NR {
            std::slice::from_raw_parts_mut(dst, R::NR * depth).fill(E::Acc::default());
        }
        match (b.row_stride, b.col_stride) {
            (_, 1) => copy_groups::<E, R::V>(b.transposed(), width, depth, R::NR, dst),
            (1, _) => {
                let whole = width / lanes * lanes;
                for r in (0..whole).step_by(lanes) {
                    let columns = b.at(0, r).transposed();
                    transpose_register::<E, R::V>(columns, depth, R::NR, dst.add(r));
                }
                pack_any(b.at(0, whole).transposed(), width - whole, depth, R::NR, dst.add(whole));
            }
            _ => pack_any(b.transposed(), width, depth, R::NR, dst),
        }
    }
}

/// Any strides: `dst[p * pitch + r] = src(r, p)`.
#[inline(always)]
unsafe fn pack_any<E: Element>(src: Strided<E>, rows: usize, depth: usize, pitch: usize, dst: *mut E::Acc) {
    for r in 0..rows {
        for p in 0..depth {
            // SAFETY: (r, p) is inside `src`, and p * pitch + r inside `dst`.
            unsafe { *dst.add(p * pitch + r) = (*src.at(r, p).ptr).widen() };
        }
    }
}

/// Rows one element apart: each group is a run in memory.
#[inline(always)]
unsafe fn copy_groups<E: Lanes<V>, V: Vector>(
    src: Strided<E>,
    rows: usize,
    depth: usize,
    pitch: usize,
    dst: *mut E::Acc,
) {
    for first in (0..rows).step_by(V::LANES) {
        let count = V::LANES.min(rows - first);
        let (mut run, mut to) = (src.at(first, 0).ptr, dst.wrapping_add(first));
        for _ in 0..depth {
            prefetch_at(run.wrapping_add(AHEAD * rows));
            // SAFETY: as in `pack_any`, with a row stride of 1.
            unsafe { <E as Lanes<V>>::load_first(run, count).store_first(to, count) };
            run = run.wrapping_offset(src.col_stride);
            to = to.wrapping_add(pitch);
        }
    }
}

/// Up to two registers of rows, contiguous in depth. Stores are whole registers in rising order,
/// so that each overwrites the slack of the one before it.
#[inline(always)]
unsafe fn transpose_groups<E: Lanes<V>, V: Vector>(
    src: Strided<E>,
    rows: usize,
    depth: usize,
    dst: *mut E::Acc,
) {
    let lanes = V::LANES;
    let whole = depth / lanes * lanes;
    // SAFETY: loads stay inside `whole` columns of the given rows; stores end at most one
    // register past the last group, which the caller allows.
    unsafe {
        for p in (0..whole).step_by(lanes) {
            let mut low = [V::zero(); MAX_LANES];
            let mut high = low;
            for r in 0..rows {
                prefetch_at(src.at(r, p + AHEAD * lanes).ptr);
            }
            for r in 0..lanes.min(rows) {
                low[r] = <E as Lanes<V>>::load(src.at(r, p).ptr);
            }
            V::transpose(&mut low);
            for r in lanes..rows {
                high[r - lanes] = <E as Lanes<V>>::load(src.at(r, p).ptr);
            }
            if rows > lanes {
                V::transpose(&mut high);
            }
            for c in 0..lanes {
                low[c].store(dst.add((p + c) * rows));
                if rows > lanes {
                    high[c].store(dst.add((p + c) * rows + lanes));
                }
            }
        }
        pack_any(src.at(0, whole), rows, depth - whole, rows, dst.add(whole * rows));
    }
}

/// Exactly one register of rows, contiguous in depth.
#[inline(always)]
unsafe fn transpose_register<E: Lanes<V>, V: Vector>(
    src: Strided<E>,
    depth: usize,
    pitch: usize,
    dst: *mut E::Acc,
) {
    let lanes = V::LANES;
    let whole = depth / lanes * lanes;
    // SAFETY: loads and stores stay inside the block named by the arguments.
    unsafe {
        for p in (0..whole).step_by(lanes) {
            let mut block = [V::zero(); MAX_LANES];
            for r in 0..lanes {
                prefetch_at(src.at(r, p + AHEAD * lanes).ptr);
            }
            for r in 0..lanes {
                block[r] = <E as Lanes<V>>::load(src.at(r, p).ptr);
            }
            V::transpose(&mut block);
            for c in 0..lanes {
                block[c].store(dst.add((p + c) * pitch));
            }
        }
        pack_any(src.at(0, whole), lanes, depth - whole, pitch, dst.add(whole * pitch));
    }
}
