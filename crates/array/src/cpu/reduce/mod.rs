//! Reductions: one engine that folds any set of dims of a view, in a fixed order whatever the number of threads.
//!
//! Elements are folded in fixed blocks and the blocks pairwise, so rounding errors grow with the logarithm of
//! the count, and results do not depend on threads or on the instruction set. Elements that lie side by side go
//! through many accumulators side by side; otherwise whole rows are folded into a row of results, which is as quick.

pub(crate) mod along;
pub(crate) mod arg;
pub(crate) mod folds;
pub(crate) mod grad;
mod plan;

use plan::Rest;
pub(crate) use plan::{Pass, Plan};

use super::simd::simd;
use crate::pool;

/// A reduction: how an element becomes a partial result and how two partial results become one.
pub(crate) trait Fold: Copy + Send + Sync {
    type In: Copy + Send + Sync;
    type Acc: Copy + Send + Sync;
    /// A value per result that `lift` depends on, such as a mean; `()` for most.
    type Param: Copy + Send + Sync;
    /// The result of folding nothing.
    fn empty(self) -> Self::Acc;
    fn lift(self, x: Self::In, param: Self::Param) -> Self::Acc;
    fn join(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

/// Accumulators that run side by side along a long row; narrow rows are joined to about this length.
const WIDE: usize = 256;
/// Rows folded one after another into the same accumulators.
const BLOCK_ROWS: usize = 128;
/// Elements of a row that are one unit of work.
const CHUNK: usize = BLOCK_ROWS * WIDE;
/// Bytes of accumulators swept at once: they stay in the first-level cache.
const TILE_BYTES: usize = 16384;

/// What the threads of one pass share.
struct Job<'a, F: Fold> {
    data: &'a [F::In],
    params: &'a [F::Param],
    pass: &'a Pass,
    /// Elements of a row, or rows, folded as one unit of work; a result has `chunks` of them.
    chunk: usize,
    chunks: usize,
}

impl<'a, F: Fold> Job<'a, F> {
    fn new(data: &'a [F::In], params: &'a [F::Param], pass: &'a Pass) -> Job<'a, F> {
        // Depends on the geometry alone, so that results do not depend on the number of threads.
        let chunk = match pass.is_rows() {
            true => CHUNK,
            false => ((1usize << 18) / pass.width).next_power_of_two().max(BLOCK_ROWS),
        };
        Job { data, params, pass, chunk, chunks: pass.n.div_ceil(chunk) }
    }

    /// Fills `out` with one partial result per chunk: outer x chunks x width.
    fn partials(&self, f: F, out: &mut [F::Acc]) {
        let item_bytes = self.chunk.min(self.pass.n) * size_of::<F::In>();
        if self.pass.is_rows() {
            pool::for_chunks_mut(out, 1, item_bytes, |at, piece| rows(f, self, at, piece));
        } else {
            let unit = if self.pass.width < WIDE { self.pass.width } else { 64 };
            pool::for_chunks_mut(out, unit, item_bytes, |at, piece| columns(f, self, at, piece));
        }
    }
}

/// Folds the reduced dims of a view into `out`, which has one element per position of the kept dims.
/// `params` has as many.
pub(crate) fn reduce<F: Fold>(f: F, data: &[F::In], plan: &Plan, params: &[F::Param], out: &mut [F::Acc]) {
    let pass = plan.first_pass();
    let job = Job::<F>::new(data, params, &pass);
    let rest = plan.rest();
    if job.chunks == 1 && rest.is_empty() {
        return job.partials(f, out);
    }
    let mut partial = vec![f.empty(); pass.results() * job.chunks];
    job.partials(f, &mut partial);
    let outer = pass.results() / pass.width;
    fold_slabs(f, &mut partial, Rest { outer, n: job.chunks, width: pass.width });
    for step in rest {
        fold_slabs(f, &mut partial, step);
    }
    out.copy_from_slice(&partial[..out.len()]);
}

/// [`reduce`] for folds without parameters.
pub(crate) fn reduce_plain<F: Fold<Param = ()>>(f: F, data: &[F::In], plan: &Plan, out: &mut [F::Acc]) {
    let params = vec![(); out.len()];
    reduce(f, data, plan, &params, out);
}

/// Folds `outer` slabs of `n` rows of `width` into one row each, at the front of `data`.
fn fold_slabs<F: Fold>(f: F, data: &mut [F::Acc], Rest { outer, n, width }: Rest) {
    if n == 1 {
        return;
    }
    let slab = n * width;
    let used = &mut data[..outer * slab];
    pool::for_chunks_mut(used, slab, 2 * size_of::<F::Acc>(), |_, piece| {
        piece.chunks_mut(slab).for_each(|slab| fold_tree(f, slab, n, width));
    });
    for o in 1..outer {
        data.copy_within(o * slab..o * slab + width, o * width);
    }
}

/// Folds `n` rows of `width` pairwise into the first.
fn fold_tree<F: Fold>(f: F, data: &mut [F::Acc], n: usize, width: usize) {
    let mut left = n;
    while left > 1 {
        let half = left.div_ceil(2);
        let (low, high) = data[..left * width].split_at_mut(half * width);
        for (a, b) in low.iter_mut().zip(high.iter()) {
            *a = f.join(*a, *b);
        }
        left = half;
    }
}

/// Chunks `first..` of rows whose elements lie side by side.
fn rows<F: Fold>(f: F, job: &Job<'_, F>, first: usize, out: &mut [F::Acc]) {
    let mut walk = job.pass.walk(first / job.chunks);
    let mut c = first % job.chunks;
    for o in out {
        let start = c * job.chunk;
        let len = job.chunk.min(job.pass.n - start);
        let at = walk.data() + start;
        *o = fold_row(f, &job.data[at..at + len], job.params[walk.param()]);
        c += 1;
        if c == job.chunks {
            c = 0;
            walk.advance();
        }
    }
}

/// Results `first..` of chunks of rows that are folded into a row.
fn columns<F: Fold>(f: F, job: &Job<'_, F>, first: usize, out: &mut [F::Acc]) {
    let width = job.pass.width;
    let tile = (TILE_BYTES / size_of::<F::Acc>()).max(WIDE);
    let (mut column, mut row) = (first % width, first / width);
    let mut walk = job.pass.walk(row / job.chunks);
    row %= job.chunks;
    let mut done = 0;
    while done < out.len() {
        let len = (width - column).min(tile).min(out.len() - done);
        let start = row * job.chunk;
        let rows = Rows {
            data: job.data,
            at: walk.data() + start * job.pass.stride + column,
            stride: job.pass.stride,
            count: job.chunk.min(job.pass.n - start),
        };
        let param = walk.param() + column;
        let (params, out) = (&job.params[param..param + len], &mut out[done..done + len]);
        if job.pass.stride == width && len == width && WIDE / width >= 4 && rows.count >= 2 * (WIDE / width) {
            rows.fold_narrow(f, params, out);
        } else {
            rows.fold(f, params, out);
        }
        done += len;
        column += len;
        if column == width {
            column = 0;
            row += 1;
        }
        if row == job.chunks {
            row = 0;
            walk.advance();
        }
    }
}

/// At most [`CHUNK`] neighbours, seen as rows of lanes.
#[inline]
fn fold_row<F: Fold>(f: F, x: &[F::In], param: F::Param) -> F::Acc {
    match x.len() {
        0..16 => x.iter().fold(f.empty(), |acc, &x| f.join(acc, f.lift(x, param))),
        16..2048 => fold_lanes::<F, 16>(f, x, param),
        _ => fold_lanes::<F, WIDE>(f, x, param),
    }
}

fn fold_lanes<F: Fold, const N: usize>(f: F, x: &[F::In], param: F::Param) -> F::Acc {
    let (mut lanes, params) = ([f.empty(); N], [param; N]);
    let rows = Rows { data: x, at: 0, stride: N, count: x.len() / N };
    rows.fold(f, &params, &mut lanes);
    for (lane, &x) in lanes.iter_mut().zip(&x[rows.count * N..]) {
        *lane = f.join(*lane, f.lift(x, param));
    }
    fold_tree(f, &mut lanes, N, 1);
    lanes[0]
}

/// Rows that are folded into one, element by element.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    data: &'a [T],
    at: usize,
    stride: usize,
    count: usize,
}

impl<T: Copy + Send + Sync> Rows<'_, T> {
    #[inline(always)]
    fn row(&self, r: usize, len: usize) -> &[T] {
        let at = self.at + r * self.stride;
        &self.data[at..at + len]
    }

    /// Blocks of rows, then the blocks one after another: a chunk has few enough of them.
    fn fold<F: Fold<In = T>>(&self, f: F, params: &[F::Param], out: &mut [F::Acc]) {
        if self.count <= BLOCK_ROWS {
            return sweep(f, self, params, out);
        }
        out.fill(f.empty());
        let mut block = vec![f.empty(); out.len()];
        for first in (0..self.count).step_by(BLOCK_ROWS) {
            let at = self.at + first * self.stride;
            let rows = Rows { at, count: BLOCK_ROWS.min(self.count - first), ..*self };
            sweep(f, &rows, params, &mut block);
            for (o, b) in out.iter_mut().zip(&block) {
                *o = f.join(*o, *b);
            }
        }
    }

    /// Narrow rows that follow each other without gaps, several at a time.
    fn fold_narrow<F: Fold<In = T>>(&self, f: F, params: &[F::Param], out: &mut [F::Acc]) {
        let width = out.len();
        let times = WIDE / width;
        let used = times * width;
        let (mut wide, mut wide_params) = ([f.empty(); WIDE], [params[0]; WIDE]);
        for part in wide_params.chunks_exact_mut(width) {
            part.copy_from_slice(params);
        }
        let whole = Rows { stride: used, count: self.count / times, ..*self };
        whole.fold(f, &wide_params[..used], &mut wide[..used]);
        let done = whole.count * times;
        let rest = self.row(done, (self.count - done) * width);
        for ((acc, &x), &p) in wide.iter_mut().zip(rest).zip(&wide_params) {
            *acc = f.join(*acc, f.lift(x, p));
        }
        fold_tree(f, &mut wide, times, width);
        out.copy_from_slice(&wide[..width]);
    }
}

simd! {
    /// Folds rows into `out`, eight at a time to touch the accumulators less often. The only loop that every
    /// element goes through, so the only one compiled for each instruction set.
    fn sweep<F: Fold>(f: F, rows: &Rows<'_, F::In>, params: &[F::Param], out: &mut [F::Acc]) {
        let len = out.len();
        let params = &params[..len];
        out.fill(f.empty());
        let eights = rows.count / 8 * 8;
        for r in (0..eights).step_by(8) {
            let x: [&[F::In]; 8] = std::array::from_fn(|i| rows.row(r + i, len));
            for j in 0..len {
                let v = |i: usize| f.lift(x[i][j], params[j]);
                let low = f.join(f.join(v(0), v(1)), f.join(v(2), v(3)));
                let high = f.join(f.join(v(4), v(5)), f.join(v(6), v(7)));
                out[j] = f.join(out[j], f.join(low, high));
            }
        }
        for r in eights..rows.count {
            let x = rows.row(r, len);
            for j in 0..len {
                out[j] = f.join(out[j], f.lift(x[j], params[j]));
            }
        }
    }
}
