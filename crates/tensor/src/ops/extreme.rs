//! The largest or smallest element of a dim and where it is. Ranks that cut the dim work together.

use crate::attributes::Attributes;
use crate::dispatch::{apply, apply1};
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dim;
use crate::ops::moments::{constant, exchange, filled};
use crate::ops::named::{Found, found, keep};
use crate::ops::reduce::{highest, lowest, reduced_shape};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::{self, Keep, Which};
use planaria_array::{Array, DType};
use planaria_layout::Reduce;
use planaria_layout::rule::{Cuts, FactorKind, Rule};
use smallvec::smallvec;

/// Value and position of the extreme along a dim, or the position alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extreme {
    dim: usize,
    keep: Keep,
    which: Which,
    position_only: bool,
}

impl Op for Extreme {
    fn name(&self) -> &'static str {
        match (self.which, self.position_only) {
            (Which::Largest, false) => "max",
            (Which::Smallest, false) => "min",
            (Which::Largest, true) => "argmax",
            (Which::Smallest, true) => "argmin",
        }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dim).with("keepdim", self.keep == Keep::Yes)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let shape = &inputs[0].shape;
        let cuts = |d: usize| if d == self.dim { Cuts::Windows } else { Cuts::Any };
        let factors: Vec<_> =
            shape.iter().enumerate().map(|(d, &n)| Some(rule.factor(n, FactorKind::Free, cuts(d)))).collect();
        rule.input(&factors);
        // The best values, then the first positions that have them.
        exchange(&mut rule, &factors, &[self.dim], inputs[0].dtype.size() + DType::I64.size());
        let mut kept = factors;
        if !kept.is_empty() && self.keep == Keep::Yes {
            kept[self.dim] = None;
        } else if !kept.is_empty() {
            kept.remove(self.dim);
        }
        outputs.iter().for_each(|_| rule.output(&kept));
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (values, positions) = match local.is_cut(0, &[self.dim]) {
            false => self.find(inputs[0])?,
            true => self.find_together(inputs[0], local)?,
        };
        Ok(if self.position_only { smallvec![positions] } else { smallvec![values, positions] })
    }

    fn saves(&self, _: &Places) -> Saves {
        if self.position_only { Saves::nothing() } else { Saves::outputs(&[1]) }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = grads[0].as_ref().filter(|_| !self.position_only) else { return Ok(smallvec![None]) };
        let shape = &at.input_spec(0).shape;
        if shape.ndim() == 0 {
            return Ok(smallvec![Some(dy.clone())]);
        }
        let kept = crate::ops::dims::keep_shape(shape, &[self.dim]);
        let positions = at.output(1)?.reshape(&kept)?;
        Ok(smallvec![Some(dy.reshape(&kept)?.added_at(&positions, self.dim, shape[self.dim])?)])
    }
}

impl Extreme {
    fn find(&self, x: &Array) -> Result<(Array, Array)> {
        Ok(match self.which {
            Which::Largest => x.max(self.dim as i64, self.keep)?,
            Which::Smallest => x.min(self.dim as i64, self.keep)?,
        })
    }

    /// The extreme of all windows, then the first position that has it.
    fn find_together(&self, x: &Array, local: &Local<'_>) -> Result<(Array, Array)> {
        let (edge, reduce) = match self.which {
            Which::Largest => (lowest(x.dtype()), Reduce::Max),
            Which::Smallest => (highest(x.dtype()), Reduce::Min),
        };
        let nowhere = constant(x, i64::MAX, DType::I64)?;
        let (value, position) = if x.shape()[self.dim] == 0 {
            let shape = reduced_shape(x, &[self.dim], self.keep);
            (filled(x, &shape, edge, x.dtype())?, filled(x, &shape, i64::MAX, DType::I64)?)
        } else {
            let start = constant(x, local.input_start(0, self.dim)?, DType::I64)?;
            let (value, position) = self.find(x)?;
            (value, position.add(&start)?)
        };
        let best = local.reduce_over(0, &[self.dim], &value, reduce)?;
        let mut mine = value.eq(&best)?;
        if x.dtype().is_float() {
            mine = mine.logical_or(&value.is_nan()?)?;
        }
        let candidate = ops::where_(&mine, &position, &nowhere)?;
        Ok((best, local.reduce_over(0, &[self.dim], &candidate, Reduce::Min)?))
    }
}

impl Tensor {
    fn extreme(&self, which: Which, dim: i64, keep: Keep) -> Result<(Tensor, Tensor)> {
        let dim = normal_dim("max", self.ndim(), dim)?;
        let mut found = apply(Extreme { dim, keep, which, position_only: false }, &[self])?.into_iter();
        match (found.next(), found.next()) {
            (Some(values), Some(positions)) => Ok((values, positions)),
            _ => Err(Error::Bug("an extreme has a value and a position")),
        }
    }

    fn arg_extreme(&self, which: Which, dim: Option<i64>, keep: Keep) -> Result<Tensor> {
        let Some(dim) = dim else {
            let flat = self.reshape(&[self.numel()])?;
            let found = apply1(Extreme { dim: 0, keep: Keep::No, which, position_only: true }, &[&flat])?;
            return if keep == Keep::Yes { found.reshape(&vec![1; self.ndim()]) } else { Ok(found) };
        };
        let dim = normal_dim("argmax", self.ndim(), dim)?;
        apply1(Extreme { dim, keep, which, position_only: true }, &[self])
    }

    /// The largest element of a dim and its position, the first among equals.
    pub fn max(&self, dim: i64, keep: Keep) -> Result<(Tensor, Tensor)> {
        self.extreme(Which::Largest, dim, keep)
    }

    /// The smallest element of a dim and its position, the first among equals.
    pub fn min(&self, dim: i64, keep: Keep) -> Result<(Tensor, Tensor)> {
        self.extreme(Which::Smallest, dim, keep)
    }

    /// The position of the largest element of a dim, or of all in row-major order.
    pub fn argmax(&self, dim: Option<i64>, keep: Keep) -> Result<Tensor> {
        self.arg_extreme(Which::Largest, dim, keep)
    }

    /// The position of the smallest element of a dim, or of all in row-major order.
    pub fn argmin(&self, dim: Option<i64>, keep: Keep) -> Result<Tensor> {
        self.arg_extreme(Which::Smallest, dim, keep)
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let (which, position_only) = match name {
        "max" => (Which::Largest, false),
        "min" => (Which::Smallest, false),
        "argmax" => (Which::Largest, true),
        "argmin" => (Which::Smallest, true),
        _ => return None,
    };
    found(Extreme { dim: at.size("axis")?, keep: keep(at)?, which, position_only })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let op = Extreme {
        dim: draw.below(shape.len()),
        keep: draw.pick(&[Keep::Yes, Keep::No]),
        which: draw.pick(&[Which::Largest, Which::Smallest]),
        position_only: draw.below(3) == 0,
    };
    let x = if op.position_only { draw.integers(4, &shape)? } else { draw.distinct(&shape)? };
    Ok(Sample::new(op, [x]))
}
