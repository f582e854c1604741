//! Products of a bf16 matrix with a vector on the tile unit: the same steps as for matrices, so the same bits.

use super::super::gemv::VectorBlock;
use super::*;

/// Outputs whose sums stay in the first-level cache, where outputs lie side by side.
const STRIP: usize = 2048;
/// Steps that rows are asked for in advance.
const ROWS_AHEAD: usize = 4;

/// Runs `block`; its depth is at least 1.
///
/// # Safety
/// [`available`] said yes; all elements the block names are valid, and no one else uses `c`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn run(block: &VectorBlock<bf16>) {
    let steps = block.depth.div_ceil(STEP);
    let sums_bytes = STRIP * size_of::<f32>();
    let mut space = Scratch::take(steps * LINE + 2 * TILE + sums_bytes);
    // SAFETY: the space holds x in whole steps, two tiles and a strip of sums; the rest is the caller's promise.
    unsafe {
        let tiles = space.ptr();
        let sums = tiles.add(2 * TILE).cast::<f32>();
        let x = tiles.add(2 * TILE + sums_bytes);
        pack_vector(block.x, block.depth, x.cast());
        if block.m.row_stride == 1 && block.m.col_stride != 1 {
            strips(block, x, tiles, sums);
        } else {
            rows(block, x, tiles, sums);
        }
    }
}

/// `x` contiguous, zero-filled to whole steps.
#[inline(always)]
unsafe fn pack_vector(x: Strided<bf16>, depth: usize, dst: *mut bf16) {
    // SAFETY: the caller gives `depth` elements, and room for whole steps.
    unsafe {
        for p in 0..depth {
            *dst.add(p) = *x.at(0, p).ptr;
        }
        for p in depth..depth.next_multiple_of(STEP) {
            *dst.add(p) = bf16::ZERO;
        }
    }
}

/// Rows are left tiles, read where they are if contiguous; `x` is a right tile of one column.
#[inline(always)]
unsafe fn rows(block: &VectorBlock<bf16>, x: *const u8, tile: *mut u8, sums: *mut f32) {
    let column = (SIDE as u8, size_of::<f32>() as u16);
    let whole = if block.m.col_stride == 1 { block.depth / STEP } else { 0 };
    let pitch = block.m.row_stride.wrapping_mul(size_of::<bf16>() as isize);
    // SAFETY: whole steps of 16 rows are read in place, others from a zero-filled copy; x holds whole
    // steps; the registers named have the shapes configured.
    unsafe {
        let _tiles = Tiles::configure([column, FULL, column, FULL, FULL, FULL, FULL, FULL]);
        for i in (0..block.outputs).step_by(SIDE) {
            let count = SIDE.min(block.outputs - i);
            begin(block, i, count, sums);
            asm!("tileloadd tmm0, [{c} + {s}]", c = in(reg) sums, s = in(reg) size_of::<f32>(),
                out("tmm0") _, options(nostack, readonly, preserves_flags));
            for step in 0..block.depth.div_ceil(STEP) {
                let m = block.m.at(i, step * STEP);
                let (a, pitch) = if count == SIDE && step < whole {
                    for r in 0..SIDE {
                        prefetch_at(m.at(r, ROWS_AHEAD * STEP).ptr);
                    }
                    (m.ptr.cast(), pitch)
                } else {
                    pack_tile(m, count, STEP.min(block.depth - step * STEP), Form::Rows, tile);
                    (tile.cast_const(), LINE as isize)
                };
                asm!(
                    "tileloadd tmm1, [{a} + {pitch}]",
                    "tileloadd tmm2, [{x} + {s}]",
                    "tdpbf16ps tmm0, tmm1, tmm2",
                    a = in(reg) a, pitch = in(reg) pitch,
                    x = in(reg) x.add(step * LINE), s = in(reg) size_of::<f32>(),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _,
                    options(nostack, readonly, preserves_flags)
                );
            }
            asm!("tilestored [{c} + {s}], tmm0", c = in(reg) sums, s = in(reg) size_of::<f32>(),
                options(nostack, preserves_flags));
            end(block, i, count, sums);
        }
    }
}

/// Outputs side by side are right tiles; `x` is a left tile of one row.
#[inline(always)]
unsafe fn strips(block: &VectorBlock<bf16>, x: *const u8, tiles: *mut u8, sums: *mut f32) {
    let row = (1, LINE as u16);
    // SAFETY: a strip of sums has whole blocks; tiles are copies, zero-filled; the registers named have
    // the shapes configured.
    unsafe {
        let _tiles = Tiles::configure([row, row, row, FULL, FULL, FULL, FULL, FULL]);
        for j in (0..block.outputs).step_by(STRIP) {
            let width = STRIP.min(block.outputs - j);
            begin(block, j, width, sums);
            for p in (0..block.depth).step_by(STEP) {
                let depth = STEP.min(block.depth - p);
                for i in (0..width).step_by(BLOCK) {
                    prefetch_block(block.m.at(j + i + AHEAD * BLOCK, p));
                    pack_block(block.m.at(j + i, p), BLOCK.min(width - i), depth, Form::Pairs, tiles);
                    asm!(
                        "tileloadd tmm0, [{c} + {s}]",
                        "tileloadd tmm1, [{c} + {s} + 64]",
                        "tileloadd tmm2, [{x} + {s}]",
                        "tileloadd tmm3, [{b} + {s}]",
                        "tileloadd tmm4, [{b} + {s} + 1024]",
                        "tdpbf16ps tmm0, tmm2, tmm3",
                        "tdpbf16ps tmm1, tmm2, tmm4",
                        "tilestored [{c} + {s}], tmm0",
                        "tilestored [{c} + {s} + 64], tmm1",
                        c = in(reg) sums.add(i), s = in(reg) LINE,
                        x = in(reg) x.add(p * size_of::<bf16>()), b = in(reg) tiles,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                        options(nostack, preserves_flags)
                    );
                }
            }
            end(block, j, width, sums);
        }
    }
}

/// What the sums of outputs `j..j + count` start from.
#[inline(always)]
unsafe fn begin(block: &VectorBlock<bf16>, j: usize, count: usize, sums: *mut f32) {
    // SAFETY: the outputs are inside `c`, and `sums` is a strip.
    unsafe {
        std::slice::from_raw_parts_mut(sums, count.next_multiple_of(BLOCK)).fill(0.0);
        if block.start == Start::Add {
            for i in 0..count {
                *sums.add(i) = (*block.c.add(j + i)).to_f32();
            }
        }
    }
}

/// Rounds the sums of outputs `j..j + count`.
#[inline(always)]
unsafe fn end(block: &VectorBlock<bf16>, j: usize, count: usize, sums: *const f32) {
    for i in (0..count).step_by(SIDE) {
        let count = SIDE.min(count - i);
        // SAFETY: the mask keeps the store inside `c`; a strip of sums has whole registers.
        unsafe {
            let short: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(_mm512_loadu_ps(sums.add(i))));
            _mm256_mask_storeu_epi16(block.c.add(j + i).cast(), lanes(count) as u16, short);
        }
    }
}
