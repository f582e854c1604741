//! Choosing between values element by element: where, masked fill, clip, and casts.

use crate::attributes::{Attr, Attributes};
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops;
use planaria_array::{Array, DType, Scalar};
use planaria_layout::Reduce;
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// `condition ? x : y`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Where;

impl Op for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::elementwise(&shapes, &outputs[0].shape);
        rule.pass(&[1, 2], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![ops::where_(inputs[0], inputs[1], inputs[2])?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[0])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None, None]) };
        let (condition, zero) = (at.input(0)?, dy.zero()?);
        let first = || apply1(Where, &[&condition, dy, &zero])?.sum_to(&at.input_spec(1).shape);
        let second = || apply1(Where, &[&condition, &zero, dy])?.sum_to(&at.input_spec(2).shape);
        Ok(smallvec![None, at.needs(1).then(first).transpose()?, at.needs(2).then(second).transpose()?])
    }
}

/// Elements brought between bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clip {
    low: Option<f64>,
    high: Option<f64>,
}

impl Op for Clip {
    fn name(&self) -> &'static str {
        "clip"
    }

    fn attributes(&self) -> Attributes {
        let bound = |b: Option<f64>| b.map_or(Attr::List(Vec::new()), Attr::Float);
        Attributes::new().with("min", bound(self.low)).with("max", bound(self.high))
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape], &outputs[0].shape);
        rule.pass(&[0], rule::INCREASING);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![ops::clip(inputs[0], self.low.map(Scalar::from), self.high.map(Scalar::from))?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[0])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let x = at.input(0)?;
        let bound = |value: f64| Ok::<_, crate::Error>(Tensor::new(Array::scalar(value, x.dtype())?));
        let mut dx = dy.clone();
        if let Some(low) = self.low {
            dx = dx.mul(&x.ge(&bound(low)?)?.cast(dy.dtype())?)?;
        }
        if let Some(high) = self.high {
            dx = dx.mul(&x.le(&bound(high)?)?.cast(dy.dtype())?)?;
        }
        Ok(smallvec![Some(dx)])
    }
}

/// The same values in another dtype.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cast {
    dtype: DType,
}

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("dtype", self.dtype)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape], &outputs[0].shape);
        // Rounding contributions is only as good as rounding their sum when nothing is lost.
        if is_wider(self.dtype, inputs[0].dtype) {
            rule.pass(&[0], LINEAR);
        }
        rule.pass(&[0], rule::INCREASING);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![inputs[0].cast(self.dtype)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![grads[0].as_ref().map(|dy| dy.cast(at.input_spec(0).dtype)).transpose()?])
    }
}

fn is_wider(to: DType, from: DType) -> bool {
    to.is_float() && from.is_float() && to.size() >= from.size() && to.size() >= 4
}

impl Tensor {
    /// `self ? x : y`, element by element.
    pub fn where_(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        apply1(Where, &[self, x, y])
    }

    /// `value` where the mask is true.
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        mask.where_(&Tensor::new(Array::scalar(value, self.dtype())?), self)
    }

    /// Elements brought between bounds.
    pub fn clip(&self, low: Option<f64>, high: Option<f64>) -> Result<Tensor> {
        apply1(Clip { low, high }, &[self])
    }

    /// The same values in another dtype.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() { Ok(self.clone()) } else { apply1(Cast { dtype }, &[self]) }
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    match name {
        "where" => found(Where),
        "clip" => found(Clip { low: at.maybe("min", Attr::real)?, high: at.maybe("max", Attr::real)? }),
        "cast" => found(Cast { dtype: at.dtype("dtype")? }),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(0, 3);
    Ok(match draw.below(3) {
        0 => {
            let (mask, other) = (draw.broadcastable(&shape), draw.broadcastable(&shape));
            Sample::new(Where, [draw.mask(&mask)?, draw.normal(&shape)?, draw.normal(&other)?])
        }
        1 => Sample::new(Clip { low: Some(-0.5), high: draw.coin().then_some(0.5) }, [draw.normal(&shape)?]),
        _ => Sample::new(
            Cast { dtype: draw.pick(&[DType::F32, DType::F64, DType::I64]) },
            [draw.normal(&shape)?],
        ),
    })
}
