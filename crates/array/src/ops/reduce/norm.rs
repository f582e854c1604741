//! Log-sum-exp, norms, variance.

use super::{Keep, Over, divide};
use crate::array::Array;
use crate::convert::Number;
use crate::cpu::real::Real;
use crate::cpu::reduce::folds::{
    Abs, Deviation, End, Exponential, Extreme, Ordered, Plain, Power, Square, Sum,
};
use crate::cpu::reduce::{Plan, reduce};
use crate::cuda::Fold;
use crate::device::Device;
use crate::dispatch::with_real;
use crate::error::{Error, Result};
use crate::ops::fused::real_dtype;
use crate::ops::where_;
use planaria_layout::DType;

impl Array {
    /// ln(Σ e^x), without overflow; -inf of nothing.
    pub fn logsumexp(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        let over = Over::new("logsumexp", self.shape(), dims, keep)?;
        real_dtype("logsumexp", self.dtype())?;
        let x = self.widened()?;
        if let Device::Cuda(_) = self.device() {
            return logsumexp_on_cuda(&x, &over)?.cast(self.dtype());
        }
        with_real!("logsumexp", x.dtype(), T => over.run(&x, T::NEG_INFINITY, &mut logsumexp::<T>))?
            .cast(self.dtype())
    }

    /// The p-norm (Σ |x|^p)^(1/p): p = 0 counts what is not zero, p = ±inf is the largest or smallest |x|.
    pub fn norm(&self, p: f64, dims: &[i64], keep: Keep) -> Result<Array> {
        let over = Over::new("norm", self.shape(), dims, keep)?;
        if p.is_nan() {
            return Err(Error::argument("norm", "p must be a number, got NaN"));
        }
        if p < 0.0 || p.is_infinite() {
            over.check_not_empty(self.shape())?;
        }
        let x = self.widened()?;
        if p == 0.0 && matches!(x.dtype(), DType::F32 | DType::F64) {
            return self.count_nonzero(dims, keep)?.cast(self.dtype());
        }
        if let Device::Cuda(_) = self.device() {
            real_dtype("norm", self.dtype())?;
            return norm_on_cuda(p, &x, &over)?.cast(self.dtype());
        }
        with_real!("norm", x.dtype(), T => over.run(&x, T::ZERO, &mut |data: &[T], plan, out| {
            if p.is_infinite() {
                let fold = Extreme::<T>::new(if p > 0.0 { End::Largest } else { End::Smallest }).absolute();
                reduce(&fold, data, plan, &[], out);
                return out.iter_mut().for_each(|x| *x = x.restore(fold.0));
            }
            norm(p, data, plan, out);
        }))?
        .cast(self.dtype())
    }

    /// Variance: squared deviations from the mean, added up and divided by n - `correction`
    /// (1 for the unbiased estimate, 0 for the population's).
    pub fn var(&self, dims: &[i64], correction: f64, keep: Keep) -> Result<Array> {
        spread("var", self, dims, correction, keep, |v| v)
    }

    /// Standard deviation: the square root of [`Array::var`].
    pub fn std(&self, dims: &[i64], correction: f64, keep: Keep) -> Result<Array> {
        spread("std", self, dims, correction, keep, f64::sqrt)
    }
}

fn logsumexp<T: Real + Ordered>(data: &[T], plan: &Plan, out: &mut [T]) {
    let mut largest = vec![T::ZERO; out.len()];
    reduce(&Extreme::new(End::Largest), data, plan, &[], &mut largest);
    for m in &mut largest {
        // Infinite or NaN: e^x alone already gives the right limit.
        *m = if m.f64().is_finite() { *m } else { T::ZERO };
    }
    reduce(&Sum::<T, T, _>::of(Exponential), data, plan, &largest, out);
    for (o, &m) in out.iter_mut().zip(&largest) {
        *o = o.ln() + m;
    }
}

/// The same in elementwise steps.
fn logsumexp_on_cuda(x: &Array, over: &Over) -> Result<Array> {
    let zero = Array::scalar(0, x.dtype())?;
    let largest = over.on_cuda(x, Fold::Largest, f64::NEG_INFINITY)?.reshape(&over.kept)?;
    let largest = where_(&largest.is_finite()?, &largest, &zero)?;
    let sum = over.on_cuda(&x.sub(&largest)?.exp()?, Fold::Sum, 0)?;
    sum.ln()?.add(&largest.reshape(&over.shape)?)
}

fn norm_on_cuda(p: f64, x: &Array, over: &Over) -> Result<Array> {
    if p == 2.0 {
        return over.on_cuda(x, Fold::Squares, 0)?.sqrt();
    }
    let size = x.abs()?;
    if p.is_infinite() {
        return over.on_cuda(&size, if p > 0.0 { Fold::Largest } else { Fold::Smallest }, 0);
    }
    if p == 1.0 {
        return over.on_cuda(&size, Fold::Sum, 0);
    }
    let power = |x: &Array, p: f64| x.cast(DType::F64)?.pow(&Array::scalar(p, DType::F64)?)?.cast(x.dtype());
    power(&over.on_cuda(&power(&size, p)?, Fold::Sum, 0)?, 1.0 / p)
}

/// For finite p that is not 0.
fn norm<T: Real + Ordered>(p: f64, data: &[T], plan: &Plan, out: &mut [T]) {
    if p == 1.0 {
        reduce(&Sum::<T, T, _>::of(Abs), data, plan, &[], out);
    } else if p == 2.0 {
        reduce(&Sum::<T, T, _>::of(Square), data, plan, &[], out);
        out.iter_mut().for_each(|x| *x = x.sqrt());
    } else {
        reduce(&Sum::<T, T, _>::of(Power(p)), data, plan, &[], out);
        out.iter_mut().for_each(|x| *x = T::of(x.f64().powf(1.0 / p)));
    }
}

/// Two passes in f64: the mean, then the deviations from it.
fn spread(
    op: &'static str,
    x: &Array,
    dims: &[i64],
    correction: f64,
    keep: Keep,
    finish: fn(f64) -> f64,
) -> Result<Array> {
    let over = Over::new(op, x.shape(), dims, keep)?;
    let freedom = (over.count as f64 - correction).max(0.0);
    real_dtype(op, x.dtype())?;
    let wide = x.widened()?;
    if let Device::Cuda(_) = x.device() {
        let (wide, number) = (x.cast(DType::F64)?, |n: f64| Array::scalar(n, DType::F64));
        let mean = over.on_cuda(&wide, Fold::Sum, f64::NAN)?.div(&number(over.count as f64)?)?;
        let away = wide.sub(&mean.reshape(&over.kept)?)?;
        let spread = over.on_cuda(&away, Fold::Squares, f64::NAN)?.div(&number(freedom)?)?;
        let root = finish(4.0) == 2.0;
        return if root { spread.sqrt()? } else { spread }.cast(x.dtype());
    }
    let wide = with_real!(op, wide.dtype(), T => over.run(&wide, f64::NAN, &mut |data: &[T], plan, out| {
        let means = means(data, plan, over.count, out.len());
        reduce(&Sum::<T, f64, _>::of(Deviation), data, plan, &means, out);
        out.iter_mut().for_each(|v| *v = finish(*v / freedom));
    }))?;
    wide.cast(x.dtype())
}

/// Means in f64, in the plan's order.
pub(super) fn means<T: Number>(data: &[T], plan: &Plan, count: usize, results: usize) -> Vec<f64> {
    let mut means = vec![0.0; results];
    reduce(&Sum::<T, f64, _>::of(Plain), data, plan, &[], &mut means);
    divide(&mut means, count as f64);
    means
}
