//! Masks: counting, packing what they keep, spreading values into them, and filling through them.

use super::index::Steps;
use super::mask_compress::{compress, expand};
use super::simd::simd;
use super::strided::{BLOCK, Operand, OperandMut};
use crate::element::Bool;
use bytemuck::Pod;
use planaria_cpu::pool;

/// Mask elements per unit of work: fixed, so that where each unit's output begins is known from counts alone.
const UNIT: usize = 16 * BLOCK;

/// How many elements each unit of the mask keeps.
pub(crate) fn count(mask: &Operand<'_, Bool>) -> Vec<usize> {
    let mut counts = vec![0; mask.len().div_ceil(UNIT)];
    pool::for_chunks_mut(&mut counts, 1, UNIT, |first, counts| {
        let mut scratch = [Bool::default(); BLOCK];
        for (i, count) in counts.iter_mut().enumerate() {
            *count = blocks(unit(first + i, mask.len()))
                .map(|range| count_true(mask.block(range, &mut scratch)))
                .sum();
        }
    });
    counts
}

fn unit(i: usize, len: usize) -> std::ops::Range<usize> {
    i * UNIT..((i + 1) * UNIT).min(len)
}

fn blocks(range: std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
    range.clone().step_by(BLOCK).map(move |at| at..(at + BLOCK).min(range.end))
}

simd! {
    fn count_true(mask: &[Bool]) -> usize {
        // Byte lanes add up without overflow over at most 255 rows.
        mask.chunks(64 * 255).map(|part| {
            let mut lanes = [0u8; 64];
            let rows = part.chunks_exact(64);
            let tail = rows.remainder().iter().filter(|m| m.get()).count();
            for row in rows {
                for (lane, m) in lanes.iter_mut().zip(row) {
                    *lane += u8::from(m.get());
                }
            }
            tail + lanes.iter().map(|&n| usize::from(n)).sum::<usize>()
        }).sum()
    }
}

/// Gives `work` each unit's part of `out` (as long as its count), on the pool.
fn for_units<T: Send>(out: &mut [T], counts: &[usize], work: impl Fn(usize, &mut [T]) + Sync) {
    let mut rest = out;
    let mut parts: Vec<&mut [T]> = Vec::with_capacity(counts.len());
    for &count in counts {
        let (part, later) = rest.split_at_mut(count);
        parts.push(part);
        rest = later;
    }
    pool::for_chunks_mut(&mut parts, 1, UNIT * (1 + size_of::<T>()), |first, parts| {
        for (i, part) in parts.iter_mut().enumerate() {
            work(first + i, part);
        }
    });
}

/// Packs the elements of `data` that the mask keeps; `counts` come from [`count`].
pub(crate) fn select<T: Pod + Send + Sync>(
    data: &Operand<'_, T>,
    mask: &Operand<'_, Bool>,
    counts: &[usize],
    out: &mut [T],
) {
    for_units(out, counts, |i, mut out| {
        let (mut values, mut flags) = ([T::zeroed(); BLOCK], [Bool::default(); BLOCK]);
        for range in blocks(unit(i, mask.len())) {
            let flags = mask.block(range.clone(), &mut flags);
            let done = compress(data.block(range, &mut values), flags, out);
            out = &mut std::mem::take(&mut out)[done..];
        }
    });
}

/// Distances of the kept elements from the first in a view of the mask's shape.
pub(crate) fn positions(
    mask: &Operand<'_, Bool>,
    counts: &[usize],
    out: &mut [i64],
    shape: &[usize],
    strides: &[isize],
) {
    let steps = Steps::new(shape, strides);
    for_units(out, counts, |i, mut out| {
        let (mut values, mut flags) = ([0i64; BLOCK], [Bool::default(); BLOCK]);
        for range in blocks(unit(i, mask.len())) {
            let flags = mask.block(range.clone(), &mut flags);
            let values = &mut values[..range.len()];
            steps.fill(range.start, values);
            let done = compress(values, flags, out);
            out = &mut std::mem::take(&mut out)[done..];
        }
    });
}

/// Overwrites the kept elements of `data` with `src` in order; `data` is as long as the mask.
pub(crate) fn scatter<T: Pod + Send + Sync>(
    data: &mut [T],
    mask: &Operand<'_, Bool>,
    counts: &[usize],
    src: &[T],
) {
    let mut starts = Vec::with_capacity(counts.len());
    counts.iter().fold(0, |start, count| {
        starts.push(start);
        start + count
    });
    pool::for_chunks_mut(data, UNIT, 1 + 2 * size_of::<T>(), |at, piece| {
        let mut flags = [Bool::default(); BLOCK];
        let mut taken = starts[at / UNIT];
        for (i, block) in piece.chunks_mut(BLOCK).enumerate() {
            let first = at + i * BLOCK;
            let flags = mask.block(first..first + block.len(), &mut flags);
            taken += expand(block, flags, &src[taken..]);
        }
    });
}

/// `out = mask ? value : data`.
pub(crate) fn fill<T: Pod + Send + Sync>(
    data: &Operand<'_, T>,
    mask: &Operand<'_, Bool>,
    value: T,
    out: &mut [T],
) {
    pool::for_chunks_mut(out, BLOCK, 1 + 2 * size_of::<T>(), |at, piece| {
        let (mut values, mut flags) = ([T::zeroed(); BLOCK], [Bool::default(); BLOCK]);
        for (i, block) in piece.chunks_mut(BLOCK).enumerate() {
            let range = at + i * BLOCK..at + i * BLOCK + block.len();
            let flags = mask.block(range.clone(), &mut flags);
            fill_block(block, data.block(range, &mut values), flags, value);
        }
    });
}

/// Writes `value` to the cells of `data` that the mask keeps.
pub(crate) fn fill_in_place<T: Pod + Send + Sync>(
    data: &OperandMut<'_, T>,
    mask: &Operand<'_, Bool>,
    value: T,
) {
    data.for_each_run(1 + 2 * size_of::<T>(), |first, run| {
        let mut flags = [Bool::default(); BLOCK];
        for (i, block) in run.chunks_mut(BLOCK).enumerate() {
            let at = first + i * BLOCK;
            overwrite_block(block, mask.block(at..at + block.len(), &mut flags), value);
        }
    });
}

simd! {
    fn fill_block<T: Pod>(out: &mut [T], data: &[T], mask: &[Bool], value: T) {
        for ((o, &d), m) in out.iter_mut().zip(data).zip(mask) {
            *o = if m.get() { value } else { d };
        }
    }

    fn overwrite_block<T: Pod>(out: &mut [T], mask: &[Bool], value: T) {
        for (o, m) in out.iter_mut().zip(mask) {
            *o = if m.get() { value } else { *o };
        }
    }
}
