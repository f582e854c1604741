//! Gather and scatter along one dim, where each element names its own position.

use super::gather_rule::Rule;
use super::index::{Source, Steps};
use super::simd::simd;
use super::stream;
use crate::array::contiguous_strides;
use bytemuck::Pod;
use planaria_cpu::{pool, prefetch};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};

/// Positions along `dim`, one per element of an array of shape `extents` (not 0-d), in row-major order.
#[derive(Clone, Copy)]
pub(crate) struct Along<'a> {
    pub(crate) dim: usize,
    pub(crate) index: &'a [i64],
    pub(crate) extents: &'a [usize],
}

simd! {
    /// True when every position lies in `0..size`.
    pub(crate) fn within(index: &[i64], size: usize) -> bool {
        // Negative values are huge as unsigned ones.
        index.iter().fold(0u64, |top, &i| top.max(i as u64)) < size as u64 || index.is_empty()
    }
}

/// `out[..., c, ...] = view[..., index[..., c, ...], ...]`; false when a position lies outside.
pub(crate) fn gather<T: Pod + Send + Sync>(
    data: &[T],
    view: (usize, &[usize], &[isize]),
    along: Along<'_>,
    out: &mut [T],
) -> bool {
    let (offset, shape, strides) = view;
    let last = shape.len() - 1;
    let (size, step, row) = (shape[along.dim], strides[along.dim], along.extents[last]);
    if out.is_empty() {
        return true;
    }
    let mut outer: SmallVec<[isize; 6]> = SmallVec::from_slice(&strides[..last]);
    if along.dim < last {
        outer[along.dim] = 0;
    }
    let rows = Steps::new(&along.extents[..last], &outer);
    let inner = if along.dim == last { 0 } else { strides[last] };
    let outside = AtomicBool::new(false);
    let unit = row * (1024 / row).max(1);
    pool::for_chunks_mut(out, unit, 2 * size_of::<T>() + 8, |at, piece| {
        for (r, out) in piece.chunks_exact_mut(row).enumerate() {
            let first = at / row + r;
            let index = stream::row_ahead(along.index, first, row);
            stream::claim(out, row);
            if !within(index, size) {
                return outside.store(true, Ordering::Relaxed);
            }
            let base = offset as isize + rows.at(first);
            if inner == 0 && step == 1 {
                let next =
                    if first + 1 < along.index.len() / row { rows.at(first + 1) - rows.at(first) } else { 0 };
                gather_row(data, base as usize, size, next, index, out);
            } else {
                gather_apart(data, base, (step, inner), index, out);
            }
        }
    });
    !outside.into_inner()
}

/// A row whose positions all lie in one stretch of `size` elements; `next` is the distance to the next row's.
fn gather_row<T: Pod>(data: &[T], base: usize, size: usize, next: isize, index: &[i64], out: &mut [T]) {
    let source = &data[base..base + size];
    let per_line = 64 / size_of::<T>();
    // When most lines of a stretch are wanted, stream the next one in while this one is read at random.
    let lines = size.div_ceil(per_line);
    if next == 0 || lines > index.len() {
        return gather_apart(data, base as isize, (1, 0), index, out);
    }
    let group = (index.len() / lines).max(1);
    let mut ahead = (base as isize + next) as usize;
    for (out, index) in out.chunks_mut(group).zip(index.chunks(group)) {
        prefetch(data, ahead);
        ahead += per_line;
        for (o, &i) in out.iter_mut().zip(index) {
            *o = source[i as usize];
        }
    }
}

fn gather_apart<T: Pod>(data: &[T], base: isize, steps: (isize, isize), index: &[i64], out: &mut [T]) {
    const AHEAD: usize = 16;
    let at = |c: usize, i: i64| (base + i as isize * steps.0 + c as isize * steps.1) as usize;
    for (c, (o, &i)) in out.iter_mut().zip(index).enumerate() {
        if let Some(&next) = index.get(c + AHEAD) {
            prefetch(data, at(c + AHEAD, next));
        }
        *o = data[at(c, i)];
    }
}

/// `out[..., index[..., c, ...], ...] <- source[..., c, ...]` under a rule, in index order; `out` is contiguous with
/// extents `shape` and starts as a copy of `init` where given. False when a position lies outside.
pub(crate) fn scatter<T: Pod + Send + Sync, R: Rule<T>>(
    init: Option<&[T]>,
    out: &mut [T],
    shape: &[usize],
    along: Along<'_>,
    source: Source<'_, T>,
) -> bool {
    let slabs = Slabs::new(shape, along);
    let threads = rayon::current_num_threads();
    let unit = match slabs.inner * slabs.size {
        // Few slabs: threads share one, each owning a range of positions.
        slab if slabs.count < threads => (slab.div_ceil(threads)).next_multiple_of(slabs.inner.max(1)),
        slab => slab,
    };
    let work = (along.index.len() * (8 + 2 * size_of::<T>())).max(size_of_val(out));
    let item_bytes = if work < 1 << 18 { 0 } else { work.div_ceil(out.len().max(1)) };
    let outside = AtomicBool::new(false);
    pool::for_chunks_mut(out, unit, item_bytes, |at, piece| {
        let slab = slabs.inner * slabs.size;
        let (mut at, mut rest) = (at, piece);
        while !rest.is_empty() {
            let (now, later) = rest.split_at_mut((slab - at % slab).min(rest.len()));
            if let Some(init) = init {
                now.copy_from_slice(&init[at..at + now.len()]);
            }
            let first = at % slab / slabs.inner;
            if let Some(start) = slabs.start(at / slab)
                && !slabs.write::<T, R>(now, first, start, source)
            {
                outside.store(true, Ordering::Relaxed);
            }
            (at, rest) = (at + now.len(), later);
        }
    });
    !outside.into_inner()
}

/// The written array as slabs, one per coordinate of the dims before the scattered one.
struct Slabs<'a> {
    along: Along<'a>,
    outer: &'a [usize],
    count: usize,
    /// Size of the scattered dim, and elements per position along it.
    size: usize,
    inner: usize,
    /// Index elements per slab and per position.
    per_slab: usize,
    per_position: usize,
    /// Distances of the index's last-dim rows inside one position.
    rows: Steps,
    row: usize,
}

impl<'a> Slabs<'a> {
    fn new(shape: &'a [usize], along: Along<'a>) -> Slabs<'a> {
        let (d, last) = (along.dim, shape.len() - 1);
        let inner_strides = contiguous_strides(&shape[d + 1..]);
        let (rows, row) = if d == last {
            (Steps::default(), 1)
        } else {
            let kept = last - d - 1;
            (Steps::new(&along.extents[d + 1..last], &inner_strides[..kept]), along.extents[last])
        };
        Slabs {
            along,
            outer: &shape[..d],
            count: shape[..d].iter().product(),
            size: shape[d],
            inner: shape[d + 1..].iter().product(),
            per_slab: along.extents[d..].iter().product(),
            per_position: along.extents[d + 1..].iter().product(),
            rows,
            row,
        }
    }

    /// Where the index of a slab begins; none when the index does not reach so far.
    fn start(&self, slab: usize) -> Option<usize> {
        let (mut rest, mut at, mut step) = (slab, 0, 1);
        for (d, &n) in self.outer.iter().enumerate().rev() {
            let (coord, extent) = (rest % n, self.along.extents[d]);
            if coord >= extent {
                return None;
            }
            at += coord * step;
            step *= extent;
            rest /= n;
        }
        Some(at * self.per_slab)
    }

    /// Writes what belongs into `out`: the positions from `first` on of one slab.
    fn write<T: Pod, R: Rule<T>>(
        &self,
        out: &mut [T],
        first: usize,
        start: usize,
        source: Source<'_, T>,
    ) -> bool {
        let index = &self.along.index[start..start + self.per_slab];
        if !within(index, self.size) {
            return false;
        }
        let source = match source {
            Source::Each(values) => Source::Each(&values[start..start + self.per_slab]),
            one => one,
        };
        if self.inner == 1 && self.row == 1 {
            write_row::<T, R>(out, first, index, source);
            return true;
        }
        for (r, index) in index.chunks_exact(self.row.max(1)).enumerate() {
            let base = self.rows.at(r * self.row % self.per_position / self.row) as usize;
            for (c, &i) in index.iter().enumerate() {
                let at = (i as usize).wrapping_sub(first).wrapping_mul(self.inner);
                if i as usize >= first && at < out.len() {
                    let cell = &mut out[at + base + c];
                    *cell = R::apply(*cell, source.at(r * self.row + c));
                }
            }
        }
        true
    }
}

fn write_row<T: Pod, R: Rule<T>>(out: &mut [T], first: usize, index: &[i64], source: Source<'_, T>) {
    for (c, &i) in index.iter().enumerate() {
        if let Some(cell) = out.get_mut((i as usize).wrapping_sub(first)) {
            *cell = R::apply(*cell, source.at(c));
        }
    }
}
