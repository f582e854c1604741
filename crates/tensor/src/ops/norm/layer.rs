//! Layer and rms normalisation over trailing dims. Ranks that cut them work together.

use super::{Params, affine, affine_arrays, draw_params, given, some};
use crate::attributes::Attributes;
use crate::dispatch::{apply, apply_both};
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec, only};
use crate::ops::binary::BinaryOp;
use crate::ops::compose;
use crate::ops::fused_only;
use crate::ops::moments::{constant, total, wide};
use crate::ops::named::{Found, found};
use crate::ops::reduce::signed;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, Binary, Keep};
use planaria_layout::rule::{Cuts, FactorId, FactorKind, LINEAR, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::smallvec;

/// What is taken off before the spread is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Center {
    Mean,
    Zero,
}

/// `(x - mean) * rstd * weight + bias` over trailing dims. Outputs: the result, the mean of each row (of layer norm),
/// and one over its spread.
#[derive(Debug, Clone)]
struct LayerNorm {
    normalized: Dims,
    params: Params,
    center: Center,
    eps: f64,
}

impl LayerNorm {
    fn trailing(&self, ndim: usize) -> Vec<usize> {
        (ndim.saturating_sub(self.normalized.len())..ndim).collect()
    }

    fn has_mean(&self) -> bool {
        self.center == Center::Mean
    }

    /// Factors of leading and trailing dims.
    fn factors(
        &self,
        rule: &mut Rule,
        shape: &[usize],
        leading: FactorKind,
    ) -> (Vec<FactorId>, Vec<FactorId>) {
        let (lead, trail) = shape.split_at(shape.len() - self.normalized.len());
        let lead = lead.iter().map(|&n| rule.factor(n, leading, Cuts::Any)).collect();
        (lead, trail.iter().map(|&n| rule.free(n)).collect())
    }

    /// What the kernel and its gradient send of rows that are cut: their spread and, where it is taken off, the mean.
    fn exchange(&self, rule: &mut Rule, x: &Spec, lead: &[FactorId], trail: &[FactorId]) {
        let messages = if self.has_mean() { 2 } else { 1 };
        rule.exchange(trail, lead, messages * wide(x.dtype).size());
    }

    /// On rows that other ranks have parts of.
    fn together(
        &self,
        x: &Array,
        weight: Option<&Array>,
        bias: Option<&Array>,
        local: &Local<'_>,
    ) -> Result<Arrays> {
        let (dims, dtype) = (self.trailing(x.ndim()), wide(x.dtype()));
        let count = constant(x, self.normalized.iter().product::<usize>(), dtype)?;
        let mut values = x.cast(dtype)?;
        let mut mean = None;
        if self.has_mean() {
            let found = total(&values, &dims, local, 0)?.div(&count)?;
            values = values.sub(&found)?;
            mean = Some(found);
        }
        let spread = total(&values.square()?, &dims, local, 0)?.div(&count)?;
        let rstd = spread.add(&constant(x, self.eps, dtype)?)?.rsqrt()?;
        let trailing = x.shape()[dims[0]..].to_vec();
        let y = affine_arrays(&values.mul(&rstd)?, weight, bias, &trailing)?.cast(x.dtype())?;
        let rows = |stat: Array| stat.reshape(&x.shape()[..dims[0]]);
        Ok(std::iter::once(Ok(y))
            .chain(mean.into_iter().chain([rstd]).map(rows))
            .collect::<std::result::Result<Arrays, _>>()?)
    }

    /// The same with simple ops.
    fn plain(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = &inputs[0];
        let (weight, bias) = self.params.pick(inputs, 1);
        let dims = signed(&self.trailing(x.ndim()));
        let values = x.cast(wide(x.dtype()))?;
        let mean = values.mean(&dims, Keep::Yes)?;
        let centered = if self.has_mean() { values.sub(&mean)? } else { values };
        let rstd = centered.square()?.mean(&dims, Keep::Yes)?.add_scalar(self.eps)?.rsqrt()?;
        let y = affine(&centered.mul(&rstd)?, weight, bias, &self.normalized)?.cast(x.dtype())?;
        let rows = |stat: Tensor| stat.reshape(&x.shape()[..x.ndim() - self.normalized.len()]);
        Ok(match self.center {
            Center::Mean => vec![y, rows(mean)?, rows(rstd)?],
            Center::Zero => vec![y, rows(rstd)?],
        })
    }
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        if self.has_mean() { "layer_norm" } else { "rms_norm" }
    }

    fn attributes(&self) -> Attributes {
        let shape = Attributes::new().with("normalized_shape", self.normalized.as_slice());
        shape.with("weight", self.params.weight).with("bias", self.params.bias).with("epsilon", self.eps)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let (lead, trail) = self.factors(&mut rule, &inputs[0].shape, FactorKind::Free);
        rule.input(&[some(&lead), some(&trail)].concat());
        (0..self.params.count()).for_each(|_| rule.input(&some(&trail)));
        rule.output(&[some(&lead), some(&trail)].concat());
        outputs[1..].iter().for_each(|_| rule.output(&some(&lead)));
        self.exchange(&mut rule, &inputs[0], &lead, &trail);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (weight, bias) = self.params.pick(inputs, 1);
        let (x, weight, bias) = (inputs[0], weight.copied(), bias.copied());
        if x.ndim() >= self.normalized.len() && local.is_cut(0, &self.trailing(x.ndim())) {
            return self.together(x, weight, bias, local);
        }
        Ok(match self.center {
            Center::Mean => {
                let done = ops::layer_norm(x, &self.normalized, weight, bias, self.eps)?;
                [done.y, done.mean, done.rstd].into_iter().collect()
            }
            Center::Zero => {
                let done = ops::rms_norm(x, &self.normalized, weight, self.eps)?;
                smallvec![done.y, done.rstd]
            }
        })
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn adds_carried(&self) -> bool {
        true
    }

    fn saves(&self, _: &Places) -> Saves {
        let stats: &[usize] = if self.has_mean() { &[1, 2] } else { &[1] };
        compose::saves_inputs(1 + self.params.count()).and_outputs(stats)
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let of_stats = grads[1..].iter().any(Option::is_some);
        let Some(dy) = grads[0].as_ref().filter(|_| !of_stats && !at.is_differentiable()) else {
            return compose::gradient(at, grads, |inputs| self.plain(inputs));
        };
        let stats = (1..grads.len()).map(|i| at.output(i)).collect::<Result<Vec<_>>>()?;
        let weight = self.params.weight.then(|| at.input(1)).transpose()?;
        let x = at.input(0)?;
        let mut inputs = vec![dy, &x];
        inputs.extend(&stats);
        inputs.extend(&weight);
        let carried = if dy.0.place == x.0.place { at.carried(&x) } else { None };
        inputs.extend(&carried);
        let mut found = apply(LayerNormGrad(self.clone()), &inputs)?.into_iter();
        let mut grads: Grads = smallvec![found.next()];
        let (weight, bias) = (found.next(), found.next());
        let param = |grad: Option<Tensor>, at: &Backward<'_>, input: usize| {
            grad.map(|g| g.cast(at.input_spec(input).dtype)).transpose()
        };
        if self.params.weight {
            grads.push(param(weight, at, 1)?);
        }
        if self.params.bias {
            grads.push(param(bias, at, 1 + usize::from(self.params.weight))?);
        }
        Ok(grads)
    }
}

/// The fused gradients of input, weight and bias, from the gradient, the input, the statistics, the weight and what has come
/// to the input by other ways, if anything.
#[derive(Debug, Clone)]
struct LayerNormGrad(LayerNorm);

impl LayerNormGrad {
    /// Mean, deviation and weight.
    fn split<'a>(&self, inputs: &[&'a Array]) -> (Option<&'a Array>, &'a Array, Option<&'a Array>) {
        let (mean, at) = if self.0.has_mean() { (Some(inputs[2]), 3) } else { (None, 2) };
        (mean, inputs[at], self.0.params.weight.then(|| inputs[at + 1]))
    }

    /// Which input is what has come by other ways.
    fn carried(&self, inputs: usize) -> Option<usize> {
        let before = 3 + usize::from(self.0.has_mean()) + usize::from(self.0.params.weight);
        (inputs > before).then_some(before)
    }

    /// On rows that other ranks have parts of.
    fn together(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, dtype) = (inputs[1], wide(inputs[1].dtype()));
        let (mean, rstd, weight) = self.split(inputs);
        let dims = self.0.trailing(x.ndim());
        let first = dims[0];
        let kept: Vec<usize> = x.shape()[..first].iter().copied().chain(dims.iter().map(|_| 1)).collect();
        let stat = |s: &Array| s.cast(dtype)?.reshape(&kept);
        let (dy, rstd) = (inputs[0].cast(dtype)?, stat(rstd)?);
        let values = x.cast(dtype)?;
        let h = match mean {
            Some(mean) => values.sub(&stat(mean)?)?.mul(&rstd)?,
            None => values.mul(&rstd)?,
        };
        let count = constant(x, self.0.normalized.iter().product::<usize>(), dtype)?;
        let g = affine_arrays(&dy, weight, None, &x.shape()[first..])?;
        let slope = total(&g.mul(&h)?, &dims, local, 1)?.div(&count)?;
        let mut dx = g.sub(&h.mul(&slope)?)?;
        if mean.is_some() {
            dx = dx.sub(&total(&g, &dims, local, 1)?.div(&count)?)?;
        }
        let rows: Vec<i64> = (0..first as i64).collect();
        let over_rows = |v: Array| if rows.is_empty() { Ok(v) } else { v.sum(&rows, Keep::No) };
        let mut dx = dx.mul(&rstd)?.cast(x.dtype())?;
        if let Some(carried) = self.carried(inputs.len()) {
            dx = dx.add(inputs[carried])?;
        }
        let param = weight.map_or(x.dtype(), Array::dtype);
        let dw = over_rows(dy.mul(&h)?)?.cast(param)?;
        Ok(match mean {
            Some(_) => [dx, dw, over_rows(dy)?.cast(param)?].into_iter().collect(),
            None => smallvec![dx, dw],
        })
    }
}

impl Op for LayerNormGrad {
    fn name(&self) -> &'static str {
        if self.0.has_mean() { "layer_norm_grad" } else { "rms_norm_grad" }
    }

    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let (lead, trail) = self.0.factors(&mut rule, &inputs[1].shape, FactorKind::Reduce(Reduce::Sum));
        let full = [some(&lead), some(&trail)].concat();
        rule.input(&full);
        rule.input(&full);
        let stats = if self.0.has_mean() { 2 } else { 1 };
        (0..stats).for_each(|_| rule.input(&some(&lead)));
        if self.0.params.weight {
            rule.input(&some(&trail));
        }
        let carried = self.carried(inputs.len());
        if carried.is_some() {
            rule.input(&full);
        }
        rule.output(&full);
        outputs[1..].iter().for_each(|_| rule.output(&some(&trail)));
        match carried {
            Some(carried) => rule.pass(&[0, carried], LINEAR),
            None => rule.pass(&[0], LINEAR),
        }
        self.0.exchange(&mut rule, &inputs[1], &lead, &trail);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (dy, x) = (inputs[0], inputs[1]);
        if local.is_cut(1, &self.0.trailing(x.ndim())) {
            return self.together(inputs, local);
        }
        let (mean, rstd, weight) = self.split(inputs);
        let carried = self.carried(inputs.len()).map(|carried| inputs[carried]);
        Ok(match mean {
            Some(mean) => {
                let found = ops::layer_norm_grad(dy, x, &self.0.normalized, mean, rstd, weight, carried)?;
                [found.x, found.weight, found.bias].into_iter().collect()
            }
            None => {
                let found = ops::rms_norm_grad(dy, x, &self.0.normalized, rstd, weight, carried)?;
                smallvec![found.x, found.weight]
            }
        })
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(fused_only(self.name()))
    }
}

/// Shapes are checked before ranks begin to work together.
fn run(op: LayerNorm, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    if op.normalized.is_empty() || !x.shape().ends_with(&op.normalized) {
        let message = format!(
            "the normalised shape {:?} must be the trailing dims of {}, at least one",
            op.normalized.as_slice(),
            x.shape()
        );
        return Err(Error::Argument { op: op.name(), message });
    }
    for param in [weight, bias].into_iter().flatten() {
        if param.shape()[..] != op.normalized[..] {
            let message =
                format!("a parameter has shape {}, not {:?}", param.shape(), op.normalized.as_slice());
            return Err(Error::Argument { op: op.name(), message });
        }
    }
    only(apply(op, &given(&[x], &[weight, bias]))?)
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the trailing dims `normalized`, which weight and bias
/// have as their shape.
pub fn layer_norm(
    x: &Tensor,
    normalized: &[usize],
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let params = Params::of(weight, bias);
    run(LayerNorm { normalized: normalized.into(), params, center: Center::Mean, eps }, x, weight, bias)
}

/// `x / sqrt(mean(x²) + eps) * weight` over the trailing dims `normalized`.
pub fn rms_norm(x: &Tensor, normalized: &[usize], weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let params = Params::of(weight, None);
    run(LayerNorm { normalized: normalized.into(), params, center: Center::Zero, eps }, x, weight, None)
}

/// `x + more`, and that through [`rms_norm`]: one launch on a GPU where both lie alike and rows are whole.
pub fn add_rms_norm(
    x: &Tensor,
    more: &Tensor,
    normalized: &[usize],
    weight: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let alike =
        x.spec() == more.spec() && x.dtype().is_float() && x.local().device() == more.local().device();
    let fits = !normalized.is_empty() && x.shape().ends_with(normalized);
    let weighed = weight.is_none_or(|w| w.shape()[..] == *normalized);
    if alike && fits && weighed {
        let params = Params::of(weight, None);
        let norm = LayerNorm { normalized: normalized.into(), params, center: Center::Zero, eps };
        let trailing = norm.trailing(x.ndim());
        let kernel = |local: &Local<'_>| {
            if local.is_cut(0, &trailing) {
                return Ok(None);
            }
            let done =
                ops::add_rms_norm(x.local(), more.local(), normalized, weight.map(Tensor::local), eps)?;
            Ok(Some([done.sum, done.y, done.rstd].into_iter().collect()))
        };
        let others = given(&[], &[weight]);
        let both = apply_both((BinaryOp(Binary::Add), &[x, more]), (norm, &others), kernel)?;
        if let Some((sum, normed)) = both {
            return Ok((sum, only(normed)?));
        }
    }
    let sum = x.add(more)?;
    let normed = rms_norm(&sum, normalized, weight, eps)?;
    Ok((sum, normed))
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let (center, grad) = match name {
        "layer_norm" => (Center::Mean, false),
        "rms_norm" => (Center::Zero, false),
        "layer_norm_grad" => (Center::Mean, true),
        "rms_norm_grad" => (Center::Zero, true),
        _ => return None,
    };
    let (normalized, params) = (at.sizes("normalized_shape")?, Params::read(at)?);
    let of = LayerNorm { normalized, params, center, eps: at.real("epsilon")? };
    if grad { found(LayerNormGrad(of)) } else { found(of) }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let mut shape = draw.shape_of(1, 3);
    let last = shape.len() - 1;
    shape[last] = shape[last].max(3);
    let from = draw.below(shape.len());
    let normalized = &shape[from..];
    let center = draw.pick(&[Center::Mean, Center::Zero]);
    let (mut params, mut arrays) = draw_params(draw, normalized)?;
    if center == Center::Zero {
        params.bias = false;
        arrays.truncate(params.count());
    }
    arrays.insert(0, draw.normal(&shape)?);
    Ok(Sample::new(LayerNorm { normalized: normalized.into(), params, center, eps: 1e-3 }, arrays))
}
