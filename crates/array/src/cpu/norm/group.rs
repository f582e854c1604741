//! Group normalisation: each sample's channels are cut into groups, and a group is one contiguous run.

use super::lanes;
use super::rows::{self, Center};
use crate::cpu::real::{Float, Real};
use crate::cpu::simd::simd;
use planaria_cpu::pool;

/// `[batch, groups, channels, inner]`: `channels` per group, `inner` elements per channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    pub(crate) channels: usize,
    pub(crate) inner: usize,
}

impl Groups {
    fn run(&self) -> usize {
        self.channels * self.inner
    }
}

simd! {
    /// One group; returns its mean and `1 / sqrt(variance + eps)`.
    fn forward_group<R: Real>(x: &[R], w: &[R], b: &[R], y: &mut [R], inner: usize, eps: R) -> (R, R) {
        let (m, s) = rows::moments(x, Center::Mean, eps);
        for (c, (x, y)) in x.chunks_exact(inner).zip(y.chunks_exact_mut(inner)).enumerate() {
            let (scale, shift) = (s * w[c], b[c]);
            for (o, &v) in y.iter_mut().zip(x) {
                *o = (v - m).mul_add(scale, shift);
            }
        }
        (m, s)
    }

    /// One group; `dw` and `db` get this sample's share of each channel.
    fn backward_group<R: Real>(
        dy: &[R], x: &[R], w: &[R], m: R, s: R, dx: &mut [R], dw: &mut [R], db: &mut [R], inner: usize,
    ) {
        let inv = R::ONE / R::of(x.len() as f64);
        let (mut sum, mut dot) = (R::ZERO, R::ZERO);
        for (c, (dy, x)) in dy.chunks_exact(inner).zip(x.chunks_exact(inner)).enumerate() {
            let (p, q) = lanes::long_grads(dy, x, m);
            db[c] = p;
            dw[c] = q * s;
            sum = p.mul_add(w[c], sum);
            dot = q.mul_add(w[c], dot);
        }
        // dx = s * (dy * w - sum / n - (x - m) * s^2 * dot / n)
        let (c1, c2) = (sum * inv * s, dot * inv * s * s * s);
        for (c, ((dy, x), dx)) in
            dy.chunks_exact(inner).zip(x.chunks_exact(inner)).zip(dx.chunks_exact_mut(inner)).enumerate()
        {
            let scale = s * w[c];
            for ((o, &g), &v) in dx.iter_mut().zip(dy).zip(x) {
                *o = (v - m).mul_add(-c2, g.mul_add(scale, -c1));
            }
        }
    }
}

/// `y`, and the mean and reciprocal deviation of each group of each sample.
pub(crate) fn forward<T: Float>(
    x: &[T],
    (w, b): (&[T::Real], &[T::Real]),
    y: &mut [T],
    mean: &mut [T::Real],
    rstd: &mut [T::Real],
    at: Groups,
    eps: T::Real,
) {
    rows::for_runs((x, y), (mean, rstd), at.run(), 1, |group, x, y, mean, rstd| {
        let channel = group % at.groups * at.channels;
        let (w, b) = (&w[channel..channel + at.channels], &b[channel..channel + at.channels]);
        (mean[0], rstd[0]) = forward_group(x, w, b, y, at.inner, eps);
    });
}

/// `dx`, `dw` and `db` from what `forward` returned.
pub(crate) fn backward<T: Float>(
    (dy, x): (&[T], &[T]),
    w: &[T::Real],
    (mean, rstd): (&[T::Real], &[T::Real]),
    dx: &mut [T],
    dw: &mut [T::Real],
    db: &mut [T::Real],
    at: Groups,
) {
    dw.fill(T::Real::ZERO);
    db.fill(T::Real::ZERO);
    let (run, all) = (at.run(), at.groups * at.channels);
    if dx.is_empty() {
        return;
    }
    let len = pool::piece_len(at.batch * at.groups, 1, 3 * run * size_of::<T>());
    let share = at.batch * all;
    let mut partial = vec![T::Real::ZERO; 2 * share];
    let (dw_part, db_part) = partial.split_at_mut(share);
    let pieces = dw_part.chunks_mut(len * at.channels).zip(db_part.chunks_mut(len * at.channels));
    let parts = dx.chunks_mut(len * run).zip(pieces).enumerate();
    pool::for_parts(parts.collect(), 3 * size_of_val(x), |(i, (dx, (dw, db)))| {
        let (mut wide_dy, mut wide_x, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let channels = dw.chunks_mut(at.channels).zip(db.chunks_mut(at.channels));
        for (j, (dx, (dw, db))) in dx.chunks_mut(run).zip(channels).enumerate() {
            let group = i * len + j;
            let channel = group % at.groups * at.channels;
            let w = &w[channel..channel + at.channels];
            let dy = T::widen(&dy[group * run..(group + 1) * run], &mut wide_dy);
            let x = T::widen(&x[group * run..(group + 1) * run], &mut wide_x);
            let (m, s) = (mean[group], rstd[group]);
            T::narrow(dx, &mut out, |dx| backward_group(dy, x, w, m, s, dx, dw, db, at.inner));
        }
    });
    column_sums(dw_part, dw);
    column_sums(db_part, db);
}

/// Adds up the rows of `parts` in blocks of a fixed number of rows, in order.
fn column_sums<R: Real>(parts: &[R], out: &mut [R]) {
    let cols = out.len();
    let mut block = vec![R::ZERO; cols];
    for rows in parts.chunks(rows::grad_rows(parts.len() / cols) * cols) {
        block.fill(R::ZERO);
        for row in rows.chunks_exact(cols) {
            rows::accumulate(&mut block, row);
        }
        rows::accumulate(out, &block);
    }
}
