//! Masks: select, fill, scatter, and the positions of what is not zero.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::index::Index;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::in_place::{Onto, write_into};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::ops::select::Where;
use crate::tensor::Tensor;
use planaria_array::{Array, DType, Error, Scalar, Shape, broadcast_shapes, ops};
use planaria_layout::Reduce;
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// Coordinates of the elements that are not zero, one row each.
#[derive(Debug, Clone, Copy)]
struct Nonzero;

impl Op for Nonzero {
    fn name(&self) -> &'static str {
        "nonzero"
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        Ok(Rule::whole(&[inputs[0].shape.ndim()], &[2]))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].nonzero()?])
    }

    fn shapes_follow_values(&self) -> bool {
        true
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![None])
    }
}

/// Input 0, written where the mask in input 1 is true with the elements of input 2 in row-major order.
#[derive(Debug, Clone, Copy)]
struct MaskedScatter {
    onto: Onto,
}

impl Op for MaskedScatter {
    fn name(&self) -> &'static str {
        "masked_scatter"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("onto", self.onto.name())
    }

    /// How many elements of the source are used before a row is not known from the row, so nothing is cut.
    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let ndims: Vec<usize> = inputs.iter().map(|spec| spec.shape.ndim()).collect();
        let mut rule = Rule::whole(&ndims, &[outputs[0].shape.ndim()]);
        rule.pass(&[0, 2], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let out = self.onto.of(inputs[0])?;
        out.masked_scatter_assign(inputs[1], inputs[2])?;
        Ok(smallvec![out])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None, None]) };
        let mask = at.input(1)?;
        let before = at.needs(0).then(|| dy.masked_fill(&mask, 0.0)).transpose()?;
        let shape = at.input_spec(2).shape.clone();
        let source = at.needs(2).then(|| apply1(MaskedSource { shape }, &[dy, &mask])).transpose()?;
        Ok(smallvec![before, None, source])
    }
}

/// The elements of input 0 where the mask in input 1 is true, then zeros, in a given shape.
#[derive(Debug, Clone)]
struct MaskedSource {
    shape: Shape,
}

impl Op for MaskedSource {
    fn name(&self) -> &'static str {
        "masked_source"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("shape", self.shape.dims())
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let ndim = inputs[0].shape.ndim();
        let mut rule = Rule::whole(&[ndim, inputs[1].shape.ndim()], &[self.shape.ndim()]);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        if inputs[0].is_meta() {
            return Ok(smallvec![Array::meta(&self.shape, inputs[0].dtype())?]);
        }
        Ok(smallvec![ops::masked_scatter_source_grad(inputs[0], inputs[1], &self.shape)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None]) };
        let spread = MaskedScatter { onto: Onto::Zeros };
        Ok(smallvec![Some(apply1(spread, &[&at.input_zeros(0)?, &at.input(1)?, dy])?), None])
    }
}

fn check_mask(op: &'static str, mask: &Tensor) -> Result<()> {
    match mask.dtype() {
        DType::Bool => Ok(()),
        found => Err(Error::DType { op, found, expected: "bool for a mask" }.into()),
    }
}

/// The value of a fill is one number of the tensor's dtype.
fn check_value(x: &Tensor, value: &Tensor) -> Result<()> {
    if value.dtype() != x.dtype() {
        return Err(Error::DTypeMismatch { op: "masked_fill", lhs: value.dtype(), rhs: x.dtype() }.into());
    }
    if value.ndim() != 0 {
        let (lhs, rhs) = (value.shape().clone(), Shape::default());
        return Err(
            Error::ShapeMismatch { op: "masked_fill", lhs, rhs, reason: "the value must be 0-d" }.into()
        );
    }
    Ok(())
}

/// A write cannot make the tensor larger.
fn check_covers(op: &'static str, x: &Tensor, mask: &Tensor) -> Result<()> {
    check_mask(op, mask)?;
    if broadcast_shapes(op, x.shape(), mask.shape())? == *x.shape() {
        return Ok(());
    }
    Err(Error::Broadcast { op, from: mask.shape().clone(), to: x.shape().clone() }.into())
}

impl Tensor {
    /// This tensor and a mask, both broadcast to their common shape.
    fn with_mask(&self, op: &'static str, mask: &Tensor) -> Result<(Tensor, Tensor)> {
        check_mask(op, mask)?;
        let shape = broadcast_shapes(op, self.shape(), mask.shape())?;
        Ok((self.broadcast_to(&shape)?, mask.broadcast_to(&shape)?))
    }

    /// The elements where `mask` is true, in row-major order, as a one-dim tensor. Both are broadcast together.
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        let (x, mask) = self.with_mask("masked_select", mask)?;
        if x.ndim() == 0 {
            return x.reshape(&[1])?.get(&[Index::Mask(mask.reshape(&[1])?)]);
        }
        x.get(&[Index::Mask(mask)])
    }

    /// A copy with the value of a 0-d tensor where `mask` is true. Both are broadcast together.
    pub fn masked_fill_with(&self, mask: &Tensor, value: &Tensor) -> Result<Tensor> {
        check_mask("masked_fill", mask)?;
        check_value(self, value)?;
        mask.where_(value, self)
    }

    /// Writes `value` where `mask`, broadcast to this tensor's shape, is true.
    pub fn masked_fill_assign(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<()> {
        self.masked_fill_assign_with(mask, &Tensor::new(Array::scalar(value, self.dtype())?))
    }

    /// [`Tensor::masked_fill_assign`] with the value in a 0-d tensor.
    pub fn masked_fill_assign_with(&self, mask: &Tensor, value: &Tensor) -> Result<()> {
        check_covers("masked_fill", self, mask)?;
        check_value(self, value)?;
        write_into(self, FillHere, Where, &[mask, value, self])
    }

    /// A copy in which the elements where `mask` is true are replaced by those of `source` in row-major order. This
    /// tensor and the mask are broadcast together; `source` may be longer than needed.
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
        let (x, mask) = self.with_mask("masked_scatter", mask)?;
        apply1(MaskedScatter { onto: Onto::Copy }, &[&x, &mask, source])
    }

    /// [`Tensor::masked_scatter`] in place; the mask is broadcast to this tensor's shape.
    pub fn masked_scatter_assign(&self, mask: &Tensor, source: &Tensor) -> Result<()> {
        check_covers("masked_scatter", self, mask)?;
        let mask = mask.broadcast_to(self.shape())?;
        let op = |onto| MaskedScatter { onto };
        write_into(self, op(Onto::Here), op(Onto::Copy), &[self, &mask, source])
    }

    /// Coordinates of the elements that are not zero, one row each, in row-major order: shape `[count, ndim]`.
    pub fn nonzero(&self) -> Result<Tensor> {
        apply1(Nonzero, &[self])
    }
}

/// `where` that writes its result into input 2.
#[derive(Debug, Clone, Copy)]
struct FillHere;

impl Op for FillHere {
    fn name(&self) -> &'static str {
        "masked_fill_here"
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::elementwise(&shapes, &outputs[0].shape);
        rule.pass(&[1, 2], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let (mask, value, x) = (inputs[0], inputs[1], inputs[2]);
        if !x.is_meta() {
            x.masked_fill_assign(mask, value.item()?)?;
        }
        Ok(smallvec![x.clone()])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(crate::Error::Bug("a write in place is recorded as `where`"))
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    match name {
        "nonzero" => found(Nonzero),
        "masked_scatter" => found(MaskedScatter { onto: Onto::of_name(at.text("onto")?)? }),
        "masked_source" => found(MaskedSource { shape: Shape::new(&at.sizes("shape")?).ok()? }),
        "masked_fill_here" => found(FillHere),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(0, 3);
    let (x, mask) = (draw.normal(&shape)?, draw.mask(&shape)?);
    let count = shape.iter().product::<usize>();
    Ok(match draw.below(3) {
        0 => Sample::new(Nonzero, [mask]),
        1 => {
            let extra = draw.below(3);
            let source = draw.normal(&[count + extra])?;
            Sample::new(MaskedScatter { onto: Onto::Copy }, [x, mask, source])
        }
        _ => Sample::new(MaskedSource { shape: Shape::new(&[count, 1])? }, [x, mask]),
    })
}
