//! Elementwise ops of two inputs with broadcasting: arithmetic, extrema, bits.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::{self, Binary};
use planaria_array::{Array, DType, Scalar};
use planaria_layout::Reduce;
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// `x op y`, elementwise.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BinaryOp(pub(crate) Binary);

/// The names that ops are written down with.
fn name(op: Binary) -> &'static str {
    match op {
        Binary::Add => "add",
        Binary::Sub => "subtract",
        Binary::Mul => "multiply",
        Binary::Div => "divide",
        Binary::FloorDiv => "floor_divide",
        Binary::Rem => "remainder",
        Binary::Fmod => "fmod",
        Binary::Pow => "elementwise_pow",
        Binary::Atan2 => "atan2",
        Binary::Maximum => "maximum",
        Binary::Minimum => "minimum",
        Binary::Fmax => "fmax",
        Binary::Fmin => "fmin",
        Binary::BitAnd => "bitwise_and",
        Binary::BitOr => "bitwise_or",
        Binary::BitXor => "bitwise_xor",
        Binary::Shl => "bitwise_left_shift",
        Binary::Shr => "bitwise_right_shift",
    }
}

impl Op for BinaryOp {
    fn name(&self) -> &'static str {
        name(self.0)
    }

    fn attributes(&self) -> Attributes {
        Attributes::new()
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape, &inputs[1].shape], &outputs[0].shape);
        match self.0 {
            Binary::Add | Binary::Sub => rule.pass(&[0, 1], LINEAR),
            Binary::Mul => {
                rule.pass(&[0], LINEAR);
                rule.pass(&[1], LINEAR);
            }
            Binary::Div => rule.pass(&[0], LINEAR),
            Binary::Maximum | Binary::Fmax => rule.pass(&[0, 1], &[Reduce::Max]),
            Binary::Minimum | Binary::Fmin => rule.pass(&[0, 1], &[Reduce::Min]),
            _ => {}
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![ops::binary(self.0, inputs[0], inputs[1])?])
    }

    fn saves(&self, needs: &Places) -> Saves {
        match self.0 {
            Binary::Add | Binary::Sub => Saves::nothing(),
            // Each factor is needed for the gradient of the other.
            Binary::Mul => {
                Saves { inputs: [needs.has(1), needs.has(0)].into_iter().collect(), ..Saves::default() }
            }
            Binary::Div if !needs.has(1) => Saves::inputs(&[1]),
            Binary::Rem | Binary::Fmod if !needs.has(1) => Saves::nothing(),
            _ => Saves::inputs(&[0, 1]),
        }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None]) };
        let to_input = |i: usize, grad: Tensor| grad.sum_to(&at.input_spec(i).shape);
        let dx = at.needs(0).then(|| to_input(0, self.first(at, dy)?)).transpose()?;
        let dy = at.needs(1).then(|| to_input(1, self.second(at, dy)?)).transpose()?;
        Ok(smallvec![dx, dy])
    }
}

impl BinaryOp {
    /// Gradient of the first input, before broadcasting is undone.
    fn first(self, at: &Backward<'_>, dy: &Tensor) -> Result<Tensor> {
        match self.0 {
            Binary::Add | Binary::Sub | Binary::Rem | Binary::Fmod => Ok(dy.clone()),
            Binary::Mul => dy.mul(&at.input(1)?),
            Binary::Div => dy.div(&at.input(1)?),
            Binary::Pow => {
                let (x, y) = (at.input(0)?, at.input(1)?);
                // Where the exponent is 0 the derivative is 0, also at x = 0.
                let slope = y.mul(&x.pow(&y.add_scalar(-1.0)?)?)?;
                let none = y.eq(&y.zero()?)?;
                dy.mul(&slope.masked_fill(&none, 0.0)?)
            }
            Binary::Atan2 => {
                let (x, y) = (at.input(0)?, at.input(1)?);
                dy.mul(&y)?.div(&x.square()?.add(&y.square()?)?)
            }
            Binary::Maximum | Binary::Minimum | Binary::Fmax | Binary::Fmin => self.share(at, dy, 0),
            _ => Err(self.undefined()),
        }
    }

    /// Gradient of the second input, before broadcasting is undone.
    fn second(self, at: &Backward<'_>, dy: &Tensor) -> Result<Tensor> {
        match self.0 {
            Binary::Add => Ok(dy.clone()),
            Binary::Sub => dy.neg(),
            Binary::Mul => dy.mul(&at.input(0)?),
            Binary::Div => {
                let (x, y) = (at.input(0)?, at.input(1)?);
                dy.mul(&x)?.div(&y.square()?)?.neg()
            }
            Binary::Rem => dy.mul(&at.input(0)?.div(&at.input(1)?)?.floor()?)?.neg(),
            Binary::Fmod => dy.mul(&at.input(0)?.div(&at.input(1)?)?.trunc()?)?.neg(),
            Binary::Pow => {
                let (x, y) = (at.input(0)?, at.input(1)?);
                let slope = x.pow(&y)?.mul(&x.ln()?)?;
                // 0 to a power of at least 0 does not change with the power.
                let flat = x.eq(&x.zero()?)?.logical_and(&y.ge(&y.zero()?)?)?;
                dy.mul(&slope.masked_fill(&flat, 0.0)?)
            }
            Binary::Atan2 => {
                let (x, y) = (at.input(0)?, at.input(1)?);
                dy.mul(&x)?.div(&x.square()?.add(&y.square()?)?)?.neg()
            }
            Binary::Maximum | Binary::Minimum | Binary::Fmax | Binary::Fmin => self.share(at, dy, 1),
            _ => Err(self.undefined()),
        }
    }

    /// The gradient goes to the input that was chosen; equal inputs of maximum and minimum share it, and the first
    /// of fmax and fmin takes it.
    fn share(self, at: &Backward<'_>, dy: &Tensor, input: usize) -> Result<Tensor> {
        let (x, y) = (at.input(0)?, at.input(1)?);
        let (mine, other) = if input == 0 { (&x, &y) } else { (&y, &x) };
        let (wins, is_shared) = match self.0 {
            Binary::Maximum => (mine.gt(other)?, true),
            Binary::Minimum => (mine.lt(other)?, true),
            Binary::Fmax if input == 0 => (mine.ge(other)?.logical_or(&other.is_nan()?)?, false),
            Binary::Fmax => (other.ge(mine)?.logical_or(&mine.is_nan()?)?.logical_not()?, false),
            Binary::Fmin if input == 0 => (mine.le(other)?.logical_or(&other.is_nan()?)?, false),
            _ => (other.le(mine)?.logical_or(&mine.is_nan()?)?.logical_not()?, false),
        };
        let won = dy.mul(&wins.cast(dy.dtype())?)?;
        if !is_shared {
            return Ok(won);
        }
        let tied = mine.eq(other)?.cast(dy.dtype())?.mul_scalar(0.5)?;
        won.add(&dy.mul(&tied)?)
    }

    fn undefined(self) -> Error {
        Error::NotDifferentiable { op: name(self.0), reason: "it has no derivative" }
    }
}

impl Tensor {
    /// Any of the two-input ops.
    pub fn binary(&self, op: Binary, y: &Tensor) -> Result<Tensor> {
        apply1(BinaryOp(op), &[self, y])
    }

    /// `x + y`.
    pub fn add(&self, y: &Tensor) -> Result<Tensor> {
        self.binary(Binary::Add, y)
    }

    /// `x - y`.
    pub fn sub(&self, y: &Tensor) -> Result<Tensor> {
        self.binary(Binary::Sub, y)
    }

    /// `x * y`.
    pub fn mul(&self, y: &Tensor) -> Result<Tensor> {
        self.binary(Binary::Mul, y)
    }

    /// `x / y`.
    pub fn div(&self, y: &Tensor) -> Result<Tensor> {
        self.binary(Binary::Div, y)
    }

    /// `x` to the power `y`.
    pub fn pow(&self, y: &Tensor) -> Result<Tensor> {
        self.binary(Binary::Pow, y)
    }

    /// The angle of the point (`y`, `self`).
    pub fn atan2(&self, y: &Tensor) -> Result<Tensor> {
        self.binary(Binary::Atan2, y)
    }

    /// The larger of each pair.
    pub fn maximum(&self, y: &Tensor) -> Result<Tensor> {
        self.binary(Binary::Maximum, y)
    }

    /// The smaller of each pair.
    pub fn minimum(&self, y: &Tensor) -> Result<Tensor> {
        self.binary(Binary::Minimum, y)
    }

    /// `x + value`.
    pub fn add_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.add(&Tensor::new(Array::scalar(value, self.dtype())?))
    }

    /// `x * value`.
    pub fn mul_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.mul(&Tensor::new(Array::scalar(value, self.dtype())?))
    }

    /// A zero of this dtype, which broadcasts.
    pub(crate) fn zero(&self) -> Result<Tensor> {
        Ok(Tensor::new(Array::scalar(0.0, self.dtype())?))
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, _: &Attributes) -> Found {
    Binary::ALL.into_iter().find(|&op| self::name(op) == name).and_then(|op| found(BinaryOp(op)))
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let op = draw.pick(&[
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Pow,
        Binary::Atan2,
        Binary::Maximum,
        Binary::Minimum,
        Binary::Fmax,
        Binary::Fmin,
        Binary::Rem,
        Binary::Fmod,
    ]);
    let shape = draw.shape_of(0, 3);
    let (a, b) = (draw.broadcastable(&shape), shape);
    let positive = matches!(op, Binary::Pow | Binary::Div | Binary::Atan2 | Binary::Rem | Binary::Fmod);
    let mut values =
        |shape: &[usize]| if positive { draw.between(0.5, 2.0, shape) } else { draw.distinct(shape) };
    // Off by an eighth, so that no pair is equal: there the gradient jumps.
    let (x, y) = (values(&a)?, values(&b)?.add(&Array::scalar(0.125, DType::F64)?)?);
    Ok(Sample::new(BinaryOp(op), if draw.coin() { [x, y] } else { [y, x] }))
}
