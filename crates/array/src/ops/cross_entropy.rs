//! Softmax cross-entropy from logits, with integer labels or class probabilities, and its gradients.

mod on_cuda;
mod soft_on_device;

use self::soft_on_device::Targets;
use super::fused::{Fresh, all_meta, check_ids, check_like, check_param, check_shape, check_stat};
use super::fused::{ids, leading, param, real_dtype};
use crate::array::{Array, Values};
use crate::cpu::cross_entropy::{self as kernel, Classes};
use crate::cpu::real::{Float, Real, with_float};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::view::real_dim;
use planaria_layout::{DType, Shape};

/// How the losses of all rows become one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// They do not: one loss per row.
    None,
    /// Their sum over the sum of the label weights of rows that count (number of rows for probabilities).
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// Options of [`cross_entropy`] and [`soft_cross_entropy`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyOptions<'a> {
    /// The dim of the logits that runs over the classes.
    pub dim: i64,
    /// One factor per class, in the dtype of the logits or f32.
    pub weight: Option<&'a Array>,
    /// The label of rows without loss and gradient; not used for probabilities.
    pub ignore_index: Option<i64>,
    /// Share of the target that is spread evenly over all classes, 0 to 1.
    pub label_smoothing: f64,
    /// How losses are joined.
    pub reduction: Reduction,
}

impl Default for CrossEntropyOptions<'_> {
    fn default() -> Self {
        CrossEntropyOptions {
            dim: -1,
            weight: None,
            ignore_index: Some(-100),
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
        }
    }
}

/// What [`cross_entropy`] returns.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    /// The loss, in the dtype of the logits: 0-d, or one value per row without reduction.
    pub loss: Array,
    /// `log(sum(exp(logits)))` of each row, in f32 (f64 for f64): all the gradient needs besides the logits.
    pub lse: Array,
}

/// The checked inputs: logits with the classes moved to the last dim.
struct Problem {
    op: &'static str,
    logits: Array,
    rows: Shape,
    classes: usize,
    real: DType,
}

impl Problem {
    fn new(op: &'static str, logits: &Array, options: &CrossEntropyOptions<'_>) -> Result<Problem> {
        let real = real_dtype(op, logits.dtype())?;
        let moved = last(op, logits, options.dim)?;
        let smoothing = options.label_smoothing;
        if !(0.0..=1.0).contains(&smoothing) {
            let what = format!("label_smoothing must be between 0 and 1, got {smoothing}");
            return Err(Error::argument(op, what));
        }
        let rows = leading(moved.shape(), 1)?;
        let classes = moved.shape()[moved.ndim() - 1];
        if classes == 0 && rows.numel() > 0 {
            return Err(Error::argument(op, format!("logits of shape {} have no classes", logits.shape())));
        }
        check_param(op, logits, options.weight, &Shape::new(&[classes])?)?;
        Ok(Problem { op, logits: moved, rows, classes, real })
    }

    fn loss_shape(&self, reduction: Reduction) -> Result<Shape> {
        Ok(if reduction == Reduction::None { self.rows.clone() } else { Shape::new(&[])? })
    }

    fn meta(&self, reduction: Reduction) -> Result<CrossEntropy> {
        let loss = Array::meta_of(self.loss_shape(reduction)?, self.logits.dtype());
        Ok(CrossEntropy { loss, lse: Array::meta_of(self.rows.clone(), self.real) })
    }

    fn check_grad(&self, dloss: &Array, lse: &Array, reduction: Reduction) -> Result<()> {
        dloss.check_dtype(self.op, self.logits.dtype())?;
        check_shape(self.op, dloss, &self.loss_shape(reduction)?, "the gradient has the shape of the loss")?;
        check_stat(self.op, &self.logits, lse, &self.rows)
    }

    /// The loss from the rows' losses.
    fn reduce<R: Real>(&self, losses: Fresh<R>, reduction: Reduction, count: f64) -> Result<Array> {
        let losses = losses.finish();
        if reduction == Reduction::None {
            return losses.cast(self.logits.dtype());
        }
        let sum: f64 = losses.values::<R>(self.op)?.iter().map(|v| v.f64()).sum();
        let loss = if reduction == Reduction::Mean { sum / count } else { sum };
        Array::scalar(loss, self.real)?.cast(self.logits.dtype())
    }

    /// The gradient of each row's loss.
    fn row_scale<R: Real>(&self, dloss: &Array, reduction: Reduction, count: f64) -> Result<Vec<R>> {
        let dloss = dloss.cast(R::DTYPE)?.values::<R>(self.op)?;
        Ok(match reduction {
            Reduction::None => dloss.to_vec(),
            Reduction::Sum => vec![dloss[0]; self.rows.numel()],
            Reduction::Mean => vec![R::of(dloss[0].f64() / count); self.rows.numel()],
        })
    }
}

/// `x` with `dim` moved to the end.
fn last(op: &'static str, x: &Array, dim: i64) -> Result<Array> {
    let d = real_dim(op, dim, x.ndim())? as i64;
    let mut order: Vec<i64> = (0..x.ndim() as i64).filter(|&i| i != d).collect();
    order.push(d);
    x.permute(&order)
}

/// Undoes [`last`].
fn unlast(op: &'static str, x: &Array, dim: i64) -> Result<Array> {
    let d = real_dim(op, dim, x.ndim())?;
    let mut order: Vec<i64> = (0..x.ndim() as i64 - 1).collect();
    order.insert(d, -1);
    x.permute(&order)
}

/// Class weights in the computing type, and what kernels need to know about them.
struct Weights<R> {
    values: Option<Values<R>>,
    total: R,
}

impl<R: Real> Weights<R> {
    fn new(problem: &Problem, weight: Option<&Array>) -> Result<Weights<R>> {
        let values = param::<R>(problem.op, weight)?;
        let total = values.as_ref().map_or(problem.classes as f64, |w| w.iter().map(|w| w.f64()).sum());
        Ok(Weights { values, total: R::of(total) })
    }

    fn classes(&self, problem: &Problem, smoothing: f64) -> Classes<'_, R> {
        Classes {
            count: problem.classes,
            weight: self.values.as_deref(),
            total: self.total,
            smoothing: R::of(smoothing),
        }
    }

    /// What a mean divides by.
    fn count(&self, labels: &[Option<usize>]) -> f64 {
        match &self.values {
            None => labels.iter().flatten().count() as f64,
            Some(w) => labels.iter().flatten().map(|&l| w[l].f64()).sum(),
        }
    }
}

fn labels(
    problem: &Problem,
    labels: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<Vec<Option<usize>>> {
    let ignored = |id| Some(id) == options.ignore_index;
    let values = ids(problem.op, labels, problem.classes, ignored)?;
    Ok(values.iter().map(|&id| (!ignored(id)).then_some(id as usize)).collect())
}

/// The loss `lse - logits[label]` of each row, computed without storing a softmax. With smoothing `s` and class
/// weights `w` it is `(1 - s) * w[label] * (lse - logits[label]) + s / classes * sum(w * (lse - logits))`.
/// `labels` (integers) has the shape of the logits without the class dim.
pub fn cross_entropy(
    logits: &Array,
    labels: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<CrossEntropy> {
    let problem = Problem::new("cross_entropy", logits, options)?;
    let op = problem.op;
    check_ids(op, labels)?;
    check_shape(op, labels, &problem.rows, "labels have one id per row of logits")?;
    if all_meta(op, logits, &[Some(labels), options.weight])? {
        return problem.meta(options.reduction);
    }
    if let Device::Cuda(_) = logits.device() {
        return on_cuda::losses(&problem, labels, options);
    }
    let labels = self::labels(&problem, labels, options)?;
    with_float!(op, logits.dtype(), T => {
        type R = <T as Float>::Real;
        let weights = Weights::<R>::new(&problem, options.weight)?;
        let values = problem.logits.values::<T>(op)?;
        let (mut loss, mut lse) = (Fresh::<R>::new(&problem.rows)?, Fresh::<R>::new(&problem.rows)?);
        let classes = weights.classes(&problem, options.label_smoothing);
        kernel::forward::<T>(&values, &labels, classes, loss.slice(), lse.slice());
        let loss = problem.reduce(loss, options.reduction, weights.count(&labels))?;
        Ok(CrossEntropy { loss, lse: lse.finish() })
    })
}

/// Gradient of the logits of [`cross_entropy`]: `(softmax(logits) - onehot(label)) * dloss` per row (with
/// weights and smoothing accordingly), in one pass from the logits and `lse`.
pub fn cross_entropy_grad(
    dloss: &Array,
    logits: &Array,
    lse: &Array,
    labels: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<Array> {
    let problem = Problem::new("cross_entropy_grad", logits, options)?;
    let op = problem.op;
    check_ids(op, labels)?;
    check_shape(op, labels, &problem.rows, "labels have one id per row of logits")?;
    problem.check_grad(dloss, lse, options.reduction)?;
    if all_meta(op, logits, &[Some(dloss), Some(lse), Some(labels), options.weight])? {
        return Ok(Array::meta_of(logits.shape().clone(), logits.dtype()));
    }
    if let Device::Cuda(_) = logits.device() {
        let dx = on_cuda::grad(&problem, dloss, lse, labels, options)?;
        return unlast(op, &dx, options.dim);
    }
    let labels = self::labels(&problem, labels, options)?;
    with_float!(op, logits.dtype(), T => {
        type R = <T as Float>::Real;
        let weights = Weights::<R>::new(&problem, options.weight)?;
        let scale = problem.row_scale::<R>(dloss, options.reduction, weights.count(&labels))?;
        let (values, lse) = (problem.logits.values::<T>(op)?, lse.values::<R>(op)?);
        let classes = weights.classes(&problem, options.label_smoothing);
        let dx = Array::build(problem.logits.shape().clone(), |dx: &mut [T]| {
            kernel::backward(&values, &lse, &labels, &scale, classes, dx);
        })?;
        unlast(op, &dx, options.dim)
    })
}

/// The loss of each row of `logits`, in f32 (f64 for f64), and the gradient of their sum, which may take the place of the
/// logits: they are not to be used afterwards. Rows with the label `ignored` have neither.
pub fn cross_entropy_into_grad(logits: Array, labels: &Array, ignored: i64) -> Result<(Array, Array)> {
    let options = CrossEntropyOptions {
        ignore_index: Some(ignored),
        reduction: Reduction::None,
        ..CrossEntropyOptions::default()
    };
    let problem = Problem::new("cross_entropy", &logits, &options)?;
    if let Device::Cuda(_) = logits.device() {
        check_ids(problem.op, labels)?;
        check_shape(problem.op, labels, &problem.rows, "labels have one id per row of logits")?;
        return on_cuda::losses_into_grad(&problem, labels, &options);
    }
    let wide = logits.cast(problem.real)?;
    let done = cross_entropy(&wide, labels, &options)?;
    let ones = Array::full_on(done.loss.shape(), 1.0, problem.real, logits.device())?;
    let grad = cross_entropy_grad(&ones, &wide, &done.lse, labels, &options)?;
    Ok((done.loss, grad.cast(logits.dtype())?))
}

/// Cross-entropy with a probability for every class: `sum(w * t * (lse - logits))` per row, where
/// `t = (1 - smoothing) * targets + smoothing / classes`. `targets` has the shape of the logits.
pub fn soft_cross_entropy(
    logits: &Array,
    targets: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<CrossEntropy> {
    let problem = Problem::new("soft_cross_entropy", logits, options)?;
    let op = problem.op;
    check_like(op, targets, logits)?;
    if all_meta(op, logits, &[Some(targets), options.weight])? {
        return problem.meta(options.reduction);
    }
    if let Device::Cuda(_) = logits.device() {
        return Targets::soft(&problem, &last(op, targets, options.dim)?, options)?.losses(&problem, options);
    }
    with_float!(op, logits.dtype(), T => {
        type R = <T as Float>::Real;
        let weights = Weights::<R>::new(&problem, options.weight)?;
        let ones = vec![R::ONE; problem.classes];
        let (values, targets) =
            (problem.logits.values::<T>(op)?, last(op, targets, options.dim)?.values::<T>(op)?);
        let (mut loss, mut lse) = (Fresh::<R>::new(&problem.rows)?, Fresh::<R>::new(&problem.rows)?);
        let classes = weights.classes(&problem, options.label_smoothing);
        let weight = weights.values.as_deref().unwrap_or(&ones);
        kernel::soft_forward::<T>((&values, &targets), weight, classes, loss.slice(), lse.slice());
        let loss = problem.reduce(loss, options.reduction, problem.rows.numel() as f64)?;
        Ok(CrossEntropy { loss, lse: lse.finish() })
    })
}

/// Gradient of the logits of [`soft_cross_entropy`]: `(softmax(logits) * sum(w * t) - w * t) * dloss` per row.
pub fn soft_cross_entropy_grad(
    dloss: &Array,
    logits: &Array,
    lse: &Array,
    targets: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<Array> {
    let problem = Problem::new("soft_cross_entropy_grad", logits, options)?;
    let op = problem.op;
    check_like(op, targets, logits)?;
    problem.check_grad(dloss, lse, options.reduction)?;
    if all_meta(op, logits, &[Some(dloss), Some(lse), Some(targets), options.weight])? {
        return Ok(Array::meta_of(logits.shape().clone(), logits.dtype()));
    }
    if let Device::Cuda(_) = logits.device() {
        let targets = Targets::soft(&problem, &last(op, targets, options.dim)?, options)?;
        return unlast(op, &targets.grad(&problem, dloss, lse, options)?, options.dim);
    }
    with_float!(op, logits.dtype(), T => {
        type R = <T as Float>::Real;
        let weights = Weights::<R>::new(&problem, options.weight)?;
        let ones = vec![R::ONE; problem.classes];
        let scale = problem.row_scale::<R>(dloss, options.reduction, problem.rows.numel() as f64)?;
        let (values, lse) = (problem.logits.values::<T>(op)?, lse.values::<R>(op)?);
        let targets = last(op, targets, options.dim)?.values::<T>(op)?;
        let classes = weights.classes(&problem, options.label_smoothing);
        let weight = weights.values.as_deref().unwrap_or(&ones);
        let dx = Array::build(problem.logits.shape().clone(), |dx: &mut [T]| {
            kernel::soft_backward((&values, &targets), &lse, &scale, weight, classes, dx);
        })?;
        unlast(op, &dx, options.dim)
    })
}

/// Gradient of the targets of [`soft_cross_entropy`]: `dloss * (1 - smoothing) * w * (lse - logits)` per row.
pub fn soft_cross_entropy_target_grad(
    dloss: &Array,
    logits: &Array,
    lse: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<Array> {
    let problem = Problem::new("soft_cross_entropy_target_grad", logits, options)?;
    problem.check_grad(dloss, lse, options.reduction)?;
    if all_meta(problem.op, logits, &[Some(dloss), Some(lse), options.weight])? {
        return Ok(Array::meta_of(logits.shape().clone(), logits.dtype()));
    }
    let rows = match options.reduction {
        Reduction::Mean => problem.rows.numel() as f64,
        Reduction::None | Reduction::Sum => 1.0,
    };
    let factor = Array::scalar((1.0 - options.label_smoothing) / rows, problem.real)?;
    let scale = dloss.cast(problem.real)?.broadcast_to(&problem.rows)?.mul(&factor)?.unsqueeze(-1)?;
    let mut grad = lse.unsqueeze(-1)?.sub(&problem.logits.cast(problem.real)?)?.mul(&scale)?;
    if let Some(weight) = options.weight {
        grad = grad.mul(&weight.cast(problem.real)?)?;
    }
    unlast(problem.op, &grad.cast(logits.dtype())?, options.dim)
}
