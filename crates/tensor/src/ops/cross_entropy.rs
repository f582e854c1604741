//! Softmax cross-entropy from logits. Ranks that cut the classes work together, without gathering the logits.

use crate::attributes::{Attr, Attributes};
use crate::dispatch::{apply, apply1};
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::compose;
use crate::ops::dims::normal_dim;
use crate::ops::moments::{constant, exchange, filled, log_sum_exp, total, wide};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::{self, CrossEntropyOptions as Fused, Keep, Reduction};
use planaria_array::{Array, DType};
use planaria_layout::rule::{Cuts, FactorKind, LINEAR, Rule};
use smallvec::smallvec;

/// Options of [`cross_entropy`] and [`soft_cross_entropy`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyOptions<'a> {
    /// The dim of the logits that runs over the classes.
    pub dim: i64,
    /// One factor per class. It gets no gradient.
    pub weight: Option<&'a Tensor>,
    /// The label of rows without loss and gradient; not used for probabilities.
    pub ignore_index: Option<i64>,
    /// Share of the target that is spread evenly over all classes, 0 to 1.
    pub label_smoothing: f64,
    /// How losses are joined.
    pub reduction: Reduction,
}

impl Default for CrossEntropyOptions<'_> {
    fn default() -> Self {
        let (ignore_index, reduction) = (Some(-100), Reduction::Mean);
        CrossEntropyOptions { dim: -1, weight: None, ignore_index, label_smoothing: 0.0, reduction }
    }
}

/// Losses of rows, their logsumexp, and what each row counts in a mean; all in the computing dtype.
#[derive(Debug, Clone, Copy)]
struct CrossEntropy {
    dim: usize,
    ignore: Option<i64>,
    smoothing: f64,
}

/// One row's worth of arrays that a loss is made of, classes reduced and kept as a dim of 1.
struct Rows {
    /// 1 where the row counts, else 0.
    counts: Array,
    /// 1 at the label's place in the local window of classes; all 0 when it is elsewhere or ignored.
    hot: Array,
}

impl CrossEntropy {
    fn fused<'a>(&self, weight: Option<&'a Array>) -> Fused<'a> {
        let (dim, ignore_index) = (self.dim as i64, self.ignore);
        Fused { dim, weight, ignore_index, label_smoothing: self.smoothing, reduction: Reduction::None }
    }

    /// Class weights, seen along the class dim.
    fn weights(&self, weight: Option<&Array>, logits: &Array) -> Result<Array> {
        let mut shape = vec![1; logits.ndim()];
        shape[self.dim] = logits.shape()[self.dim];
        let dtype = wide(logits.dtype());
        Ok(match weight {
            Some(weight) => weight.cast(dtype)?.reshape(&shape)?,
            None => filled(logits, &shape, 1.0, dtype)?,
        })
    }

    /// Labels against the local window of classes; the logits are this input.
    fn rows(&self, logits: &Array, labels: &Array, local: &Local<'_>, input: usize) -> Result<Rows> {
        let classes = local.input_shape(input, logits)[self.dim];
        let dtype = wide(logits.dtype());
        let labels = labels.cast(DType::I64)?.unsqueeze(self.dim as i64)?;
        if logits.is_meta() {
            let (counts, hot) = (Array::meta(labels.shape(), dtype)?, Array::meta(logits.shape(), dtype)?);
            return Ok(Rows { counts, hot });
        }
        let ignored = match self.ignore {
            Some(label) => labels.eq(&Array::scalar(label, DType::I64)?)?,
            None => labels.ne(&labels)?,
        };
        let outside = labels
            .lt(&Array::scalar(0i64, DType::I64)?)?
            .logical_or(&labels.ge(&Array::scalar(classes, DType::I64)?)?)?
            .logical_and(&ignored.logical_not()?)?;
        if outside.numel() > 0 && outside.any(&[], Keep::No)?.item()?.as_bool() {
            let message = format!("a label is neither below {classes} nor the ignored one");
            return Err(Error::Argument { op: "cross_entropy", message });
        }
        let mut shape = vec![1; logits.ndim()];
        shape[self.dim] = logits.shape()[self.dim];
        let start = local.input_start(input, self.dim)?;
        let here = Array::arange(start, start + shape[self.dim], 1i64, DType::I64)?.reshape(&shape)?;
        let here = here.to(labels.device())?;
        let counted = ignored.logical_not()?;
        let hot = labels.eq(&here)?.logical_and(&counted)?.cast(dtype)?;
        Ok(Rows { counts: counted.cast(dtype)?, hot })
    }

    /// On classes that other ranks have parts of.
    fn together(
        &self,
        logits: &Array,
        labels: &Array,
        weight: Option<&Array>,
        local: &Local<'_>,
    ) -> Result<Arrays> {
        let (dims, x) = ([self.dim], logits.cast(wide(logits.dtype()))?);
        let scalar = |v: f64| constant(&x, v, x.dtype());
        let lse = log_sum_exp(&x, &dims, local, 0)?;
        let Rows { counts: counted, hot } = self.rows(logits, labels, local, 0)?;
        let weights = self.weights(weight, logits)?;
        let picked = hot.mul(&weights)?;
        let counts = match weight {
            Some(_) => total(&picked, &dims, local, 0)?,
            None => counted.clone(),
        };
        let mut loss = counts.mul(&lse)?.sub(&total(&picked.mul(&x)?, &dims, local, 0)?)?;
        if self.smoothing > 0.0 {
            let classes = local.input_shape(0, logits)[self.dim] as f64;
            let all = total(&weights.broadcast_to(x.shape())?, &dims, local, 0)?.mul(&lse)?;
            let spread = all
                .sub(&total(&weights.mul(&x)?, &dims, local, 0)?)?
                .mul(&scalar(self.smoothing / classes)?)?;
            loss = loss.mul(&scalar(1.0 - self.smoothing)?)?.add(&spread.mul(&counted)?)?;
        }
        let flat = |a: Array| a.squeeze(&[self.dim as i64]);
        Ok([flat(loss)?, flat(lse)?, flat(counts)?].into_iter().collect())
    }

    /// The same with simple ops.
    fn plain(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (dim, dtype) = (self.dim as i64, wide(inputs[0].dtype()));
        let x = inputs[0].cast(dtype)?;
        let lse = x.logsumexp(&[dim], Keep::Yes)?;
        let labels = inputs[1].cast(DType::I64)?.unsqueeze(dim)?;
        let mut shape = vec![1; x.ndim()];
        shape[self.dim] = x.shape()[self.dim];
        let device = inputs[0].local().device();
        let fixed = |a: Array| Tensor::new(a);
        let here = Array::arange(0i64, shape[self.dim], 1i64, DType::I64)?.reshape(&shape)?;
        let here = fixed(here.to(device)?);
        let ignore = fixed(Array::scalar(self.ignore.unwrap_or(-1), DType::I64)?);
        let counted = labels.ne(&ignore)?.cast(dtype)?;
        let hot = labels.eq(&here)?.cast(dtype)?.mul(&counted)?;
        let weights = match inputs.get(2) {
            Some(weight) => weight.cast(dtype)?.reshape(&shape)?,
            None => fixed(Array::full_on(&shape, 1.0, dtype, device)?),
        };
        let smooth = self.smoothing / shape[self.dim] as f64;
        let target = hot.mul_scalar(1.0 - self.smoothing)?.add(&counted.mul_scalar(smooth)?)?;
        let loss = lse.sub(&x)?.mul(&weights)?.mul(&target)?.sum(&[dim], Keep::No)?;
        Ok(vec![loss, lse.squeeze(&[dim])?])
    }
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy_with_softmax"
    }

    fn attributes(&self) -> Attributes {
        let ignore = self.ignore.map_or(Attr::List(Vec::new()), Attr::Int);
        Attributes::new()
            .with("axis", self.dim)
            .with("ignore_index", ignore)
            .with("label_smoothing", self.smoothing)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let cuts = |d: usize| if d == self.dim { Cuts::Windows } else { Cuts::Any };
        let shape = inputs[0].shape.iter().enumerate();
        let dims: Vec<_> = shape.map(|(d, &n)| Some(rule.factor(n, FactorKind::Free, cuts(d)))).collect();
        let mut rows = dims.clone();
        let class = rows.remove(self.dim);
        let weight = usize::from(inputs.len() > 2);
        let messages = 3 + weight + if self.smoothing > 0.0 { 2 } else { 0 };
        exchange(&mut rule, &dims, &[self.dim], messages * wide(inputs[0].dtype).size());
        rule.input(&dims);
        rule.input(&rows);
        inputs[2..].iter().for_each(|_| rule.input(&[class]));
        (0..3).for_each(|_| rule.output(&rows));
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (logits, labels, weight) = (inputs[0], inputs[1], inputs.get(2).copied());
        let dtype = wide(logits.dtype());
        if local.is_cut(0, &[self.dim]) {
            return self.together(logits, labels, weight, local);
        }
        let done = ops::cross_entropy(&logits.cast(dtype)?, labels, &self.fused(weight))?;
        let counts = if logits.is_meta() {
            done.loss.clone()
        } else {
            let labels = labels.cast(DType::I64)?;
            let counted = match self.ignore {
                Some(label) => labels.ne(&Array::scalar(label, DType::I64)?)?,
                None => labels.eq(&labels)?,
            };
            let each = match weight {
                // Any label will do where none counts.
                Some(weight) => {
                    let ids = ops::where_(&counted, &labels, &Array::scalar(0i64, DType::I64)?)?;
                    weight
                        .cast(dtype)?
                        .index_select(0, &ids.reshape(&[ids.numel()])?)?
                        .reshape(labels.shape())?
                }
                None => Array::full_on(labels.shape(), 1.0, dtype, labels.device())?,
            };
            each.mul(&counted.cast(dtype)?)?
        };
        Ok([done.loss, done.lse, counts].into_iter().collect())
    }

    fn saves(&self, _: &Places) -> Saves {
        // The weight is an input only when there is one; a place too many is none.
        Saves::inputs(&[0, 1, 2]).and_outputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let fused = grads[1].is_none() && !at.is_differentiable();
        let mut found = match grads[0].as_ref().filter(|_| fused) {
            Some(dloss) => {
                let weight = if at.inputs() > 2 { Some(at.input(2)?) } else { None };
                let (logits, lse, labels) = (at.input(0)?, at.output(1)?, at.input(1)?);
                let mut inputs = vec![dloss, &logits, &lse, &labels];
                inputs.extend(&weight);
                let mut grads: Grads = smallvec![Some(apply1(CrossEntropyGrad(*self), &inputs)?)];
                grads.extend((1..at.inputs()).map(|_| None));
                grads
            }
            None => compose::gradient(at, &grads[..2], |inputs| self.plain(inputs))?,
        };
        found.iter_mut().skip(1).for_each(|g| *g = None);
        Ok(found)
    }
}

/// The fused gradient of the logits, from those of the rows' losses, the logits, their logsumexp and the labels.
#[derive(Debug, Clone, Copy)]
struct CrossEntropyGrad(CrossEntropy);

impl CrossEntropyGrad {
    /// `dloss * w[label] * (softmax - hot)`, and the part of smoothing, on a window of classes.
    fn together(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Array> {
        let (of, dim) = (&self.0, self.0.dim as i64);
        let (dtype, logits) = (wide(inputs[1].dtype()), inputs[1]);
        let scalar = |v: f64| constant(logits, v, dtype);
        let Rows { counts, hot } = of.rows(logits, inputs[3], local, 1)?;
        let row = |a: &Array| a.cast(dtype)?.unsqueeze(dim);
        let (dloss, lse) = (row(inputs[0])?, row(inputs[2])?);
        let weight = inputs.get(4).copied();
        let weights = of.weights(weight, logits)?;
        let softmax = logits.cast(dtype)?.sub(&lse)?.exp()?;
        let classes = local.input_shape(1, logits)[of.dim] as f64;
        let smooth = scalar(of.smoothing / classes)?;
        let target = hot.mul(&scalar(1.0 - of.smoothing)?)?.add(&counts.mul(&smooth)?)?.mul(&weights)?;
        // The target's sum over all classes: what the softmax is multiplied with.
        let sum = total(&target, &[of.dim], local, 1)?;
        Ok(softmax.mul(&sum)?.sub(&target)?.mul(&dloss)?.cast(logits.dtype())?)
    }
}

impl Op for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_with_softmax_grad"
    }

    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let cuts = |d: usize| if d == self.0.dim { Cuts::Windows } else { Cuts::Any };
        let shape = inputs[1].shape.iter().enumerate();
        let dims: Vec<_> = shape.map(|(d, &n)| Some(rule.factor(n, FactorKind::Free, cuts(d)))).collect();
        let mut rows = dims.clone();
        let class = rows.remove(self.0.dim);
        exchange(&mut rule, &dims, &[self.0.dim], wide(inputs[1].dtype).size());
        for input in [&rows, &dims, &rows, &rows] {
            rule.input(input);
        }
        inputs[4..].iter().for_each(|_| rule.input(&[class]));
        rule.output(&dims);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        if local.is_cut(1, &[self.0.dim]) {
            return Ok(smallvec![self.together(inputs, local)?]);
        }
        let (dtype, weight) = (inputs[1].dtype(), inputs.get(4).copied());
        // Narrow logits are widened, so that the rows' gradients are not rounded.
        let logits = inputs[1].cast(wide(dtype))?;
        let found = ops::cross_entropy_grad(inputs[0], &logits, inputs[2], inputs[3], &self.0.fused(weight))?;
        Ok(smallvec![found.cast(dtype)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(super::fused_only(self.name()))
    }
}

/// The loss `lse - logits[label]` of each row, joined as the options say. `labels` (integers) has the shape of the
/// logits without the class dim. The classes may be cut: only values per row are then exchanged. Collective.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor, options: &CrossEntropyOptions<'_>) -> Result<Tensor> {
    let op = check("cross_entropy", logits, options)?;
    let mut rows = logits.shape().to_vec();
    rows.remove(op.dim);
    if labels.shape()[..] != rows[..] {
        let message =
            format!("labels have shape {}, but the rows of {} are {rows:?}", labels.shape(), logits.shape());
        return Err(Error::Argument { op: "cross_entropy", message });
    }
    let mut inputs = vec![logits, labels];
    inputs.extend(options.weight);
    let outputs = apply(op, &inputs)?;
    let [loss, _, counts] = &outputs[..] else { return Err(Error::Bug("a loss has three outputs")) };
    let joined = match options.reduction {
        Reduction::None => loss.clone(),
        Reduction::Sum => loss.sum(&[], Keep::No)?,
        Reduction::Mean => loss.sum(&[], Keep::No)?.div(&counts.detach().sum(&[], Keep::No)?)?,
    };
    joined.cast(logits.dtype())
}

/// Cross-entropy against class probabilities of the logits' shape. A mean divides by the number of rows.
pub fn soft_cross_entropy(
    logits: &Tensor,
    targets: &Tensor,
    options: &CrossEntropyOptions<'_>,
) -> Result<Tensor> {
    let op = check("soft_cross_entropy", logits, options)?;
    let (dim, dtype) = (op.dim as i64, wide(logits.dtype()));
    if targets.shape() != logits.shape() {
        let message = format!("targets have shape {}, the logits {}", targets.shape(), logits.shape());
        return Err(Error::Argument { op: "soft_cross_entropy", message });
    }
    let targets = targets.cast(dtype)?;
    let mut target = if op.smoothing > 0.0 { label_smooth(&targets, op.dim, op.smoothing)? } else { targets };
    if let Some(weight) = options.weight {
        let mut shape = vec![1; logits.ndim()];
        shape[op.dim] = logits.shape()[op.dim];
        target = target.mul(&weight.detach().cast(dtype)?.reshape(&shape)?)?;
    }
    let loss = target.mul(&logits.cast(dtype)?.log_softmax(dim)?)?.sum(&[dim], Keep::No)?.neg()?;
    let joined = match options.reduction {
        Reduction::None => loss,
        Reduction::Sum => loss.sum(&[], Keep::No)?,
        Reduction::Mean => loss.mean(&[], Keep::No)?,
    };
    joined.cast(logits.dtype())
}

/// `(1 - share) * labels + share / classes`: part of each target spread evenly over the classes of a dim.
pub fn label_smooth(labels: &Tensor, dim: usize, share: f64) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&share) || dim >= labels.ndim() {
        let message = format!("share {share} over dim {dim} of {}", labels.shape());
        return Err(Error::Argument { op: "label_smooth", message });
    }
    labels.mul_scalar(1.0 - share)?.add_scalar(share / labels.shape()[dim] as f64)
}

fn check(name: &'static str, logits: &Tensor, options: &CrossEntropyOptions<'_>) -> Result<CrossEntropy> {
    let smoothing = options.label_smoothing;
    let refuse = |message| Err(Error::Argument { op: name, message });
    if !(0.0..=1.0).contains(&smoothing) {
        return refuse(format!("label_smoothing must be between 0 and 1, got {smoothing}"));
    }
    if logits.ndim() == 0 {
        return refuse("logits need a dim of classes, got a single value".to_string());
    }
    let dim = normal_dim(name, logits.ndim(), options.dim)?;
    Ok(CrossEntropy { dim, ignore: options.ignore_index, smoothing })
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let of = |grad: bool| {
        let ignore = at.maybe("ignore_index", Attr::int)?;
        let of = CrossEntropy { dim: at.size("axis")?, ignore, smoothing: at.real("label_smoothing")? };
        if grad { found(CrossEntropyGrad(of)) } else { found(of) }
    };
    match name {
        "cross_entropy_with_softmax" => of(false),
        "cross_entropy_with_softmax_grad" => of(true),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dim = draw.below(shape.len());
    let mut rows = shape.clone();
    let classes = rows.remove(dim);
    let labels = draw.integers(classes, &rows)?;
    let op = CrossEntropy {
        dim,
        ignore: draw.pick(&[None, Some(0), Some(-100)]),
        smoothing: draw.pick(&[0.0, 0.2]),
    };
    let mut inputs = vec![draw.normal(&shape)?, labels];
    if draw.coin() {
        // In f32, because it gets no gradient.
        inputs.push(draw.between(0.5, 2.0, &[classes])?.cast(DType::F32)?);
    }
    Ok(Sample::new(op, inputs))
}
