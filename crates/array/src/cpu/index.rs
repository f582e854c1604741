//! Reading and writing rows of a view at computed offsets: the kernels under `x[i, j]` and `index_put`.

use super::gather_rule::Rule;
use super::simd::simd;
use super::strided::{BLOCK, Operand};
use bytemuck::Pod;
use planaria_cpu::{pool, prefetch};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many random accesses ahead the memory is asked for a line.
const AHEAD: usize = 24;

/// Rows read side by side when their elements lie apart.
const GROUP: usize = 8;

/// One index array, broadcast to the common shape.
pub(crate) struct Part<'a> {
    pub(crate) values: Operand<'a, i64>,
    /// The size of the indexed dim.
    pub(crate) size: usize,
    /// The indexed dim's stride; none when the values are offsets already.
    pub(crate) stride: Option<isize>,
}

/// Sums the parts into `out`; false when a position lies outside its dim.
pub(crate) fn offsets(parts: &[Part<'_>], out: &mut [i64]) -> bool {
    let outside = AtomicBool::new(false);
    pool::for_chunks_mut(out, BLOCK, 8 * (parts.len() + 1), |at, piece| {
        let mut scratch = [0i64; BLOCK];
        let mut bad = false;
        for (i, block) in piece.chunks_mut(BLOCK).enumerate() {
            let first = at + i * BLOCK;
            block.fill(0);
            for part in parts {
                let values = part.values.block(first..first + block.len(), &mut scratch);
                match part.stride {
                    Some(stride) => bad |= !add_positions(block, values, part.size as i64, stride as i64),
                    None => add_offsets(block, values),
                }
            }
        }
        if bad {
            outside.store(true, Ordering::Relaxed);
        }
    });
    !outside.into_inner()
}

simd! {
    fn add_positions(out: &mut [i64], values: &[i64], size: i64, stride: i64) -> bool {
        let mut bad = 0u64;
        for (o, &v) in out.iter_mut().zip(values) {
            let at = v.wrapping_add((v >> 63) & size);
            bad |= u64::from(at as u64 >= size as u64);
            *o = o.wrapping_add(at.wrapping_mul(stride));
        }
        bad == 0
    }

    /// Smallest and largest value; not empty.
    fn extremes(values: &[i64]) -> (i64, i64) {
        let (mut low, mut high) = ([i64::MAX; 16], [i64::MIN; 16]);
        let rows = values.chunks_exact(16);
        let tail = rows.remainder();
        for row in rows {
            for i in 0..16 {
                low[i] = low[i].min(row[i]);
                high[i] = high[i].max(row[i]);
            }
        }
        let low = low.iter().chain(tail).fold(i64::MAX, |a, &b| a.min(b));
        (low, high.iter().chain(tail).fold(i64::MIN, |a, &b| a.max(b)))
    }

    fn add_offsets(out: &mut [i64], values: &[i64]) {
        for (o, &v) in out.iter_mut().zip(values) {
            *o += v;
        }
    }
}

/// Dims walked in row-major order, neighbours that step evenly merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    dims: SmallVec<[(usize, isize); 6]>,
}

impl Steps {
    pub(crate) fn new(shape: &[usize], strides: &[isize]) -> Steps {
        let mut dims: SmallVec<[(usize, isize); 6]> = SmallVec::new();
        for (&len, &stride) in shape.iter().zip(strides) {
            match dims.last_mut() {
                _ if len == 1 => {}
                Some((n, s)) if *s == stride * len as isize => (*n, *s) = (*n * len, stride),
                _ => dims.push((len, stride)),
            }
        }
        Steps { dims }
    }

    /// Number of coordinates.
    pub(crate) fn count(&self) -> usize {
        self.dims.iter().map(|d| d.0).product()
    }

    /// Smallest and largest distance from the first element.
    pub(crate) fn reach(&self) -> (isize, isize) {
        let ends = self.dims.iter().map(|&(n, s)| (n as isize - 1).max(0) * s);
        ends.fold((0, 0), |(low, high), end| (low + end.min(0), high + end.max(0)))
    }

    /// Distances of coordinates `first`, `first + 1`, ... from the first element.
    pub(crate) fn fill(&self, first: usize, out: &mut [i64]) {
        let (n, stride) = self.dims.last().copied().unwrap_or((1, 1));
        let mut i = first;
        let mut rest = out;
        while !rest.is_empty() {
            let (now, later) = rest.split_at_mut((n - i % n).min(rest.len()));
            let start = self.at(i) as i64;
            for (j, o) in now.iter_mut().enumerate() {
                *o = start + j as i64 * stride as i64;
            }
            (i, rest) = (i + now.len(), later);
        }
    }

    /// Distance of coordinate number `i` from the first element.
    pub(crate) fn at(&self, mut i: usize) -> isize {
        let mut at = 0;
        for &(n, s) in self.dims.iter().rev() {
            at += (i % n) as isize * s;
            i /= n;
        }
        at
    }
}

/// Where rows lie: `base + outer + offsets[i] + inner`.
pub(crate) struct Plan<'a> {
    base: isize,
    outer: Steps,
    offsets: &'a [i64],
    /// Starts of the runs of one row.
    runs: Vec<isize>,
    run_len: usize,
    run_stride: isize,
    /// Smallest and largest distance inside a row.
    reach: (isize, isize),
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        base: usize,
        outer: (&[usize], &[isize]),
        offsets: &'a [i64],
        inner: (&[usize], &[isize]),
    ) -> Plan<'a> {
        let outer = Steps::new(outer.0, outer.1);
        let mut inner = Steps::new(inner.0, inner.1);
        let reach = inner.reach();
        let (run_len, run_stride) = inner.dims.pop().unwrap_or((1, 1));
        let runs = (0..inner.count()).map(|i| inner.at(i)).collect();
        Plan { base: base as isize, outer, offsets, runs, run_len, run_stride, reach }
    }

    fn row_len(&self) -> usize {
        self.runs.len() * self.run_len
    }

    /// Smallest and largest distance of any row from `base`.
    fn span(&self) -> (isize, isize) {
        let (low, high) = extremes(self.offsets);
        (low as isize + self.reach.0, high as isize + self.reach.1)
    }

    /// Every cell of a row, in order.
    #[inline(always)]
    fn cells(&self, start: isize) -> impl Iterator<Item = usize> + '_ {
        self.runs.iter().flat_map(move |&run| {
            (0..self.run_len).map(move |j| (start + run + j as isize * self.run_stride) as usize)
        })
    }

    fn is_one_run(&self) -> bool {
        self.runs.len() == 1 && (self.run_stride == 1 || self.run_len == 1)
    }
}

/// Writes the planned rows to `out`, one after the other.
pub(crate) fn take<T: Pod + Send + Sync>(data: &[T], plan: &Plan<'_>, out: &mut [T]) {
    let (n, row) = (plan.offsets.len(), plan.row_len());
    if out.is_empty() {
        return;
    }
    let unit = row * (BLOCK / row).max(1);
    pool::for_chunks_mut(out, unit, 2 * size_of::<T>(), |at, piece| {
        let (mut first, mut rest) = (at / row, piece);
        while !rest.is_empty() {
            let count = (n - first % n).min(rest.len() / row);
            let (now, later) = rest.split_at_mut(count * row);
            let base = plan.base + plan.outer.at(first / n);
            take_rows(data, plan, base, &plan.offsets[first % n..first % n + count], now);
            (first, rest) = (first + count, later);
        }
    });
}

fn take_rows<T: Pod>(data: &[T], plan: &Plan<'_>, base: isize, offsets: &[i64], out: &mut [T]) {
    let row = plan.row_len();
    if row == 1 {
        return take_elements(data, base, offsets, out);
    }
    if plan.is_one_run() {
        for (i, (out, &offset)) in out.chunks_exact_mut(row).zip(offsets).enumerate() {
            if let Some(&next) = offsets.get(i + 2) {
                prefetch_row(data, (base + next as isize) as usize, row);
            }
            let at = (base + offset as isize) as usize;
            out.copy_from_slice(&data[at..at + row]);
        }
        return;
    }
    if plan.runs.len() == 1 && offsets.len() >= 2 * GROUP {
        return take_sorted(data, plan, base, offsets, out);
    }
    for (out, &offset) in out.chunks_exact_mut(row).zip(offsets) {
        for (o, at) in out.iter_mut().zip(plan.cells(base + offset as isize)) {
            *o = data[at];
        }
    }
}

/// Asks for the first lines of a row; the hardware follows on its own.
#[inline(always)]
fn prefetch_row<T>(data: &[T], at: usize, row: usize) {
    for line in (0..row.min(4 * 64 / size_of::<T>())).step_by(64 / size_of::<T>()) {
        prefetch(data, at + line);
    }
}

/// Rows whose elements lie apart, nearest rows together: those that share cache lines then load them once.
fn take_sorted<T: Pod>(data: &[T], plan: &Plan<'_>, base: isize, offsets: &[i64], out: &mut [T]) {
    let (row, stride) = (plan.run_len, plan.run_stride);
    let mut order: Vec<(i64, usize)> = offsets.iter().copied().zip(0..).collect();
    order.sort_unstable();
    for group in order.chunks(GROUP) {
        for j in 0..row {
            let along = base + j as isize * stride;
            for &(offset, i) in group {
                let at = along + offset as isize;
                prefetch(data, (at + GROUP as isize * stride) as usize);
                out[i * row + j] = data[at as usize];
            }
        }
    }
}

fn take_elements<T: Pod>(data: &[T], base: isize, offsets: &[i64], out: &mut [T]) {
    let ahead = offsets.get(AHEAD..).unwrap_or(&[]);
    let (near, far) = out.split_at_mut(ahead.len());
    for ((o, &offset), &next) in near.iter_mut().zip(offsets).zip(ahead) {
        prefetch(data, (base + next as isize) as usize);
        *o = data[(base + offset as isize) as usize];
    }
    for (o, &offset) in far.iter_mut().zip(&offsets[ahead.len()..]) {
        *o = data[(base + offset as isize) as usize];
    }
}

/// What is written: one value everywhere, or one per cell in the order of the plan.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a, T> {
    One(T),
    Each(&'a [T]),
}

/// Combines the values into the planned rows. A cell named twice sees the writes in index order: each thread
/// owns a stretch of memory and goes through all rows, so the number of threads changes nothing.
pub(crate) fn put<T: Pod + Send + Sync, R: Rule<T>>(data: &mut [T], plan: &Plan<'_>, source: Source<'_, T>) {
    let cells = plan.outer.count() * plan.offsets.len() * plan.row_len();
    if cells == 0 {
        return;
    }
    let (span, outer) = (plan.span(), plan.outer.reach());
    let low = (plan.base + span.0 + outer.0) as usize;
    let high = (plan.base + span.1 + outer.1) as usize;
    let data = &mut data[low..=high];
    let work = cells * 2 * size_of::<T>();
    let threads = if work < 1 << 18 { 1 } else { rayon::current_num_threads() };
    let unit = data.len().div_ceil(threads);
    let item_bytes = if threads == 1 { 0 } else { (1usize << 20).div_ceil(data.len()).max(size_of::<T>()) };
    pool::for_chunks_mut(data, unit, item_bytes, |at, piece| {
        Stretch { data: piece, first: (low + at) as isize }.put::<R>(plan, span, source);
    });
}

/// A stretch of memory and the position of its first element.
struct Stretch<'d, T> {
    data: &'d mut [T],
    first: isize,
}

impl<T: Pod> Stretch<'_, T> {
    fn put<R: Rule<T>>(&mut self, plan: &Plan<'_>, span: (isize, isize), source: Source<'_, T>) {
        let (n, row, end) = (plan.offsets.len(), plan.row_len(), self.first + self.data.len() as isize);
        for i in 0..plan.outer.count() {
            let base = plan.base + plan.outer.at(i);
            let (low, high) = (base + span.0, base + span.1);
            if high < self.first || low >= end {
                continue;
            }
            let source = match source {
                Source::Each(values) => Source::Each(&values[i * n * row..(i + 1) * n * row]),
                one => one,
            };
            let inside = low >= self.first && high < end;
            // From here on positions are relative to the stretch.
            let base = base - self.first;
            match (row, plan.is_one_run()) {
                (1, _) if inside => self.elements::<R>(base, plan.offsets, source),
                (1, _) => self.elements_between::<R>(base, plan.offsets, source),
                (_, true) => self.rows::<R>(base, plan.offsets, row, source),
                _ => self.cells::<R>(base, plan, source),
            }
        }
    }

    #[inline(always)]
    fn write<R: Rule<T>>(&mut self, at: usize, value: T) {
        let cell = &mut self.data[at];
        *cell = R::apply(*cell, value);
    }

    fn elements<R: Rule<T>>(&mut self, base: isize, offsets: &[i64], source: Source<'_, T>) {
        let ahead = offsets.len().saturating_sub(AHEAD);
        for (i, &offset) in offsets.iter().enumerate() {
            if i < ahead {
                prefetch(self.data, (base + offsets[i + AHEAD] as isize) as usize);
            }
            self.write::<R>((base + offset as isize) as usize, source.at(i));
        }
    }

    /// Elements of which only some fall into this stretch: those are listed first, without branches.
    fn elements_between<R: Rule<T>>(&mut self, base: isize, offsets: &[i64], source: Source<'_, T>) {
        let mut list = [0u16; BLOCK];
        let len = self.data.len();
        for (b, block) in offsets.chunks(BLOCK).enumerate() {
            let mut count = 0;
            for (i, &offset) in block.iter().enumerate() {
                list[count] = i as u16;
                let at = (base + offset as isize) as usize;
                prefetch(self.data, if at < len { at } else { 0 });
                count += usize::from(at < len);
            }
            for &i in &list[..count] {
                let i = usize::from(i);
                self.write::<R>((base + block[i] as isize) as usize, source.at(b * BLOCK + i));
            }
        }
    }

    fn rows<R: Rule<T>>(&mut self, base: isize, offsets: &[i64], row: usize, source: Source<'_, T>) {
        let len = self.data.len() as isize;
        for (i, &offset) in offsets.iter().enumerate() {
            let at = base + offset as isize;
            let (from, to) = (at.clamp(0, len), (at + row as isize).clamp(0, len));
            if from >= to {
                continue;
            }
            if let Some(&next) = offsets.get(i + 2) {
                prefetch_row(self.data, (base + next as isize) as usize, row);
            }
            let cells = &mut self.data[from as usize..to as usize];
            match source {
                Source::Each(values) => {
                    let skip = i * row + (from - at) as usize;
                    combine::<T, R>(cells, &values[skip..skip + cells.len()]);
                }
                Source::One(value) => cells.iter_mut().for_each(|c| *c = R::apply(*c, value)),
            }
        }
    }

    fn cells<R: Rule<T>>(&mut self, base: isize, plan: &Plan<'_>, source: Source<'_, T>) {
        let (row, len) = (plan.row_len(), self.data.len());
        for (i, &offset) in plan.offsets.iter().enumerate() {
            for (j, at) in plan.cells(base + offset as isize).enumerate() {
                if at < len {
                    self.write::<R>(at, source.at(i * row + j));
                }
            }
        }
    }
}

impl<T: Pod> Source<'_, T> {
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> T {
        match self {
            Source::One(value) => *value,
            Source::Each(values) => values[i],
        }
    }
}

simd! {
    fn combine<T: Pod, R: Rule<T>>(dst: &mut [T], src: &[T]) {
        for (d, &s) in dst.iter_mut().zip(src) {
            *d = R::apply(*d, s);
        }
    }
}
