//! Conversion between every pair of dtypes, value by value and slice by slice.
//!
//! The rules are those of `torch.Tensor.to`, measured, not guessed:
//! - anything to bool is `!= 0`, so NaN is true; bool to anything is 0 or 1;
//! - integer to integer wraps; integer to f32 or f64 rounds once, to nearest even;
//! - everything else to f16, bf16 or an 8-bit float goes through f32, so f64 and wide integers round
//!   twice (`1 + 2^-11 + 2^-40` as f64 becomes exactly 1 in f16, although it lies above the tie);
//! - float to integer truncates toward zero. What C++ leaves undefined is defined here as Rust's `as`:
//!   values out of range saturate and NaN becomes 0.
//!
//! NaN stays NaN with its sign; its payload is the upper part of the source's where the target has room.

use half::{bf16, f16};

use crate::cpu::simd::simd;
use crate::element::{Bool, Element};
use crate::float8::{F8E4M3, F8E5M2};
use crate::minifloat;

/// A dtype's way in from the four widest types; with [`Number::cast`] it covers all pairs.
pub(crate) trait Number: Element {
    /// Nearest value, or truncation for integers.
    fn from_f32(x: f32) -> Self;
    /// Like [`Number::from_f32`]; narrow floats go through f32.
    fn from_f64(x: f64) -> Self;
    /// Integers wrap, floats round to nearest.
    fn from_i64(x: i64) -> Self;
    /// Like [`Number::from_i64`].
    fn from_u64(x: u64) -> Self;
    /// This value as a `D`.
    fn cast<D: Number>(self) -> D;
}

macro_rules! integers {
    ($via:ident, $wide:ty: $($t:ty)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn from_f32(x: f32) -> $t {
                x as $t
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn from_i64(x: i64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn from_u64(x: u64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn cast<D: Number>(self) -> D {
                D::$via(self as $wide)
            }
        }
    )*};
}
// Every integer but u64 fits an i64; LLVM folds the widening away.
integers!(from_i64, i64: i8 i16 i32 i64 u8 u16 u32);
integers!(from_u64, u64: u64);

impl Number for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn from_i64(x: i64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn from_u64(x: u64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn cast<D: Number>(self) -> D {
        D::from_f32(self)
    }
}

impl Number for f64 {
    #[inline(always)]
    fn from_f32(x: f32) -> f64 {
        f64::from(x)
    }
    #[inline(always)]
    fn from_f64(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn from_i64(x: i64) -> f64 {
        x as f64
    }
    #[inline(always)]
    fn from_u64(x: u64) -> f64 {
        x as f64
    }
    #[inline(always)]
    fn cast<D: Number>(self) -> D {
        D::from_f64(self)
    }
}

impl Number for Bool {
    #[inline(always)]
    fn from_f32(x: f32) -> Bool {
        Bool::new(x != 0.0)
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Bool {
        Bool::new(x != 0.0)
    }
    #[inline(always)]
    fn from_i64(x: i64) -> Bool {
        Bool::new(x != 0)
    }
    #[inline(always)]
    fn from_u64(x: u64) -> Bool {
        Bool::new(x != 0)
    }
    #[inline(always)]
    fn cast<D: Number>(self) -> D {
        D::from_i64(i64::from(self.get()))
    }
}

macro_rules! narrow_floats {
    ($($t:ty, $encode:expr, $decode:expr;)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn from_f32(x: f32) -> $t {
                $encode(x)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                $encode(x as f32)
            }
            #[inline(always)]
            fn from_i64(x: i64) -> $t {
                $encode(x as f32)
            }
            #[inline(always)]
            fn from_u64(x: u64) -> $t {
                $encode(x as f32)
            }
            #[inline(always)]
            fn cast<D: Number>(self) -> D {
                D::from_f32($decode(self))
            }
        }
    )*};
}
// Our own coding of f16 and bf16: the `half` crate's is a call per value and does not vectorise.
narrow_floats! {
    f16, |x| f16::from_bits(minifloat::f16_from_f32(x)), |x: f16| minifloat::f16_to_f32(x.to_bits());
    bf16, |x| bf16::from_bits(minifloat::bf16_from_f32(x)), |x: bf16| minifloat::bf16_to_f32(x.to_bits());
    F8E4M3, F8E4M3::from_f32, F8E4M3::to_f32;
    F8E5M2, F8E5M2::from_f32, F8E5M2::to_f32;
}

simd! {
    /// Converts each value of `src` into `dst`, up to the shorter length.
    pub(crate) fn convert<S: Number, D: Number>(src: &[S], dst: &mut [D]) {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = s.cast();
        }
    }
}

#[cfg(test)]
mod tests;
