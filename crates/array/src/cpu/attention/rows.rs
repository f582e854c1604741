//! The elementwise parts of attention, row by row over a block of scores.

use super::Visible;
use crate::cpu::norm::lanes;
use crate::cpu::real::Real;
use crate::cpu::simd::simd;

simd! {
    /// One step of the running softmax: turns scores into weights relative to the new maximum, and moves the
    /// maximum, the total and the output gathered so far on to it.
    pub(super) fn soften<R: Real>(scores: &mut [R], cols: usize, scale: R, visible: Visible, max: &mut [R], total: &mut [R], out: &mut [R], dim: usize) {
        for (r, row) in scores.chunks_exact_mut(cols).enumerate() {
            let (seen, hidden) = row.split_at_mut(visible.of(r, cols));
            hidden.fill(R::ZERO);
            for s in seen.iter_mut() {
                *s *= scale;
            }
            let old = max[r];
            let new = old.larger(lanes::max(seen));
            if new == R::NEG_INFINITY {
                seen.fill(R::ZERO);
                continue;
            }
            for s in seen.iter_mut() {
                *s = (*s - new).exp_down();
            }
            // e^-inf is 0: a first block scales nothing.
            let shrink = (old - new).exp();
            total[r] = total[r].mul_add(shrink, lanes::sum(seen));
            max[r] = new;
            for o in out[r * dim..(r + 1) * dim].iter_mut() {
                *o *= shrink;
            }
        }
    }

    /// Divides by the totals; rows that saw nothing stay zero. Leaves the log of the sum of exponentials in `max`.
    pub(super) fn finish<R: Real>(max: &mut [R], total: &[R], out: &mut [R], dim: usize) {
        for r in 0..max.len() {
            if total[r] == R::ZERO {
                max[r] = R::NEG_INFINITY;
                continue;
            }
            let inverse = R::ONE / total[r];
            for o in out[r * dim..(r + 1) * dim].iter_mut() {
                *o *= inverse;
            }
            max[r] += total[r].ln();
        }
    }

    /// Turns scores into weights, and gradients of the weights into gradients of `q · k`.
    pub(super) fn soften_grad<R: Real>(scores: &mut [R], grads: &mut [R], cols: usize, scales: (R, R), visible: Visible, lse: &[R], delta: &[R]) {
        let (before, after) = scales;
        for (r, (row, grad)) in scores.chunks_exact_mut(cols).zip(grads.chunks_exact_mut(cols)).enumerate() {
            let seen = if lse[r] == R::NEG_INFINITY { 0 } else { visible.of(r, cols) };
            let (lse, delta) = (lse[r], delta[r]);
            for (s, g) in row[..seen].iter_mut().zip(grad[..seen].iter_mut()) {
                let weight = s.mul_add(before, -lse).exp_down();
                *s = weight;
                *g = weight * (*g - delta) * after;
            }
            row[seen..].fill(R::ZERO);
            grad[seen..].fill(R::ZERO);
        }
    }

    /// `out[r] = sum of x[r] * y[r]`.
    pub(super) fn row_dots<R: Real>(x: &[R], y: &[R], out: &mut [R], dim: usize) {
        for (r, o) in out.iter_mut().enumerate() {
            let row = r * dim..(r + 1) * dim;
            *o = lanes::fold2(&x[row.clone()], &y[row], |acc, a, b| a.mul_add(b, acc));
        }
    }
}
