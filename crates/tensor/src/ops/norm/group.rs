//! Group and instance normalisation of `[batch, channels, ..]` tensors.

use super::{Params, affine, channel_shape, draw_params, given};
use crate::attributes::Attributes;
use crate::dispatch::apply;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec, only};
use crate::ops::compose;
use crate::ops::fused_only;
use crate::ops::moments::wide;
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, Keep};
use planaria_layout::Reduce;
use planaria_layout::rule::{Cuts, DimFactors, FactorKind, LINEAR, Rule};
use smallvec::smallvec;

/// How many groups the channels form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Groups {
    Count(usize),
    /// Each channel is one.
    Each,
}

/// Each group of channels of each sample normalised. Outputs: the result, mean and one over the spread of each group.
#[derive(Debug, Clone, Copy)]
struct GroupNorm {
    groups: Groups,
    params: Params,
    eps: f64,
}

impl GroupNorm {
    /// The rule of the op (samples are independent) or of its gradient (they add to the parameters').
    fn rule_with(&self, x: &Spec, stats: usize, params: usize, samples: FactorKind, layout: &mut Rule) {
        let shape = &x.shape;
        let sample = DimFactors::from_slice(&[layout.factor(shape[0], samples, Cuts::Any)]);
        let groups = self.count(shape[1]);
        let group = DimFactors::from_slice(&[layout.free(groups)]);
        // The channels of one group stay together; with as many groups as channels that binds nothing.
        let mut channels = group.clone();
        if groups < shape[1] {
            channels.push(layout.fixed(shape[1] / groups));
        }
        let mut dims = vec![DimFactors::new(); shape.ndim()];
        (dims[0], dims[1]) = (sample.clone(), channels.clone());
        layout.inputs.push(dims.clone());
        layout.inputs.extend((0..stats).map(|_| vec![sample.clone(), group.clone()]));
        layout.inputs.extend((0..params).map(|_| vec![channels.clone()]));
        layout.outputs.push(dims);
    }

    /// Groups that so many channels form.
    fn count(&self, channels: usize) -> usize {
        match self.groups {
            Groups::Count(count) => count,
            Groups::Each => channels,
        }
    }

    /// Groups of which this rank has the channels.
    fn local_count(&self, x: &Array, local: &Local<'_>, input: usize) -> usize {
        let (global, here) = (local.input_shape(input, x)[1], x.shape()[1]);
        if here == global { self.count(global) } else { self.count(global) * here / global }
    }

    /// The same with simple ops.
    fn plain(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = &inputs[0];
        let (weight, bias) = self.params.pick(inputs, 1);
        let (batch, channels) = (x.shape()[0], x.shape()[1]);
        let groups = self.count(channels);
        let size = x.numel().checked_div(batch * groups).unwrap_or(0);
        let values = x.cast(wide(x.dtype()))?.reshape(&[batch, groups, size])?;
        let mean = values.mean(&[2], Keep::Yes)?;
        let centered = values.sub(&mean)?;
        let rstd = centered.square()?.mean(&[2], Keep::Yes)?.add_scalar(self.eps)?.rsqrt()?;
        let h = centered.mul(&rstd)?.reshape(x.shape())?;
        let y = affine(&h, weight, bias, &channel_shape(x.ndim(), channels))?.cast(x.dtype())?;
        Ok(vec![y, mean.squeeze(&[2])?, rstd.squeeze(&[2])?])
    }
}

impl Op for GroupNorm {
    fn name(&self) -> &'static str {
        if self.groups == Groups::Each { "instance_norm" } else { "group_norm" }
    }

    fn attributes(&self) -> Attributes {
        let params = Attributes::new().with("weight", self.params.weight).with("bias", self.params.bias);
        let all = params.with("epsilon", self.eps);
        match self.groups {
            Groups::Count(count) => all.with("groups", count),
            Groups::Each => all,
        }
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        self.rule_with(&inputs[0], 0, self.params.count(), FactorKind::Free, &mut rule);
        let group = rule.inputs[0][1][..1].iter().copied().collect();
        let stat = vec![rule.inputs[0][0].clone(), group];
        rule.outputs.extend([stat.clone(), stat]);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (weight, bias) = self.params.pick(inputs, 1);
        let (x, weight, bias) = (inputs[0], weight.copied(), bias.copied());
        let done = match self.groups {
            Groups::Count(groups) => {
                let here = if x.ndim() < 2 { groups } else { self.local_count(x, local, 0) };
                match here {
                    // A rank past the last channel.
                    0 if groups > 0 => ops::instance_norm(x, weight, bias, self.eps)?,
                    _ => ops::group_norm(x, here, weight, bias, self.eps)?,
                }
            }
            Groups::Each => ops::instance_norm(x, weight, bias, self.eps)?,
        };
        Ok([done.y, done.mean, done.rstd].into_iter().collect())
    }

    fn saves(&self, _: &Places) -> Saves {
        compose::saves_inputs(1 + self.params.count()).and_outputs(&[1, 2])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let of_stats = grads[1..].iter().any(Option::is_some);
        let Some(dy) = grads[0].as_ref().filter(|_| !of_stats && !at.is_differentiable()) else {
            return compose::gradient(at, grads, |inputs| self.plain(inputs));
        };
        let weight = self.params.weight.then(|| at.input(1)).transpose()?;
        let (x, mean, rstd) = (at.input(0)?, at.output(1)?, at.output(2)?);
        let mut found =
            apply(GroupNormGrad(*self), &given(&[dy, &x, &mean, &rstd], &[weight.as_ref()]))?.into_iter();
        let mut grads: Grads = smallvec![found.next()];
        let (dw, db) = (found.next(), found.next());
        let typed =
            |g: Option<Tensor>, input: usize| g.map(|g| g.cast(at.input_spec(input).dtype)).transpose();
        if self.params.weight {
            grads.push(typed(dw, 1)?);
        }
        if self.params.bias {
            grads.push(typed(db, 1 + usize::from(self.params.weight))?);
        }
        Ok(grads)
    }
}

/// The fused gradients of input, weight and bias.
#[derive(Debug, Clone, Copy)]
struct GroupNormGrad(GroupNorm);

impl Op for GroupNormGrad {
    fn name(&self) -> &'static str {
        if self.0.groups == Groups::Each { "instance_norm_grad" } else { "group_norm_grad" }
    }

    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let reduced = FactorKind::Reduce(Reduce::Sum);
        self.0.rule_with(&inputs[1], 2, usize::from(self.0.params.weight), reduced, &mut rule);
        let x = rule.inputs[0].clone();
        rule.outputs.extend([vec![x[1].clone()], vec![x[1].clone()]]);
        rule.inputs.insert(0, x);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (dy, x, mean, rstd, weight) =
            (inputs[0], inputs[1], inputs[2], inputs[3], inputs.get(4).copied());
        let found = match self.0.groups {
            Groups::Count(_) => match self.0.local_count(x, local, 1) {
                0 => ops::instance_norm_grad(dy, x, mean, rstd, weight)?,
                here => ops::group_norm_grad(dy, x, here, mean, rstd, weight)?,
            },
            Groups::Each => ops::instance_norm_grad(dy, x, mean, rstd, weight)?,
        };
        Ok([found.x, found.weight, found.bias].into_iter().collect())
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(fused_only(self.name()))
    }
}

fn run(op: GroupNorm, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    if x.ndim() < 2 {
        let message = format!("the input must be [batch, channels, ..], got shape {}", x.shape());
        return Err(Error::Argument { op: op.name(), message });
    }
    only(apply(op, &given(&[x], &[weight, bias]))?)
}

/// Normalises each of `groups` groups of channels of each sample; weight and bias have one value per channel.
pub fn group_norm(
    x: &Tensor,
    groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    run(GroupNorm { groups: Groups::Count(groups), params: Params::of(weight, bias), eps }, x, weight, bias)
}

/// Normalises each channel of each sample over its positions.
pub fn instance_norm(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    run(GroupNorm { groups: Groups::Each, params: Params::of(weight, bias), eps }, x, weight, bias)
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let (each, grad) = match name {
        "instance_norm" => (true, false),
        "group_norm" => (false, false),
        "instance_norm_grad" => (true, true),
        "group_norm_grad" => (false, true),
        _ => return None,
    };
    let groups = if each { Groups::Each } else { Groups::Count(at.size("groups")?) };
    let of = GroupNorm { groups, params: Params::read(at)?, eps: at.real("epsilon")? };
    if grad { found(GroupNormGrad(of)) } else { found(of) }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let (groups, each) = (1 + draw.below(4), 1 + draw.below(3));
    let channels = groups * each;
    let shape = [draw.size(), channels, draw.size().max(3)];
    let groups = if draw.coin() { Groups::Count(groups) } else { Groups::Each };
    let (params, mut arrays) = draw_params(draw, &[channels])?;
    arrays.insert(0, draw.normal(&shape)?);
    Ok(Sample::new(GroupNorm { groups, params, eps: 1e-3 }, arrays))
}
