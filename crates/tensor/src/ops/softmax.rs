//! Softmax and its logarithm along a dim. Ranks that cut the dim work together.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dim;
use crate::ops::moments::{exchange, log_sum_exp, total, wide};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, Keep};
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// Probabilities, or their logarithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Log,
}

/// `eˣ / Σ eˣ` along a dim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Softmax {
    dim: usize,
    form: Form,
}

impl Softmax {
    /// The kernel's messages about rows whose dim is cut.
    fn exchange(&self, rule: &mut Rule, input: &Spec, messages: usize) {
        let factors: Vec<_> = rule.inputs[0].iter().map(|dim| dim.first().copied()).collect();
        exchange(rule, &factors, &[self.dim], messages * wide(input.dtype).size());
    }
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        if self.form == Form::Log { "log_softmax" } else { "softmax" }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dim)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape], &outputs[0].shape);
        self.exchange(&mut rule, &inputs[0], 2);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let x = inputs[0];
        if !local.is_cut(0, &[self.dim]) {
            let dim = self.dim as i64;
            return Ok(smallvec![if self.form == Form::Log { x.log_softmax(dim)? } else { x.softmax(dim)? }]);
        }
        let values = x.cast(wide(x.dtype()))?;
        let log = values.sub(&log_sum_exp(&values, &[self.dim], local, 0)?)?;
        let y = if self.form == Form::Log { log } else { log.exp()? };
        Ok(smallvec![y.cast(x.dtype())?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::outputs(&[0])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let y = at.output(0)?;
        if !at.is_differentiable() {
            return Ok(smallvec![Some(apply1(SoftmaxGrad(*self), &[dy, &y])?)]);
        }
        let sum = |x: &Tensor| match x.ndim() {
            0 => Ok(x.clone()),
            _ => x.sum(&[self.dim as i64], Keep::Yes),
        };
        Ok(smallvec![Some(match self.form {
            Form::Plain => y.mul(&dy.sub(&sum(&dy.mul(&y)?)?)?)?,
            Form::Log => dy.sub(&y.exp()?.mul(&sum(dy)?)?)?,
        })])
    }
}

/// The fused gradient, from the gradient and the result.
#[derive(Debug, Clone, Copy)]
struct SoftmaxGrad(Softmax);

impl Op for SoftmaxGrad {
    fn name(&self) -> &'static str {
        if self.0.form == Form::Log { "log_softmax_grad" } else { "softmax_grad" }
    }

    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape, &inputs[1].shape], &outputs[0].shape);
        rule.pass(&[0], LINEAR);
        self.0.exchange(&mut rule, &inputs[1], 1);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (dy, y, dim) = (inputs[0], inputs[1], self.0.dim);
        if !local.is_cut(0, &[dim]) {
            return Ok(smallvec![match self.0.form {
                Form::Plain => ops::softmax_grad(dy, y, dim as i64)?,
                Form::Log => ops::log_softmax_grad(dy, y, dim as i64)?,
            }]);
        }
        let dtype = y.dtype();
        let (dy, y) = (dy.cast(wide(dtype))?, y.cast(wide(dtype))?);
        let dx = match self.0.form {
            Form::Plain => y.mul(&dy.sub(&total(&dy.mul(&y)?, &[dim], local, 0)?)?)?,
            Form::Log => dy.sub(&y.exp()?.mul(&total(&dy, &[dim], local, 0)?)?)?,
        };
        Ok(smallvec![dx.cast(dtype)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(super::fused_only(self.name()))
    }
}

impl Tensor {
    /// `eˣ / Σ eˣ` along a dim, without overflow.
    pub fn softmax(&self, dim: i64) -> Result<Tensor> {
        let dim = normal_dim("softmax", self.ndim(), dim)?;
        apply1(Softmax { dim, form: Form::Plain }, &[self])
    }

    /// `x - ln Σ eˣ` along a dim, without overflow.
    pub fn log_softmax(&self, dim: i64) -> Result<Tensor> {
        let dim = normal_dim("log_softmax", self.ndim(), dim)?;
        apply1(Softmax { dim, form: Form::Log }, &[self])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let form = match name {
        "softmax" | "softmax_grad" => Form::Plain,
        "log_softmax" | "log_softmax_grad" => Form::Log,
        _ => return None,
    };
    let of = Softmax { dim: at.size("axis")?, form };
    if name.ends_with("_grad") { found(SoftmaxGrad(of)) } else { found(of) }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let op = Softmax { dim: draw.below(shape.len()), form: draw.pick(&[Form::Plain, Form::Log]) };
    Ok(Sample::new(op, [draw.normal(&shape)?]))
}
