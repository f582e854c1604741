//! The same value in bytes of its own.

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
use planaria_layout::rule::{self, Rule};
use smallvec::smallvec;

/// A copy.
#[derive(Debug, Clone, Copy)]
struct Assign;

impl Op for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape], &outputs[0].shape);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].copy()?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![grads[0].clone()])
    }
}

impl Tensor {
    /// The same value in bytes of its own, contiguous, with its history: what can be written to in place of a leaf.
    pub fn copy(&self) -> Result<Tensor> {
        apply1(Assign, &[self])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, _: &Attributes) -> Found {
    if name == "assign" { found(Assign) } else { None }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(0, 3);
    Ok(Sample::new(Assign, [draw.normal(&shape)?]))
}
