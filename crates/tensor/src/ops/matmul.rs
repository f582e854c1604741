//! Matrix products with NumPy's rules for vectors and batches.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops;
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// `x @ y`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matmul;

impl Op for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::matmul(&inputs[0].shape, &inputs[1].shape, &outputs[0].shape);
        rule.pass(&[0], LINEAR);
        rule.pass(&[1], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![ops::matmul(inputs[0], inputs[1])?])
    }

    fn saves(&self, needs: &Places) -> Saves {
        Saves { inputs: [needs.has(1), needs.has(0)].into_iter().collect(), ..Saves::default() }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None]) };
        let (x, y) = (&at.input_spec(0).shape, &at.input_spec(1).shape);
        // As matrices: a vector on the left is a row, on the right a column.
        let dy = if y.ndim() == 1 { dy.unsqueeze(-1)? } else { dy.clone() };
        let dy = if x.ndim() == 1 { dy.unsqueeze(-2)? } else { dy };
        let as_row = |t: Tensor| if x.ndim() == 1 { t.unsqueeze(0) } else { Ok(t) };
        let as_column = |t: Tensor| if y.ndim() == 1 { t.unsqueeze(1) } else { Ok(t) };
        let first = || {
            let grad = dy.matmul(&as_column(at.input(1)?)?.transpose(-1, -2)?)?;
            let grad = if x.ndim() == 1 { grad.squeeze(&[-2])? } else { grad };
            grad.sum_to(x)
        };
        let second = || {
            let row = as_row(at.input(0)?)?;
            if y.ndim() <= 2 && row.ndim() > 2 {
                // One product over all batches at once, instead of a sum of products.
                let rows = row.flatten(0, -2)?.transpose(0, 1)?;
                let grad = rows.matmul(&dy.flatten(0, -2)?)?;
                return if y.ndim() == 1 { grad.squeeze(&[1]) } else { Ok(grad) };
            }
            let grad = row.transpose(-1, -2)?.matmul(&dy)?;
            let grad = if y.ndim() == 1 { grad.squeeze(&[-1])? } else { grad };
            grad.sum_to(y)
        };
        let dx = at.needs(0).then(first).transpose()?;
        Ok(smallvec![dx, at.needs(1).then(second).transpose()?])
    }
}

impl Tensor {
    /// `x @ y`: products of the last two dims, the dims before them broadcast.
    pub fn matmul(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Matmul, &[self, y])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, _: &Attributes) -> Found {
    if name == "matmul" { found(Matmul) } else { None }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let (m, k, n) = (draw.size(), draw.size(), draw.size());
    let batch = draw.shape_of(0, 2);
    let left = draw.broadcastable(&batch);
    let (x, y) = match draw.below(6) {
        0 => (vec![k], vec![k, n]),
        1 => ([batch, vec![m, k]].concat(), vec![k]),
        2 => ([batch, vec![m, k]].concat(), vec![k, n]),
        3 => ([left, vec![m, k]].concat(), [batch, vec![k, n]].concat()),
        4 => ([batch, vec![m, k]].concat(), [left, vec![k, n]].concat()),
        _ => (vec![m, k], vec![k, n]),
    };
    Ok(Sample::new(Matmul, [draw.normal(&x)?, draw.normal(&y)?]))
}
