//! Running sums, products and extremes along one dim of contiguous memory.

use super::real::Real;
use super::reduce::folds::{End, Ordered, Reading};
use crate::convert::Number;
use planaria_cpu::pool;
use std::marker::PhantomData;

/// A running computation. `join` continues one state with another, so that long rows can be cut into blocks.
pub(crate) trait Scan: Copy + Send + Sync {
    type In: Copy + Send + Sync;
    type Carry: Copy + Send + Sync;
    type Out: Copy + Send + Sync;
    fn start(self) -> Self::Carry;
    /// The state after element number `at`.
    fn step(self, state: Self::Carry, x: Self::In, at: usize) -> Self::Carry;
    fn join(self, a: Self::Carry, b: Self::Carry) -> Self::Carry;
    fn out(self, state: Self::Carry) -> Self::Out;
}

/// Which end the running computation begins at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// `n` elements along the dim, `inner` neighbours that run side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    pub(crate) n: usize,
    pub(crate) inner: usize,
}

/// Elements of one row that are one unit of work: fixed, so that results do not depend on threads.
const BLOCK: usize = 1 << 16;

/// Scans every line of `x` into `out`.
pub(crate) fn scan<S: Scan>(s: S, x: &[S::In], lines: Lines, direction: Direction, out: &mut [S::Out]) {
    let Lines { n, inner } = lines;
    if n * inner == 0 {
        return;
    }
    let bytes = size_of::<S::In>() + size_of::<S::Out>();
    if inner == 1 && n > BLOCK {
        for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            long_row(s, x, direction, out);
        }
        return;
    }
    let slab = n * inner;
    pool::for_chunks_mut(out, slab, 4 * bytes, |at, piece| {
        let mut states = vec![s.start(); inner];
        for (x, out) in x[at..at + piece.len()].chunks_exact(slab).zip(piece.chunks_exact_mut(slab)) {
            if inner == 1 {
                row(s, s.start(), x, 0, direction, out);
                continue;
            }
            states.fill(s.start());
            for i in 0..n {
                let r = if direction == Direction::Forward { i } else { n - 1 - i };
                let range = r * inner..(r + 1) * inner;
                let (x, out) = (&x[range.clone()], &mut out[range]);
                for ((state, &x), o) in states.iter_mut().zip(x).zip(out) {
                    *state = s.step(*state, x, r);
                    *o = s.out(*state);
                }
            }
        }
    });
}

/// One row, or a block of one that begins at `first`, continued from `state`.
fn row<S: Scan>(
    s: S,
    mut state: S::Carry,
    x: &[S::In],
    first: usize,
    direction: Direction,
    out: &mut [S::Out],
) {
    let mut visit = |i: usize, x: S::In, o: &mut S::Out| {
        state = s.step(state, x, first + i);
        *o = s.out(state);
    };
    let cells = x.iter().zip(out).enumerate();
    match direction {
        Direction::Forward => cells.for_each(|(i, (&x, o))| visit(i, x, o)),
        Direction::Backward => cells.rev().for_each(|(i, (&x, o))| visit(i, x, o)),
    }
}

/// A row long enough to share among threads: the total of each block first, then each block from where the ones
/// before it end.
fn long_row<S: Scan>(s: S, x: &[S::In], direction: Direction, out: &mut [S::Out]) {
    let blocks = x.len().div_ceil(BLOCK);
    let mut carry = vec![s.start(); blocks];
    pool::for_chunks_mut(&mut carry, 1, BLOCK * size_of::<S::In>(), |first, totals| {
        for (b, total) in totals.iter_mut().enumerate() {
            let start = (first + b) * BLOCK;
            let block = &x[start..(start + BLOCK).min(x.len())];
            let cells = block.iter().enumerate();
            let add = |state, (i, &x): (usize, &S::In)| s.step(state, x, start + i);
            *total = match direction {
                Direction::Forward => cells.fold(s.start(), add),
                Direction::Backward => cells.rev().fold(s.start(), add),
            };
        }
    });
    let mut state = s.start();
    for i in 0..blocks {
        let b = if direction == Direction::Forward { i } else { blocks - 1 - i };
        let total = std::mem::replace(&mut carry[b], state);
        state = s.join(state, total);
    }
    pool::for_chunks_mut(out, BLOCK, size_of::<S::In>() + size_of::<S::Out>(), |at, piece| {
        for (i, block) in piece.chunks_mut(BLOCK).enumerate() {
            let first = at + i * BLOCK;
            let x = &x[first..first + block.len()];
            row(s, carry[first / BLOCK], x, first, direction, block);
        }
    });
}

/// A running computation whose state is a number that elements are joined to.
#[derive(Clone, Copy)]
pub(crate) struct Running<T, S, J> {
    start: S,
    join: J,
    element: PhantomData<T>,
}

impl<T: Number, S: Number, J: Fn(S, S) -> S + Copy + Send + Sync> Running<T, S, J> {
    pub(crate) fn new(start: S, join: J) -> Self {
        Running { start, join, element: PhantomData }
    }
}

impl<T: Number, S: Number, J: Fn(S, S) -> S + Copy + Send + Sync> Scan for Running<T, S, J> {
    type In = T;
    type Carry = S;
    type Out = T;
    #[inline(always)]
    fn start(self) -> S {
        self.start
    }
    #[inline(always)]
    fn step(self, state: S, x: T, _: usize) -> S {
        (self.join)(state, x.cast())
    }
    #[inline(always)]
    fn join(self, a: S, b: S) -> S {
        (self.join)(a, b)
    }
    #[inline(always)]
    fn out(self, state: S) -> T {
        state.cast()
    }
}

/// ln (e^a + e^b)
pub(crate) fn join_logs(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    // Equal infinities would cancel to NaN.
    if high.is_infinite() { high } else { high + (low - high).exp().ln_1p() }
}

/// Position of the running extreme: the last one among equals, the latest NaN once there is one.
#[derive(Clone, Copy)]
pub(crate) struct Extreme<T: Ordered>(Reading<T::Bits>);

impl<T: Ordered> Extreme<T> {
    pub(crate) fn new(end: End) -> Self {
        Extreme(T::towards(end))
    }

    /// True when `new` takes the place of `old`.
    #[inline(always)]
    fn takes(new: T, old: T) -> bool {
        new.unordered() || (!old.unordered() && !old.replaces(new))
    }
}

impl<T: Ordered> Scan for Extreme<T> {
    type In = T;
    /// The value as read and its position; no position before the first element.
    type Carry = (T, i64);
    type Out = i64;
    #[inline(always)]
    fn start(self) -> (T, i64) {
        (T::LOWEST, -1)
    }
    #[inline(always)]
    fn step(self, state: (T, i64), x: T, at: usize) -> (T, i64) {
        let x = x.read(self.0);
        if Self::takes(x, state.0) { (x, at as i64) } else { state }
    }
    #[inline(always)]
    fn join(self, a: (T, i64), b: (T, i64)) -> (T, i64) {
        if b.1 >= 0 && Self::takes(b.0, a.0) { b } else { a }
    }
    #[inline(always)]
    fn out(self, state: (T, i64)) -> i64 {
        state.1
    }
}

/// Gradient of a running product, right also where elements are 0:
/// dx_k = (Π_{j<k} x_j) G_k with G_k = dy_k + x_{k+1} G_{k+1}.
pub(crate) fn product_grad<R: Real>(dy: &[R], x: &[R], Lines { n, inner }: Lines, out: &mut [R]) {
    let slab = n * inner;
    if slab == 0 {
        return;
    }
    pool::for_chunks_mut(out, slab, 12 * size_of::<R>(), |at, piece| {
        let mut state = vec![0f64; inner];
        for (s, out) in piece.chunks_exact_mut(slab).enumerate() {
            let first = at + s * slab;
            let (x, dy) = (&x[first..first + slab], &dy[first..first + slab]);
            state.fill(1.0);
            for (i, o) in out.iter_mut().enumerate() {
                *o = R::of(state[i % inner]);
                state[i % inner] *= x[i].f64();
            }
            state.fill(0.0);
            for i in (0..slab).rev() {
                let g = &mut state[i % inner];
                let next = x.get(i + inner).map_or(0.0, |x| x.f64());
                *g = next.mul_add(*g, dy[i].f64());
                out[i] = R::of(out[i].f64() * *g);
            }
        }
    });
}

/// Gradient of a running log-sum-exp, by exponents that are never positive:
/// dx_k = e^(x_k - y_k) H_k with H_k = dy_k + e^(y_k - y_{k+1}) H_{k+1}.
pub(crate) fn logsumexp_grad<R: Real>(dy: &[R], x: &[R], y: &[R], Lines { n, inner }: Lines, out: &mut [R]) {
    let slab = n * inner;
    if slab == 0 {
        return;
    }
    let factor = |low: f64, high: f64| if low == f64::NEG_INFINITY { 0.0 } else { (low - high).exp() };
    pool::for_chunks_mut(out, slab, 16 * size_of::<R>(), |at, piece| {
        let mut state = vec![0f64; inner];
        for (s, out) in piece.chunks_exact_mut(slab).enumerate() {
            let first = at + s * slab;
            state.fill(0.0);
            for i in (0..slab).rev() {
                let (here, k) = (first + i, i % inner);
                let decay = if i + inner < slab { factor(y[here].f64(), y[here + inner].f64()) } else { 0.0 };
                state[k] = decay.mul_add(state[k], dy[here].f64());
                out[i] = R::of(factor(x[here].f64(), y[here].f64()) * state[k]);
            }
        }
    });
}
