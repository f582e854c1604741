//! Joining tensors and cutting them into views; sums of many tensors.

use crate::attributes::Attributes;
use crate::dispatch::{apply, apply1};
use crate::error::Result;
use crate::grad::Backward;
use crate::index::{Entries, Entry};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dim;
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::ops::slice::{Slice, real_dim};
use crate::tensor::Tensor;
use planaria_array::{Array, Error, ops};
use planaria_layout::rule::{self, LINEAR, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::smallvec;
use std::sync::Arc;

/// The inputs one after the other along a dim.
#[derive(Debug, Clone, Copy)]
struct Concat {
    dim: usize,
    /// The result is read only, so that inputs which lie like this already are shown instead of copied.
    shown: bool,
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dim)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::concat(&shapes, &outputs[0].shape, self.dim);
        rule.pass(&(0..inputs.len()).collect::<Vec<_>>(), &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let shown = if self.shown { ops::beside(inputs) } else { None };
        Ok(smallvec![shown.map_or_else(|| ops::concat(inputs, self.dim as i64), Ok)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok((0..at.inputs()).map(|_| None).collect()) };
        let mut start = 0;
        let mut part = |input: usize| {
            let len = at.input_spec(input).shape[self.dim];
            start += len;
            at.needs(input).then(|| dy.narrow(self.dim as i64, start - len, len)).transpose()
        };
        (0..at.inputs()).map(&mut part).collect()
    }
}

/// Views of given sizes along a dim.
#[derive(Debug, Clone)]
struct Split {
    sizes: Dims,
    dim: usize,
    /// Dims of the input.
    shape: Dims,
}

impl Split {
    /// The entries that show one part.
    fn part(&self, output: usize) -> Entries {
        let mut entries: Entries = self.shape.iter().map(|&size| Entry::whole(size)).collect();
        let start = self.sizes[..output].iter().sum();
        let len = self.sizes[output];
        entries[self.dim] = Entry::part(if len == 0 { 0 } else { start }, len);
        entries
    }
}

impl Op for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn attributes(&self) -> Attributes {
        let cut = Attributes::new().with("sections", self.sizes.as_slice()).with("axis", self.dim);
        cut.with("shape", self.shape.as_slice())
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = outputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::split(&inputs[0].shape, &shapes, self.dim);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let mut part = self.shape.clone();
        let mut size_here = |(output, &size): (usize, &usize)| {
            part[self.dim] = size;
            Ok(local.extents(output, &part)?[self.dim])
        };
        let sizes = self.sizes.iter().enumerate().map(&mut size_here).collect::<Result<Dims>>()?;
        Ok(inputs[0].split_sizes(&sizes, self.dim as i64)?.into_iter().collect())
    }

    fn is_view(&self) -> bool {
        true
    }

    fn view_alone(&self, output: usize) -> Option<Arc<dyn Op>> {
        Some(Arc::new(Slice { entries: self.part(output) }))
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let one = |(output, grad): (usize, &Option<Tensor>)| match grad {
            Some(grad) => Ok(grad.clone()),
            None => at.zeros(output),
        };
        if grads.iter().all(Option::is_none) {
            return Ok(smallvec![None]);
        }
        let parts = grads.iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
        Ok(smallvec![Some(concat(&parts.iter().collect::<Vec<_>>(), self.dim as i64)?)])
    }
}

/// The sum of all inputs, which have one shape.
#[derive(Debug, Clone, Copy)]
struct AddN;

impl Op for AddN {
    fn name(&self) -> &'static str {
        "add_n"
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::elementwise(&shapes, &outputs[0].shape);
        rule.pass(&(0..inputs.len()).collect::<Vec<_>>(), LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let [first, rest @ ..] = inputs else { return Err(none_given("add_n")) };
        for x in rest {
            if x.shape() != first.shape() {
                let (lhs, rhs) = (first.shape().clone(), x.shape().clone());
                let reason = "all shapes must be equal";
                return Err(Error::ShapeMismatch { op: "add_n", lhs, rhs, reason }.into());
            }
        }
        let Some((second, rest)) = rest.split_first() else { return Ok(smallvec![first.copy()?]) };
        let sum = first.add(second)?;
        for x in rest.iter().filter(|x| !x.is_meta()) {
            sum.binary_in_place(ops::Binary::Add, x)?;
        }
        Ok(smallvec![sum])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        Ok((0..at.inputs()).map(|input| grads[0].clone().filter(|_| at.needs(input))).collect())
    }
}

fn none_given(op: &'static str) -> crate::Error {
    Error::Argument { op, what: "at least one tensor is needed, got none".to_string() }.into()
}

/// The tensors one after the other along `dim`; their other dims and dtypes must agree.
pub fn concat(tensors: &[&Tensor], dim: i64) -> Result<Tensor> {
    let first = tensors.first().ok_or_else(|| none_given("concat"))?;
    apply1(Concat { dim: real_dim("concat", first.ndim(), dim)?, shown: false }, tensors)
}

/// The tensors one after the other along their first dim, for reading: where they lie like that in one memory already,
/// nothing is copied.
pub fn beside(tensors: &[&Tensor]) -> Result<Tensor> {
    let first = tensors.first().ok_or_else(|| none_given("concat"))?;
    apply1(Concat { dim: real_dim("concat", first.ndim(), 0)?, shown: true }, tensors)
}

/// The tensors, all of one shape, side by side along a new dim placed before `dim`.
pub fn stack(tensors: &[&Tensor], dim: i64) -> Result<Tensor> {
    let first = tensors.first().ok_or_else(|| none_given("stack"))?;
    let dim = normal_dim("stack", first.ndim() + 1, dim)? as i64;
    if let Some(other) = tensors.iter().find(|t| t.shape() != first.shape()) {
        let (lhs, rhs) = (first.shape().clone(), other.shape().clone());
        return Err(Error::ShapeMismatch { op: "stack", lhs, rhs, reason: "all shapes must be equal" }.into());
    }
    let parts = tensors.iter().map(|t| t.unsqueeze(dim)).collect::<Result<Vec<_>>>()?;
    concat(&parts.iter().collect::<Vec<_>>(), dim)
}

/// The sum of tensors of one shape and dtype, in their order.
pub fn add_n(tensors: &[&Tensor]) -> Result<Tensor> {
    tensors.first().ok_or_else(|| none_given("add_n"))?;
    apply1(AddN, tensors)
}

impl Tensor {
    /// Views of `size` positions each along `dim`; the last one may be smaller.
    pub fn split(&self, size: usize, dim: i64) -> Result<Vec<Tensor>> {
        let sizes = self.to_meta()?.split(size, dim)?;
        self.cut(&sizes, dim)
    }

    /// Views of the given sizes along `dim`, which must add up to its size.
    pub fn split_sizes(&self, sizes: &[usize], dim: i64) -> Result<Vec<Tensor>> {
        let parts = self.to_meta()?.split_sizes(sizes, dim)?;
        self.cut(&parts, dim)
    }

    /// At most `count` views along `dim` of equal size but for a smaller last one, as few as that size needs.
    pub fn chunk(&self, count: usize, dim: i64) -> Result<Vec<Tensor>> {
        let parts = self.to_meta()?.chunk(count, dim)?;
        if self.numel() == 0 && parts.iter().all(|part| part.shape() == self.shape()) {
            return Ok(parts.iter().map(|_| self.clone()).collect());
        }
        self.cut(&parts, dim)
    }

    /// One view per position along `dim`, which disappears.
    pub fn unbind(&self, dim: i64) -> Result<Vec<Tensor>> {
        let d = real_dim("unbind", self.ndim(), dim)? as i64;
        if self.shape()[d as usize] == 0 {
            return Ok(Vec::new());
        }
        let drop = |part: &Tensor| part.squeeze(&[d]);
        self.split(1, d)?.iter().map(drop).collect()
    }

    /// The shape without bytes, for the array's own checks.
    pub(crate) fn to_meta(&self) -> Result<Array> {
        Ok(Array::meta(self.shape(), self.dtype())?)
    }

    fn cut(&self, parts: &[Array], dim: i64) -> Result<Vec<Tensor>> {
        let dim = real_dim("split", self.ndim(), dim)?;
        let sizes = parts.iter().map(|part| part.shape()[dim]).collect();
        let op = Split { sizes, dim, shape: self.shape().dims().into() };
        Ok(apply(op, &[self])?.into_iter().collect())
    }

    /// Repeats dims of one element, and adds dims in front, to reach the shape of another tensor.
    pub fn expand_as(&self, other: &Tensor) -> Result<Tensor> {
        self.broadcast_to(other.shape())
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    match name {
        "concat" => found(Concat { dim: at.size("axis")?, shown: false }),
        "split" => {
            found(Split { sizes: at.sizes("sections")?, dim: at.size("axis")?, shape: at.sizes("shape")? })
        }
        "add_n" => found(AddN),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dim = draw.below(shape.len());
    let count = 1 + draw.below(3);
    Ok(match draw.below(3) {
        0 => {
            let mut part = |_| {
                let mut own = shape.clone();
                own[dim] = draw.size();
                draw.normal(&own)
            };
            Sample::new(Concat { dim, shown: false }, (0..count).map(&mut part).collect::<Result<Vec<_>>>()?)
        }
        1 => {
            let first = draw.below(shape[dim] + 1);
            let sizes = smallvec![first, shape[dim] - first];
            Sample::new(Split { sizes, dim, shape: shape.as_slice().into() }, [draw.normal(&shape)?])
        }
        _ => Sample::new(AddN, (0..count).map(|_| draw.normal(&shape)).collect::<Result<Vec<_>>>()?),
    })
}
