//! Layer and rms normalisation of contiguous rows. Rms is the same arithmetic with the mean fixed at zero.

use super::lanes;
use crate::cpu::real::{Float, Real};
use crate::cpu::simd::simd;
use crate::cpu::softmax::rows_per_block;
use crate::cpu::stream;
use planaria_cpu::pool;
use std::ops::Range;

/// What is subtracted before scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Center {
    /// The mean of each row.
    Mean,
    /// Nothing.
    Zero,
}

#[inline(always)]
fn input_grad<R: Real>(dy: &[R], x: &[R], w: &[R], dx: &mut [R], [m, s, c1, c2]: [R; 4]) {
    let n = dx.len();
    let (dy, x, w) = (&dy[..n], &x[..n], &w[..n]);
    for first in (0..n).step_by(lanes::STEP) {
        let at = first..n.min(first + lanes::STEP);
        ask_next(x, at.clone());
        for i in at {
            dx[i] = s * ((x[i] - m) * s).mul_add(-c2, dy[i].mul_add(w[i], -c1));
        }
    }
}

/// Asks memory for the elements `at` of the row behind `row`.
#[inline(always)]
fn ask_next<R>(row: &[R], at: Range<usize>) {
    stream::ask(row, row.len() + at.start..row.len() + at.end);
}

/// The mean (or zero) of `x`, and `1 / sqrt(variance + eps)`. Meanwhile memory is asked for the row behind it: half of that in each
/// of two passes, where there are two.
#[inline(always)]
pub(super) fn moments<R: Real>(x: &[R], center: Center, eps: R) -> (R, R) {
    let count = R::of(x.len() as f64);
    let middle = |at: &Range<usize>| at.start.midpoint(at.end);
    let (mean, squares) = match center {
        Center::Mean => {
            let mean = lanes::long_sum(x, |at| ask_next(x, at.start..middle(&at))) / count;
            (mean, lanes::long_squares(x, mean, |at| ask_next(x, middle(&at)..at.end)))
        }
        Center::Zero => (R::ZERO, lanes::long_squares(x, R::ZERO, |at| ask_next(x, at))),
    };
    (mean, R::ONE / (squares / count + eps).sqrt())
}

simd! {
    fn forward_rows<R: Real>(
        x: &[R], w: &[R], b: &[R], y: &mut [R], mean: &mut [R], rstd: &mut [R], center: Center, eps: R,
    ) {
        let cols = w.len();
        for (r, y) in y.chunks_exact_mut(cols).enumerate() {
            let x = &x[r * cols..(r + 1) * cols];
            let (m, s) = moments(x, center, eps);
            mean[r] = m;
            rstd[r] = s;
            let (w, b) = (&w[..cols], &b[..cols]);
            for i in 0..cols {
                y[i] = ((x[i] - m) * s).mul_add(w[i], b[i]);
            }
        }
    }

    /// Writes `dx` and adds this block's rows to `dw` and `db`.
    fn backward_rows<R: Real>(
        dy: &[R], x: &[R], w: &[R], mean: &[R], rstd: &[R], dx: &mut [R], dw: &mut [R], db: &mut [R],
        center: Center,
    ) {
        let cols = w.len();
        let inv = R::ONE / R::of(cols as f64);
        let (dw, db) = (&mut dw[..cols], &mut db[..cols]);
        for (r, dx) in dx.chunks_exact_mut(cols).enumerate() {
            let (dy, x) = (&dy[r * cols..(r + 1) * cols], &x[r * cols..(r + 1) * cols]);
            let (m, s) = (mean[r], rstd[r]);
            let (sum, dot) = lanes::row_grads((dy, x, w), (&mut *dw, &mut *db), m, s, |at| ask_next(dy, at));
            // dx = s * (dy * w - c1 - xhat * c2)
            let c1 = match center {
                Center::Mean => sum * inv,
                Center::Zero => R::ZERO,
            };
            let c2 = dot * s * inv;
            input_grad(dy, x, w, dx, [m, s, c1, c2]);
        }
    }

    /// `out[i] += part[i]`.
    pub(crate) fn accumulate<R: Real>(out: &mut [R], part: &[R]) {
        for (o, &v) in out.iter_mut().zip(part) {
            *o += v;
        }
    }
}

/// `y`, and per row the mean (zero for rms) and `1 / sqrt(variance + eps)`.
pub(crate) fn forward<T: Float>(
    x: &[T],
    (w, b): (&[T::Real], &[T::Real]),
    y: &mut [T],
    mean: &mut [T::Real],
    rstd: &mut [T::Real],
    center: Center,
    eps: T::Real,
) {
    let cols = w.len();
    for_runs((x, y), (mean, rstd), cols, rows_per_block(cols), |_, x, y, mean, rstd| {
        forward_rows(x, w, b, y, mean, rstd, center, eps);
    });
}

/// Runs `work(first run, x, y, mean, rstd)` on blocks of at most `unit` runs of `len` elements, on the pool; the
/// statistics of runs of nothing are not numbers.
pub(super) fn for_runs<T: Float>(
    (x, y): (&[T], &mut [T]),
    (mean, rstd): (&mut [T::Real], &mut [T::Real]),
    len: usize,
    unit: usize,
    work: impl Fn(usize, &[T::Real], &mut [T::Real], &mut [T::Real], &mut [T::Real]) + Sync + Send,
) {
    if len == 0 {
        mean.fill(T::Real::of(f64::NAN));
        return rstd.fill(T::Real::of(f64::NAN));
    }
    let count = pool::piece_len(rstd.len(), unit, 2 * len * size_of::<T>());
    let parts = y.chunks_mut(count * len).zip(mean.chunks_mut(count)).zip(rstd.chunks_mut(count)).enumerate();
    pool::for_parts(parts.collect(), 2 * size_of_val(x), |(i, ((y, mean), rstd))| {
        let (mut wide, mut out) = (Vec::new(), Vec::new());
        let stats = mean.chunks_mut(unit).zip(rstd.chunks_mut(unit));
        for (j, (y, (mean, rstd))) in y.chunks_mut(unit * len).zip(stats).enumerate() {
            let first = i * count + j * unit;
            let x = T::widen(&x[first * len..first * len + y.len()], &mut wide);
            T::narrow(y, &mut out, |y| work(first, x, y, mean, rstd));
        }
    });
}

/// Rows per partial sum of parameter gradients: depends on the shape only, so that threads cannot change bits.
pub(crate) fn grad_rows(rows: usize) -> usize {
    rows.div_ceil(64).max(8)
}

/// `dx`, `dw` and `db` from what `forward` returned.
pub(crate) fn backward<T: Float>(
    (dy, x): (&[T], &[T]),
    w: &[T::Real],
    (mean, rstd): (&[T::Real], &[T::Real]),
    dx: &mut [T],
    dw: &mut [T::Real],
    db: &mut [T::Real],
    center: Center,
) {
    let (cols, rows) = (w.len(), rstd.len());
    dw.fill(T::Real::ZERO);
    db.fill(T::Real::ZERO);
    if dx.is_empty() {
        return;
    }
    let len = grad_rows(rows);
    let mut partial = vec![T::Real::ZERO; rows.div_ceil(len) * 2 * cols];
    let parts = dx.chunks_mut(len * cols).zip(partial.chunks_mut(2 * cols)).enumerate();
    let unit = rows_per_block(cols);
    pool::for_parts(parts.collect(), 3 * size_of_val(x), |(i, (dx, partial))| {
        let (dw, db) = partial.split_at_mut(cols);
        let (mut wide_dy, mut wide_x, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for (j, dx) in dx.chunks_mut(unit * cols).enumerate() {
            let row = i * len + j * unit;
            let (count, at) = (dx.len() / cols, row * cols);
            let dy = T::widen(&dy[at..at + dx.len()], &mut wide_dy);
            let x = T::widen(&x[at..at + dx.len()], &mut wide_x);
            let (mean, rstd) = (&mean[row..row + count], &rstd[row..row + count]);
            T::narrow(dx, &mut out, |dx| backward_rows(dy, x, w, mean, rstd, dx, dw, db, center));
        }
    });
    for part in partial.chunks_exact(2 * cols) {
        accumulate(dw, &part[..cols]);
        accumulate(db, &part[cols..]);
    }
}
