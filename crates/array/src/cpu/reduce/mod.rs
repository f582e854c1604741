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

use super::simd::simd_v3;
use crate::pool;

/// A reduction: how an element becomes a partial result and how two partial results become one.
pub(crate) trait Fold: Copy + Send + Sync {
    type In: Copy + Send + Sync;
    type Acc: Copy + Send + Sync;
    /// Whether `lift` looks at a value per result, such as a mean.
    const AT: bool = false;
    /// The result of folding nothing.
    fn empty(self) -> Self::Acc;
    fn lift(self, x: Self::In, at: Self::Acc) -> Self::Acc;
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

/// The loops of a [`Fold`]. The engine around them is compiled once for each pair of types, not for each fold.
pub(crate) trait Loops<T, A>: Sync {
    fn empty(&self) -> A;
    /// At most [`CHUNK`] neighbours.
    fn row(&self, x: &[T], at: A) -> A;
    /// Folds rows into `out`, to which it adds.
    fn sweep(&self, rows: &Rows<'_, T>, at: &[A], out: &mut [A]);
    /// Joins each element of `b` to its place in `a`.
    fn join_all(&self, a: &mut [A], b: &[A]);
    /// Folds `n` rows of `width` pairwise into the first.
    fn tree(&self, data: &mut [A], n: usize, width: usize);
}

impl<F: Fold> Loops<F::In, F::Acc> for F {
    fn empty(&self) -> F::Acc {
        Fold::empty(*self)
    }

    fn row(&self, x: &[F::In], at: F::Acc) -> F::Acc {
        match x.len() {
            0..16 => x.iter().fold(Fold::empty(*self), |acc, &x| self.join(acc, self.lift(x, at))),
            16..2048 => fold_lanes::<F, 16>(*self, x, at),
            _ => fold_lanes::<F, WIDE>(*self, x, at),
        }
    }

    fn sweep(&self, rows: &Rows<'_, F::In>, at: &[F::Acc], out: &mut [F::Acc]) {
        sweep(*self, rows, at, out);
    }

    fn join_all(&self, a: &mut [F::Acc], b: &[F::Acc]) {
        for (a, b) in a.iter_mut().zip(b) {
            *a = self.join(*a, *b);
        }
    }

    fn tree(&self, data: &mut [F::Acc], n: usize, width: usize) {
        let mut left = n;
        while left > 1 {
            let half = left.div_ceil(2);
            let (low, high) = data[..left * width].split_at_mut(half * width);
            self.join_all(low, high);
            left = half;
        }
    }
}

/// A row seen as rows of lanes.
#[inline(never)]
fn fold_lanes<F: Fold, const N: usize>(f: F, x: &[F::In], at: F::Acc) -> F::Acc {
    let (mut lanes, at) = ([f.empty(); N], [at; N]);
    let rows = Rows { data: x, at: 0, stride: N, count: x.len() / N };
    sweep(f, &rows, &at, &mut lanes);
    let rest = &x[rows.count * N..];
    for (i, &x) in rest.iter().enumerate() {
        lanes[i] = f.join(lanes[i], f.lift(x, at[i]));
    }
    f.tree(&mut lanes, N, 1);
    lanes[0]
}

simd_v3! {
    /// Folds rows into `out`, eight at a time to touch the accumulators less often. The only loop that every
    /// element goes through, so the only one compiled for more than the baseline; memory is its limit.
    #[inline(never)]
    fn sweep<F: Fold>(f: F, rows: &Rows<'_, F::In>, at: &[F::Acc], out: &mut [F::Acc]) {
        let len = out.len();
        let at = if F::AT { &at[..len] } else { at };
        let at = |j: usize| if F::AT { at[j] } else { f.empty() };
        let eights = rows.count / 8 * 8;
        for r in (0..eights).step_by(8) {
            let x: [&[F::In]; 8] = std::array::from_fn(|i| rows.row(r + i, len));
            for j in 0..len {
                let v = |i: usize| f.lift(x[i][j], at(j));
                let low = f.join(f.join(v(0), v(1)), f.join(v(2), v(3)));
                let high = f.join(f.join(v(4), v(5)), f.join(v(6), v(7)));
                out[j] = f.join(out[j], f.join(low, high));
            }
        }
        for r in eights..rows.count {
            let x = rows.row(r, len);
            for j in 0..len {
                out[j] = f.join(out[j], f.lift(x[j], at(j)));
            }
        }
    }
}

/// What the threads of one pass share.
struct Job<'a, T, A> {
    fold: &'a dyn Loops<T, A>,
    data: &'a [T],
    /// A value per result, or none.
    at: &'a [A],
    pass: &'a Pass,
    /// Elements of a row, or rows, folded as one unit of work; a result has `chunks` of them.
    chunk: usize,
    chunks: usize,
}

impl<'a, T: Copy + Send + Sync, A: Copy + Send + Sync> Job<'a, T, A> {
    fn new(fold: &'a dyn Loops<T, A>, data: &'a [T], at: &'a [A], pass: &'a Pass) -> Job<'a, T, A> {
        // Depends on the geometry alone, so that results do not depend on the number of threads.
        let chunk = match pass.is_rows() {
            true => CHUNK,
            false => ((1usize << 18) / pass.width).next_power_of_two().max(BLOCK_ROWS),
        };
        Job { fold, data, at, pass, chunk, chunks: pass.n.div_ceil(chunk) }
    }

    /// Fills `out` with one partial result per chunk: outer x chunks x width.
    fn partials(&self, out: &mut [A]) {
        let item_bytes = self.chunk.min(self.pass.n) * size_of::<T>();
        if self.pass.is_rows() {
            pool::for_chunks_mut(out, 1, item_bytes, |at, piece| self.rows(at, piece));
        } else {
            let unit = if self.pass.width < WIDE { self.pass.width } else { 64 };
            pool::for_chunks_mut(out, unit, item_bytes, |at, piece| self.columns(at, piece));
        }
    }

    /// Chunks `first..` of rows whose elements lie side by side.
    fn rows(&self, first: usize, out: &mut [A]) {
        let mut walk = self.pass.walk(first / self.chunks);
        let mut c = first % self.chunks;
        let none = self.fold.empty();
        for o in out {
            let start = c * self.chunk;
            let len = self.chunk.min(self.pass.n - start);
            let first = walk.data() + start;
            let at = self.at.get(walk.result()).copied().unwrap_or(none);
            *o = self.fold.row(&self.data[first..first + len], at);
            c += 1;
            if c == self.chunks {
                c = 0;
                walk.advance();
            }
        }
    }

    /// Results `first..` of chunks of rows that are folded into a row.
    fn columns(&self, first: usize, out: &mut [A]) {
        let width = self.pass.width;
        let tile = (TILE_BYTES / size_of::<A>()).max(WIDE);
        let (mut column, mut row) = (first % width, first / width);
        let mut walk = self.pass.walk(row / self.chunks);
        row %= self.chunks;
        let mut done = 0;
        while done < out.len() {
            let len = (width - column).min(tile).min(out.len() - done);
            let start = row * self.chunk;
            let rows = Rows {
                data: self.data,
                at: walk.data() + start * self.pass.stride + column,
                stride: self.pass.stride,
                count: self.chunk.min(self.pass.n - start),
            };
            let result = walk.result() + column;
            let at = self.at.get(result..result + len).unwrap_or(&[]);
            let out = &mut out[done..done + len];
            let gapless = self.pass.stride == width && len == width;
            if gapless && WIDE / width >= 4 && rows.count >= 2 * (WIDE / width) {
                rows.fold_narrow(self.fold, at, out);
            } else {
                rows.fold(self.fold, at, out);
            }
            done += len;
            column += len;
            if column == width {
                column = 0;
                row += 1;
            }
            if row == self.chunks {
                row = 0;
                walk.advance();
            }
        }
    }
}

/// Folds the reduced dims of a view into `out`, which has one element per position of the kept dims. `at` has as
/// many, or none for folds that look at none.
pub(crate) fn reduce<T: Copy + Send + Sync, A: Copy + Send + Sync>(
    fold: &dyn Loops<T, A>,
    data: &[T],
    plan: &Plan,
    at: &[A],
    out: &mut [A],
) {
    let pass = plan.first_pass();
    let job = Job::new(fold, data, at, &pass);
    let rest = plan.rest();
    if job.chunks == 1 && rest.is_empty() {
        return job.partials(out);
    }
    let mut partial = vec![fold.empty(); pass.results() * job.chunks];
    job.partials(&mut partial);
    let outer = pass.results() / pass.width;
    fold_slabs(fold, &mut partial, Rest { outer, n: job.chunks, width: pass.width });
    for step in rest {
        fold_slabs(fold, &mut partial, step);
    }
    out.copy_from_slice(&partial[..out.len()]);
}

/// Folds `outer` slabs of `n` rows of `width` into one row each, at the front of `data`.
fn fold_slabs<T, A: Copy + Send>(fold: &dyn Loops<T, A>, data: &mut [A], Rest { outer, n, width }: Rest) {
    if n == 1 {
        return;
    }
    let slab = n * width;
    let used = &mut data[..outer * slab];
    pool::for_chunks_mut(used, slab, 2 * size_of::<A>(), |_, piece| {
        piece.chunks_mut(slab).for_each(|slab| fold.tree(slab, n, width));
    });
    for o in 1..outer {
        data.copy_within(o * slab..o * slab + width, o * width);
    }
}

/// Rows that are folded into one, element by element.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    data: &'a [T],
    at: usize,
    stride: usize,
    count: usize,
}

impl<T: Copy> Rows<'_, T> {
    #[inline(always)]
    fn row(&self, r: usize, len: usize) -> &[T] {
        let at = self.at + r * self.stride;
        &self.data[at..at + len]
    }

    /// Blocks of rows, then the blocks one after another: a chunk has few enough of them.
    fn fold<A: Copy>(&self, fold: &dyn Loops<T, A>, at: &[A], out: &mut [A]) {
        out.fill(fold.empty());
        if self.count <= BLOCK_ROWS {
            return fold.sweep(self, at, out);
        }
        let mut block = vec![fold.empty(); out.len()];
        for first in (0..self.count).step_by(BLOCK_ROWS) {
            let start = self.at + first * self.stride;
            let rows = Rows { at: start, count: BLOCK_ROWS.min(self.count - first), ..*self };
            block.fill(fold.empty());
            fold.sweep(&rows, at, &mut block);
            fold.join_all(out, &block);
        }
    }

    /// Narrow rows that follow each other without gaps, several at a time.
    fn fold_narrow<A: Copy>(&self, fold: &dyn Loops<T, A>, at: &[A], out: &mut [A]) {
        let width = out.len();
        let times = WIDE / width;
        let used = times * width;
        let (mut wide, mut wide_at) = ([fold.empty(); WIDE], [fold.empty(); WIDE]);
        if !at.is_empty() {
            wide_at.chunks_exact_mut(width).for_each(|part| part.copy_from_slice(at));
        }
        let whole = Rows { stride: used, count: self.count / times, ..*self };
        whole.fold(fold, &wide_at[..used], &mut wide[..used]);
        let done = whole.count * times;
        let rest = Rows { at: self.at + done * self.stride, count: 1, ..*self };
        let left = (self.count - done) * width;
        fold.sweep(&rest, &wide_at[..left], &mut wide[..left]);
        fold.tree(&mut wide, times, width);
        out.copy_from_slice(&wide[..width]);
    }
}
