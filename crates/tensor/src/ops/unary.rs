//! Elementwise ops of one input that keep the dtype: functions, activations, rounding.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{self, Activation, Unary};
use planaria_layout::rule::{self, INCREASING, LINEAR, Rule};
use smallvec::smallvec;
use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

/// `f(x)`, elementwise.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnaryOp(pub(crate) Unary);

/// The names that ops are written down with.
fn name(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "negative",
        Unary::Abs => "abs",
        Unary::Sign => "sign",
        Unary::Square => "square",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "rsqrt",
        Unary::Reciprocal => "reciprocal",
        Unary::Exp => "exp",
        Unary::Exp2 => "exp2",
        Unary::ExpM1 => "expm1",
        Unary::Ln => "log",
        Unary::Ln1p => "log1p",
        Unary::Log2 => "log2",
        Unary::Log10 => "log10",
        Unary::Sin => "sin",
        Unary::Cos => "cos",
        Unary::Tan => "tan",
        Unary::Asin => "asin",
        Unary::Acos => "acos",
        Unary::Atan => "atan",
        Unary::Sinh => "sinh",
        Unary::Cosh => "cosh",
        Unary::Tanh => "tanh",
        Unary::Asinh => "asinh",
        Unary::Acosh => "acosh",
        Unary::Atanh => "atanh",
        Unary::Erf => "erf",
        Unary::Erfc => "erfc",
        Unary::Sigmoid => "sigmoid",
        Unary::LogSigmoid => "logsigmoid",
        Unary::Relu => "relu",
        Unary::Gelu => "gelu",
        Unary::GeluTanh => "gelu_tanh",
        Unary::Silu => "silu",
        Unary::Softplus => "softplus",
        Unary::Floor => "floor",
        Unary::Ceil => "ceil",
        Unary::Trunc => "trunc",
        Unary::Round => "round",
    }
}

/// What the gradient is written with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uses {
    Nothing,
    Input,
    Output,
}

fn uses(op: Unary) -> Uses {
    match op {
        Unary::Neg | Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round => Uses::Nothing,
        Unary::Sqrt
        | Unary::Rsqrt
        | Unary::Reciprocal
        | Unary::Exp
        | Unary::Exp2
        | Unary::ExpM1
        | Unary::Tan => Uses::Output,
        Unary::Tanh | Unary::Sigmoid | Unary::Relu => Uses::Output,
        _ => Uses::Input,
    }
}

/// True for functions that never fall and are defined everywhere: they commute with maxima and minima. A logarithm
/// does not, because a contribution that is not the maximum may be negative.
fn is_increasing(op: Unary) -> bool {
    use Unary::*;
    let smooth =
        matches!(op, Exp | Exp2 | ExpM1 | Atan | Sinh | Tanh | Asinh | Erf | Sigmoid | LogSigmoid | Softplus);
    smooth || matches!(op, Sign | Relu | Floor | Ceil | Trunc | Round)
}

impl Op for UnaryOp {
    fn name(&self) -> &'static str {
        name(self.0)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape], &outputs[0].shape);
        if self.0 == Unary::Neg {
            rule.pass(&[0], LINEAR);
        } else if is_increasing(self.0) {
            rule.pass(&[0], INCREASING);
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![ops::unary(self.0, inputs[0])?])
    }

    fn saves(&self, _: &Places) -> Saves {
        match uses(self.0) {
            Uses::Nothing => Saves::nothing(),
            Uses::Input => Saves::inputs(&[0]),
            Uses::Output => Saves::outputs(&[0]),
        }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        if let Some(kind) = activation(self.0)
            && !at.is_differentiable()
        {
            let saved = if uses(self.0) == Uses::Output { at.output(0)? } else { at.input(0)? };
            return Ok(smallvec![Some(apply1(ActivationGrad(kind), &[&saved, dy])?)]);
        }
        let dx = match uses(self.0) {
            Uses::Nothing if self.0 == Unary::Neg => dy.neg()?,
            Uses::Nothing => dy.zeros_like()?,
            Uses::Output => from_output(self.0, &at.output(0)?, dy)?,
            Uses::Input => from_input(self.0, &at.input(0)?, dy)?,
        };
        Ok(smallvec![Some(dx)])
    }
}

/// `dy f'(x)` for functions whose derivative is written with their value.
fn from_output(op: Unary, y: &Tensor, dy: &Tensor) -> Result<Tensor> {
    match op {
        Unary::Sqrt => dy.div(&y.mul_scalar(2.0)?),
        Unary::Rsqrt => dy.mul(&y.mul(&y.square()?)?.mul_scalar(-0.5)?),
        Unary::Reciprocal => dy.mul(&y.square()?)?.neg(),
        Unary::Exp => dy.mul(y),
        Unary::Exp2 => dy.mul(&y.mul_scalar(LN_2)?),
        Unary::ExpM1 => dy.mul(&y.add_scalar(1.0)?),
        Unary::Tan => dy.mul(&y.square()?.add_scalar(1.0)?),
        Unary::Tanh => dy.mul(&y.square()?.neg()?.add_scalar(1.0)?),
        Unary::Sigmoid => dy.mul(&y.mul(&y.neg()?.add_scalar(1.0)?)?),
        _ => dy.mul(&y.gt(&y.zero()?)?.cast(dy.dtype())?),
    }
}

/// `dy f'(x)` for functions whose derivative is written with their argument.
fn from_input(op: Unary, x: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let over = |scale: f64, below: Tensor| dy.mul_scalar(scale)?.div(&below);
    match op {
        Unary::Abs => dy.mul(&x.sign()?),
        Unary::Square => dy.mul(&x.mul_scalar(2.0)?),
        Unary::Ln => dy.div(x),
        Unary::Ln1p => over(1.0, x.add_scalar(1.0)?),
        Unary::Log2 => over(1.0 / LN_2, x.clone()),
        Unary::Log10 => over(1.0 / LN_10, x.clone()),
        Unary::Sin => dy.mul(&x.cos()?),
        Unary::Cos => dy.mul(&x.sin()?)?.neg(),
        Unary::Asin => dy.mul(&x.square()?.neg()?.add_scalar(1.0)?.rsqrt()?),
        Unary::Acos => dy.mul(&x.square()?.neg()?.add_scalar(1.0)?.rsqrt()?)?.neg(),
        Unary::Atan => over(1.0, x.square()?.add_scalar(1.0)?),
        Unary::Sinh => dy.mul(&x.cosh()?),
        Unary::Cosh => dy.mul(&x.sinh()?),
        Unary::Asinh => dy.mul(&x.square()?.add_scalar(1.0)?.rsqrt()?),
        Unary::Acosh => dy.mul(&x.square()?.add_scalar(-1.0)?.rsqrt()?),
        Unary::Atanh => over(1.0, x.square()?.neg()?.add_scalar(1.0)?),
        Unary::Erf => dy.mul(&bell(x)?),
        Unary::Erfc => dy.mul(&bell(x)?)?.neg(),
        Unary::LogSigmoid => dy.mul(&x.neg()?.sigmoid()?),
        Unary::Softplus => dy.mul(&x.sigmoid()?),
        Unary::Silu => {
            let s = x.sigmoid()?;
            let slope = s.add(&x.mul(&s.mul(&s.neg()?.add_scalar(1.0)?)?)?)?;
            dy.mul(&slope)
        }
        Unary::Gelu => {
            // Φ(x) + x φ(x)
            let half = std::f64::consts::FRAC_1_SQRT_2;
            let below = x.mul_scalar(half)?.erf()?.add_scalar(1.0)?.mul_scalar(0.5)?;
            let density = x.square()?.mul_scalar(-0.5)?.exp()?.mul_scalar(0.5 * half * FRAC_2_SQRT_PI)?;
            dy.mul(&below.add(&x.mul(&density)?)?)
        }
        _ => {
            // 0.5 (1 + t) + 0.5 x (1 - t²) u', with t = tanh(u) and u = c (x + a x³)
            let (c, a) = (FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2, 0.044715);
            let x2 = x.square()?;
            let t = x.mul(&x2.mul_scalar(a)?.add_scalar(1.0)?)?.mul_scalar(c)?.tanh()?;
            let inner = x2.mul_scalar(3.0 * a)?.add_scalar(1.0)?.mul_scalar(c)?;
            let curve = x.mul(&t.square()?.neg()?.add_scalar(1.0)?)?.mul(&inner)?;
            dy.mul(&t.add_scalar(1.0)?.add(&curve)?.mul_scalar(0.5)?)
        }
    }
}

/// `2/√π exp(-x²)`, the derivative of erf.
fn bell(x: &Tensor) -> Result<Tensor> {
    x.square()?.neg()?.exp()?.mul_scalar(FRAC_2_SQRT_PI)
}

fn activation(op: Unary) -> Option<Activation> {
    Some(match op {
        Unary::Relu => Activation::Relu,
        Unary::Sigmoid => Activation::Sigmoid,
        Unary::Tanh => Activation::Tanh,
        Unary::Silu => Activation::Silu,
        Unary::Softplus => Activation::Softplus,
        Unary::Gelu => Activation::Gelu,
        Unary::GeluTanh => Activation::GeluTanh,
        _ => return None,
    })
}

/// The fused gradient of an activation, where it will not itself be differentiated.
#[derive(Debug, Clone, Copy)]
struct ActivationGrad(Activation);

impl Op for ActivationGrad {
    fn name(&self) -> &'static str {
        match self.0 {
            Activation::Relu => "relu_grad",
            Activation::Sigmoid => "sigmoid_grad",
            Activation::Tanh => "tanh_grad",
            Activation::Silu => "silu_grad",
            Activation::Softplus => "softplus_grad",
            Activation::Gelu => "gelu_grad",
            Activation::GeluTanh => "gelu_tanh_grad",
        }
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::elementwise(&[&inputs[0].shape, &inputs[1].shape], &outputs[0].shape);
        rule.pass(&[1], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        Ok(smallvec![ops::activation_grad(self.0, inputs[0], inputs[1])?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(super::fused_only(self.name()))
    }
}

impl Tensor {
    /// Any of the one-input ops.
    pub fn unary(&self, op: Unary) -> Result<Tensor> {
        apply1(UnaryOp(op), &[self])
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, _: &Attributes) -> Found {
    let grads = [
        Activation::Relu,
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Silu,
        Activation::Softplus,
        Activation::Gelu,
        Activation::GeluTanh,
    ];
    if let Some(of) = grads.into_iter().find(|&of| ActivationGrad(of).name() == name) {
        return found(ActivationGrad(of));
    }
    Unary::ALL.into_iter().find(|&op| self::name(op) == name).and_then(|op| found(UnaryOp(op)))
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let op = draw.pick(&Unary::ALL);
    let shape = draw.shape_of(0, 3);
    let (low, high) = match op {
        Unary::Asin | Unary::Acos | Unary::Atanh => (-0.9, 0.9),
        Unary::Acosh => (1.1, 3.0),
        Unary::Sqrt | Unary::Rsqrt | Unary::Reciprocal | Unary::Ln | Unary::Log2 | Unary::Log10 => (0.2, 3.0),
        Unary::Ln1p => (-0.5, 2.0),
        _ => (-1.4, 1.4),
    };
    Ok(Sample::new(UnaryOp(op), [draw.between(low, high, &shape)?]))
}
