//! Batch normalisation of `[batch, channels, ..]` tensors. The batch stays cut; its statistics are those of the whole.

use super::{Params, affine, channel_shape, draw_params, given};
use crate::attributes::Attributes;
use crate::dispatch::apply;
use crate::error::{Error, Result};
use crate::grad::{Backward, no_grad};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::compose;
use crate::ops::fused_only;
use crate::ops::moments::{constant, exchange, total, wide};
use crate::ops::named::{Found, found};
use crate::ops::reduce::signed;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, BatchMode, BatchStats, Keep, RunningStats as RunningArrays};
use planaria_layout::rule::{LINEAR, Rule};
use smallvec::smallvec;

/// Averages over past batches, one value per channel.
#[derive(Clone, Copy, Debug)]
pub struct RunningStats<'a> {
    /// Running mean.
    pub mean: &'a Tensor,
    /// Running variance (divided by count - 1).
    pub var: &'a Tensor,
}

/// What [`batch_norm`] does besides normalising.
#[derive(Clone, Copy, Debug)]
pub enum BatchNorm<'a> {
    /// Training: statistics of the batch. Running averages, when given, become
    /// `(1 - momentum) * running + momentum * batch` in place.
    Training {
        /// Averages to update.
        running: Option<RunningStats<'a>>,
        /// Weight of this batch.
        momentum: f64,
    },
    /// Evaluation: the running averages.
    Evaluation(RunningStats<'a>),
}

/// `(x - mean) / sqrt(var + eps) * weight + bias` per channel. Outputs: the result, mean and variance as used.
#[derive(Debug, Clone, Copy)]
struct BatchNormOp {
    mode: BatchMode,
    params: Params,
    eps: f64,
}

/// All dims but the channels.
fn others(ndim: usize) -> Vec<usize> {
    (0..ndim).filter(|&d| d != 1).collect()
}

fn count(shape: &[usize]) -> usize {
    others(shape.len()).iter().map(|&d| shape[d]).product()
}

impl BatchNormOp {
    fn before_params(&self) -> usize {
        if self.mode == BatchMode::Evaluation { 3 } else { 1 }
    }

    /// Mean and variance of each channel over all ranks.
    fn statistics(&self, x: &Array, local: &Local<'_>) -> Result<(Array, Array)> {
        let dims = others(x.ndim());
        let (dtype, channels) = (wide(x.dtype()), [x.shape()[1]]);
        if !local.is_cut(0, &dims) {
            let dims = signed(&dims);
            let mean = x.cast(dtype)?.mean(&dims, Keep::No)?;
            return Ok((mean, x.cast(dtype)?.var(&dims, 0.0, Keep::No)?));
        }
        let values = x.cast(dtype)?;
        let count = constant(x, count(&local.input_shape(0, x)), dtype)?;
        let mean = total(&values, &dims, local, 0)?.div(&count)?;
        let var = total(&values.sub(&mean)?.square()?, &dims, local, 0)?.div(&count)?;
        Ok((mean.reshape(&channels)?, var.reshape(&channels)?))
    }

    /// The same with simple ops.
    fn plain(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = &inputs[0];
        let (weight, bias) = self.params.pick(inputs, self.before_params());
        let shape = channel_shape(x.ndim(), x.shape()[1]);
        let values = x.cast(wide(x.dtype()))?;
        let (mean, var) = match self.mode {
            BatchMode::Evaluation => (inputs[1].cast(values.dtype())?, inputs[2].cast(values.dtype())?),
            BatchMode::Training => {
                let dims = signed(&others(x.ndim()));
                (values.mean(&dims, Keep::No)?, values.var(&dims, 0.0, Keep::No)?)
            }
        };
        let rstd = var.add_scalar(self.eps)?.rsqrt()?.reshape(&shape)?;
        let h = values.sub(&mean.reshape(&shape)?)?.mul(&rstd)?;
        Ok(vec![affine(&h, weight, bias, &shape)?.cast(x.dtype())?, mean, var])
    }
}

impl Op for BatchNormOp {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn attributes(&self) -> Attributes {
        let params = Attributes::new().with("weight", self.params.weight).with("bias", self.params.bias);
        params.with("epsilon", self.eps).with("training", self.mode == BatchMode::Training)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let dims: Vec<_> = inputs[0].shape.iter().map(|&n| Some(rule.free(n))).collect();
        let channel = dims[1];
        rule.input(&dims);
        inputs[1..].iter().for_each(|_| rule.input(&[channel]));
        rule.output(&dims);
        rule.output(&[channel]);
        rule.output(&[channel]);
        if self.mode == BatchMode::Training {
            exchange(&mut rule, &dims, &others(dims.len()), 2 * wide(inputs[0].dtype).size());
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let x = inputs[0];
        let (weight, bias) = self.params.pick(inputs, self.before_params());
        let (mean, var) = match self.mode {
            BatchMode::Evaluation => (inputs[1].cast(wide(x.dtype()))?, inputs[2].cast(wide(x.dtype()))?),
            BatchMode::Training => self.statistics(x, local)?,
        };
        let stats = BatchStats::Running(RunningArrays { mean: &mean, var: &var });
        let done = ops::batch_norm(x, weight.copied(), bias.copied(), stats, self.eps)?;
        Ok([done.y, mean, var].into_iter().collect())
    }

    fn saves(&self, _: &Places) -> Saves {
        compose::saves_inputs(self.before_params() + self.params.count()).and_outputs(&[1, 2])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let of_stats = grads[1..].iter().any(Option::is_some);
        let wants_stats = self.mode == BatchMode::Evaluation && (at.needs(1) || at.needs(2));
        let fused = !of_stats && !wants_stats && !at.is_differentiable();
        let Some(dy) = grads[0].as_ref().filter(|_| fused) else {
            return compose::gradient(at, grads, |inputs| self.plain(inputs));
        };
        let first = self.before_params();
        let weight = self.params.weight.then(|| at.input(first)).transpose()?;
        let (x, mean, var) = (at.input(0)?, at.output(1)?, at.output(2)?);
        let mut found =
            apply(BatchNormGrad(*self), &given(&[dy, &x, &mean, &var], &[weight.as_ref()]))?.into_iter();
        let mut grads: Grads = smallvec![found.next()];
        grads.extend((1..first).map(|_| None));
        let (dw, db) = (found.next(), found.next());
        let typed =
            |g: Option<Tensor>, input: usize| g.map(|g| g.cast(at.input_spec(input).dtype)).transpose();
        if self.params.weight {
            grads.push(typed(dw, first)?);
        }
        if self.params.bias {
            grads.push(typed(db, first + usize::from(self.params.weight))?);
        }
        Ok(grads)
    }
}

/// The fused gradients of input, weight and bias; those of the parameters are sums over all ranks.
#[derive(Debug, Clone, Copy)]
struct BatchNormGrad(BatchNormOp);

impl BatchNormGrad {
    /// On channels that other ranks have parts of.
    fn together(
        &self,
        dy: &Array,
        x: &Array,
        rstd: &Array,
        inputs: &[&Array],
        local: &Local<'_>,
    ) -> Result<Arrays> {
        let (dims, dtype) = (others(x.ndim()), wide(x.dtype()));
        let shape = channel_shape(x.ndim(), x.shape()[1]);
        let (dy, rstd) = (dy.cast(dtype)?, rstd.reshape(&shape)?);
        let h = x.cast(dtype)?.sub(&inputs[2].reshape(&shape)?)?.mul(&rstd)?;
        let (db, dw) = (total(&dy, &dims, local, 1)?, total(&dy.mul(&h)?, &dims, local, 1)?);
        let mut g = dy;
        if self.0.mode == BatchMode::Training {
            let count = constant(x, count(&local.input_shape(1, x)), dtype)?;
            g = g.sub(&db.div(&count)?)?.sub(&h.mul(&dw.div(&count)?)?)?;
        }
        let weight = inputs.get(4).copied();
        let scale = super::affine_arrays(&rstd, weight, None, &shape)?;
        let param = weight.map_or(x.dtype(), Array::dtype);
        let channels = [x.shape()[1]];
        let per_channel = |v: Array| v.reshape(&channels)?.cast(param);
        Ok([g.mul(&scale)?.cast(x.dtype())?, per_channel(dw)?, per_channel(db)?].into_iter().collect())
    }
}

impl Op for BatchNormGrad {
    fn name(&self) -> &'static str {
        "batch_norm_grad"
    }

    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let dims: Vec<_> = inputs[1].shape.iter().map(|&n| Some(rule.free(n))).collect();
        let channel = dims[1];
        rule.input(&dims);
        rule.input(&dims);
        inputs[2..].iter().for_each(|_| rule.input(&[channel]));
        rule.output(&dims);
        rule.output(&[channel]);
        rule.output(&[channel]);
        rule.pass(&[0], LINEAR);
        exchange(&mut rule, &dims, &others(dims.len()), 2 * wide(inputs[1].dtype).size());
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (dy, x, mean, var) = (inputs[0], inputs[1], inputs[2], inputs[3]);
        let rstd = var.add(&constant(var, self.0.eps, var.dtype())?)?.rsqrt()?;
        if local.is_cut(1, &others(x.ndim())) {
            return self.together(dy, x, &rstd, inputs, local);
        }
        let found = ops::batch_norm_grad(dy, x, mean, &rstd, inputs.get(4).copied(), self.0.mode)?;
        Ok([found.x, found.weight, found.bias].into_iter().collect())
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(fused_only(self.name()))
    }
}

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias` per channel of `[batch, channels, ..]`.
///
/// In training the statistics are those of the whole batch, however it is cut. Collective.
pub fn batch_norm(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    mode: BatchNorm<'_>,
    eps: f64,
) -> Result<Tensor> {
    let refuse = |message| Err(Error::Argument { op: "batch_norm", message });
    if x.ndim() < 2 {
        return refuse(format!("the input must be [batch, channels, ..], got shape {}", x.shape()));
    }
    let params = Params::of(weight, bias);
    let (running, momentum) = match mode {
        BatchNorm::Evaluation(stats) => {
            let op = BatchNormOp { mode: BatchMode::Evaluation, params, eps };
            return first(
                apply(op, &given(&[x, stats.mean, stats.var], &[weight, bias]))?.into_iter().next(),
            );
        }
        BatchNorm::Training { running, momentum } => (running, momentum),
    };
    if count(x.shape()) == 1 {
        return refuse(format!("training needs more than 1 value per channel, got shape {}", x.shape()));
    }
    if !momentum.is_finite() {
        return refuse(format!("momentum must be finite, got {momentum}"));
    }
    let op = BatchNormOp { mode: BatchMode::Training, params, eps };
    let outputs = apply(op, &given(&[x], &[weight, bias]))?;
    if let (Some(running), [_, mean, var]) = (running, &outputs[..]) {
        let count = count(x.shape()) as f64;
        no_grad(|| follow(running.mean, mean, momentum))?;
        no_grad(|| follow(running.var, &var.mul_scalar(count / (count - 1.0))?, momentum))?;
    }
    first(outputs.into_iter().next())
}

fn first(output: Option<Tensor>) -> Result<Tensor> {
    output.ok_or(Error::Bug("batch norm gave no output"))
}

/// `running = (1 - momentum) * running + momentum * now`, in place and in the layout of `running`.
fn follow(running: &Tensor, now: &Tensor, momentum: f64) -> Result<()> {
    let old = running.detach().cast(now.dtype())?;
    let new =
        old.mul_scalar(1.0 - momentum)?.add(&now.detach().mul_scalar(momentum)?)?.cast(running.dtype())?;
    let new = match (running.layout(), new.layout()) {
        (Some(layout), Some(_)) => new.reshard(layout)?.local().clone(),
        (None, Some(_)) => new.whole()?,
        _ => new.local().clone(),
    };
    if new.is_meta() { Ok(()) } else { Ok(running.local().copy_from(&new)?) }
}

/// [`batch_norm`], which already takes its statistics over all ranks.
pub fn sync_batch_norm(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    mode: BatchNorm<'_>,
    eps: f64,
) -> Result<Tensor> {
    batch_norm(x, weight, bias, mode, eps)
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let grad = match name {
        "batch_norm" => false,
        "batch_norm_grad" => true,
        _ => return None,
    };
    let mode = if at.truth("training")? { BatchMode::Training } else { BatchMode::Evaluation };
    let of = BatchNormOp { mode, params: Params::read(at)?, eps: at.real("epsilon")? };
    if grad { found(BatchNormGrad(of)) } else { found(of) }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let mut shape = draw.shape(3);
    shape[2] = shape[2].max(3);
    let mode = draw.pick(&[BatchMode::Training, BatchMode::Training, BatchMode::Evaluation]);
    let (params, mut arrays) = draw_params(draw, &shape[1..2])?;
    if mode == BatchMode::Evaluation {
        arrays.insert(0, draw.between(0.5, 2.0, &shape[1..2])?);
        arrays.insert(0, draw.normal(&shape[1..2])?);
    }
    arrays.insert(0, draw.normal(&shape)?);
    Ok(Sample::new(BatchNormOp { mode, params, eps: 1e-3 }, arrays))
}
