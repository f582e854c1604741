//! Softmax cross-entropy without a stored softmax: one pass for the loss, one for the gradient.
//!
//! Rows longer than the first cache are read block by block, keeping a running maximum and a running sum.

use super::norm::lanes;
use super::real::{Float, Real};
use super::simd::simd;
use planaria_cpu::pool;

/// Elements between two looks at the running maximum.
const BLOCK: usize = 2048;

/// How a row's loss weighs its classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classes<'a, R> {
    pub(crate) count: usize,
    pub(crate) weight: Option<&'a [R]>,
    /// Sum of the weights, or the number of classes.
    pub(crate) total: R,
    pub(crate) smoothing: R,
}

impl<R: Real> Classes<'_, R> {
    fn weight(&self, class: usize) -> R {
        self.weight.map_or(R::ONE, |w| w[class])
    }

    /// Share of the smoothed loss that each class gets.
    fn even(&self) -> R {
        self.smoothing / R::of(self.count as f64)
    }
}

simd! {
    /// log(sum(exp(x))).
    fn log_sum_exp<R: Real>(x: &[R]) -> R {
        let mut terms = [R::ZERO; BLOCK];
        let (mut m, mut s) = (R::NEG_INFINITY, R::ZERO);
        let mut shift = R::ZERO;
        for block in x.chunks(BLOCK) {
            let top = lanes::max(block);
            if top > m {
                s *= (m - top).exp();
                (m, shift) = (top, top);
            }
            // While only -inf was seen the shift stays 0, because -inf - -inf is not a number.
            let terms = &mut terms[..block.len()];
            lanes::map(block, terms, |v| (v - shift).exp_down());
            s += lanes::sum(terms);
        }
        shift + s.ln()
    }

    fn weighted_sum<R: Real>(x: &[R], w: &[R]) -> R {
        lanes::fold2(x, w, |a, v, w| v.mul_add(w, a))
    }

    fn plain_sum<R: Real>(x: &[R]) -> R {
        lanes::long_sum(x, |_| ())
    }

    /// `dx = softmax(x) * a - b`.
    fn grad_row<R: Real>(x: &[R], lse: R, a: R, b: R, dx: &mut [R]) {
        lanes::map(x, dx, |v| (v - lse).exp_down().mul_add(a, -b));
    }

    /// `dx -= b * w`.
    fn subtract_scaled<R: Real>(w: &[R], b: R, dx: &mut [R]) {
        for (o, &w) in dx.iter_mut().zip(w) {
            *o = w.mul_add(-b, *o);
        }
    }

    /// `sum(w * t)` and `sum(w * t * x)` with `t = keep * target + even`.
    fn soft_sums<R: Real>(x: &[R], target: &[R], w: &[R], keep: R, even: R) -> (R, R) {
        lanes::pair3(target, w, x, |t, w| w * t.mul_add(keep, even), |v| v)
    }

    fn soft_grad_row<R: Real>(x: &[R], target: &[R], w: &[R], k: [R; 5], dx: &mut [R]) {
        let [lse, a, g, keep, even] = k;
        lanes::map(x, dx, |v| (v - lse).exp_down() * a);
        for ((o, &t), &w) in dx.iter_mut().zip(target).zip(w) {
            *o -= g * w * t.mul_add(keep, even);
        }
    }
}

/// Runs `work(row, loss, lse)` for each row on the pool.
fn for_rows<R: Real>(
    loss: &mut [R],
    lse: &mut [R],
    row_bytes: usize,
    work: impl Fn(usize, &mut R, &mut R, &mut Vec<R>) + Sync + Send,
) {
    let len = pool::piece_len(loss.len(), 1, row_bytes);
    let bytes = loss.len().saturating_mul(row_bytes);
    let parts = loss.chunks_mut(len).zip(lse.chunks_mut(len)).enumerate();
    pool::for_parts(parts.collect(), bytes, |(i, (loss, lse))| {
        let mut scratch = Vec::new();
        for (j, (loss, lse)) in loss.iter_mut().zip(lse).enumerate() {
            work(i * len + j, loss, lse, &mut scratch);
        }
    });
}

/// Loss and log-sum-exp of each row; `labels[i]` is `None` for ignored rows, whose loss is 0.
pub(crate) fn forward<T: Float>(
    x: &[T],
    labels: &[Option<usize>],
    classes: Classes<'_, T::Real>,
    loss: &mut [T::Real],
    lse: &mut [T::Real],
) {
    let cols = classes.count;
    for_rows(loss, lse, cols * size_of::<T>(), |row, loss, lse, scratch| {
        let x = T::widen(&x[row * cols..(row + 1) * cols], scratch);
        *lse = log_sum_exp(x);
        let Some(label) = labels[row] else {
            return *loss = T::Real::ZERO;
        };
        let hard = classes.weight(label) * (*lse - x[label]);
        *loss = hard;
        if classes.smoothing != T::Real::ZERO {
            let sum = classes.weight.map_or_else(|| plain_sum(x), |w| weighted_sum(x, w));
            let smooth = classes.total * *lse - sum;
            *loss = (T::Real::ONE - classes.smoothing) * hard + classes.even() * smooth;
        }
    });
}

/// Gradient of the logits; `scale[i]` is the gradient of row i's loss.
pub(crate) fn backward<T: Float>(
    x: &[T],
    lse: &[T::Real],
    labels: &[Option<usize>],
    scale: &[T::Real],
    classes: Classes<'_, T::Real>,
    dx: &mut [T],
) {
    let cols = classes.count;
    if dx.is_empty() {
        return;
    }
    pool::for_chunks_mut(dx, cols, 2 * size_of::<T>(), |at, piece| {
        let (mut wide, mut out) = (Vec::new(), Vec::new());
        for (i, dx) in piece.chunks_mut(cols).enumerate() {
            let row = at / cols + i;
            let Some(label) = labels[row] else {
                T::narrow(dx, &mut out, |dx| dx.fill(T::Real::ZERO));
                continue;
            };
            let x = T::widen(&x[row * cols..(row + 1) * cols], &mut wide);
            let hard = scale[row] * (T::Real::ONE - classes.smoothing) * classes.weight(label);
            let even = scale[row] * classes.even();
            T::narrow(dx, &mut out, |dx| {
                let plain = if classes.weight.is_none() { even } else { T::Real::ZERO };
                grad_row(x, lse[row], hard + even * classes.total, plain, dx);
                if let (Some(w), true) = (classes.weight, even != T::Real::ZERO) {
                    subtract_scaled(w, even, dx);
                }
                dx[label] -= hard;
            });
        }
    });
}

/// [`forward`] with a probability for every class.
pub(crate) fn soft_forward<T: Float>(
    (x, target): (&[T], &[T]),
    weight: &[T::Real],
    classes: Classes<'_, T::Real>,
    loss: &mut [T::Real],
    lse: &mut [T::Real],
) {
    let (cols, keep) = (classes.count, T::Real::ONE - classes.smoothing);
    for_rows(loss, lse, 2 * cols * size_of::<T>(), |row, loss, lse, scratch| {
        let range = row * cols..(row + 1) * cols;
        let mut wide = Vec::new();
        let x = T::widen(&x[range.clone()], scratch);
        let (sum, dot) = soft_sums(x, T::widen(&target[range], &mut wide), weight, keep, classes.even());
        *lse = log_sum_exp(x);
        *loss = sum * *lse - dot;
    });
}

/// Gradient of the logits of [`soft_forward`].
pub(crate) fn soft_backward<T: Float>(
    (x, target): (&[T], &[T]),
    lse: &[T::Real],
    scale: &[T::Real],
    weight: &[T::Real],
    classes: Classes<'_, T::Real>,
    dx: &mut [T],
) {
    let (cols, keep, even) = (classes.count, T::Real::ONE - classes.smoothing, classes.even());
    if dx.is_empty() {
        return;
    }
    pool::for_chunks_mut(dx, cols, 3 * size_of::<T>(), |at, piece| {
        let (mut wide_x, mut wide_t, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for (i, dx) in piece.chunks_mut(cols).enumerate() {
            let row = at / cols + i;
            let range = row * cols..(row + 1) * cols;
            let x = T::widen(&x[range.clone()], &mut wide_x);
            let target = T::widen(&target[range], &mut wide_t);
            let (sum, _) = soft_sums(x, target, weight, keep, even);
            let k = [lse[row], scale[row] * sum, scale[row], keep, even];
            T::narrow(dx, &mut out, |dx| soft_grad_row(x, target, weight, k, dx));
        }
    });
}
