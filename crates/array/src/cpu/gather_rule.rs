//! How a written value combines with the one already there.

use crate::convert::Number;
use crate::element::Bool;
use crate::float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// Arithmetic of scattered writes, for every element type. Integers wrap, truth values act as or and and,
/// narrow floats round after each step.
pub(crate) trait Arithmetic: Number {
    /// Where products start.
    fn one() -> Self;
    /// Where searches for the largest start.
    fn lowest() -> Self;
    /// Where searches for the smallest start.
    fn highest() -> Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The larger; NaN if either is NaN.
    fn larger(self, other: Self) -> Self;
    /// The smaller; NaN if either is NaN.
    fn smaller(self, other: Self) -> Self;
    /// Divided by a count; integers round toward minus infinity.
    fn shared(self, count: u32) -> Self;
}

macro_rules! ints {
    ($($t:ident)*) => {$(
        impl Arithmetic for $t {
            #[inline(always)]
            fn one() -> $t {
                1
            }
            #[inline(always)]
            fn lowest() -> $t {
                $t::MIN
            }
            #[inline(always)]
            fn highest() -> $t {
                $t::MAX
            }
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                self.max(other)
            }
            #[inline(always)]
            fn smaller(self, other: $t) -> $t {
                self.min(other)
            }
            #[inline(always)]
            fn shared(self, count: u32) -> $t {
                (self as i128).div_euclid(i128::from(count.max(1))) as $t
            }
        }
    )*};
}
ints!(u8 i8 i16 i32 i64 u16 u32 u64);

macro_rules! floats {
    ($($t:ty, $wide:ty, $one:expr, $low:expr, $high:expr, $to:expr, $from:expr;)*) => {$(
        impl Arithmetic for $t {
            #[inline(always)]
            fn one() -> $t {
                $one
            }
            #[inline(always)]
            fn lowest() -> $t {
                $low
            }
            #[inline(always)]
            fn highest() -> $t {
                $high
            }
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                $from($to(self) + $to(other))
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                $from($to(self) * $to(other))
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                let (a, b): ($wide, $wide) = ($to(self), $to(other));
                if a > b || a.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: $t) -> $t {
                let (a, b): ($wide, $wide) = ($to(self), $to(other));
                if a < b || a.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn shared(self, count: u32) -> $t {
                $from($to(self) / count as $wide)
            }
        }
    )*};
}
floats! {
    f32, f32, 1.0, f32::NEG_INFINITY, f32::INFINITY, |x: f32| x, |x: f32| x;
    f64, f64, 1.0, f64::NEG_INFINITY, f64::INFINITY, |x: f64| x, |x: f64| x;
    f16, f32, f16::ONE, f16::NEG_INFINITY, f16::INFINITY, |x: f16| x.cast::<f32>(), f16::from_f32;
    bf16, f32, bf16::ONE, bf16::NEG_INFINITY, bf16::INFINITY, |x: bf16| x.cast::<f32>(), bf16::from_f32;
    F8E4M3, f32, F8E4M3::ONE, F8E4M3::MIN, F8E4M3::MAX, call::<F8E4M3, f32>, call::<f32, F8E4M3>;
    F8E5M2, f32, F8E5M2::ONE, F8E5M2::from_bits(0xfc), F8E5M2::INFINITY, call::<F8E5M2, f32>, call::<f32, F8E5M2>;
}

/// A conversion as a call: nobody scatters 8-bit floats in a hurry, and inlined it is half of those kernels.
#[inline(never)]
fn call<S: Number, D: Number>(x: S) -> D {
    x.cast()
}

impl Arithmetic for Bool {
    #[inline(always)]
    fn one() -> Bool {
        Bool::new(true)
    }
    #[inline(always)]
    fn lowest() -> Bool {
        Bool::new(false)
    }
    #[inline(always)]
    fn highest() -> Bool {
        Bool::new(true)
    }
    #[inline(always)]
    fn add(self, other: Bool) -> Bool {
        Bool::new(self.get() | other.get())
    }
    #[inline(always)]
    fn mul(self, other: Bool) -> Bool {
        Bool::new(self.get() & other.get())
    }
    #[inline(always)]
    fn larger(self, other: Bool) -> Bool {
        self.add(other)
    }
    #[inline(always)]
    fn smaller(self, other: Bool) -> Bool {
        self.mul(other)
    }
    #[inline(always)]
    fn shared(self, _: u32) -> Bool {
        self
    }
}

/// A way to combine the old value with a written one.
pub(crate) trait Rule<T>: Send + Sync + 'static {
    fn apply(old: T, new: T) -> T;
}

/// The written value wins.
pub(crate) struct Replace;
/// Old plus new.
pub(crate) struct Sum;

impl<T> Rule<T> for Replace {
    #[inline(always)]
    fn apply(_: T, new: T) -> T {
        new
    }
}
impl<T: Arithmetic> Rule<T> for Sum {
    #[inline(always)]
    fn apply(old: T, new: T) -> T {
        old.add(new)
    }
}
