//! Products with a vector: bound by memory, so the matrix is read once, in place.
#![allow(unsafe_code)]

use super::arch::{Arch, Start};
use super::blocked::Strided;
use super::scratch::Scratch;
use super::vector::{Element, Lanes, MAX_LANES, Vector};

/// `c[j] = sum over p of m(j, p) * x(p)`, or `+=`; `x` is a row whose elements lie `col_stride` apart.
pub(super) struct VectorBlock<E> {
    pub(super) outputs: usize,
    pub(super) depth: usize,
    pub(super) m: Strided<E>,
    pub(super) x: Strided<E>,
    pub(super) c: *mut E,
    pub(super) start: Start,
}

/// Registers a dot product may use for one row; `DOT_BYTES` bytes of lanes on every instruction set.
const MAX_REGS: usize = 8;
/// The lanes of a dot product are a fixed number, because they decide the rounding.
const DOT_BYTES: usize = 128;
/// Rows a dot product takes at a time.
const DOT_ROWS: usize = 4;
/// Outputs whose sums stay in the first-level cache.
const STRIP: usize = 2048;
/// Terms added to a strip at a time.
const TERMS: usize = 8;

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
    let padded = block.depth.next_multiple_of(64);
    let mut space = Scratch::take((2 * padded + STRIP + MAX_LANES) * size_of::<E::Acc>());
    let x = space.ptr().cast::<E::Acc>();
    // SAFETY: the space holds x, one row, and a strip; the rest is the caller's promise.
    unsafe {
        for p in 0..block.depth {
            *x.add(p) = (*block.x.at(0, p).ptr).widen();
        }
        for p in block.depth..padded {
            *x.add(p) = E::Acc::default();
        }
        match (block.m.row_stride, block.m.col_stride) {
            (_, 1) => {
                let mut j = 0;
                while j + DOT_ROWS <= block.outputs {
                    dots::<E, R::V, DOT_ROWS>(block, block.m.at(j, 0), j, x);
                    j += DOT_ROWS;
                }
                for j in j..block.outputs {
                    dots::<E, R::V, 1>(block, block.m.at(j, 0), j, x);
                }
            }
            (1, _) => strips::<E, R::V>(block, x, x.add(2 * padded)),
            _ => {
                let row = x.add(padded);
                for j in 0..block.outputs {
                    for p in 0..block.depth {
                        *row.add(p) = (*block.m.at(j, p).ptr).widen();
                    }
                    let row = Strided { ptr: row.cast_const(), row_stride: 0, col_stride: 1 };
                    let sums = dot::<E::Acc, R::V, 1>(row, block.depth, x);
                    finish(block, j, sums[0]);
                }
            }
        }
    }
}

/// Stores or adds one sum.
#[inline(always)]
unsafe fn finish<E: Element>(block: &VectorBlock<E>, j: usize, sum: E::Acc) {
    // SAFETY: j is one of the outputs.
    unsafe {
        let c = block.c.add(j);
        *c = E::narrow(if block.start == Start::Add { (*c).widen() + sum } else { sum });
    }
}

/// Outputs `j..j + ROWS`, rows contiguous.
#[inline(always)]
unsafe fn dots<E: Lanes<V>, V: Vector, const ROWS: usize>(
    block: &VectorBlock<E>,
    rows: Strided<E>,
    j: usize,
    x: *const E::Acc,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums = dot::<E, V, ROWS>(rows, block.depth, x);
        for r in 0..ROWS {
            finish(block, j + r, sums[r]);
        }
    }
}

/// Dot products of contiguous rows with `x`: lane sums over the depth, then halves added to halves.
#[inline(always)]
unsafe fn dot<E: Lanes<V>, V: Vector, const ROWS: usize>(
    rows: Strided<E>,
    depth: usize,
    x: *const E::Acc,
) -> [E::Acc; ROWS] {
    let lanes = DOT_BYTES / size_of::<E::Acc>();
    let regs = lanes / V::LANES;
    let whole = depth / lanes * lanes;
    // SAFETY: loads of `rows` stay below `depth`, those of the tail in a copy of it; `x` is padded
    // with zeros to whole groups of lanes.
    unsafe {
        let mut sums = [[V::zero(); MAX_REGS]; ROWS];
        let row: [*const E; ROWS] = std::array::from_fn(|r| rows.at(r, 0).ptr);
        for p in (0..whole).step_by(lanes) {
            for g in 0..regs {
                let x = V::load(x.add(p + g * V::LANES));
                for r in 0..ROWS {
                    let m = <E as Lanes<V>>::load(row[r].add(p + g * V::LANES));
                    sums[r][g] = sums[r][g].fma(m, x);
                }
            }
        }
        if whole < depth {
            for r in 0..ROWS {
                let mut tail = [E::narrow(E::Acc::default()); DOT_BYTES / 4];
                std::ptr::copy_nonoverlapping(row[r].add(whole), tail.as_mut_ptr(), depth - whole);
                for g in 0..regs {
                    let m = <E as Lanes<V>>::load(tail.as_ptr().add(g * V::LANES));
                    sums[r][g] = sums[r][g].fma(m, V::load(x.add(whole + g * V::LANES)));
                }
            }
        }
        let mut total = [E::Acc::default(); ROWS];
        for r in 0..ROWS {
            let mut flat = [E::Acc::default(); DOT_BYTES / 4];
            for g in 0..regs {
                sums[r][g].store(flat.as_mut_ptr().add(g * V::LANES));
            }
            let mut half = lanes / 2;
            while half > 0 {
                for i in 0..half {
                    flat[i] = flat[i] + flat[i + half];
                }
                half /= 2;
            }
            total[r] = flat[0];
        }
        total
    }
}

/// Outputs one element apart: strips of sums, each taking a few terms at a time, in order.
#[inline(always)]
unsafe fn strips<E: Lanes<V>, V: Vector>(block: &VectorBlock<E>, x: *const E::Acc, sums: *mut E::Acc) {
    for j in (0..block.outputs).step_by(STRIP) {
        let width = STRIP.min(block.outputs - j);
        // SAFETY: the strip holds STRIP sums and a register more; (j.., p..) is inside `m`.
        unsafe {
            for i in 0..width {
                *sums.add(i) =
                    if block.start == Start::Add { (*block.c.add(j + i)).widen() } else { E::Acc::default() };
            }
            let mut p = 0;
            while p + TERMS <= block.depth {
                add_terms::<E, V, TERMS>(block.m.at(j, p), width, x.add(p), sums);
                p += TERMS;
            }
            for p in p..block.depth {
                add_terms::<E, V, 1>(block.m.at(j, p), width, x.add(p), sums);
            }
            for i in 0..width {
                *block.c.add(j + i) = E::narrow(*sums.add(i));
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
    // SAFETY: loads of `m` stay below `width`, those of the tail in a copy of it; `sums` has a
    // register of slack.
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
                let mut tail = [E::narrow(E::Acc::default()); MAX_LANES];
                std::ptr::copy_nonoverlapping(columns[t].add(whole), tail.as_mut_ptr(), width - whole);
                sum = sum.fma(<E as Lanes<V>>::load(tail.as_ptr()), x[t]);
            }
            sum.store(sums.add(whole));
        }
    }
}
