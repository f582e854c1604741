//! Reductions: one engine that folds any set of dims of a view, in a fixed order whatever the number of threads.
//!
//! A run of elements is folded in one order that follows from its length alone: fixed chunks, joined pairwise, each of
//! a few lanes (element `i` goes to lane `i` modulo their number), eight to a lane at a time. So rounding errors grow
//! slowly, and results depend neither on threads, nor on the instruction set, nor on how many results there are side
//! by side. Neighbours go through the lanes side by side; otherwise whole rows are folded into a row of results per
//! lane, which is as quick.

pub(crate) mod along;
pub(crate) mod arg;
pub(crate) mod folds;
pub(crate) mod grad;
mod plan;

use plan::Rest;
pub(crate) use plan::{Pass, Plan};

use super::simd::simd_v3;
use planaria_cpu::pool;

/// A reduction: how an element becomes a partial result and how two partial results become one.
pub(crate) trait Fold: Copy + Send + Sync {
    type In: Copy + Send + Sync;
    type Acc: Copy + Send + Sync;
    /// Whether `lift` looks at a value per result, such as a mean.
    const AT: bool = false;
    /// Whether every order of joining gives the same bits.
    const ANY_ORDER: bool = false;
    /// The result of folding nothing.
    fn empty(self) -> Self::Acc;
    fn lift(self, x: Self::In, at: Self::Acc) -> Self::Acc;
    fn join(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

/// Accumulators of one result; a constant, because it decides the rounding.
const LANES: usize = 8;
/// Accumulators that run side by side along a long row where the order does not matter.
const WIDE: usize = 256;
/// Elements of a run that are one unit of work; a constant for the same reason.
const CHUNK: usize = 8192;
/// Bytes of accumulators swept at once: they stay in the first-level cache.
const TILE_BYTES: usize = 32768;
/// Gapless rows narrower than this are swept `LANES` at a time.
const NARROW: usize = 64;

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
            0..LANES => x.iter().fold(Fold::empty(*self), |acc, &x| self.join(acc, self.lift(x, at))),
            2048.. if F::ANY_ORDER => fold_wide(*self, x, at),
            _ => fold_lanes(*self, x, at),
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

/// A row seen as long rows of lanes, for folds in any order.
#[inline(never)]
fn fold_wide<F: Fold>(f: F, x: &[F::In], at: F::Acc) -> F::Acc {
    let (mut lanes, at) = ([f.empty(); WIDE], [at; WIDE]);
    let rows = Rows { data: x, at: 0, stride: WIDE, count: x.len() / WIDE };
    sweep(f, &rows, &at, &mut lanes);
    let rest = &x[rows.count * WIDE..];
    for (i, &x) in rest.iter().enumerate() {
        lanes[i] = f.join(lanes[i], f.lift(x, at[i]));
    }
    f.tree(&mut lanes, WIDE, 1);
    lanes[0]
}

simd_v3! {
    /// A row seen as rows of lanes, at least one of them: what [`Rows::fold`] does for one column.
    #[inline(never)]
    fn fold_lanes<F: Fold>(f: F, x: &[F::In], at: F::Acc) -> F::Acc {
        let mut lanes = [f.empty(); LANES];
        let (eights, rest) = x.as_chunks::<{ 8 * LANES }>();
        for x in eights {
            for j in 0..LANES {
                let v = |i: usize| f.lift(x[i * LANES + j], at);
                let low = f.join(f.join(v(0), v(1)), f.join(v(2), v(3)));
                let high = f.join(f.join(v(4), v(5)), f.join(v(6), v(7)));
                lanes[j] = f.join(lanes[j], f.join(low, high));
            }
        }
        for x in rest.chunks(LANES) {
            for (lane, &x) in lanes.iter_mut().zip(x) {
                *lane = f.join(*lane, f.lift(x, at));
            }
        }
        let mut half = LANES / 2;
        while half > 0 {
            for j in 0..half {
                lanes[j] = f.join(lanes[j], lanes[j + half]);
            }
            half /= 2;
        }
        lanes[0]
    }

    /// Folds rows into `out`, eight at a time to touch the accumulators less often. With the loop above all that
    /// elements go through, so all that is compiled for more than the baseline; memory is its limit.
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
    /// A result has this many chunks.
    chunks: usize,
}

impl<'a, T: Copy + Send + Sync, A: Copy + Send + Sync> Job<'a, T, A> {
    fn new(fold: &'a dyn Loops<T, A>, data: &'a [T], at: &'a [A], pass: &'a Pass) -> Job<'a, T, A> {
        Job { fold, data, at, pass, chunks: pass.n.div_ceil(CHUNK) }
    }

    /// Fills `out` with one partial result per chunk: outer x chunks x width.
    fn partials(&self, out: &mut [A]) {
        let item_bytes = CHUNK.min(self.pass.n) * size_of::<T>();
        if self.pass.is_rows() {
            pool::for_chunks_mut(out, 1, item_bytes, |at, piece| self.rows(at, piece));
        } else {
            let unit = if self.pass.width < 256 { self.pass.width } else { 64 };
            pool::for_chunks_mut(out, unit, item_bytes, |at, piece| self.columns(at, piece));
        }
    }

    /// Chunks `first..` of rows whose elements lie side by side.
    fn rows(&self, first: usize, out: &mut [A]) {
        let mut walk = self.pass.walk(first / self.chunks);
        let mut c = first % self.chunks;
        let none = self.fold.empty();
        for o in out {
            let start = c * CHUNK;
            let len = CHUNK.min(self.pass.n - start);
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
        let tile = (TILE_BYTES / LANES / size_of::<A>()).max(NARROW);
        let mut space = Vec::new();
        let (mut column, mut row) = (first % width, first / width);
        let mut walk = self.pass.walk(row / self.chunks);
        row %= self.chunks;
        let mut done = 0;
        while done < out.len() {
            let len = (width - column).min(tile).min(out.len() - done);
            let start = row * CHUNK;
            let rows = Rows {
                data: self.data,
                at: walk.data() + start * self.pass.stride + column,
                stride: self.pass.stride,
                count: CHUNK.min(self.pass.n - start),
            };
            let result = walk.result() + column;
            let at = self.at.get(result..result + len).unwrap_or(&[]);
            rows.fold(self.fold, at, &mut out[done..done + len], &mut space);
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

    /// Row `r` goes to lane `r` modulo their number, as in [`fold_lanes`]; `space` holds the lanes.
    fn fold<A: Copy>(&self, fold: &dyn Loops<T, A>, at: &[A], out: &mut [A], space: &mut Vec<A>) {
        let width = out.len();
        if self.count < LANES {
            out.fill(fold.empty());
            return fold.sweep(self, at, out);
        }
        let (whole, rest) = (self.count / LANES, self.count % LANES);
        space.clear();
        space.resize(LANES * width, fold.empty());
        let of = |r: usize, count: usize| Rows {
            at: self.at + r * self.stride,
            stride: LANES * self.stride,
            count,
            ..*self
        };
        if self.stride == width && width < NARROW {
            // Without gaps: as many rows as there are lanes are one wide row.
            let at = at.repeat(LANES);
            fold.sweep(&of(0, whole), &at, space);
            let left = rest * width;
            fold.sweep(&of(whole * LANES, 1), &at[..left.min(at.len())], &mut space[..left]);
        } else {
            for (lane, sums) in space.chunks_exact_mut(width).enumerate() {
                fold.sweep(&of(lane, whole), at, sums);
                fold.sweep(&of(whole * LANES + lane, usize::from(lane < rest)), at, sums);
            }
        }
        fold.tree(space, LANES, width);
        out.copy_from_slice(&space[..width]);
    }
}
