//! Linear ops along one dim, in pairs that are each other's gradient: a window and zeros around it, picking by
//! position and adding at positions. Other ops write their gradients with them.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::PadMode;
use planaria_array::{Array, Scalar};
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// The dims around `dim` are independent; pending sums pass.
fn linear_rule(inputs: &[Spec], outputs: &[Spec], dim: usize) -> Rule {
    let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
    let mut rule = rule::along(&shapes, &[&outputs[0].shape], &[dim]);
    rule.pass(&[0], LINEAR);
    rule
}

/// A window of one dim.
#[derive(Debug, Clone, Copy)]
struct Window {
    dim: usize,
    start: usize,
    len: usize,
}

impl Op for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("dim", self.dim).with("start", self.start).with("length", self.len)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        Ok(linear_rule(inputs, outputs, self.dim))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].narrow(self.dim as i64, self.start, self.len)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let after = at.input_spec(0).shape[self.dim] - self.start - self.len;
        let back = |dy: &Tensor| dy.surrounded(self.dim, self.start, after);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?])
    }
}

/// Zeros before and after along one dim.
#[derive(Debug, Clone, Copy)]
struct Surround {
    dim: usize,
    before: usize,
    after: usize,
}

impl Op for Surround {
    fn name(&self) -> &'static str {
        "surround"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("dim", self.dim).with("before", self.before).with("after", self.after)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        Ok(linear_rule(inputs, outputs, self.dim))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let mut margins = vec![(0, 0); inputs[0].ndim()];
        margins[self.dim] = (self.before as i64, self.after as i64);
        Ok(smallvec![inputs[0].pad(&margins, PadMode::Constant(Scalar::Float(0.0)))?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let len = at.input_spec(0).shape[self.dim];
        let back = |dy: &Tensor| dy.window(self.dim, self.before, len);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?])
    }
}

/// `y[.., i, ..] = x[.., index[.., i, ..], ..]`; the index has the shape of the result.
#[derive(Debug, Clone, Copy)]
struct Collect {
    dim: usize,
}

impl Op for Collect {
    fn name(&self) -> &'static str {
        "collect"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("dim", self.dim)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        Ok(linear_rule(inputs, outputs, self.dim))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].gather(self.dim as i64, inputs[1])?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let size = at.input_spec(0).shape.get(self.dim).copied().unwrap_or(1);
        let back = |dy: &Tensor| dy.added_at(&at.input(1)?, self.dim, size);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?, None])
    }
}

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
        Ok(linear_rule(inputs, outputs, self.dim))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let mut shape = inputs[0].shape().to_vec();
        if let Some(size) = shape.get_mut(self.dim) {
            *size = self.size;
        }
        if inputs[0].is_meta() {
            return Ok(smallvec![Array::meta(&shape, inputs[0].dtype())?]);
        }
        let zeros = Array::zeros(&shape, inputs[0].dtype())?;
        Ok(smallvec![zeros.scatter_add(self.dim as i64, inputs[1], inputs[0])?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let back = |dy: &Tensor| dy.collected(&at.input(1)?, self.dim);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?, None])
    }
}

impl Tensor {
    /// `len` elements of a dim, from `start`.
    pub(crate) fn window(&self, dim: usize, start: usize, len: usize) -> Result<Tensor> {
        apply1(Window { dim, start, len }, &[self])
    }

    /// Zeros before and after along a dim.
    pub(crate) fn surrounded(&self, dim: usize, before: usize, after: usize) -> Result<Tensor> {
        apply1(Surround { dim, before, after }, &[self])
    }

    /// The elements at the positions of a dim that `index` gives, which has the shape of the result.
    pub(crate) fn collected(&self, index: &Tensor, dim: usize) -> Result<Tensor> {
        apply1(Collect { dim }, &[self, index])
    }

    /// Zeros of `size` along a dim with these elements added at the positions that `index` gives.
    pub(crate) fn added_at(&self, index: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
        apply1(AddAt { dim, size }, &[self, index])
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dim = draw.below(shape.len());
    let x = draw.normal(&shape)?;
    let n = shape[dim];
    let mut other = shape.clone();
    other[dim] = draw.size();
    Ok(match draw.below(4) {
        0 => {
            let start = draw.below(n);
            Sample::new(Window { dim, start, len: draw.below(n - start + 1) }, [x])
        }
        1 => Sample::new(Surround { dim, before: draw.below(3), after: draw.below(3) }, [x]),
        2 => Sample::new(Collect { dim }, [x, draw.integers(n, &other)?]),
        _ => Sample::new(AddAt { dim, size: other[dim] }, [x, draw.integers(other[dim], &shape)?]),
    })
}
