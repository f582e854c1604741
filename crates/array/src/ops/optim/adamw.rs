//! AdamW: Adam with decoupled weight decay.

use super::{Staged, StepArrays, check_master, check_rate, check_state, for_each, skip, state};
use crate::array::{Array, Update as Writing};
use crate::cpu::optim::adamw::{self as kernel, Step, Update};
use crate::cpu::optim::{Param, Stored};
use crate::cpu::real::{Float, with_float};
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::fused::real_dtype;

/// Hyperparameters of AdamW; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Factor on the gradients as they are read: a clip coefficient or the inverse of a loss scale; negative
    /// values climb.
    pub grad_scale: f64,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2, grad_scale: 1.0 }
    }
}

/// One parameter and its state. Gradient and moments have the parameter's dtype or the computing one (f32).
#[derive(Clone, Copy, Debug)]
pub struct AdamWArrays<'a> {
    /// The parameter, updated in place.
    pub param: &'a Array,
    /// Its gradient.
    pub grad: &'a Array,
    /// First moment, updated in place.
    pub exp_avg: &'a Array,
    /// Second moment, updated in place, same dtype as the first.
    pub exp_avg_sq: &'a Array,
    /// Running maximum of the second moment, for the AMSGrad variant.
    pub max_exp_avg_sq: Option<&'a Array>,
    /// f32 values of a bf16 or f16 parameter; the parameter becomes their rounding.
    pub master: Option<&'a Array>,
}

impl AdamWArrays<'_> {
    fn check(&self, op: &'static str) -> Result<()> {
        real_dtype(op, self.param.dtype())?;
        for state in [self.grad, self.exp_avg, self.exp_avg_sq] {
            check_state(op, self.param, state)?;
        }
        self.exp_avg_sq.check_dtype(op, self.exp_avg.dtype())?;
        if let Some(max) = self.max_exp_avg_sq {
            check_state(op, self.param, max)?;
            max.check_dtype(op, self.exp_avg.dtype())?;
        }
        check_master(op, self.param, self.master)
    }

    fn skip(&self, op: &'static str) -> Result<bool> {
        let others = [Some(self.grad), Some(self.exp_avg), Some(self.exp_avg_sq)];
        Ok(skip(op, self.param, &others)? | skip(op, self.param, &[self.max_exp_avg_sq, self.master])?)
    }
}

impl StepArrays for AdamWArrays<'_> {
    fn changed(&self) -> impl Iterator<Item = &Array> {
        let always = [self.param, self.exp_avg, self.exp_avg_sq];
        always.into_iter().chain(self.max_exp_avg_sq).chain(self.master)
    }

    fn grad(&self) -> &Array {
        self.grad
    }
}

impl AdamW {
    /// Step number `step` (from 1) of every parameter in the list:
    /// `m += (1 - beta1) * (g - m)`, `v = beta2 * v + (1 - beta2) * g^2`, then
    /// `p = p * (1 - lr * weight_decay) - lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps)`.
    pub fn step(&self, step: u64, list: &[AdamWArrays<'_>]) -> Result<()> {
        let op = "adamw";
        if step == 0 {
            return Err(Error::argument(op, "steps count from 1, got 0"));
        }
        for (name, value) in [("lr", self.lr), ("eps", self.eps), ("weight_decay", self.weight_decay)] {
            check_rate(op, name, value)?;
        }
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::argument(op, format!("{name} must be in [0, 1), got {beta}")));
            }
        }
        for arrays in list {
            arrays.check(op)?;
        }
        let constants = self.constants(step);
        if list.iter().any(|arrays| matches!(arrays.param.device(), Device::Cuda(_))) {
            return on_cuda(op, list, constants);
        }
        for_each(list, |arrays| if arrays.skip(op)? { Ok(()) } else { run(op, arrays, constants) })
    }

    fn constants(&self, step: u64) -> Step {
        // Past 2^31 steps the corrections are 1 whatever the exponent.
        let exponent = i32::try_from(step).unwrap_or(i32::MAX);
        Step {
            grad_scale: self.grad_scale,
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            keep: 1.0 - self.lr * self.weight_decay,
            rate: self.lr / (1.0 - self.beta1.powi(exponent)),
            correction: 1.0 / (1.0 - self.beta2.powi(exponent)).sqrt(),
        }
    }
}

/// All of them at once, where none changes what another changes or reads; else one after the other.
fn on_cuda(op: &'static str, list: &[AdamWArrays<'_>], step: Step) -> Result<()> {
    let mut wanted = Vec::new();
    for arrays in list {
        if !arrays.skip(op)? {
            wanted.push(arrays);
        }
    }
    let together = wanted.len().max(1);
    let size = if super::disjoint(&wanted) { together } else { 1 };
    wanted.chunks(size).try_for_each(|some| step_on_cuda(op, some, step))
}

fn step_on_cuda(op: &'static str, list: &[&AdamWArrays<'_>], step: Step) -> Result<()> {
    let constants = [
        step.grad_scale,
        step.keep,
        1.0 - step.beta1,
        step.beta2,
        1.0 - step.beta2,
        step.eps,
        step.rate,
        step.correction,
    ];
    let mut staged = Vec::new();
    let mut grads = Vec::new();
    for arrays in list {
        let all = [
            Some(arrays.param),
            arrays.master,
            Some(arrays.exp_avg),
            Some(arrays.exp_avg_sq),
            arrays.max_exp_avg_sq,
        ];
        let mut own: Vec<Option<Staged<'_>>> = Vec::new();
        for array in all {
            let others: Vec<&Staged<'_>> = own.iter().flatten().collect();
            own.push(array.map(|array| Staged::new(array, &others)).transpose()?);
        }
        staged.push(own);
        grads.push(arrays.grad.contiguous()?);
    }
    let work = |own: &'_ [Option<Staged<'_>>], at: usize| own[at].as_ref().map(|staged| staged.work.clone());
    let arrays: Vec<[Option<Array>; 5]> =
        staged.iter().map(|own| std::array::from_fn(|at| work(own, at))).collect();
    let steps: Vec<cuda::Stepped<'_>> = arrays
        .iter()
        .zip(&grads)
        .filter_map(|([param, master, m, v, max], grad)| {
            let moments = [m.as_ref(), v.as_ref(), max.as_ref()];
            Some(cuda::Stepped { param: param.as_ref()?, master: master.as_ref(), grad, moments })
        })
        .collect();
    cuda::adamw(op, &steps, constants)?;
    drop(steps);
    staged.into_iter().flatten().flatten().try_for_each(Staged::finish)
}

fn run(op: &'static str, arrays: &AdamWArrays<'_>, step: Step) -> Result<()> {
    let param = arrays.param.dtype();
    let same = (arrays.grad.dtype() == param, arrays.exp_avg.dtype() == param);
    with_float!(op, param, T => {
        type R = <T as Float>::Real;
        match same {
            (true, true) => typed::<T, T, T>(op, arrays, step),
            (true, false) => typed::<T, T, R>(op, arrays, step),
            (false, true) => typed::<T, R, T>(op, arrays, step),
            (false, false) => typed::<T, R, R>(op, arrays, step),
        }
    })
}

fn typed<T, G, M>(op: &'static str, arrays: &AdamWArrays<'_>, step: Step) -> Result<()>
where
    T: Stored,
    G: Float<Real = T::Real>,
    M: Stored<Real = T::Real>,
    T::Real: Stored<Real = T::Real>,
{
    let param = Staged::new(arrays.param, &[])?;
    let m = Staged::new(arrays.exp_avg, &[&param])?;
    let v = Staged::new(arrays.exp_avg_sq, &[&param, &m])?;
    let max = arrays.max_exp_avg_sq.map(|max| Staged::new(max, &[&param, &m, &v])).transpose()?;
    let mut others = vec![&param, &m, &v];
    others.extend(&max);
    let master = arrays.master.map(|master| Staged::new(master, &others)).transpose()?;
    let grad = arrays.grad.values::<G>(op)?;
    let (mut p, mut a, mut b) = (param.begin(op)?, m.begin(op)?, v.begin(op)?);
    let mut c = max.as_ref().map(|max| max.begin(op)).transpose()?;
    let mut w = master.as_ref().map(|master| master.begin(op)).transpose()?;
    let update = Update {
        param: Param { param: state(&mut p), master: w.as_mut().map(state) },
        grad: &grad,
        exp_avg: state(&mut a),
        exp_avg_sq: state(&mut b),
        max: c.as_mut().map(state),
    };
    kernel::step::<T, G, M>(update, step);
    [Some(p), Some(a), Some(b), c, w].into_iter().flatten().for_each(Writing::commit);
    drop(grad);
    let staged = [Some(param), Some(m), Some(v), max, master];
    staged.into_iter().flatten().try_for_each(Staged::finish)
}
