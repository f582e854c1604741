//! Few rows times a matrix whose columns are contiguous in depth: its columns are left tiles, read where they are, and only the rows
//! are packed. The same steps as for other matrices with the sides exchanged, so the same bits.

use super::*;

/// Runs `task`, which has few rows; its depth is at least 1.
///
/// # Safety
/// [`available`] said yes; all elements the task names are valid, and no one else uses `c`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn run(task: &Task<bf16>) {
    let (steps, whole) = (task.depth.div_ceil(STEP), task.depth / STEP);
    let panels = task.rows.div_ceil(BLOCK);
    let lines = task.b.transposed();
    let mut space = Scratch::take((panels * steps * 2 + 2 + 4) * TILE);
    let packed = space.ptr();
    // SAFETY: the space holds the panels of rows, two tiles of lines and four of sums; every block named is inside its matrix.
    unsafe {
        let copied = packed.add(panels * steps * 2 * TILE);
        let sums = copied.add(2 * TILE);
        let _tiles = Tiles::configure([FULL; 8]);
        pack(task.a, task.rows, task.depth, Form::Pairs, packed);
        for j in (0..task.cols).step_by(BLOCK) {
            let count = BLOCK.min(task.cols - j);
            for panel in 0..panels {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, nomem, preserves_flags)
                );
                for step in 0..steps {
                    let from = lines.at(j, step * STEP);
                    let (left, pitch) = if count == BLOCK && step < whole {
                        if panel == 0 {
                            prefetch_block(from.at(BLOCK, 0));
                        }
                        (from.ptr.cast::<u8>(), from.row_stride.wrapping_mul(size_of::<bf16>() as isize))
                    } else {
                        pack_block(from, count, STEP.min(task.depth - step * STEP), Form::Rows, copied);
                        (copied.cast_const(), LINE as isize)
                    };
                    add_step(left, pitch, packed.add((panel * steps + step) * 2 * TILE));
                }
                asm!(
                    "tilestored [{c} + {s}], tmm0",
                    "tilestored [{c} + {s} + 1024], tmm1",
                    "tilestored [{c} + {s} + 2048], tmm2",
                    "tilestored [{c} + {s} + 3072], tmm3",
                    c = in(reg) sums, s = in(reg) LINE,
                    options(nostack, preserves_flags)
                );
                let rows = BLOCK.min(task.rows - panel * BLOCK);
                let c = task.c.add(panel * BLOCK * task.ldc + j);
                turn_block(sums.cast(), c, task.ldc, rows, count);
            }
        }
    }
}

/// Multiplies two left tiles, whose rows lie `pitch` bytes apart, with two right ones, into the four tiles of sums.
#[inline(always)]
unsafe fn add_step(left: *const u8, pitch: isize, right: *const u8) {
    // SAFETY: the tiles are configured, and the caller names whole ones.
    unsafe {
        asm!(
            "tileloadd tmm4, [{a} + {pitch}]",
            "tileloadd tmm6, [{b} + {s}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {s} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{next} + {pitch}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            a = in(reg) left, next = in(reg) left.wrapping_offset(pitch.wrapping_mul(SIDE as isize)),
            pitch = in(reg) pitch, b = in(reg) right, s = in(reg) LINE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly, preserves_flags)
        );
    }
}

/// Rounds four tiles of sums, whose rows are columns of the output, into it.
#[inline(always)]
unsafe fn turn_block(sums: *const f32, c: *mut bf16, ldc: usize, rows: usize, cols: usize) {
    for side in 0..rows.div_ceil(SIDE) {
        // SAFETY: the tiles of these rows are inside the sums; the mask keeps stores inside `c`.
        unsafe {
            let left = turned(sums.add(side * SIDE * SIDE));
            let right = turned(sums.add((2 + side) * SIDE * SIDE));
            for r in 0..SIDE.min(rows - side * SIDE) {
                let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(right[r].0, left[r].0));
                let c = c.add((side * SIDE + r) * ldc).cast::<i16>();
                _mm512_mask_storeu_epi16(c, lanes(cols), both);
            }
        }
    }
}

/// A tile of sums, its rows and columns exchanged.
#[inline(always)]
unsafe fn turned(tile: *const f32) -> [F32x16; SIDE] {
    // SAFETY: the caller names a whole tile.
    unsafe {
        let mut rows = [F32x16(_mm512_setzero_ps()); SIDE];
        for r in 0..SIDE {
            rows[r].0 = _mm512_load_ps(tile.add(r * SIDE));
        }
        transpose_16(&mut rows);
        rows
    }
}
