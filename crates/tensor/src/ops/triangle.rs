//! Upper and lower triangles of the last two dims.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_layout::Reduce;
use planaria_layout::rule::{Cuts, FactorKind, Rule};
use smallvec::smallvec;

/// Zeros on one side of a diagonal.
#[derive(Debug, Clone, Copy)]
struct Triangle {
    /// Keeps what is on the diagonal and above it, else what is on it and below.
    is_upper: bool,
    diagonal: i64,
}

impl Op for Triangle {
    fn name(&self) -> &'static str {
        if self.is_upper { "triu" } else { "tril" }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("diagonal", self.diagonal)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let shape = &inputs[0].shape;
        let factor = |(d, &size): (usize, &usize)| {
            let cuts = if d + 2 >= shape.ndim() { Cuts::Windows } else { Cuts::Any };
            Some(rule.factor(size, FactorKind::Free, cuts))
        };
        let dims: Vec<_> = shape.iter().enumerate().map(factor).collect();
        rule.input(&dims);
        rule.output(&dims);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let x = inputs[0];
        let mut diagonal = self.diagonal;
        if x.ndim() >= 2 {
            // The diagonal seen from this rank's window.
            let start = |d| Ok::<_, crate::Error>(local.input_start(0, d)? as i64);
            diagonal = diagonal.saturating_add(start(x.ndim() - 2)? - start(x.ndim() - 1)?);
        }
        Ok(smallvec![if self.is_upper { x.triu(diagonal)? } else { x.tril(diagonal)? }])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![grads[0].as_ref().map(|dy| apply1(*self, &[dy])).transpose()?])
    }
}

impl Tensor {
    /// Zeros below diagonal `k` of the last two dims (0 is the main one, above it are positive).
    pub fn triu(&self, k: i64) -> Result<Tensor> {
        apply1(Triangle { is_upper: true, diagonal: k }, &[self])
    }

    /// Zeros above diagonal `k` of the last two dims.
    pub fn tril(&self, k: i64) -> Result<Tensor> {
        apply1(Triangle { is_upper: false, diagonal: k }, &[self])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let is_upper = match name {
        "triu" => true,
        "tril" => false,
        _ => return None,
    };
    found(Triangle { is_upper, diagonal: at.int("diagonal")? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(2, 3);
    let op = Triangle { is_upper: draw.coin(), diagonal: draw.below(7) as i64 - 3 };
    Ok(Sample::new(op, [draw.normal(&shape)?]))
}
