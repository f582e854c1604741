//! Products with a vector: bound by memory, so the matrix is read once, in place.
//!
//! Every output is added up in the order of the tile kernels: one chain of fused multiply-adds per pass over the
//! depth, then the passes one after the other. A row of a product has the same bits whether it is computed alone
//! or with others.
#![allow(unsafe_code)]

use super::arch::{Arch, Start};
use super::blocked::{Strided, pass_depth};
use super::scratch::Scratch;
use super::vector::{Element, Lanes, MAX_LANES, Vector};
use crate::prefetch::prefetch_at;

/// `c[j] = sum over p of m(j, p) * x(p)`, or `+=`; `x` is a row whose elements lie `col_stride` apart.
pub(super) struct VectorBlock<E> {
    pub(super) outputs: usize,
    pub(super) depth: usize,
    pub(super) m: Strided<E>,
    pub(super) x: Strided<E>,
    pub(super) c: *mut E,
    pub(super) start: Start,
}

/// Outputs whose sums stay in the first-level cache.
const STRIP: usize = 2048;
/// Terms added to a strip at a time.
const TERMS: usize = 8;
/// Registers of depth that rows are asked for in advance.
const AHEAD: usize = 8;

/// Runs `block`.
///
/// # Safety
/// The CPU has the instructions of `R`; every element of `m`, `x` and `c` that the sizes name is
/// valid, and nothing else touches `c` meanwhile.
#[inline(always)]
pub(super) unsafe fn gemv<E: Lanes<R::V>, R: Arch>(block: &VectorBlock<E>)
where
    E::Acc: Lanes<R::V>,
{
    let padded = (block.depth + MAX_LANES).next_multiple_of(64);
    let pass = pass_depth(block.depth);
    let rows = MAX_LANES * pass;
    let mut space = Scratch::take((padded + rows.max(2 * (STRIP + MAX_LANES))) * size_of::<E::Acc>());
    let x = space.ptr().cast::<E::Acc>();
    // SAFETY: the space holds x and either a register of rows or the sums and totals of a strip; the
    // rest is the caller's promise.
    unsafe {
        let rest = x.add(padded);
        widen_row::<E, R::V>(block.x, block.depth, x);
        match (block.m.row_stride, block.m.col_stride) {
            (_, 1) if few_outputs::<R::V>(block) => {
                for j in 0..block.outputs {
                    one_output::<E, R::V>(block, j, x);
                }
            }
            (_, 1) => {
                for j in (0..block.outputs).step_by(R::V::LANES) {
                    row_group::<E, R::V>(block, j, x);
                }
            }
            (1, _) => strips::<E, R::V>(block, x, rest),
            _ => any_rows::<E, R::V>(block, x, rest),
        }
    }
}

/// `dst[p] = src(p)`.
#[inline(always)]
unsafe fn widen_row<E: Lanes<V>, V: Vector>(src: Strided<E>, depth: usize, dst: *mut E::Acc) {
    let whole = if src.col_stride == 1 { depth / V::LANES * V::LANES } else { 0 };
    // SAFETY: the caller gives `depth` elements on both sides.
    unsafe {
        for p in (0..whole).step_by(V::LANES) {
            <E as Lanes<V>>::load(src.ptr.add(p)).store(dst.add(p));
        }
        for p in whole..depth {
            *dst.add(p) = (*src.at(0, p).ptr).widen();
        }
    }
}

/// Whether the passes of one output fill registers better than the outputs do.
#[inline(always)]
fn few_outputs<V: Vector>(block: &VectorBlock<impl Copy>) -> bool {
    let passes = block.depth / pass_depth(block.depth);
    2 * block.outputs * passes.div_ceil(V::LANES) < passes
}

/// Outputs `j..`, at most a register of them, over the whole depth; their rows are contiguous.
#[inline(always)]
unsafe fn row_group<E: Lanes<V>, V: Vector>(block: &VectorBlock<E>, j: usize, x: *const E::Acc) {
    let (pass, count) = (pass_depth(block.depth), V::LANES.min(block.outputs - j));
    // Lanes past the last row repeat it; they are not stored.
    let rows = std::array::from_fn(|r| block.m.at(j + r.min(count - 1), 0).ptr);
    // SAFETY: rows and x hold the depth; the outputs are inside `c`.
    unsafe {
        let mut total = V::zero();
        for p in (0..block.depth).step_by(pass) {
            let sum = chains::<E, V>(&rows, p, pass.min(block.depth - p), x);
            total = match (p, block.start) {
                (0, Start::Zero) => sum,
                (0, Start::Add) => <E as Lanes<V>>::load_first(block.c.add(j), count).add(sum),
                _ => total.add(sum),
            };
        }
        let mut flat = [E::Acc::default(); MAX_LANES];
        total.store(flat.as_mut_ptr());
        for i in 0..count {
            *block.c.add(j + i) = E::narrow(flat[i]);
        }
    }
}

/// One pass of `depth` from `p`: a chain per lane, each lane a row.
#[inline(always)]
unsafe fn chains<E: Lanes<V>, V: Vector>(
    rows: &[*const E; MAX_LANES],
    p: usize,
    depth: usize,
    x: *const E::Acc,
) -> V {
    let end = p + depth;
    let whole = end - depth % V::LANES;
    // SAFETY: loads stay inside the depth of the rows and of x.
    unsafe {
        let mut sum = V::zero();
        for p in (p..whole).step_by(V::LANES) {
            let mut block = [V::zero(); MAX_LANES];
            for r in 0..V::LANES {
                prefetch_at(rows[r].wrapping_add(p + AHEAD * V::LANES));
                block[r] = <E as Lanes<V>>::load(rows[r].add(p));
            }
            V::transpose(&mut block);
            for c in 0..V::LANES {
                sum = sum.fma(block[c], V::splat(*x.add(p + c)));
            }
        }
        if whole < end {
            let mut block = [V::zero(); MAX_LANES];
            for r in 0..V::LANES {
                block[r] = <E as Lanes<V>>::load_first(rows[r].add(whole), end - whole);
            }
            V::transpose(&mut block);
            for c in 0..end - whole {
                sum = sum.fma(block[c], V::splat(*x.add(whole + c)));
            }
        }
        sum
    }
}

/// Output `j` alone, its row contiguous: a lane per pass.
#[inline(always)]
unsafe fn one_output<E: Lanes<V>, V: Vector>(block: &VectorBlock<E>, j: usize, x: *const E::Acc)
where
    E::Acc: Lanes<V>,
{
    let pass = pass_depth(block.depth);
    let row = block.m.at(j, 0).ptr;
    // SAFETY: row and x hold the depth; j is one of the outputs.
    unsafe {
        let mut total = None;
        if block.start == Start::Add {
            total = Some((*block.c.add(j)).widen());
        }
        let mut p = 0;
        while p < block.depth {
            // As many whole passes as there are lanes, or the last, shorter one alone.
            let count = ((block.depth - p) / pass).min(V::LANES).max(1);
            let depth = pass.min(block.depth - p);
            let sums = pass_chains::<E, V>(row.add(p), x.add(p), pass, count, depth);
            for &sum in &sums[..count] {
                total = Some(total.map_or(sum, |t| t + sum));
            }
            p += (count - 1) * pass + depth;
        }
        *block.c.add(j) = E::narrow(total.unwrap_or_default());
    }
}

/// The sums of `count` passes of `depth`, `pass` apart, of one row with `x`.
#[inline(always)]
unsafe fn pass_chains<E: Lanes<V>, V: Vector>(
    row: *const E,
    x: *const E::Acc,
    pass: usize,
    count: usize,
    depth: usize,
) -> [E::Acc; MAX_LANES]
where
    E::Acc: Lanes<V>,
{
    // SAFETY: loads stay inside `count` passes of the row and of x.
    unsafe {
        let mut sum = V::zero();
        for p in (0..depth).step_by(V::LANES) {
            let terms = V::LANES.min(depth - p);
            let mut a = [V::zero(); MAX_LANES];
            let mut b = a;
            for q in 0..V::LANES {
                let at = q.min(count - 1) * pass + p;
                a[q] = <E as Lanes<V>>::load_first(row.add(at), terms);
                b[q] = <E::Acc as Lanes<V>>::load_first(x.add(at), terms);
            }
            V::transpose(&mut a);
            V::transpose(&mut b);
            for c in 0..terms {
                sum = sum.fma(a[c], b[c]);
            }
        }
        let mut sums = [E::Acc::default(); MAX_LANES];
        sum.store(sums.as_mut_ptr());
        sums
    }
}

/// Any strides: a register of rows is copied, a pass at a time.
#[inline(always)]
unsafe fn any_rows<E: Lanes<V>, V: Vector>(block: &VectorBlock<E>, x: *const E::Acc, space: *mut E::Acc)
where
    E::Acc: Lanes<V>,
{
    let pass = pass_depth(block.depth);
    // SAFETY: the space holds MAX_LANES rows of a pass; (j.., p..) is inside `m`.
    unsafe {
        for j in (0..block.outputs).step_by(V::LANES) {
            let count = V::LANES.min(block.outputs - j);
            let rows = std::array::from_fn(|r| space.add(r.min(count - 1) * pass).cast_const());
            let mut totals = [E::Acc::default(); MAX_LANES];
            for p in (0..block.depth).step_by(pass) {
                let depth = pass.min(block.depth - p);
                for r in 0..count {
                    for i in 0..depth {
                        *space.add(r * pass + i) = (*block.m.at(j + r, p + i).ptr).widen();
                    }
                }
                let mut flat = [E::Acc::default(); MAX_LANES];
                chains::<E::Acc, V>(&rows, 0, depth, x.add(p)).store(flat.as_mut_ptr());
                for r in 0..count {
                    totals[r] = joined(block, j + r, p, totals[r], flat[r]);
                }
            }
            for r in 0..count {
                *block.c.add(j + r) = E::narrow(totals[r]);
            }
        }
    }
}

/// The total of output `j` after the pass that starts at `p`.
#[inline(always)]
unsafe fn joined<E: Element>(
    block: &VectorBlock<E>,
    j: usize,
    p: usize,
    total: E::Acc,
    sum: E::Acc,
) -> E::Acc {
    match (p, block.start) {
        (0, Start::Zero) => sum,
        // SAFETY: j is one of the outputs.
        (0, Start::Add) => unsafe { (*block.c.add(j)).widen() + sum },
        _ => total + sum,
    }
}

/// Outputs one element apart: strips of sums, each taking a few terms at a time, in order.
#[inline(always)]
unsafe fn strips<E: Lanes<V>, V: Vector>(block: &VectorBlock<E>, x: *const E::Acc, sums: *mut E::Acc) {
    let pass = pass_depth(block.depth);
    let totals = sums.wrapping_add(STRIP + MAX_LANES);
    for j in (0..block.outputs).step_by(STRIP) {
        let width = STRIP.min(block.outputs - j);
        // SAFETY: sums and totals are STRIP elements and a register each; (j.., p..) is inside `m`.
        unsafe {
            for first in (0..block.depth).step_by(pass) {
                let end = block.depth.min(first + pass);
                std::slice::from_raw_parts_mut(sums, width + MAX_LANES).fill(E::Acc::default());
                let mut p = first;
                while p + TERMS <= end {
                    add_terms::<E, V, TERMS>(block.m.at(j, p), width, x.add(p), sums);
                    p += TERMS;
                }
                for p in p..end {
                    add_terms::<E, V, 1>(block.m.at(j, p), width, x.add(p), sums);
                }
                for i in 0..width {
                    let total = joined(block, j + i, first, *totals.add(i), *sums.add(i));
                    if end == block.depth {
                        *block.c.add(j + i) = E::narrow(total);
                    } else {
                        *totals.add(i) = total;
                    }
                }
            }
        }
    }
}

/// `sums[i] += m(i, t) * x[t]` for each of the terms, in order.
#[inline(always)]
unsafe fn add_terms<E: Lanes<V>, V: Vector, const N: usize>(
    m: Strided<E>,
    width: usize,
    x: *const E::Acc,
    sums: *mut E::Acc,
) {
    let whole = width / V::LANES * V::LANES;
    // SAFETY: loads of `m` stay below `width`; `sums` has a register of slack.
    unsafe {
        let x: [V; N] = std::array::from_fn(|t| V::splat(*x.add(t)));
        let columns: [*const E; N] = std::array::from_fn(|t| m.at(0, t).ptr);
        for i in (0..whole).step_by(V::LANES) {
            let mut sum = V::load(sums.add(i));
            for t in 0..N {
                sum = sum.fma(<E as Lanes<V>>::load(columns[t].add(i)), x[t]);
            }
            sum.store(sums.add(i));
        }
        if whole < width {
            let mut sum = V::load(sums.add(whole));
            for t in 0..N {
                let part = <E as Lanes<V>>::load_first(columns[t].add(whole), width - whole);
                sum = sum.fma(part, x[t]);
            }
            sum.store(sums.add(whole));
        }
    }
}
