//! The linear layer `x · weightᵀ + bias`.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, Keep};
use planaria_layout::Reduce;
use planaria_layout::rule::{LINEAR, Rule};
use smallvec::smallvec;

/// `x · weightᵀ`, plus a bias when there is a third input.
#[derive(Debug, Clone, Copy)]
struct Linear {
    bias: bool,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("bias", self.bias)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let (x, weight) = (&inputs[0].shape, &inputs[1].shape);
        let mut rule = Rule::default();
        let mut rows: Vec<_> = x[..x.ndim() - 1].iter().map(|&n| Some(rule.free(n))).collect();
        let (inner, column) = (rule.reduced(weight[1], Reduce::Sum), rule.free(weight[0]));
        rows.push(Some(inner));
        rule.input(&rows);
        rule.input(&[Some(column), Some(inner)]);
        rows.pop();
        rows.push(Some(column));
        if self.bias {
            rule.input(&[Some(column)]);
            rule.count_once(inner, 2);
        }
        rule.output(&rows);
        let with_bias: &[&[usize]] = if self.bias { &[&[0, 2], &[1, 2]] } else { &[&[0], &[1]] };
        with_bias.iter().for_each(|inputs| rule.pass(inputs, LINEAR));
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![ops::linear(inputs[0], inputs[1], inputs.get(2).copied())?])
    }

    fn saves(&self, needs: &Places) -> Saves {
        Saves { inputs: [needs.has(1), needs.has(0)].into_iter().collect(), ..Saves::default() }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None, None]) };
        let dx = at.needs(0).then(|| dy.matmul(&at.input(1)?)).transpose()?;
        let rows = |t: &Tensor| if t.ndim() == 1 { t.unsqueeze(0) } else { t.flatten(0, -2) };
        let dw = at.needs(1).then(|| rows(dy)?.transpose(0, 1)?.matmul(&rows(&at.input(0)?)?)).transpose()?;
        let mut all: Grads = smallvec![dx, dw];
        if self.bias {
            let leading: Vec<i64> = (0..dy.ndim() as i64 - 1).collect();
            let sum = || if leading.is_empty() { Ok(dy.clone()) } else { dy.sum(&leading, Keep::No) };
            all.push(at.needs(2).then(sum).transpose()?);
        }
        Ok(all)
    }
}

/// `x · weightᵀ + bias` with `weight` of shape `[out, in]`: the bias is what the sums start from.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let mut inputs = vec![x, weight];
    inputs.extend(bias);
    // Shapes are checked on the global values: the rule speaks of their dims.
    let meta = |t: &Tensor| Array::meta(t.shape(), t.dtype());
    let b = bias.map(meta).transpose()?;
    ops::linear(&meta(x)?, &meta(weight)?, b.as_ref())?;
    apply1(Linear { bias: bias.is_some() }, &inputs)
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    if name == "linear" { found(Linear { bias: at.truth("bias")? }) } else { None }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let (k, n) = (draw.size(), draw.size());
    let mut shape = draw.shape_of(0, 2);
    shape.push(k);
    let bias = draw.coin();
    let mut inputs = vec![draw.normal(&shape)?, draw.normal(&[n, k])?];
    if bias {
        inputs.push(draw.normal(&[n])?);
    }
    Ok(Sample::new(Linear { bias }, inputs))
}
