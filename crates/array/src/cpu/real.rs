//! The two types kernels compute in, and the element types that widen to them.

use super::math;
pub(crate) use crate::dispatch::with_float;
use crate::element::Element;
use half::{bf16, f16};
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// f32 or f64: what sums, norms and exponentials are computed in.
pub(crate) trait Real:
    Element
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;
    fn of(x: f64) -> Self;
    fn f64(self) -> f64;
    fn exp(self) -> Self;
    /// e^x for x up to 88; results too small for a normal number may be 0.
    fn exp_down(self) -> Self;
    fn ln(self) -> Self;
    fn ln_1p(self) -> Self;
    fn exp_m1(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    /// x times the normal distribution function.
    fn gelu(self) -> Self;
    /// The derivative of `gelu`.
    fn gelu_slope(self) -> Self;
    fn sqrt(self) -> Self;
    fn abs(self) -> Self;
    fn mul_add(self, a: Self, b: Self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    fn round_ties_even(self) -> Self;
    /// Remainder with the sign of the dividend, as C's `fmod`.
    fn fmod(self, y: Self) -> Self;
    /// Its magnitude with the sign of another, as C's `copysign`.
    fn signed_as(self, sign: Self) -> Self;
    /// The larger; NaN if either is NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other || self.is_nan() { self } else { other }
    }
    /// The smaller; NaN if either is NaN.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self < other || self.is_nan() { self } else { other }
    }
    #[inline(always)]
    #[allow(clippy::eq_op)]
    fn is_nan(self) -> bool {
        self != self
    }
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
}

macro_rules! real {
    ($t:ident, $exp:path, $exp_down:path, $ln:path, $ln_1p:path, $exp_m1:path, $tanh:path, $erf:path, $gelu:path, $gelu_slope:path) => {
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const NEG_INFINITY: $t = $t::NEG_INFINITY;
            #[inline(always)]
            fn of(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn exp(self) -> $t {
                $exp(self)
            }
            #[inline(always)]
            fn exp_down(self) -> $t {
                $exp_down(self)
            }
            #[inline(always)]
            fn ln(self) -> $t {
                $ln(self)
            }
            #[inline(always)]
            fn ln_1p(self) -> $t {
                $ln_1p(self)
            }
            #[inline(always)]
            fn exp_m1(self) -> $t {
                $exp_m1(self)
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                $tanh(self)
            }
            #[inline(always)]
            fn erf(self) -> $t {
                $erf(self)
            }
            #[inline(always)]
            fn gelu(self) -> $t {
                $gelu(self)
            }
            #[inline(always)]
            fn gelu_slope(self) -> $t {
                $gelu_slope(self)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                $t::sqrt(self)
            }
            #[inline(always)]
            fn abs(self) -> $t {
                $t::abs(self)
            }
            #[inline(always)]
            fn mul_add(self, a: $t, b: $t) -> $t {
                $t::mul_add(self, a, b)
            }
            #[inline(always)]
            fn floor(self) -> $t {
                $t::floor(self)
            }
            #[inline(always)]
            fn ceil(self) -> $t {
                $t::ceil(self)
            }
            #[inline(always)]
            fn trunc(self) -> $t {
                $t::trunc(self)
            }
            #[inline(always)]
            fn round_ties_even(self) -> $t {
                $t::round_ties_even(self)
            }
            #[inline(always)]
            fn fmod(self, y: $t) -> $t {
                self % y
            }
            #[inline(always)]
            fn signed_as(self, sign: $t) -> $t {
                self.copysign(sign)
            }
        }
    };
}
real!(
    f32,
    math::exp,
    math::exp_down,
    math::ln,
    math::ln_1p,
    math::exp_m1,
    math::tanh,
    math::erf,
    math::gelu,
    math::gelu_slope
);
real!(
    f64,
    f64::exp,
    f64::exp,
    f64::ln,
    f64::ln_1p,
    f64::exp_m1,
    f64::tanh,
    libm::erf,
    gelu_f64,
    gelu_slope_f64
);

fn normal_cdf_f64(x: f64) -> f64 {
    libm::erfc(x * -std::f64::consts::FRAC_1_SQRT_2) * 0.5
}

fn gelu_f64(x: f64) -> f64 {
    x * normal_cdf_f64(x)
}

fn gelu_slope_f64(x: f64) -> f64 {
    let density = (x * x * -0.5).exp() * 0.398_942_280_401_432_7;
    x.mul_add(density, normal_cdf_f64(x))
}

/// A floating point element and the type its kernels compute in. Narrow types are widened a row or block at a
/// time into scratch; f32 and f64 are used where they lie.
pub(crate) trait Float: Element {
    type Real: Real;

    /// `src` in the computing type.
    fn widen<'s>(src: &'s [Self], scratch: &'s mut Vec<Self::Real>) -> &'s [Self::Real];

    /// Lets `write` fill `dst` in the computing type, then rounds once. `write` must set every element.
    fn narrow<R>(
        dst: &mut [Self],
        scratch: &mut Vec<Self::Real>,
        write: impl FnOnce(&mut [Self::Real]) -> R,
    ) -> R;
}

macro_rules! wide_float {
    ($($t:ty),*) => {$(
        impl Float for $t {
            type Real = $t;
            #[inline(always)]
            fn widen<'s>(src: &'s [$t], _: &'s mut Vec<$t>) -> &'s [$t] {
                src
            }
            #[inline(always)]
            fn narrow<R>(dst: &mut [$t], _: &mut Vec<$t>, write: impl FnOnce(&mut [$t]) -> R) -> R {
                write(dst)
            }
        }
    )*};
}
wide_float!(f32, f64);

macro_rules! narrow_float {
    ($($t:ty),*) => {$(
        impl Float for $t {
            type Real = f32;
            fn widen<'s>(src: &'s [$t], scratch: &'s mut Vec<f32>) -> &'s [f32] {
                scratch.resize(src.len(), 0.0);
                crate::convert::convert(src, scratch);
                scratch
            }
            fn narrow<R>(dst: &mut [$t], scratch: &mut Vec<f32>, write: impl FnOnce(&mut [f32]) -> R) -> R {
                scratch.resize(dst.len(), 0.0);
                let result = write(scratch);
                crate::convert::convert(scratch, dst);
                result
            }
        }
    )*};
}
narrow_float!(f16, bf16, crate::float8::F8E4M3, crate::float8::F8E5M2);
