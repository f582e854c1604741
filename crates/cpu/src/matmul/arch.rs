//! One register-blocked kernel, compiled for each instruction set.
#![allow(unsafe_code)]

use super::vector::{Plain, Vector};
use crate::prefetch::{claim, prefetch_at};
use std::marker::PhantomData;

/// Registers per row of a tile; a tile is `NV * LANES` columns wide.
const NV: usize = 2;

/// The widest tile of any instruction set, in elements.
const MAX_TILE: usize = 14 * 32;

/// Steps of depth that operands are asked for in advance.
const AHEAD: usize = 16;

/// One product of a panel of rows with a panel of columns.
///
/// `b` holds `depth` rows of at least `NV * LANES` readable elements, `ldb` apart. `c` is `rows` by
/// `cols`, `ldc` apart.
#[derive(Clone, Copy)]
pub(super) struct Tile<A> {
    pub(super) depth: usize,
    pub(super) a: *const A,
    pub(super) order: Order,
    pub(super) b: *const A,
    pub(super) ldb: usize,
    pub(super) c: *mut A,
    pub(super) ldc: usize,
    pub(super) cols: usize,
    pub(super) start: Start,
}

/// How the left panel of a tile lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// `depth` groups of `rows` elements, this many elements apart.
    Groups(usize),
    /// Rows contiguous in depth, this many elements apart.
    Rows(isize),
}

/// Whether there are kernels that read a left panel in rows: not of eight-byte elements, whose products are seldom asked for. A quarter of
/// the kernels less is a good part of the build.
pub(super) const fn reads_rows<E>() -> bool {
    size_of::<E>() != 8
}

/// What a kernel does with the values already in its output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// Overwrites them.
    Zero,
    /// Adds to them.
    Add,
}

/// An instruction set, as the blocked product sees it.
pub(super) trait Arch {
    /// Its register.
    type V: Vector;
    /// Rows of a full tile.
    const MR: usize;
    /// Columns of a full tile.
    const NR: usize = NV * Self::V::LANES;
    /// Runs the tile kernel.
    ///
    /// # Safety
    /// The CPU has the instruction set; `tile` is as its type says; `1 <= rows <= MR`.
    unsafe fn tile(rows: usize, tile: &Tile<<Self::V as Vector>::Elem>);
}

/// Whatever every CPU of the target has.
pub(super) struct Baseline<A>(PhantomData<A>);
/// AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
pub(super) struct V3<A>(PhantomData<A>);
/// AVX-512.
#[cfg(target_arch = "x86_64")]
pub(super) struct V4<A>(PhantomData<A>);

macro_rules! arch {
    ($arch:ident, $acc:ty, $vector:ty, $mr:literal: $($rows:literal)* $(, $feature:literal)? $(; $full:ident)?) => {
        impl Arch for $arch<$acc> {
            type V = $vector;
            const MR: usize = $mr;
            #[inline]
            unsafe fn tile(rows: usize, tile: &Tile<$acc>) {
                $(#[target_feature(enable = $feature)])?
                unsafe fn run<const ROWS: usize, const REGS: usize, const GROUPS: bool>(tile: &Tile<$acc>) {
                    // SAFETY: the features are enabled here; the rest is the caller's promise.
                    unsafe { tile_kernel::<$vector, ROWS, REGS, GROUPS>(tile) }
                }
                $(
                    #[target_feature(enable = "avx512f")]
                    unsafe fn full(tile: &Tile<$acc>) -> bool {
                        claim_output::<$vector, 14, 2>(tile);
                        // SAFETY: the caller's promise.
                        unsafe { full_tile::$full(tile).map(|sums| store_sums(tile, &sums)).is_some() }
                    }
                    // The sanitizer sees no loads of assembly; the compiler's kernel below makes the same ones.
                    let whole = rows == full_tile::ROWS && tile.cols > <$vector>::LANES && !cfg!(planaria_checked);
                    // SAFETY: the caller's promise.
                    if whole && unsafe { full(tile) } {
                        return;
                    }
                )?
                let (narrow, groups) = (tile.cols <= <$vector>::LANES, matches!(tile.order, Order::Groups(_)));
                // SAFETY: the caller's promise.
                unsafe {
                    match (rows, narrow, groups) {
                        $(
                            ($rows, false, true) => run::<$rows, 2, true>(tile),
                            ($rows, true, true) => run::<$rows, 1, true>(tile),
                            ($rows, false, false) if const { reads_rows::<$acc>() } => run::<$rows, 2, false>(tile),
                            ($rows, true, false) if const { reads_rows::<$acc>() } => run::<$rows, 1, false>(tile),
                        )*
                        _ => unreachable!("a tile has 1 to {} rows in groups, or in rows where there are kernels for them, not {rows}", $mr),
                    }
                }
            }
        }
    };
}

arch!(Baseline, f32, Plain<f32, 4>, 4: 1 2 3 4);
arch!(Baseline, f64, Plain<f64, 2>, 4: 1 2 3 4);
#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The x86 instruction sets.
    use super::super::full_tile;
    use super::super::vector::x86::{F32x8, F32x16, F64x4, F64x8};
    use super::*;
    arch!(V3, f32, F32x8, 6: 1 2 3 4 5 6, "avx2,fma");
    arch!(V3, f64, F64x4, 6: 1 2 3 4 5 6, "avx2,fma");
    arch!(V4, f32, F32x16, 14: 1 2 3 4 5 6 7 8 9 10 11 12 13 14, "avx512f"; single);
    arch!(V4, f64, F64x8, 14: 1 2 3 4 5 6 7 8 9 10 11 12 13 14, "avx512f"; double);
}

/// Keeps the compiler from turning the three row pointers below into fourteen, which spill.
#[inline(always)]
fn opaque<T>(mut p: *const T) -> *const T {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no instructions at all.
    unsafe {
        std::arch::asm!("/* {} */", inout(reg) p, options(pure, readonly, nostack, preserves_flags));
    }
    p
}

/// Keeps `ROWS * REGS` registers of sums; each sum is one chain over `depth`, in order, so
/// that the result does not depend on how rows and columns were cut into tiles.
#[inline(always)]
unsafe fn tile_kernel<V: Vector, const ROWS: usize, const REGS: usize, const GROUPS: bool>(
    tile: &Tile<V::Elem>,
) {
    claim_output::<V, ROWS, REGS>(tile);
    let (stride, step) = match tile.order {
        Order::Groups(step) => (1, step),
        Order::Rows(stride) => (stride, 1),
    };
    // One pointer for five rows: one, two and four strides are addressing modes of x86.
    let mut a: [*const V::Elem; 3] =
        std::array::from_fn(|g| opaque(tile.a.wrapping_offset(5 * g as isize * stride)));
    let mut b = tile.b;
    // SAFETY: the caller's CPU has the instruction.
    let mut sums = [[unsafe { V::zero() }; REGS]; ROWS];
    // SAFETY: loads stay inside the panels described by `Tile`.
    unsafe {
        for _ in 0..tile.depth {
            if GROUPS {
                // Behind the panels lie the next ones.
                prefetch_at(a[0].wrapping_add(step.wrapping_mul(AHEAD)));
                for j in (0..REGS * V::LANES).step_by(64 / size_of::<V::Elem>()) {
                    prefetch_at(b.wrapping_add(AHEAD * tile.ldb + j));
                }
            }
            let row: [V; REGS] = std::array::from_fn(|j| V::load(b.add(j * V::LANES)));
            // Two short loops instead of one long one, which would not be unrolled.
            for g in 0..3 {
                for r in 0..5 {
                    let i = 5 * g + r;
                    if i < ROWS {
                        let x = if GROUPS { a[0].add(i) } else { a[g].offset(r as isize * stride) };
                        let x = V::splat(*x);
                        for j in 0..REGS {
                            sums[i][j] = sums[i][j].fma(x, row[j]);
                        }
                    }
                }
            }
            for g in 0..3 {
                a[g] = a[g].wrapping_add(step);
            }
            b = b.wrapping_add(tile.ldb);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store_sums(tile, &sums) }
}

/// Asks for the output of a tile, which will be written while the next one is computed.
#[inline(always)]
fn claim_output<V: Vector, const ROWS: usize, const REGS: usize>(tile: &Tile<V::Elem>) {
    for i in 0..ROWS {
        for j in 0..REGS {
            claim(tile.c.wrapping_add(i * tile.ldc + j * V::LANES));
        }
    }
}

/// Writes the sums of a tile, or adds them.
#[inline(always)]
unsafe fn store_sums<V: Vector, const ROWS: usize, const REGS: usize>(
    tile: &Tile<V::Elem>,
    sums: &[[V; REGS]; ROWS],
) {
    if tile.cols == REGS * V::LANES {
        for i in 0..ROWS {
            for j in 0..REGS {
                // SAFETY: row i, columns j * LANES.. are inside the output tile.
                unsafe {
                    let c = tile.c.add(i * tile.ldc + j * V::LANES);
                    match tile.start {
                        Start::Zero => sums[i][j].store(c),
                        Start::Add => V::load(c).add(sums[i][j]).store(c),
                    }
                }
            }
        }
        return;
    }
    let mut edge = [V::Elem::default(); MAX_TILE];
    for i in 0..ROWS {
        for j in 0..REGS {
            // SAFETY: ROWS * REGS * LANES elements fit in the largest tile.
            unsafe { sums[i][j].store(edge.as_mut_ptr().add((i * REGS + j) * V::LANES)) };
        }
    }
    for i in 0..ROWS {
        for j in 0..tile.cols {
            let sum = edge[i * REGS * V::LANES + j];
            // SAFETY: (i, j) is inside the output tile.
            unsafe {
                let c = tile.c.add(i * tile.ldc + j);
                *c = if tile.start == Start::Add { *c + sum } else { sum };
            }
        }
    }
}
