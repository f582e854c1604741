//! Adding at positions of a dim: the gradient of everything that picks elements, without a tensor to add to.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::PadMode;
use planaria_array::{Array, Scalar};
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// Zeros of `size` along a dim with `x` added at the positions that the index gives.
#[derive(Debug, Clone, Copy)]
struct AddAt {
    dim: usize,
    size: usize,
}

impl Op for AddAt {
    fn name(&self) -> &'static str {
        "add_at"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("dim", self.dim).with("size", self.size)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::along(&[&inputs[0].shape, &inputs[1].shape], &[&outputs[0].shape], &[self.dim]);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let mut shape = inputs[0].shape().to_vec();
        if let Some(size) = shape.get_mut(self.dim) {
            *size = self.size;
        }
        if inputs[0].is_meta() {
            return Ok(smallvec![Array::meta(&shape, inputs[0].dtype())?]);
        }
        let zeros = Array::zeros_on(&shape, inputs[0].dtype(), inputs[0].device())?;
        Ok(smallvec![zeros.scatter_add(self.dim as i64, inputs[1], inputs[0])?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let back = |dy: &Tensor| dy.gather(self.dim as i64, &at.input(1)?);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?, None])
    }
}

impl Tensor {
    /// Zeros before and after along a dim.
    pub(crate) fn surrounded(&self, dim: usize, before: usize, after: usize) -> Result<Tensor> {
        let mut margins = vec![(0, 0); self.ndim()];
        margins[dim] = (before as i64, after as i64);
        self.pad(&margins, PadMode::Constant(Scalar::Float(0.0)))
    }

    /// Zeros of `size` along a dim with these elements added at the positions that `index` gives.
    pub(crate) fn added_at(&self, index: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
        apply1(AddAt { dim, size }, &[self, index])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    match name {
        "add_at" => found(AddAt { dim: at.size("dim")?, size: at.size("size")? }),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dim = draw.below(shape.len());
    let size = draw.size();
    Ok(Sample::new(AddAt { dim, size }, [draw.normal(&shape)?, draw.integers(size, &shape)?]))
}
