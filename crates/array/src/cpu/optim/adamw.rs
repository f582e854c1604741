//! The AdamW update.

use super::{BLOCK, Cut, Param, Stored, Updating, constants, for_blocks};
use crate::cpu::real::{Float, Real};
use crate::cpu::simd::simd;
use planaria_cpu::prefetch;

/// One array's update: all slices have the same length.
pub(crate) struct Update<'a, T: Float, G, M> {
    pub(crate) param: Param<'a, T>,
    pub(crate) grad: &'a [G],
    pub(crate) exp_avg: Updating<'a, M>,
    pub(crate) exp_avg_sq: Updating<'a, M>,
    pub(crate) max: Option<Updating<'a, M>>,
}

/// Constants of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) grad_scale: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    /// What is left of a parameter after decay: `1 - lr * weight_decay`.
    pub(crate) keep: f64,
    /// `lr / (1 - beta1^step)`.
    pub(crate) rate: f64,
    /// `1 / sqrt(1 - beta2^step)`.
    pub(crate) correction: f64,
}

/// Elements between two looks ahead, and how far ahead they reach: past the block, where its successor lies.
const STRETCH: usize = 64;
const AHEAD: usize = 512;

/// The new first and second moment.
#[inline(always)]
fn moments<R: Real>(g: R, m: R, v: R, k: &[R; 8]) -> (R, R) {
    let [_, _, rise1, beta2, rise2, ..] = *k;
    (rise1.mul_add(g - m, m), beta2.mul_add(v, rise2 * g * g))
}

#[inline(always)]
fn moved<R: Real>(p: R, m: R, v: R, k: &[R; 8]) -> R {
    let [_, keep, .., eps, rate, correction] = *k;
    p.mul_add(keep, -(rate * m / v.sqrt().mul_add(correction, eps)))
}

simd! {
    fn step_block<R: Real>(p: &mut [R], g: &[R], m: &mut [R], v: &mut [R], k: [R; 8]) {
        let n = p.len();
        let (g, m, v) = (&g[..n], &mut m[..n], &mut v[..n]);
        for start in (0..n).step_by(STRETCH) {
            let end = n.min(start + STRETCH);
            // Four streams are more than the processor follows by itself.
            for line in (start + AHEAD..end + AHEAD).step_by(64 / size_of::<R>()) {
                prefetch(g, line);
                prefetch(p, line);
                prefetch(m, line);
                prefetch(v, line);
            }
            for i in start..end {
                (m[i], v[i]) = moments(g[i] * k[0], m[i], v[i], &k);
                p[i] = moved(p[i], m[i], v[i], &k);
            }
        }
    }

    fn step_block_max<R: Real>(p: &mut [R], g: &[R], m: &mut [R], v: &mut [R], max: &mut [R], k: [R; 8]) {
        let n = p.len();
        let (g, m, v, max) = (&g[..n], &mut m[..n], &mut v[..n], &mut max[..n]);
        for i in 0..n {
            (m[i], v[i]) = moments(g[i] * k[0], m[i], v[i], &k);
            max[i] = max[i].larger(v[i]);
            p[i] = moved(p[i], m[i], max[i], &k);
        }
    }
}

impl<T: Stored, G: Sync, M: Send + Sync> Cut for Update<'_, T, G, M> {
    fn len(&self) -> usize {
        self.grad.len()
    }

    fn front(&mut self, len: usize) -> Self {
        let (grad, rest) = self.grad.split_at(len);
        self.grad = rest;
        Update {
            param: self.param.front(len),
            grad,
            exp_avg: self.exp_avg.front(len),
            exp_avg_sq: self.exp_avg_sq.front(len),
            max: self.max.as_mut().map(|m| m.front(len)),
        }
    }
}

/// Updates parameter and moments in one pass.
pub(crate) fn step<T, G, M>(update: Update<'_, T, G, M>, step: Step)
where
    T: Stored,
    G: Float<Real = T::Real>,
    M: Stored<Real = T::Real>,
    T::Real: Stored<Real = T::Real>,
{
    let k = constants([
        step.grad_scale,
        step.keep,
        1.0 - step.beta1,
        step.beta2,
        1.0 - step.beta2,
        step.eps,
        step.rate,
        step.correction,
    ]);
    let item = 2 * size_of::<T>() + size_of::<G>() + 4 * size_of::<M>();
    for_blocks(update, BLOCK, item, |block, [a, b, c, d, e]: &mut [Vec<T::Real>; 5]| {
        let g = G::widen(block.grad, a);
        block.param.modify(b, |p| {
            M::modify(block.exp_avg, c, |m| {
                M::modify(block.exp_avg_sq, d, |v| match block.max {
                    None => step_block(p, g, m, v, k),
                    Some(max) => M::modify(max, e, |max| step_block_max(p, g, m, v, max, k)),
                });
            });
        });
    });
}
