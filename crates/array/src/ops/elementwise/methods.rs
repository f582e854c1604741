//! The elementwise operations as methods, under the names users of NumPy and PyTorch look for.

use super::{Binary, Compare, Unary, binary, bit_not, compare, unary};
use crate::array::Array;
use crate::error::Result;
use planaria_layout::DType;

impl Array {
    /// Minus the element; integers wrap.
    pub fn neg(&self) -> Result<Array> {
        unary(Unary::Neg, self)
    }

    /// Absolute value; integers wrap at the minimum.
    pub fn abs(&self) -> Result<Array> {
        unary(Unary::Abs, self)
    }

    /// -1, 0 or 1; NaN and signed zeros stay.
    pub fn sign(&self) -> Result<Array> {
        unary(Unary::Sign, self)
    }

    /// The element times itself.
    pub fn square(&self) -> Result<Array> {
        unary(Unary::Square, self)
    }

    /// Square root.
    pub fn sqrt(&self) -> Result<Array> {
        unary(Unary::Sqrt, self)
    }

    /// 1 / sqrt(x).
    pub fn rsqrt(&self) -> Result<Array> {
        unary(Unary::Rsqrt, self)
    }

    /// 1 / x.
    pub fn reciprocal(&self) -> Result<Array> {
        unary(Unary::Reciprocal, self)
    }

    /// e^x.
    pub fn exp(&self) -> Result<Array> {
        unary(Unary::Exp, self)
    }

    /// 2^x.
    pub fn exp2(&self) -> Result<Array> {
        unary(Unary::Exp2, self)
    }

    /// e^x - 1, accurate near 0.
    pub fn exp_m1(&self) -> Result<Array> {
        unary(Unary::ExpM1, self)
    }

    /// Natural logarithm.
    pub fn ln(&self) -> Result<Array> {
        unary(Unary::Ln, self)
    }

    /// ln(1 + x), accurate near 0.
    pub fn ln_1p(&self) -> Result<Array> {
        unary(Unary::Ln1p, self)
    }

    /// Logarithm to base 2.
    pub fn log2(&self) -> Result<Array> {
        unary(Unary::Log2, self)
    }

    /// Logarithm to base 10.
    pub fn log10(&self) -> Result<Array> {
        unary(Unary::Log10, self)
    }

    /// Sine.
    pub fn sin(&self) -> Result<Array> {
        unary(Unary::Sin, self)
    }

    /// Cosine.
    pub fn cos(&self) -> Result<Array> {
        unary(Unary::Cos, self)
    }

    /// Tangent.
    pub fn tan(&self) -> Result<Array> {
        unary(Unary::Tan, self)
    }

    /// Inverse sine.
    pub fn asin(&self) -> Result<Array> {
        unary(Unary::Asin, self)
    }

    /// Inverse cosine.
    pub fn acos(&self) -> Result<Array> {
        unary(Unary::Acos, self)
    }

    /// Inverse tangent.
    pub fn atan(&self) -> Result<Array> {
        unary(Unary::Atan, self)
    }

    /// Hyperbolic sine.
    pub fn sinh(&self) -> Result<Array> {
        unary(Unary::Sinh, self)
    }

    /// Hyperbolic cosine.
    pub fn cosh(&self) -> Result<Array> {
        unary(Unary::Cosh, self)
    }

    /// Hyperbolic tangent.
    pub fn tanh(&self) -> Result<Array> {
        unary(Unary::Tanh, self)
    }

    /// Inverse hyperbolic sine.
    pub fn asinh(&self) -> Result<Array> {
        unary(Unary::Asinh, self)
    }

    /// Inverse hyperbolic cosine.
    pub fn acosh(&self) -> Result<Array> {
        unary(Unary::Acosh, self)
    }

    /// Inverse hyperbolic tangent.
    pub fn atanh(&self) -> Result<Array> {
        unary(Unary::Atanh, self)
    }

    /// Error function.
    pub fn erf(&self) -> Result<Array> {
        unary(Unary::Erf, self)
    }

    /// Complementary error function.
    pub fn erfc(&self) -> Result<Array> {
        unary(Unary::Erfc, self)
    }

    /// 1 / (1 + e^-x).
    pub fn sigmoid(&self) -> Result<Array> {
        unary(Unary::Sigmoid, self)
    }

    /// ln(sigmoid(x)) without underflow.
    pub fn log_sigmoid(&self) -> Result<Array> {
        unary(Unary::LogSigmoid, self)
    }

    /// max(x, 0).
    pub fn relu(&self) -> Result<Array> {
        unary(Unary::Relu, self)
    }

    /// x times the normal distribution function, exact.
    pub fn gelu(&self) -> Result<Array> {
        unary(Unary::Gelu, self)
    }

    /// The tanh approximation of gelu.
    pub fn gelu_tanh(&self) -> Result<Array> {
        unary(Unary::GeluTanh, self)
    }

    /// x * sigmoid(x).
    pub fn silu(&self) -> Result<Array> {
        unary(Unary::Silu, self)
    }

    /// ln(1 + e^x) without overflow.
    pub fn softplus(&self) -> Result<Array> {
        unary(Unary::Softplus, self)
    }

    /// Largest integer not above.
    pub fn floor(&self) -> Result<Array> {
        unary(Unary::Floor, self)
    }

    /// Smallest integer not below.
    pub fn ceil(&self) -> Result<Array> {
        unary(Unary::Ceil, self)
    }

    /// Integer part.
    pub fn trunc(&self) -> Result<Array> {
        unary(Unary::Trunc, self)
    }

    /// Nearest integer, ties to even.
    pub fn round(&self) -> Result<Array> {
        unary(Unary::Round, self)
    }

    /// x + y; integers wrap.
    pub fn add(&self, y: &Array) -> Result<Array> {
        binary(Binary::Add, self, y)
    }

    /// x - y; integers wrap.
    pub fn sub(&self, y: &Array) -> Result<Array> {
        binary(Binary::Sub, self, y)
    }

    /// x * y; integers wrap.
    pub fn mul(&self, y: &Array) -> Result<Array> {
        binary(Binary::Mul, self, y)
    }

    /// x / y, floats only.
    pub fn div(&self, y: &Array) -> Result<Array> {
        binary(Binary::Div, self, y)
    }

    /// Quotient rounded down; integer division by zero is an error.
    pub fn floor_div(&self, y: &Array) -> Result<Array> {
        binary(Binary::FloorDiv, self, y)
    }

    /// Remainder with the sign of the divisor, as in Python.
    pub fn rem(&self, y: &Array) -> Result<Array> {
        binary(Binary::Rem, self, y)
    }

    /// Remainder with the sign of the dividend, as in C.
    pub fn fmod(&self, y: &Array) -> Result<Array> {
        binary(Binary::Fmod, self, y)
    }

    /// x to the power y.
    pub fn pow(&self, y: &Array) -> Result<Array> {
        binary(Binary::Pow, self, y)
    }

    /// Angle of the point (y, x): `self` is the first coordinate named y in mathematics.
    pub fn atan2(&self, y: &Array) -> Result<Array> {
        binary(Binary::Atan2, self, y)
    }

    /// The larger; NaN wins.
    pub fn maximum(&self, y: &Array) -> Result<Array> {
        binary(Binary::Maximum, self, y)
    }

    /// The smaller; NaN wins.
    pub fn minimum(&self, y: &Array) -> Result<Array> {
        binary(Binary::Minimum, self, y)
    }

    /// The larger; a number wins over NaN.
    pub fn fmax(&self, y: &Array) -> Result<Array> {
        binary(Binary::Fmax, self, y)
    }

    /// The smaller; a number wins over NaN.
    pub fn fmin(&self, y: &Array) -> Result<Array> {
        binary(Binary::Fmin, self, y)
    }

    /// Bitwise and; logical and for bool.
    pub fn bit_and(&self, y: &Array) -> Result<Array> {
        binary(Binary::BitAnd, self, y)
    }

    /// Bitwise or; logical or for bool.
    pub fn bit_or(&self, y: &Array) -> Result<Array> {
        binary(Binary::BitOr, self, y)
    }

    /// Bitwise exclusive or.
    pub fn bit_xor(&self, y: &Array) -> Result<Array> {
        binary(Binary::BitXor, self, y)
    }

    /// Bits shifted left; shifting all out gives 0.
    pub fn shl(&self, y: &Array) -> Result<Array> {
        binary(Binary::Shl, self, y)
    }

    /// Bits shifted right, keeping the sign.
    pub fn shr(&self, y: &Array) -> Result<Array> {
        binary(Binary::Shr, self, y)
    }

    /// x == y.
    pub fn eq(&self, y: &Array) -> Result<Array> {
        compare(Compare::Eq, self, y)
    }

    /// x != y.
    pub fn ne(&self, y: &Array) -> Result<Array> {
        compare(Compare::Ne, self, y)
    }

    /// x < y.
    pub fn lt(&self, y: &Array) -> Result<Array> {
        compare(Compare::Lt, self, y)
    }

    /// x <= y.
    pub fn le(&self, y: &Array) -> Result<Array> {
        compare(Compare::Le, self, y)
    }

    /// x > y.
    pub fn gt(&self, y: &Array) -> Result<Array> {
        compare(Compare::Gt, self, y)
    }

    /// x >= y.
    pub fn ge(&self, y: &Array) -> Result<Array> {
        compare(Compare::Ge, self, y)
    }

    /// Flips every bit; logical not for bool.
    pub fn bit_not(&self) -> Result<Array> {
        bit_not(self)
    }

    /// True where the element is zero; any dtype.
    pub fn logical_not(&self) -> Result<Array> {
        bit_not(&self.cast(DType::Bool)?)
    }

    /// True where both are non-zero; any dtypes.
    pub fn logical_and(&self, y: &Array) -> Result<Array> {
        binary(Binary::BitAnd, &self.cast(DType::Bool)?, &y.cast(DType::Bool)?)
    }

    /// True where either is non-zero; any dtypes.
    pub fn logical_or(&self, y: &Array) -> Result<Array> {
        binary(Binary::BitOr, &self.cast(DType::Bool)?, &y.cast(DType::Bool)?)
    }

    /// True where exactly one is non-zero; any dtypes.
    pub fn logical_xor(&self, y: &Array) -> Result<Array> {
        binary(Binary::BitXor, &self.cast(DType::Bool)?, &y.cast(DType::Bool)?)
    }

    /// True where the element is NaN.
    pub fn is_nan(&self) -> Result<Array> {
        self.ne(self)
    }

    /// True where the element is neither NaN nor infinite.
    pub fn is_finite(&self) -> Result<Array> {
        match self.dtype() {
            // x - x is 0 for finite x, NaN for infinities and NaN.
            d if d.is_float() => {
                let zero = self.sub(self)?;
                zero.eq(&zero)
            }
            _ => self.eq(self),
        }
    }

    /// True where the element is an infinity.
    pub fn is_inf(&self) -> Result<Array> {
        self.is_finite()?.bit_or(&self.is_nan()?)?.logical_not()
    }
}
