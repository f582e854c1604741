//! SGD with momentum.

use super::{Staged, StepArrays, check_master, check_rate, check_state, for_each, skip, state};
use crate::array::{Array, Update as Writing};
use crate::cpu::optim::sgd::{self as kernel, Step, Update};
use crate::cpu::optim::{Param, Stored};
use crate::cpu::real::{Float, with_float};
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::fused::real_dtype;

/// Hyperparameters of SGD.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// What the old velocity counts in the new one; needs a velocity when not 0.
    pub momentum: f64,
    /// Share of the gradient kept out of the velocity.
    pub dampening: f64,
    /// Added to the gradient, times the parameter.
    pub weight_decay: f64,
    /// How the velocity moves the parameter.
    pub momentum_kind: Momentum,
    /// Factor on the gradients as they are read; negative values climb.
    pub grad_scale: f64,
}

/// How a velocity moves a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Momentum {
    /// `p -= lr * v`.
    #[default]
    Classic,
    /// `p -= lr * (g + momentum * v)`; needs momentum and no dampening.
    Nesterov,
}

impl Default for Sgd {
    fn default() -> Sgd {
        Sgd {
            lr: 1e-3,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            momentum_kind: Momentum::Classic,
            grad_scale: 1.0,
        }
    }
}

/// One parameter and its state. Gradient and velocity have the parameter's dtype or the computing one (f32).
#[derive(Clone, Copy, Debug)]
pub struct SgdArrays<'a> {
    /// The parameter, updated in place.
    pub param: &'a Array,
    /// Its gradient.
    pub grad: &'a Array,
    /// Velocity, updated in place; may be absent without momentum.
    pub velocity: Option<&'a Array>,
    /// f32 values of a bf16 or f16 parameter; the parameter becomes their rounding.
    pub master: Option<&'a Array>,
}

impl StepArrays for SgdArrays<'_> {
    fn changed(&self) -> impl Iterator<Item = &Array> {
        [self.param].into_iter().chain(self.velocity).chain(self.master)
    }

    fn grad(&self) -> &Array {
        self.grad
    }
}

impl Sgd {
    /// Step number `step` (from 1) of every parameter in the list. With `d = g + weight_decay * p`:
    /// `v = momentum * v + (1 - dampening) * d` (`v = d` on step 1), then `p -= lr * v`.
    pub fn step(&self, step: u64, list: &[SgdArrays<'_>]) -> Result<()> {
        let op = "sgd";
        self.check(op, step)?;
        for arrays in list {
            self.check_arrays(op, arrays)?;
        }
        let first = step == 1;
        let constants = Step {
            grad_scale: self.grad_scale,
            lr: self.lr,
            weight_decay: self.weight_decay,
            momentum: self.momentum,
            rise: if first { 1.0 } else { 1.0 - self.dampening },
            memory: if first { 0.0 } else { self.momentum },
            nesterov: self.momentum_kind == Momentum::Nesterov,
        };
        for_each(list, |arrays| {
            if skip(op, arrays.param, &[Some(arrays.grad), arrays.velocity, arrays.master])? {
                return Ok(());
            }
            run(op, arrays, constants, self.momentum != 0.0)
        })
    }

    fn check(&self, op: &'static str, step: u64) -> Result<()> {
        if step == 0 {
            return Err(Error::argument(op, "steps count from 1, got 0"));
        }
        for (name, value) in
            [("lr", self.lr), ("momentum", self.momentum), ("weight_decay", self.weight_decay)]
        {
            check_rate(op, name, value)?;
        }
        let plain = self.momentum == 0.0 || self.dampening != 0.0;
        if self.momentum_kind == Momentum::Nesterov && plain {
            let (m, d) = (self.momentum, self.dampening);
            let what = format!("nesterov needs momentum > 0 and dampening 0, got {m} and {d}");
            return Err(Error::argument(op, what));
        }
        Ok(())
    }

    fn check_arrays(&self, op: &'static str, arrays: &SgdArrays<'_>) -> Result<()> {
        real_dtype(op, arrays.param.dtype())?;
        check_state(op, arrays.param, arrays.grad)?;
        check_master(op, arrays.param, arrays.master)?;
        match arrays.velocity {
            Some(velocity) => check_state(op, arrays.param, velocity),
            None if self.momentum != 0.0 => {
                Err(Error::argument(op, format!("momentum {} needs a velocity array", self.momentum)))
            }
            None => Ok(()),
        }
    }
}

fn run(op: &'static str, arrays: &SgdArrays<'_>, step: Step, momentum: bool) -> Result<()> {
    let velocity = arrays.velocity.filter(|_| momentum);
    if let Device::Cuda(_) = arrays.param.device() {
        return on_cuda(op, arrays, velocity, step);
    }
    let param = arrays.param.dtype();
    let same = (arrays.grad.dtype() == param, velocity.is_none_or(|v| v.dtype() == param));
    with_float!(op, param, T => {
        type R = <T as Float>::Real;
        match same {
            (true, true) => typed::<T, T, T>(op, arrays, velocity, step),
            (true, false) => typed::<T, T, R>(op, arrays, velocity, step),
            (false, true) => typed::<T, R, T>(op, arrays, velocity, step),
            (false, false) => typed::<T, R, R>(op, arrays, velocity, step),
        }
    })
}

fn on_cuda(op: &'static str, arrays: &SgdArrays<'_>, velocity: Option<&Array>, step: Step) -> Result<()> {
    let param = Staged::new(arrays.param, &[])?;
    let velocity = velocity.map(|v| Staged::new(v, &[&param])).transpose()?;
    let mut others = vec![&param];
    others.extend(&velocity);
    let master = arrays.master.map(|master| Staged::new(master, &others)).transpose()?;
    let grad = arrays.grad.contiguous()?;
    let work = |staged: &'_ Option<Staged<'_>>| staged.as_ref().map(|staged| staged.work.clone());
    let (v, w) = (work(&velocity), work(&master));
    let stepped = cuda::Stepped {
        param: &param.work,
        master: w.as_ref(),
        grad: &grad,
        moments: [v.as_ref(), None, None],
    };
    let constants = [step.grad_scale, step.lr, step.weight_decay, step.momentum, step.rise, step.memory];
    cuda::sgd(op, &stepped, constants, step.nesterov)?;
    [Some(param), velocity, master].into_iter().flatten().try_for_each(Staged::finish)
}

fn typed<T, G, M>(
    op: &'static str,
    arrays: &SgdArrays<'_>,
    velocity: Option<&Array>,
    step: Step,
) -> Result<()>
where
    T: Stored,
    G: Float<Real = T::Real>,
    M: Stored<Real = T::Real>,
    T::Real: Stored<Real = T::Real>,
{
    let param = Staged::new(arrays.param, &[])?;
    let velocity = velocity.map(|v| Staged::new(v, &[&param])).transpose()?;
    let mut others = vec![&param];
    others.extend(&velocity);
    let master = arrays.master.map(|master| Staged::new(master, &others)).transpose()?;
    let grad = arrays.grad.values::<G>(op)?;
    let mut p = param.begin(op)?;
    let mut a = velocity.as_ref().map(|v| v.begin(op)).transpose()?;
    let mut w = master.as_ref().map(|master| master.begin(op)).transpose()?;
    let update = Update {
        param: Param { param: state(&mut p), master: w.as_mut().map(state) },
        grad: &grad,
        velocity: a.as_mut().map(state),
    };
    kernel::step::<T, G, M>(update, step);
    [Some(p), a, w].into_iter().flatten().for_each(Writing::commit);
    drop(grad);
    [Some(param), velocity, master].into_iter().flatten().try_for_each(Staged::finish)
}
