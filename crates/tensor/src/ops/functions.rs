//! Methods that apply a function of one argument to every element; the ops are in `unary.rs`.

use crate::error::Result;
use crate::tensor::Tensor;
use planaria_array::ops::Unary;

impl Tensor {
    /// `-x`.
    pub fn neg(&self) -> Result<Tensor> {
        self.unary(Unary::Neg)
    }

    /// `|x|`.
    pub fn abs(&self) -> Result<Tensor> {
        self.unary(Unary::Abs)
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> Result<Tensor> {
        self.unary(Unary::Sign)
    }

    /// `x²`.
    pub fn square(&self) -> Result<Tensor> {
        self.unary(Unary::Square)
    }

    /// `√x`.
    pub fn sqrt(&self) -> Result<Tensor> {
        self.unary(Unary::Sqrt)
    }

    /// `1/√x`.
    pub fn rsqrt(&self) -> Result<Tensor> {
        self.unary(Unary::Rsqrt)
    }

    /// `1/x`.
    pub fn reciprocal(&self) -> Result<Tensor> {
        self.unary(Unary::Reciprocal)
    }

    /// `eˣ`.
    pub fn exp(&self) -> Result<Tensor> {
        self.unary(Unary::Exp)
    }

    /// `2ˣ`.
    pub fn exp2(&self) -> Result<Tensor> {
        self.unary(Unary::Exp2)
    }

    /// `eˣ - 1`, also near 0.
    pub fn exp_m1(&self) -> Result<Tensor> {
        self.unary(Unary::ExpM1)
    }

    /// Natural logarithm.
    pub fn ln(&self) -> Result<Tensor> {
        self.unary(Unary::Ln)
    }

    /// `ln(1 + x)`, also near 0.
    pub fn ln_1p(&self) -> Result<Tensor> {
        self.unary(Unary::Ln1p)
    }

    /// Logarithm to base 2.
    pub fn log2(&self) -> Result<Tensor> {
        self.unary(Unary::Log2)
    }

    /// Logarithm to base 10.
    pub fn log10(&self) -> Result<Tensor> {
        self.unary(Unary::Log10)
    }

    /// Sine.
    pub fn sin(&self) -> Result<Tensor> {
        self.unary(Unary::Sin)
    }

    /// Cosine.
    pub fn cos(&self) -> Result<Tensor> {
        self.unary(Unary::Cos)
    }

    /// Tangent.
    pub fn tan(&self) -> Result<Tensor> {
        self.unary(Unary::Tan)
    }

    /// Inverse sine.
    pub fn asin(&self) -> Result<Tensor> {
        self.unary(Unary::Asin)
    }

    /// Inverse cosine.
    pub fn acos(&self) -> Result<Tensor> {
        self.unary(Unary::Acos)
    }

    /// Inverse tangent.
    pub fn atan(&self) -> Result<Tensor> {
        self.unary(Unary::Atan)
    }

    /// Hyperbolic sine.
    pub fn sinh(&self) -> Result<Tensor> {
        self.unary(Unary::Sinh)
    }

    /// Hyperbolic cosine.
    pub fn cosh(&self) -> Result<Tensor> {
        self.unary(Unary::Cosh)
    }

    /// Hyperbolic tangent.
    pub fn tanh(&self) -> Result<Tensor> {
        self.unary(Unary::Tanh)
    }

    /// Inverse hyperbolic sine.
    pub fn asinh(&self) -> Result<Tensor> {
        self.unary(Unary::Asinh)
    }

    /// Inverse hyperbolic cosine.
    pub fn acosh(&self) -> Result<Tensor> {
        self.unary(Unary::Acosh)
    }

    /// Inverse hyperbolic tangent.
    pub fn atanh(&self) -> Result<Tensor> {
        self.unary(Unary::Atanh)
    }

    /// The error function.
    pub fn erf(&self) -> Result<Tensor> {
        self.unary(Unary::Erf)
    }

    /// `1 - erf(x)`, also for large x.
    pub fn erfc(&self) -> Result<Tensor> {
        self.unary(Unary::Erfc)
    }

    /// `1/(1 + e⁻ˣ)`.
    pub fn sigmoid(&self) -> Result<Tensor> {
        self.unary(Unary::Sigmoid)
    }

    /// `ln sigmoid(x)`, also for large negative x.
    pub fn log_sigmoid(&self) -> Result<Tensor> {
        self.unary(Unary::LogSigmoid)
    }

    /// `max(x, 0)`.
    pub fn relu(&self) -> Result<Tensor> {
        self.unary(Unary::Relu)
    }

    /// `x Φ(x)`.
    pub fn gelu(&self) -> Result<Tensor> {
        self.unary(Unary::Gelu)
    }

    /// `x Φ(x)` by its tanh approximation.
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        self.unary(Unary::GeluTanh)
    }

    /// `x sigmoid(x)`.
    pub fn silu(&self) -> Result<Tensor> {
        self.unary(Unary::Silu)
    }

    /// `ln(1 + eˣ)`, also for large x.
    pub fn softplus(&self) -> Result<Tensor> {
        self.unary(Unary::Softplus)
    }

    /// Rounds down.
    pub fn floor(&self) -> Result<Tensor> {
        self.unary(Unary::Floor)
    }

    /// Rounds up.
    pub fn ceil(&self) -> Result<Tensor> {
        self.unary(Unary::Ceil)
    }

    /// Rounds towards 0.
    pub fn trunc(&self) -> Result<Tensor> {
        self.unary(Unary::Trunc)
    }

    /// Rounds to the nearest, halves to even.
    pub fn round(&self) -> Result<Tensor> {
        self.unary(Unary::Round)
    }
}
