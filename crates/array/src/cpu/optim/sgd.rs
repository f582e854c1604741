//! The SGD update with momentum.

use super::{BLOCK, Cut, Param, Stored, Updating, constants, for_blocks};
use crate::cpu::real::{Float, Real};
use crate::cpu::simd::simd;

/// One array's update: all slices have the same length.
pub(crate) struct Update<'a, T: Float, G, M> {
    pub(crate) param: Param<'a, T>,
    pub(crate) grad: &'a [G],
    pub(crate) velocity: Option<Updating<'a, M>>,
}

/// Constants of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) grad_scale: f64,
    pub(crate) lr: f64,
    pub(crate) weight_decay: f64,
    pub(crate) momentum: f64,
    /// Share of the gradient that enters the velocity; 1 on the first step.
    pub(crate) rise: f64,
    /// What the old velocity counts; 0 on the first step.
    pub(crate) memory: f64,
    pub(crate) nesterov: bool,
}

simd! {
    fn plain_block<R: Real>(p: &mut [R], g: &[R], k: [R; 6]) {
        let [scale, lr, decay, ..] = k;
        for (p, &g) in p.iter_mut().zip(g) {
            let d = decay.mul_add(*p, g * scale);
            *p = lr.mul_add(-d, *p);
        }
    }

    fn momentum_block<R: Real>(p: &mut [R], g: &[R], v: &mut [R], k: [R; 6], nesterov: bool) {
        let [scale, lr, decay, momentum, rise, memory] = k;
        let n = p.len();
        let (g, v) = (&g[..n], &mut v[..n]);
        for i in 0..n {
            let d = decay.mul_add(p[i], g[i] * scale);
            v[i] = memory.mul_add(v[i], rise * d);
            let d = if nesterov { momentum.mul_add(v[i], d) } else { v[i] };
            p[i] = lr.mul_add(-d, p[i]);
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
        Update { param: self.param.front(len), grad, velocity: self.velocity.as_mut().map(|v| v.front(len)) }
    }
}

/// Updates parameter and velocity in one pass.
pub(crate) fn step<T, G, M>(update: Update<'_, T, G, M>, step: Step)
where
    T: Stored,
    G: Float<Real = T::Real>,
    M: Stored<Real = T::Real>,
    T::Real: Stored<Real = T::Real>,
{
    let k = constants([step.grad_scale, step.lr, step.weight_decay, step.momentum, step.rise, step.memory]);
    let item = 2 * size_of::<T>() + size_of::<G>() + 2 * size_of::<M>();
    for_blocks(update, BLOCK, item, |block, [a, b, c]: &mut [Vec<T::Real>; 3]| {
        let g = G::widen(block.grad, a);
        block.param.modify(b, |p| match block.velocity {
            None => plain_block(p, g, k),
            Some(v) => M::modify(v, c, |v| momentum_block(p, g, v, k, step.nesterov)),
        });
    });
}
