//! bf16 products on the tile unit (AMX) of the CPU.
//!
//! Operands are packed as tiles of 16 rows of 64 bytes. A step multiplies two tiles of `a` with two
//! of `b` into four tiles of f32 sums, over 32 of depth. The sums run through the whole depth in
//! order, so a result does not depend on how rows, columns or passes were cut.
#![allow(unsafe_code)]

mod few;
mod vector;

use super::arch::Start;
use super::blocked::{Strided, even};
use super::path::Task;
use super::scratch::Scratch;
use super::vector::x86::{F32x16, transpose_16};
use crate::machine::caches;
use crate::prefetch::prefetch_at;
use half::bf16;
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of a tile, and columns of a tile of sums.
const SIDE: usize = 16;
/// Depth of a tile.
const STEP: usize = 32;
/// Bytes of a cache line, which is a row of a tile.
const LINE: usize = 64;
/// Bytes of a tile.
const TILE: usize = 1024;
/// Rows and columns of one block of four tiles of sums.
const BLOCK: usize = 2 * SIDE;
/// Steps of one pass: its tiles of `a` stay in the first-level cache, those of `b` pass by it.
const PASS_STEPS: usize = 16;
/// Blocks that packing asks for in advance.
const AHEAD: usize = 2;
/// Bytes of packed `a` kept at a time.
const ROWS_BYTES: usize = 16 << 20;

/// Whether this process may use the tile unit; asks the kernel for leave. The CPU has AVX-512.
pub(crate) fn available() -> bool {
    is_x86_feature_detected!("avx512bf16") && cpu_has_tiles() && permitted()
}

fn cpu_has_tiles() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    let features = __cpuid_count(7, 0).edx;
    __cpuid(0).eax >= 7 && features & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
}

/// Linux gives the tile registers to a process only when it asks.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two integers and changes only what this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The shapes of the eight tile registers.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// A whole tile.
const FULL: (u8, u16) = (SIDE as u8, LINE as u16);

/// The tile registers of this thread; released on drop.
struct Tiles(());

impl Tiles {
    /// Shapes as rows and the bytes of a row.
    ///
    /// # Safety
    /// [`available`] said yes.
    unsafe fn configure(shapes: [(u8, u16); 8]) -> Self {
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (i, (rows, bytes)) in shapes.into_iter().enumerate() {
            (config.rows[i], config.row_bytes[i]) = (rows, bytes);
        }
        // SAFETY: reads 64 bytes; the compiler never uses tile registers itself.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: this thread configured the tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Runs one task; its depth is at least 1.
///
/// # Safety
/// [`available`] said yes; all elements the task names are valid, and no one else uses `c`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn run(task: &Task<bf16>) {
    if let Some(block) = task.vector() {
        // SAFETY: the caller's promise.
        return unsafe { vector::run(&block) };
    }
    if task.has_few_rows() {
        // SAFETY: the caller's promise.
        return unsafe { few::run(task) };
    }
    let steps = task.depth.div_ceil(STEP);
    // Bytes of a packed row of `a`, which are those of a packed column of `b`.
    let line = steps * STEP * size_of::<bf16>();
    let slab_rows = (ROWS_BYTES / line / BLOCK * BLOCK).max(BLOCK).min(task.rows.next_multiple_of(BLOCK));
    // The packed block of `b` takes half of the second-level cache.
    let fitting = (caches().second / 2 / line / BLOCK * BLOCK).max(2 * BLOCK);
    let block_cols = even(task.cols, fitting, BLOCK);
    let passes = steps.div_ceil(PASS_STEPS);
    let sums_bytes = if passes == 1 { 4 * TILE } else { block_cols / BLOCK * 4 * TILE };
    let mut space = Scratch::take((slab_rows + block_cols) * line + sums_bytes);
    let a_space = space.ptr();
    // SAFETY: the space holds the three parts; every sub-block named is inside its matrix.
    unsafe {
        let _tiles = Tiles::configure([FULL; 8]);
        let b_space = a_space.add(slab_rows * line);
        let sums = b_space.add(block_cols * line);
        for top in (0..task.rows).step_by(slab_rows) {
            let bottom = task.rows.min(top + slab_rows);
            for j in (0..task.cols).step_by(block_cols) {
                let cols = block_cols.min(task.cols - j);
                pack(task.b.at(0, j).transposed(), cols, task.depth, Form::Pairs, b_space);
                for i in (top..bottom).step_by(BLOCK) {
                    let rows = BLOCK.min(bottom - i);
                    let a = a_space.add((i - top) * line);
                    if j == 0 {
                        pack(task.a.at(i, 0), rows, task.depth, Form::Rows, a);
                    }
                    let next = match task.a {
                        _ if j > 0 => Next { ptr: a.add(BLOCK * line), run: usize::MAX, pitch: 0 },
                        rows => Next::source(rows.at(i + BLOCK, 0), steps),
                    };
                    let out =
                        Out { c: task.c.add(i * task.ldc + j), ldc: task.ldc, rows, cols, start: task.start };
                    row_of_blocks(a, b_space, steps, passes, sums, &out, &next);
                }
            }
        }
    }
}

/// A strip of the output, at most `BLOCK` rows.
struct Out {
    c: *mut bf16,
    ldc: usize,
    rows: usize,
    cols: usize,
    start: Start,
}

/// The memory the next panel of `a` comes from: runs of cache lines, `pitch` bytes apart.
struct Next {
    ptr: *const u8,
    run: usize,
    pitch: isize,
}

impl Next {
    /// The source of a panel of `steps`.
    fn source(rows: Strided<bf16>, steps: usize) -> Self {
        let size = size_of::<bf16>() as isize;
        let (run, pitch) = match rows.row_stride {
            1 => (1, rows.col_stride.wrapping_mul(size)),
            stride => (steps, stride.wrapping_mul(size)),
        };
        Self { ptr: rows.ptr.cast(), run, pitch }
    }

    /// Where line `n` is, and how far it is to the next.
    fn line(&self, n: usize) -> (*const u8, isize) {
        let (row, column) = ((n / self.run) as isize, n % self.run * LINE);
        let stride = if self.run == 1 { self.pitch } else { LINE as isize };
        (self.ptr.wrapping_offset(row.wrapping_mul(self.pitch)).wrapping_add(column), stride)
    }
}

/// One packed panel of `a` times all packed panels of `b`, in passes over the depth.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn row_of_blocks(
    a: *const u8,
    b: *const u8,
    steps: usize,
    passes: usize,
    sums: *mut u8,
    out: &Out,
    next: &Next,
) {
    let pass = steps.div_ceil(passes);
    // The lines of the next panel, shared out among the multiplications of this one.
    let share = (BLOCK * steps).div_ceil(out.cols.div_ceil(BLOCK) * passes);
    let mut line = 0;
    for first in (0..steps).step_by(pass) {
        let count = pass.min(steps - first);
        for j in (0..out.cols).step_by(BLOCK) {
            // SAFETY: panels are `steps` pairs of tiles; with one pass the sums of all blocks
            // share their space.
            unsafe {
                let b = b.add(j / BLOCK * steps * 2 * TILE + first * 2 * TILE);
                let a = a.add(first * 2 * TILE);
                let sums = if passes == 1 { sums } else { sums.add(j / BLOCK * 4 * TILE) };
                let width = BLOCK.min(out.cols - j);
                if first == 0 && out.start == Start::Add {
                    widen_block(out.c.add(j), out.ldc, out.rows, width, sums.cast());
                }
                let start = if first == 0 { out.start } else { Start::Add };
                multiply(a, b, count, sums, start, next.line(line));
                line += share;
                if first + count == steps {
                    narrow_block(sums.cast(), out.c.add(j), out.ldc, out.rows, width);
                }
            }
        }
    }
}

/// `sums = a · b` or `+=`, four tiles, over `steps`; asks for two lines of `next` a step.
#[inline(always)]
unsafe fn multiply(
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: *mut u8,
    start: Start,
    (next, stride): (*const u8, isize),
) {
    // SAFETY: the pointers are valid for `steps` pairs of tiles and four tiles of sums; the tiles
    // are configured; the assembly names every register it changes.
    unsafe {
        match start {
            Start::Zero => asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem, preserves_flags)
            ),
            Start::Add => asm!(
                "tileloadd tmm0, [{c} + {s}]",
                "tileloadd tmm1, [{c} + {s} + 1024]",
                "tileloadd tmm2, [{c} + {s} + 2048]",
                "tileloadd tmm3, [{c} + {s} + 3072]",
                c = in(reg) sums, s = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, readonly, preserves_flags)
            ),
        }
        asm!(
            "2:",
            "tileloadd tmm4, [{a} + {s}]",
            "tileloaddt1 tmm6, [{b} + {s}]",
            "prefetcht1 [{next}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloaddt1 tmm7, [{b} + {s} + 1024]",
            "prefetcht1 [{next} + {stride}]",
            "lea {next}, [{next} + {stride} * 2]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a} + {s} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 2048",
            "add {b}, 2048",
            "dec {n}",
            "jnz 2b",
            "tilestored [{c} + {s}], tmm0",
            "tilestored [{c} + {s} + 1024], tmm1",
            "tilestored [{c} + {s} + 2048], tmm2",
            "tilestored [{c} + {s} + 3072], tmm3",
            a = inout(reg) a => _, b = inout(reg) b => _, n = inout(reg) steps => _,
            c = in(reg) sums, s = in(reg) 64usize,
            next = inout(reg) next => _, stride = in(reg) stride,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}

/// The first `n` of 32 lanes.
#[inline(always)]
fn lanes(n: usize) -> u32 {
    if n >= 32 { u32::MAX } else { (1 << n) - 1 }
}

/// Rounds four tiles of sums into the output.
#[inline(always)]
unsafe fn narrow_block(sums: *const f32, c: *mut bf16, ldc: usize, rows: usize, cols: usize) {
    for i in 0..rows {
        // SAFETY: row i of both tiles is inside the sums; the mask keeps the store inside `c`.
        unsafe {
            let row = sums.add(i / SIDE * 2 * SIDE * SIDE + i % SIDE * SIDE);
            let (left, right) = (_mm512_load_ps(row), _mm512_load_ps(row.add(SIDE * SIDE)));
            let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(right, left));
            let c = c.add(i * ldc).cast::<i16>();
            if cols == BLOCK {
                _mm512_storeu_epi16(c, both);
            } else {
                _mm512_mask_storeu_epi16(c, lanes(cols), both);
            }
        }
    }
}

/// Four tiles of sums that start from the output.
#[inline(always)]
unsafe fn widen_block(c: *const bf16, ldc: usize, rows: usize, cols: usize, sums: *mut f32) {
    for i in 0..rows {
        // SAFETY: as in `narrow_block`, the other way round.
        unsafe {
            let (left, right) = halves(_mm512_maskz_loadu_epi16(lanes(cols), c.add(i * ldc).cast()));
            let row = sums.add(i / SIDE * 2 * SIDE * SIDE + i % SIDE * SIDE);
            _mm512_store_ps(row, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(left)));
            _mm512_store_ps(row.add(SIDE * SIDE), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(right)));
        }
    }
}

/// How a tile lies in its rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A row per line, 32 of depth in each: the left operand.
    Rows,
    /// A row per two of depth, with the pairs of 16 lines: the right operand.
    Pairs,
}

/// Packs `count` lines (rows of `a`, columns of `b`) as panels of two tiles per step, zero-filled.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn pack(src: Strided<bf16>, count: usize, depth: usize, form: Form, dst: *mut u8) {
    let (panels, steps) = (count.div_ceil(BLOCK), depth.div_ceil(STEP));
    // In the order of memory: along the depth, or across the panels.
    let along = src.col_stride == 1;
    let at = |n: usize| if along { (n / steps, n % steps) } else { (n % panels, n / panels) };
    for n in 0..panels * steps {
        let (panel, step) = at(n + AHEAD);
        prefetch_block(src.at(panel * BLOCK, step * STEP));
        let (panel, step) = at(n);
        let (i, p) = (panel * BLOCK, step * STEP);
        // SAFETY: the block at (i, p) names at most BLOCK by STEP valid elements; `dst` holds all
        // panels.
        unsafe {
            let dst = dst.add((panel * steps + step) * 2 * TILE);
            pack_block(src.at(i, p), BLOCK.min(count - i), STEP.min(depth - p), form, dst);
        }
    }
}

/// Asks for the lines of one block.
#[inline(always)]
fn prefetch_block(src: Strided<bf16>) {
    let stride = if src.col_stride == 1 { src.row_stride } else { src.col_stride };
    for n in 0..BLOCK as isize {
        prefetch_at(src.ptr.wrapping_offset(n.wrapping_mul(stride)));
    }
}

/// Packs two tiles.
#[inline(always)]
unsafe fn pack_block(src: Strided<bf16>, lines: usize, depth: usize, form: Form, dst: *mut u8) {
    // SAFETY: the caller's promise; `dst` is two tiles.
    unsafe {
        if src.row_stride == 1 && lines == BLOCK && depth == STEP {
            return pack_whole_pairs(src, form, dst);
        }
        for side in 0..2 {
            let lines = lines.saturating_sub(side * SIDE).min(SIDE);
            pack_tile(src.at(side * SIDE, 0), lines, depth, form, dst.add(side * TILE));
        }
    }
}

/// Two whole tiles of lines one element apart: a load serves both.
#[inline(always)]
unsafe fn pack_whole_pairs(src: Strided<bf16>, form: Form, dst: *mut u8) {
    // SAFETY: the caller's promise; `dst` is two tiles.
    unsafe {
        let mut left = [F32x16(_mm512_setzero_ps()); SIDE];
        let mut right = left;
        for r in 0..SIDE {
            let even = _mm512_loadu_si512(src.at(0, 2 * r).ptr.cast());
            let odd = _mm512_loadu_si512(src.at(0, 2 * r + 1).ptr.cast());
            let (even_left, even_right) = halves(even);
            let (odd_left, odd_right) = halves(odd);
            left[r].0 = _mm512_castsi512_ps(_mm512_or_si512(even_left, _mm512_slli_epi32::<16>(odd_left)));
            right[r].0 = _mm512_castsi512_ps(_mm512_or_si512(even_right, _mm512_slli_epi32::<16>(odd_right)));
        }
        for (side, mut tile) in [left, right].into_iter().enumerate() {
            if form == Form::Rows {
                transpose_16(&mut tile);
            }
            for r in 0..SIDE {
                _mm512_store_ps(dst.add(side * TILE + r * LINE).cast(), tile[r].0);
            }
        }
    }
}

/// Both halves of 32 short numbers, zero-extended.
#[inline(always)]
unsafe fn halves(x: __m512i) -> (__m512i, __m512i) {
    // SAFETY: register operations; the caller's CPU has AVX-512.
    unsafe {
        let (low, high) = (_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
        (_mm512_cvtepu16_epi32(low), _mm512_cvtepu16_epi32(high))
    }
}

/// Packs one tile of `lines` by `depth`.
#[inline(always)]
unsafe fn pack_tile(src: Strided<bf16>, lines: usize, depth: usize, form: Form, dst: *mut u8) {
    // SAFETY: the caller's promise; `dst` is a tile.
    unsafe {
        let mut tile = [F32x16(_mm512_setzero_ps()); SIDE];
        let held = match (src.row_stride, src.col_stride) {
            (_, 1) => {
                load_rows(src, lines, depth, &mut tile);
                Form::Rows
            }
            (1, _) => {
                load_pairs(src, lines, depth, &mut tile);
                Form::Pairs
            }
            _ => {
                load_any(src, lines, depth, &mut tile);
                Form::Rows
            }
        };
        if held != form {
            transpose_16(&mut tile);
        }
        for r in 0..SIDE {
            _mm512_store_ps(dst.add(r * LINE).cast(), tile[r].0);
        }
    }
}

/// Lines contiguous in depth.
#[inline(always)]
unsafe fn load_rows(src: Strided<bf16>, lines: usize, depth: usize, tile: &mut [F32x16; SIDE]) {
    if lines == SIDE && depth == STEP {
        for r in 0..SIDE {
            // SAFETY: the whole tile is valid.
            tile[r].0 = unsafe { _mm512_castsi512_ps(_mm512_loadu_si512(src.at(r, 0).ptr.cast())) };
        }
        return;
    }
    for r in 0..lines {
        // SAFETY: the mask keeps the load inside the line.
        let line = unsafe { _mm512_maskz_loadu_epi16(lanes(depth), src.at(r, 0).ptr.cast()) };
        // SAFETY: a cast of a register.
        tile[r].0 = unsafe { _mm512_castsi512_ps(line) };
    }
}

/// Lines one element apart: two of depth at a time, interleaved.
#[inline(always)]
unsafe fn load_pairs(src: Strided<bf16>, lines: usize, depth: usize, tile: &mut [F32x16; SIDE]) {
    let mask = lanes(lines) as u16;
    for r in 0..SIDE {
        let (even, odd) = (2 * r, 2 * r + 1);
        // SAFETY: the masks keep the loads inside the lines and the depth.
        tile[r].0 = unsafe {
            let masks = [even, odd].map(|p| if p < depth { mask } else { 0 });
            let even = _mm256_maskz_loadu_epi16(masks[0], src.at(0, even).ptr.cast());
            let odd = _mm256_maskz_loadu_epi16(masks[1], src.at(0, odd).ptr.cast());
            let odd = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(odd));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(even), odd))
        };
    }
}

/// Any strides, one element at a time.
#[inline(always)]
unsafe fn load_any(src: Strided<bf16>, lines: usize, depth: usize, tile: &mut [F32x16; SIDE]) {
    for r in 0..lines {
        let mut line = [bf16::ZERO; STEP];
        for p in 0..depth {
            // SAFETY: (r, p) is inside the tile.
            line[p] = unsafe { *src.at(r, p).ptr };
        }
        // SAFETY: `line` is 64 bytes.
        tile[r].0 = unsafe { _mm512_loadu_ps(line.as_ptr().cast()) };
    }
}
