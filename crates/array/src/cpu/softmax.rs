//! Softmax and log-softmax along one dim, and their gradients.

use super::norm::lanes;
use super::real::{Float, Real};
use super::simd::simd;
use super::stream;
use planaria_cpu::pool;

/// Which of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SoftmaxKind {
    Softmax,
    LogSoftmax,
}

/// An array seen as `[outer, len, inner]` with the reduced dim in the middle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) outer: usize,
    pub(crate) len: usize,
    pub(crate) inner: usize,
}

impl Split {
    pub(crate) fn new(shape: &[usize], dim: usize) -> Split {
        Split {
            outer: shape[..dim.min(shape.len())].iter().product(),
            len: shape.get(dim).copied().unwrap_or(1),
            inner: shape.get(dim + 1..).map_or(1, |s| s.iter().product()),
        }
    }
}

/// Elements handled between two conversions of narrow types.
const BLOCK: usize = 4096;
/// Columns handled together when the reduced dim is not the last.
const TILE: usize = 256;

/// Rows whose elements fill about one block.
pub(crate) fn rows_per_block(cols: usize) -> usize {
    (BLOCK / cols.max(1)).max(1)
}

simd! {
    fn softmax_rows<R: Real>(x: &[R], y: &mut [R], cols: usize) {
        for (r, y) in y.chunks_exact_mut(cols).enumerate() {
            let x = stream::row_ahead(x, r, cols);
            let m = lanes::max(x);
            lanes::map(x, y, |v| (v - m).exp_down());
            let scale = R::ONE / lanes::sum(y);
            for v in y.iter_mut() {
                *v *= scale;
            }
        }
    }

    fn log_softmax_rows<R: Real>(x: &[R], y: &mut [R], cols: usize) {
        for (r, y) in y.chunks_exact_mut(cols).enumerate() {
            let x = stream::row_ahead(x, r, cols);
            let m = lanes::max(x);
            lanes::map(x, y, |v| (v - m).exp_down());
            let log = lanes::sum(y).ln();
            for (o, &v) in y.iter_mut().zip(x) {
                *o = (v - m) - log;
            }
        }
    }

    fn softmax_grad_rows<R: Real>(dy: &[R], y: &[R], dx: &mut [R], cols: usize) {
        for ((dy, y), dx) in dy.chunks_exact(cols).zip(y.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols)) {
            let s = lanes::fold2(dy, y, |a, g, v| g.mul_add(v, a));
            for ((o, &g), &v) in dx.iter_mut().zip(dy).zip(y) {
                *o = v * (g - s);
            }
        }
    }

    fn log_softmax_grad_rows<R: Real>(dy: &[R], y: &[R], dx: &mut [R], cols: usize) {
        for ((dy, y), dx) in dy.chunks_exact(cols).zip(y.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols)) {
            let s = lanes::sum(dy);
            lanes::map(y, dx, |v| v.exp_down());
            for (o, &g) in dx.iter_mut().zip(dy) {
                *o = g - *o * s;
            }
        }
    }

    fn column_max<R: Real>(x: &[R], m: &mut [R]) {
        for (m, &v) in m.iter_mut().zip(x) {
            *m = if v > *m { v } else { *m };
        }
    }

    fn column_sum_exp<R: Real>(x: &[R], m: &[R], s: &mut [R]) {
        for ((s, &v), &m) in s.iter_mut().zip(x).zip(m) {
            *s += (v - m).exp_down();
        }
    }

    /// The sums of all lanes in the first: what [`lanes::sum`] does with its own, so that a column has the bits of a row.
    fn column_join<R: Real>(s: &mut [R], width: usize, lanes: usize) {
        let mut half = lanes / 2;
        while half > 0 {
            let (low, high) = s[..2 * half * width].split_at_mut(half * width);
            for (a, &b) in low.iter_mut().zip(high.iter()) {
                *a += b;
            }
            half /= 2;
        }
    }

    fn column_softmax<R: Real>(x: &[R], m: &[R], scale: &[R], y: &mut [R]) {
        for (((o, &v), &m), &s) in y.iter_mut().zip(x).zip(m).zip(scale) {
            *o = (v - m).exp_down() * s;
        }
    }

    fn column_log_softmax<R: Real>(x: &[R], m: &[R], log: &[R], y: &mut [R]) {
        for (((o, &v), &m), &log) in y.iter_mut().zip(x).zip(m).zip(log) {
            *o = (v - m) - log;
        }
    }

    fn column_dot<R: Real>(dy: &[R], y: &[R], s: &mut [R]) {
        for ((s, &g), &v) in s.iter_mut().zip(dy).zip(y) {
            *s = g.mul_add(v, *s);
        }
    }

    fn column_sum<R: Real>(dy: &[R], s: &mut [R]) {
        for (s, &g) in s.iter_mut().zip(dy) {
            *s += g;
        }
    }

    fn column_softmax_grad<R: Real>(dy: &[R], y: &[R], s: &[R], dx: &mut [R]) {
        for (((o, &g), &v), &s) in dx.iter_mut().zip(dy).zip(y).zip(s) {
            *o = v * (g - s);
        }
    }

    fn column_log_softmax_grad<R: Real>(dy: &[R], y: &[R], s: &[R], dx: &mut [R]) {
        for (((o, &g), &v), &s) in dx.iter_mut().zip(dy).zip(y).zip(s) {
            *o = g - v.exp_down() * s;
        }
    }
}

/// `y = softmax(x)` or `log_softmax(x)` along the middle dim.
pub(crate) fn forward<T: Float>(kind: SoftmaxKind, x: &[T], y: &mut [T], split: Split) {
    if y.is_empty() {
        return;
    }
    if split.inner > 1 {
        return forward_columns(kind, x, y, split);
    }
    let (cols, unit) = (split.len, split.len * rows_per_block(split.len));
    pool::for_chunks_mut(y, unit, 2 * size_of::<T>(), |at, piece| {
        let (mut wide, mut out) = (Vec::new(), Vec::new());
        for (i, block) in piece.chunks_mut(unit).enumerate() {
            let first = at + i * unit;
            let x = T::widen(&x[first..first + block.len()], &mut wide);
            T::narrow(block, &mut out, |y| match kind {
                SoftmaxKind::Softmax => softmax_rows(x, y, cols),
                SoftmaxKind::LogSoftmax => log_softmax_rows(x, y, cols),
            });
        }
    });
}

/// The gradient of the input, from the gradient of the output and the output.
pub(crate) fn backward<T: Float>(kind: SoftmaxKind, dy: &[T], y: &[T], dx: &mut [T], split: Split) {
    if dx.is_empty() {
        return;
    }
    if split.inner > 1 {
        return backward_columns(kind, dy, y, dx, split);
    }
    let (cols, unit) = (split.len, split.len * rows_per_block(split.len));
    pool::for_chunks_mut(dx, unit, 3 * size_of::<T>(), |at, piece| {
        let (mut wide_dy, mut wide_y, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for (i, block) in piece.chunks_mut(unit).enumerate() {
            let range = at + i * unit..at + i * unit + block.len();
            let dy = T::widen(&dy[range.clone()], &mut wide_dy);
            let y = T::widen(&y[range], &mut wide_y);
            T::narrow(block, &mut out, |dx| match kind {
                SoftmaxKind::Softmax => softmax_grad_rows(dy, y, dx, cols),
                SoftmaxKind::LogSoftmax => log_softmax_grad_rows(dy, y, dx, cols),
            });
        }
    });
}

/// A block of columns of one slab: where its first row starts, and its rows in the output.
struct Tile<'a, T> {
    start: usize,
    rows: Vec<&'a mut [T]>,
}

/// Cuts `out` into tiles that different threads may write.
fn tiles<T>(out: &mut [T], split: Split) -> Vec<Tile<'_, T>> {
    let per_slab = split.inner.div_ceil(TILE);
    let slab = split.len * split.inner;
    let mut tiles: Vec<Tile<'_, T>> = (0..split.outer * per_slab)
        .map(|i| Tile {
            start: (i / per_slab) * slab + (i % per_slab) * TILE,
            rows: Vec::with_capacity(split.len),
        })
        .collect();
    for (row, data) in out.chunks_mut(split.inner).enumerate() {
        let first = (row / split.len) * per_slab;
        for (t, piece) in data.chunks_mut(TILE).enumerate() {
            tiles[first + t].rows.push(piece);
        }
    }
    tiles
}

/// Lanes of a column: those of a row that are ever used.
fn column_lanes(len: usize) -> usize {
    len.next_power_of_two().min(lanes::STEP)
}

fn forward_columns<T: Float>(kind: SoftmaxKind, x: &[T], y: &mut [T], split: Split) {
    pool::for_parts(tiles(y, split), 2 * size_of_val(x), |tile| {
        let width = tile.rows[0].len();
        let row = |r: usize| &x[tile.start + r * split.inner..][..width];
        let (mut wide, mut out) = (Vec::new(), Vec::new());
        let mut m = vec![T::Real::NEG_INFINITY; width];
        for r in 0..split.len {
            column_max(T::widen(row(r), &mut wide), &mut m);
        }
        let lanes = column_lanes(split.len);
        let mut s = vec![T::Real::ZERO; lanes * width];
        for r in 0..split.len {
            column_sum_exp(T::widen(row(r), &mut wide), &m, &mut s[r % lanes * width..]);
        }
        column_join(&mut s, width, lanes);
        for s in &mut s[..width] {
            *s = match kind {
                SoftmaxKind::Softmax => T::Real::ONE / *s,
                SoftmaxKind::LogSoftmax => s.ln(),
            };
        }
        for (r, y) in tile.rows.into_iter().enumerate() {
            let x = T::widen(row(r), &mut wide);
            T::narrow(y, &mut out, |y| match kind {
                SoftmaxKind::Softmax => column_softmax(x, &m, &s, y),
                SoftmaxKind::LogSoftmax => column_log_softmax(x, &m, &s, y),
            });
        }
    });
}

fn backward_columns<T: Float>(kind: SoftmaxKind, dy: &[T], y: &[T], dx: &mut [T], split: Split) {
    pool::for_parts(tiles(dx, split), 3 * size_of_val(y), |tile| {
        let width = tile.rows[0].len();
        let range = |r: usize| tile.start + r * split.inner..tile.start + r * split.inner + width;
        let (mut wide_dy, mut wide_y, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let lanes = column_lanes(split.len);
        let mut s = vec![T::Real::ZERO; lanes * width];
        for r in 0..split.len {
            let g = T::widen(&dy[range(r)], &mut wide_dy);
            let s = &mut s[r % lanes * width..];
            match kind {
                SoftmaxKind::Softmax => column_dot(g, T::widen(&y[range(r)], &mut wide_y), s),
                SoftmaxKind::LogSoftmax => column_sum(g, s),
            }
        }
        column_join(&mut s, width, lanes);
        for (r, dx) in tile.rows.into_iter().enumerate() {
            let g = T::widen(&dy[range(r)], &mut wide_dy);
            let y = T::widen(&y[range(r)], &mut wide_y);
            T::narrow(dx, &mut out, |dx| match kind {
                SoftmaxKind::Softmax => column_softmax_grad(g, y, &s, dx),
                SoftmaxKind::LogSoftmax => column_log_softmax_grad(g, y, &s, dx),
            });
        }
    });
}
