//! Rolling, flipping and repeating along dims.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dims;
use crate::ops::in_place::zeros_for;
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::ops::slice::real_dim;
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::Keep;
use planaria_layout::rule::{self, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::{SmallVec, smallvec};

/// One dim's elements moved along, what falls off the end coming back at the start.
#[derive(Debug, Clone)]
struct Roll {
    shifts: SmallVec<[i64; 4]>,
    dims: Dims,
}

/// Dims shared by position, some of them whole; every pending reduction passes.
fn along(inputs: &[Spec], outputs: &[Spec], whole: &[usize]) -> Rule {
    let mut rule = rule::along(&[&inputs[0].shape], &[&outputs[0].shape], whole);
    rule.pass(&[0], &Reduce::EVERY);
    rule
}

fn signed(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&d| d as i64).collect()
}

impl Op for Roll {
    fn name(&self) -> &'static str {
        "roll"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("shifts", self.shifts.as_slice()).with("axis", self.dims.as_slice())
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        Ok(along(inputs, outputs, &self.dims))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].roll(&self.shifts, &signed(&self.dims))?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let shape = &at.input_spec(0).shape;
        // Taken within the dim first: the smallest shift has no opposite.
        let back = |(&shift, &d): (&i64, &usize)| -(shift % shape[d].max(1) as i64);
        let shifts = self.shifts.iter().zip(&self.dims).map(back).collect();
        Ok(smallvec![Some(apply1(Roll { shifts, dims: self.dims.clone() }, &[dy])?)])
    }
}

/// The order of elements reversed along dims.
#[derive(Debug, Clone)]
struct Flip {
    dims: Dims,
}

impl Op for Flip {
    fn name(&self) -> &'static str {
        "flip"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dims.as_slice())
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        Ok(along(inputs, outputs, &self.dims))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].flip(&signed(&self.dims))?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let back = |dy: &Tensor| apply1(self.clone(), &[dy]);
        Ok(smallvec![grads[0].as_ref().map(back).transpose()?])
    }
}

/// The tensor laid out several times along each of its dims.
#[derive(Debug, Clone)]
struct Repeat {
    times: Dims,
}

impl Op for Repeat {
    fn name(&self) -> &'static str {
        "tile"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("repeat_times", self.times.as_slice())
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let repeated: Dims = (0..self.times.len()).filter(|&d| self.times[d] != 1).collect();
        Ok(along(inputs, outputs, &repeated))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].repeat(&self.times)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    /// The sum over all copies.
    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let shape = &at.input_spec(0).shape;
        let both: Vec<usize> =
            self.times.iter().zip(shape.iter()).flat_map(|(&n, &size)| [n, size]).collect();
        let copies: Vec<i64> = (0..shape.ndim()).map(|d| 2 * d as i64).collect();
        if copies.is_empty() {
            return Ok(smallvec![Some(dy.clone())]);
        }
        Ok(smallvec![Some(dy.reshape(&both)?.sum(&copies, Keep::No)?)])
    }
}

/// Each position along a dim several times in a row.
#[derive(Debug, Clone)]
struct RepeatInterleave {
    repeats: Dims,
    dim: usize,
}

impl Op for RepeatInterleave {
    fn name(&self) -> &'static str {
        "repeat_interleave"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("repeats", self.repeats.as_slice()).with("axis", self.dim)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        Ok(along(inputs, outputs, &[self.dim]))
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].repeat_interleave(&self.repeats, self.dim as i64)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    /// The sum over each position's copies.
    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let shape = &at.input_spec(0).shape;
        let count = |i: usize| if self.repeats.len() == 1 { self.repeats[0] } else { self.repeats[i] };
        let source = |i: usize| std::iter::repeat_n(i as i64, count(i));
        let index: Vec<i64> = (0..shape[self.dim]).flat_map(source).collect();
        let index = dy.near(&Array::from_slice(&index, &[index.len()])?)?;
        Ok(smallvec![Some(zeros_for(at, 0)?.index_add(self.dim as i64, &index, dy)?)])
    }
}

impl Tensor {
    /// Moves elements by `shifts[i]` along `dims[i]`, what falls off the end coming back at the start. With no dims
    /// and one shift the tensor is rolled as if it were flat.
    pub fn roll(&self, shifts: &[i64], dims: &[i64]) -> Result<Tensor> {
        self.to_meta()?.roll(shifts, dims)?;
        if dims.is_empty() && shifts.len() == 1 {
            let flat = Roll { shifts: shifts.into(), dims: smallvec![0] };
            return apply1(flat, &[&self.reshape(&[self.numel()])?])?.reshape(self.shape());
        }
        let dims = dims.iter().map(|&d| real_dim("roll", self.ndim(), d)).collect::<Result<Dims>>()?;
        apply1(Roll { shifts: shifts.into(), dims }, &[self])
    }

    /// The order of elements reversed along each of `dims`.
    pub fn flip(&self, dims: &[i64]) -> Result<Tensor> {
        if dims.is_empty() {
            return Ok(self.clone());
        }
        apply1(Flip { dims: normal_dims("flip", self.ndim(), dims)? }, &[self])
    }

    /// The tensor laid out `times[i]` times along dim i. More counts than dims add leading dims; fewer apply to the
    /// last dims.
    pub fn repeat(&self, times: &[usize]) -> Result<Tensor> {
        self.to_meta()?.repeat(times)?;
        let mut shape = Dims::from_elem(1, times.len().saturating_sub(self.ndim()));
        shape.extend_from_slice(self.shape());
        let mut all = Dims::from_elem(1, shape.len() - times.len());
        all.extend_from_slice(times);
        apply1(Repeat { times: all }, &[&self.reshape(&shape)?])
    }

    /// Each position along `dim` `repeats[i]` times in a row; a single count serves all positions.
    pub fn repeat_interleave(&self, repeats: &[usize], dim: i64) -> Result<Tensor> {
        self.to_meta()?.repeat_interleave(repeats, dim)?;
        let dim = real_dim("repeat_interleave", self.ndim(), dim)?;
        apply1(RepeatInterleave { repeats: repeats.into(), dim }, &[self])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    match name {
        "roll" => found(Roll { shifts: at.ints("shifts")?.into(), dims: at.sizes("axis")? }),
        "flip" => found(Flip { dims: at.sizes("axis")? }),
        "tile" => found(Repeat { times: at.sizes("repeat_times")? }),
        "repeat_interleave" => {
            found(RepeatInterleave { repeats: at.sizes("repeats")?, dim: at.size("axis")? })
        }
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let x = draw.normal(&shape)?;
    let dim = draw.below(shape.len());
    Ok(match draw.below(4) {
        0 => {
            let shifts = smallvec![draw.below(9) as i64 - 4];
            Sample::new(Roll { shifts, dims: smallvec![dim] }, [x])
        }
        1 => Sample::new(Flip { dims: smallvec![dim] }, [x]),
        2 => Sample::new(Repeat { times: shape.iter().map(|_| draw.pick(&[1, 1, 2, 3])).collect() }, [x]),
        _ => {
            let counts = if draw.coin() { 1 } else { shape[dim] };
            let repeats = (0..counts).map(|_| draw.below(3)).collect();
            Sample::new(RepeatInterleave { repeats, dim }, [x])
        }
    })
}
