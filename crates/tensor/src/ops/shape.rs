//! Ops that show the same elements in another shape: reshape, permute, broadcast and their kin.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dim;
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_layout::rule::{self, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::smallvec;

/// The elements in row-major order under another shape.
#[derive(Debug, Clone)]
pub(crate) struct Reshape {
    shape: Dims,
}

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("shape", self.shape.as_slice())
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::reshape(&inputs[0].shape, &outputs[0].shape);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].reshape(&local.extents(0, &self.shape)?)?])
    }

    fn is_view(&self) -> bool {
        true
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let back = |dy: &Tensor| dy.reshape(&at.input_spec(0).shape);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?])
    }
}

/// The dims in another order.
#[derive(Debug, Clone)]
pub(crate) struct Permute {
    order: Dims,
}

impl Op for Permute {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("perm", self.order.as_slice())
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = rule::permute(&inputs[0].shape, &self.order);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let order: Vec<i64> = self.order.iter().map(|&d| d as i64).collect();
        Ok(smallvec![inputs[0].permute(&order)?])
    }

    fn is_view(&self) -> bool {
        true
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let mut back = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(to, &from)| back[from] = to as i64);
        Ok(smallvec![grads[0].as_ref().map(|dy| dy.permute(&back)).transpose()?])
    }
}

/// Dims of one element repeated, and new dims in front.
#[derive(Debug, Clone)]
pub(crate) struct Expand {
    shape: Dims,
}

impl Op for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("shape", self.shape.as_slice())
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::expand(&inputs[0].shape, &outputs[0].shape);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].broadcast_to(&local.extents(0, &self.shape)?)?])
    }

    fn is_view(&self) -> bool {
        true
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let back = |dy: &Tensor| dy.sum_to(&at.input_spec(0).shape);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?])
    }
}

impl Tensor {
    /// The same elements in row-major order under another shape.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        if self.shape()[..] == *shape {
            return Ok(self.clone());
        }
        // Checked on the global shape: the local one may divide by chance.
        Array::meta(self.shape(), self.dtype())?.reshape(shape)?;
        apply1(Reshape { shape: shape.into() }, &[self])
    }

    /// The dims in another order; negative ones count from the end.
    pub fn permute(&self, order: &[i64]) -> Result<Tensor> {
        // The array checks that it is an order of all dims.
        Array::meta(self.shape(), self.dtype())?.permute(order)?;
        let order = order.iter().map(|&d| normal_dim("permute", self.ndim(), d)).collect::<Result<Dims>>()?;
        apply1(Permute { order }, &[self])
    }

    /// Two dims change places.
    pub fn transpose(&self, a: i64, b: i64) -> Result<Tensor> {
        let (a, b) = (normal_dim("transpose", self.ndim(), a)?, normal_dim("transpose", self.ndim(), b)?);
        if self.ndim() == 0 {
            return Ok(self.clone());
        }
        let mut order: Dims = (0..self.ndim()).collect();
        order.swap(a, b);
        apply1(Permute { order }, &[self])
    }

    /// Repeats dims of one element, and adds dims in front, to reach a shape.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        if self.shape()[..] == *shape {
            return Ok(self.clone());
        }
        Array::meta(self.shape(), self.dtype())?.broadcast_to(shape)?;
        apply1(Expand { shape: shape.into() }, &[self])
    }

    /// A new dim of one element.
    pub fn unsqueeze(&self, dim: i64) -> Result<Tensor> {
        let shape = Array::meta(self.shape(), self.dtype())?.unsqueeze(dim)?;
        self.reshape(shape.shape())
    }

    /// Takes away dims of one element; all of them when none are given.
    pub fn squeeze(&self, dims: &[i64]) -> Result<Tensor> {
        let shape = Array::meta(self.shape(), self.dtype())?.squeeze(dims)?;
        self.reshape(shape.shape())
    }

    /// Makes one dim of those from `first` to `last`.
    pub fn flatten(&self, first: i64, last: i64) -> Result<Tensor> {
        let shape = Array::meta(self.shape(), self.dtype())?.flatten(first, last)?;
        self.reshape(shape.shape())
    }
}

/// A shape with the same number of elements, made by joining and cutting dims.
fn another_shape(draw: &mut Draw, shape: &[usize]) -> Vec<usize> {
    let mut out: Vec<usize> = Vec::new();
    for &n in shape {
        match draw.below(4) {
            0 if !out.is_empty() => *out.last_mut().unwrap_or(&mut 1) *= n,
            1 if n % 2 == 0 => out.extend([2, n / 2]),
            2 => out.extend([n, 1]),
            _ => out.push(n),
        }
    }
    out
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    match name {
        "reshape" => found(Reshape { shape: at.sizes("shape")? }),
        "transpose" => found(Permute { order: at.sizes("perm")? }),
        "expand" => found(Expand { shape: at.sizes("shape")? }),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 4);
    let x = draw.normal(&shape)?;
    Ok(match draw.below(3) {
        0 => Sample::new(Reshape { shape: another_shape(draw, &shape).into() }, [x]),
        1 => {
            let mut order: Dims = (0..shape.len()).collect();
            (1..order.len()).rev().for_each(|i| order.swap(i, draw.below(i + 1)));
            Sample::new(Permute { order }, [x])
        }
        _ => {
            let small = draw.broadcastable(&shape);
            Sample::new(Expand { shape: shape.into() }, [draw.normal(&small)?])
        }
    })
}
