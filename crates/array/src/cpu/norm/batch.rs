//! Batch normalisation: statistics of each channel over the batch and all positions.
//!
//! An array is `[batch, channels, inner]`. Long channels are read run by run; when `inner` is short a sample is
//! one row and the sums run down the columns. Both make partial results over fixed pieces, joined in order.

use super::{lanes, rows};
use crate::cpu::real::{Float, Real};
use crate::cpu::simd::simd;
use planaria_cpu::pool;
use std::ops::Range;

/// `[batch, channels, inner]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channels {
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    pub(crate) inner: usize,
}

/// Shorter runs than this are not worth a loop of their own.
const SHORT: usize = 16;

impl Channels {
    fn row(&self) -> usize {
        self.channels * self.inner
    }

    /// Elements per channel.
    pub(crate) fn count(&self) -> usize {
        self.batch * self.inner
    }

    /// Samples per partial result and columns of it.
    fn partials(&self) -> (usize, usize) {
        if self.inner < SHORT { (rows::grad_rows(self.batch), self.row()) } else { (1, self.channels) }
    }

    fn channel_of(&self, column: usize) -> usize {
        if self.inner < SHORT { column / self.inner } else { column }
    }
}

simd! {
    /// Mean and squared distance from it of each run.
    fn run_moments<R: Real>(x: &[R], mean: &mut [R], squares: &mut [R], inner: usize) {
        let inv = R::ONE / R::of(inner as f64);
        for (i, x) in x.chunks_exact(inner).enumerate() {
            mean[i] = lanes::long_sum(x, |_| ()) * inv;
            squares[i] = lanes::long_squares(x, mean[i], |_| ());
        }
    }

    /// `sum(dy)` and `sum(dy * (x - mean))` of each run.
    fn run_grads<R: Real>(dy: &[R], x: &[R], mean: &[R], sum: &mut [R], dot: &mut [R], inner: usize) {
        for (i, (dy, x)) in dy.chunks_exact(inner).zip(x.chunks_exact(inner)).enumerate() {
            (sum[i], dot[i]) = lanes::long_grads(dy, x, mean[i]);
        }
    }

    fn add_squares<R: Real>(x: &[R], mean: &[R], squares: &mut [R]) {
        for ((s, &v), &m) in squares.iter_mut().zip(x).zip(mean) {
            *s = (v - m).mul_add(v - m, *s);
        }
    }

    fn add_grads<R: Real>(dy: &[R], x: &[R], mean: &[R], sum: &mut [R], dot: &mut [R]) {
        for ((((p, q), &g), &v), &m) in sum.iter_mut().zip(dot).zip(dy).zip(x).zip(mean) {
            *p += g;
            *q = g.mul_add(v - m, *q);
        }
    }

    fn scale_all<R: Real>(x: &mut [R], factor: R) {
        for v in x {
            *v *= factor;
        }
    }

    fn affine_runs<R: Real>(x: &[R], mean: &[R], scale: &[R], shift: &[R], y: &mut [R], inner: usize) {
        for (i, (x, y)) in x.chunks_exact(inner).zip(y.chunks_exact_mut(inner)).enumerate() {
            let (m, a, b) = (mean[i], scale[i], shift[i]);
            for (o, &v) in y.iter_mut().zip(x) {
                *o = (v - m).mul_add(a, b);
            }
        }
    }

    fn affine_columns<R: Real>(x: &[R], mean: &[R], scale: &[R], shift: &[R], y: &mut [R]) {
        for ((((o, &v), &m), &a), &b) in y.iter_mut().zip(x).zip(mean).zip(scale).zip(shift) {
            *o = (v - m).mul_add(a, b);
        }
    }

    fn grad_runs<R: Real>(dy: &[R], x: &[R], k: [&[R]; 4], dx: &mut [R], inner: usize) {
        for (i, ((dy, x), dx)) in
            dy.chunks_exact(inner).zip(x.chunks_exact(inner)).zip(dx.chunks_exact_mut(inner)).enumerate()
        {
            let [m, a, b, c] = k.map(|k| k[i]);
            for ((o, &g), &v) in dx.iter_mut().zip(dy).zip(x) {
                *o = a * (v - m).mul_add(-c, g - b);
            }
        }
    }

    fn grad_columns<R: Real>(dy: &[R], x: &[R], k: [&[R]; 4], dx: &mut [R]) {
        let [m, a, b, c] = k.map(|k| &k[..dx.len()]);
        let (dy, x) = (&dy[..dx.len()], &x[..dx.len()]);
        for i in 0..dx.len() {
            dx[i] = a[i] * (x[i] - m[i]).mul_add(-c[i], dy[i] - b[i]);
        }
    }
}

/// Runs `work(samples, first partial, second partial)` over fixed groups of samples.
fn for_partials<R: Real>(
    at: Channels,
    bytes: usize,
    (first, second): (&mut [R], &mut [R]),
    work: impl Fn(Range<usize>, &mut [R], &mut [R]) + Sync + Send,
) {
    let (samples, cols) = at.partials();
    // Whole partials per part: more of them when each is small.
    let partials = at.batch.div_ceil(samples);
    let len = pool::piece_len(partials, 1, bytes / partials.max(1));
    let parts = first.chunks_mut(len * cols).zip(second.chunks_mut(len * cols)).enumerate();
    pool::for_parts(parts.collect(), bytes, |(i, (first, second))| {
        for (j, (first, second)) in first.chunks_mut(cols).zip(second.chunks_mut(cols)).enumerate() {
            let start = (i * len + j) * samples;
            work(start..(start + samples).min(at.batch), first, second);
        }
    });
}

/// Mean and variance (divided by the count) of each channel, in f64.
pub(crate) fn moments<T: Float>(x: &[T], at: Channels) -> Vec<(f64, f64)> {
    if x.is_empty() {
        return vec![(f64::NAN, f64::NAN); at.channels];
    }
    let (samples, cols) = at.partials();
    let partials = at.batch.div_ceil(samples);
    let mut mean = vec![T::Real::ZERO; partials * cols];
    let mut squares = mean.clone();
    for_partials(at, size_of_val(x), (&mut mean, &mut squares), |range, mean, squares| {
        let mut wide = Vec::new();
        let row = at.row();
        if at.inner >= SHORT {
            let x = T::widen(&x[range.start * row..range.end * row], &mut wide);
            return run_moments(x, mean, squares, at.inner);
        }
        let inv = T::Real::ONE / T::Real::of(range.len() as f64);
        for x in x[range.start * row..range.end * row].chunks_exact(row) {
            rows::accumulate(mean, T::widen(x, &mut wide));
        }
        scale_all(mean, inv);
        for x in x[range.start * row..range.end * row].chunks_exact(row) {
            add_squares(T::widen(x, &mut wide), mean, squares);
        }
    });
    // Join the pieces' moments by the parallel form of Welford's update.
    let mut joined = vec![(0f64, 0f64, 0f64); at.channels];
    for p in 0..partials {
        let weight = if at.inner < SHORT { samples.min(at.batch - p * samples) } else { at.inner } as f64;
        for c in 0..cols {
            let (n, m, s) = &mut joined[at.channel_of(c)];
            let (piece, square) = (mean[p * cols + c].f64(), squares[p * cols + c].f64());
            let total = *n + weight;
            let delta = piece - *m;
            *m += delta * weight / total;
            *s += square + delta * delta * *n * weight / total;
            *n = total;
        }
    }
    joined.into_iter().map(|(n, m, s)| (m, s / n)).collect()
}

/// Per channel `sum(dy)` and `sum(dy * (x - mean))`, in f64.
pub(crate) fn grad_sums<T: Float>(dy: &[T], x: &[T], mean: &[T::Real], at: Channels) -> Vec<(f64, f64)> {
    let (samples, cols) = at.partials();
    let mut sums = vec![(0f64, 0f64); at.channels];
    if x.is_empty() {
        return sums;
    }
    let mean = expand(mean, at);
    let partials = at.batch.div_ceil(samples);
    let mut sum = vec![T::Real::ZERO; partials * cols];
    let mut dot = sum.clone();
    for_partials(at, 2 * size_of_val(x), (&mut sum, &mut dot), |range, sum, dot| {
        let (mut wide_dy, mut wide_x) = (Vec::new(), Vec::new());
        let row = at.row();
        for sample in range {
            let (start, end) = (sample * row, (sample + 1) * row);
            let dy = T::widen(&dy[start..end], &mut wide_dy);
            let x = T::widen(&x[start..end], &mut wide_x);
            if at.inner < SHORT {
                add_grads(dy, x, &mean, sum, dot)
            } else {
                run_grads(dy, x, &mean, sum, dot, at.inner)
            }
        }
    });
    for p in 0..partials {
        for c in 0..cols {
            let total = &mut sums[at.channel_of(c)];
            total.0 += sum[p * cols + c].f64();
            total.1 += dot[p * cols + c].f64();
        }
    }
    sums
}

/// One value per channel, repeated for each column when samples are handled as rows.
fn expand<R: Real>(per_channel: &[R], at: Channels) -> Vec<R> {
    if at.inner < SHORT {
        per_channel.iter().flat_map(|&v| std::iter::repeat_n(v, at.inner)).collect()
    } else {
        per_channel.to_vec()
    }
}

/// `y = (x - mean) * scale + shift` per channel.
pub(crate) fn affine<T: Float>(x: &[T], [mean, scale, shift]: [&[T::Real]; 3], y: &mut [T], at: Channels) {
    if y.is_empty() {
        return;
    }
    let [mean, scale, shift] = [mean, scale, shift].map(|v| expand(v, at));
    pool::for_chunks_mut(y, at.row(), 2 * size_of::<T>(), |first, piece| {
        let (mut wide, mut out) = (Vec::new(), Vec::new());
        for (i, y) in piece.chunks_mut(at.row()).enumerate() {
            let start = first + i * at.row();
            let x = T::widen(&x[start..start + y.len()], &mut wide);
            T::narrow(y, &mut out, |y| {
                if at.inner < SHORT {
                    affine_columns(x, &mean, &scale, &shift, y)
                } else {
                    affine_runs(x, &mean, &scale, &shift, y, at.inner)
                }
            });
        }
    });
}

/// `dx = scale * (dy - offset - (x - mean) * slope)` per channel.
pub(crate) fn input_grad<T: Float>(
    (dy, x): (&[T], &[T]),
    per_channel: [&[T::Real]; 4],
    dx: &mut [T],
    at: Channels,
) {
    if dx.is_empty() {
        return;
    }
    let k = per_channel.map(|v| expand(v, at));
    pool::for_chunks_mut(dx, at.row(), 3 * size_of::<T>(), |first, piece| {
        let (mut wide_dy, mut wide_x, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let k = [&k[0][..], &k[1], &k[2], &k[3]];
        for (i, dx) in piece.chunks_mut(at.row()).enumerate() {
            let (start, end) = (first + i * at.row(), first + i * at.row() + dx.len());
            let dy = T::widen(&dy[start..end], &mut wide_dy);
            let x = T::widen(&x[start..end], &mut wide_x);
            T::narrow(dx, &mut out, |dx| {
                if at.inner < SHORT { grad_columns(dy, x, k, dx) } else { grad_runs(dy, x, k, dx, at.inner) }
            });
        }
    });
}
