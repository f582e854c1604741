//! Comparisons and truth values: results are bool and have no gradient.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, Compare};
use planaria_layout::Reduce;
use planaria_layout::rule::{self, Rule};
use smallvec::smallvec;

/// A question about elements of one or two inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    Compare(Compare),
    And,
    Or,
    Xor,
    Not,
    BitNot,
    IsNan,
    IsFinite,
    IsInf,
}

impl Op for Question {
    fn name(&self) -> &'static str {
        match self {
            Question::Compare(Compare::Eq) => "equal",
            Question::Compare(Compare::Ne) => "not_equal",
            Question::Compare(Compare::Lt) => "less_than",
            Question::Compare(Compare::Le) => "less_equal",
            Question::Compare(Compare::Gt) => "greater_than",
            Question::Compare(Compare::Ge) => "greater_equal",
            Question::And => "logical_and",
            Question::Or => "logical_or",
            Question::Xor => "logical_xor",
            Question::Not => "logical_not",
            Question::BitNot => "bitwise_not",
            Question::IsNan => "isnan",
            Question::IsFinite => "isfinite",
            Question::IsInf => "isinf",
        }
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::elementwise(&shapes, &outputs[0].shape);
        match self {
            Question::Or => rule.pass(&[0, 1], &[Reduce::Any]),
            Question::And => rule.pass(&[0, 1], &[Reduce::All]),
            _ => {}
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let x = inputs[0];
        Ok(smallvec![match self {
            Question::Compare(op) => ops::compare(*op, x, inputs[1])?,
            Question::And => x.logical_and(inputs[1])?,
            Question::Or => x.logical_or(inputs[1])?,
            Question::Xor => x.logical_xor(inputs[1])?,
            Question::Not => x.logical_not()?,
            Question::BitNot => x.bit_not()?,
            Question::IsNan => x.is_nan()?,
            Question::IsFinite => x.is_finite()?,
            Question::IsInf => x.is_inf()?,
        }])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Ok((0..at.inputs()).map(|_| None).collect())
    }
}

impl Tensor {
    /// `x == y`.
    pub fn eq(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::Compare(Compare::Eq), &[self, y])
    }

    /// `x != y`.
    pub fn ne(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::Compare(Compare::Ne), &[self, y])
    }

    /// `x < y`.
    pub fn lt(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::Compare(Compare::Lt), &[self, y])
    }

    /// `x <= y`.
    pub fn le(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::Compare(Compare::Le), &[self, y])
    }

    /// `x > y`.
    pub fn gt(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::Compare(Compare::Gt), &[self, y])
    }

    /// `x >= y`.
    pub fn ge(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::Compare(Compare::Ge), &[self, y])
    }

    /// True where both are not 0.
    pub fn logical_and(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::And, &[self, y])
    }

    /// True where one is not 0.
    pub fn logical_or(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::Or, &[self, y])
    }

    /// True where exactly one is not 0.
    pub fn logical_xor(&self, y: &Tensor) -> Result<Tensor> {
        apply1(Question::Xor, &[self, y])
    }

    /// True where the element is 0.
    pub fn logical_not(&self) -> Result<Tensor> {
        apply1(Question::Not, &[self])
    }

    /// Every bit flipped; for bool, every truth value.
    pub fn bit_not(&self) -> Result<Tensor> {
        apply1(Question::BitNot, &[self])
    }

    /// True where the element is not a number.
    pub fn is_nan(&self) -> Result<Tensor> {
        apply1(Question::IsNan, &[self])
    }

    /// True where the element is neither infinite nor NaN.
    pub fn is_finite(&self) -> Result<Tensor> {
        apply1(Question::IsFinite, &[self])
    }

    /// True where the element is infinite.
    pub fn is_inf(&self) -> Result<Tensor> {
        apply1(Question::IsInf, &[self])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, _: &Attributes) -> Found {
    let others = [
        Question::And,
        Question::Or,
        Question::Xor,
        Question::Not,
        Question::BitNot,
        Question::IsNan,
        Question::IsFinite,
        Question::IsInf,
    ];
    let mut all = Compare::ALL.into_iter().map(Question::Compare).chain(others);
    all.find(|op| op.name() == name).and_then(found)
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let two = [Question::And, Question::Or, Question::Xor];
    let one = [Question::Not, Question::IsNan, Question::IsFinite, Question::IsInf];
    let shape = draw.shape_of(0, 3);
    let op = match draw.below(3) {
        0 => Question::Compare(draw.pick(&Compare::ALL)),
        1 => draw.pick(&two),
        _ => return Ok(Sample::new(draw.pick(&one), [draw.normal(&shape)?])),
    };
    let y = draw.broadcastable(&shape);
    let bound = if matches!(op, Question::Compare(_)) { 4 } else { 2 };
    Ok(Sample::new(op, [draw.integers(bound, &shape)?, draw.integers(bound, &y)?]))
}
