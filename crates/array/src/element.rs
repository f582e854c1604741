//! Rust types for each dtype, and single values of any dtype.

use bytemuck::Pod;
use half::{bf16, f16};
use planaria_layout::DType;
use std::fmt;

pub(crate) use crate::dispatch::{with_dtype, with_size};
use crate::float8::{F8E4M3, F8E5M2};

/// A truth value in one byte; always 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// From a Rust bool.
    #[inline(always)]
    pub fn new(value: bool) -> Bool {
        Bool(value as u8)
    }

    /// As a Rust bool.
    #[inline(always)]
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// A type that array elements can have. Implemented for exactly one Rust type per [`DType`].
pub trait Element: Pod + PartialEq + fmt::Debug + Send + Sync + Default {
    /// The matching dtype.
    const DTYPE: DType;

    /// From a value of any dtype, converted as [`crate::Array::cast`] does.
    fn from_scalar(value: Scalar) -> Self;

    /// As a value that remembers its family.
    fn to_scalar(self) -> Scalar;
}

/// One value of any dtype, wide enough to hold each of them exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// Any signed or unsigned integer up to 64 bits.
    Int(i128),
    /// Any floating point value.
    Float(f64),
}

impl Scalar {
    /// As f64; integers past 2^53 round to nearest.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::Int(i) => i as f64,
            Scalar::Float(x) => x,
        }
    }

    /// As f32, rounded once.
    pub fn as_f32(self) -> f32 {
        match self {
            Scalar::Bool(b) => f32::from(u8::from(b)),
            // Not by way of f64, which would round twice.
            Scalar::Int(i) => i as f32,
            Scalar::Float(x) => x as f32,
        }
    }

    /// As a truth value: true unless zero.
    pub fn as_bool(self) -> bool {
        match self {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::Float(x) => x != 0.0,
        }
    }

    /// As an integer; floats truncate toward zero and saturate.
    pub fn as_int(self) -> i128 {
        match self {
            Scalar::Bool(b) => i128::from(b),
            Scalar::Int(i) => i,
            Scalar::Float(x) => x as i128,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(x) => write!(f, "{x}"),
        }
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Scalar {
        Scalar::Bool(value)
    }
}
impl From<i32> for Scalar {
    fn from(value: i32) -> Scalar {
        Scalar::Int(value.into())
    }
}
impl From<i64> for Scalar {
    fn from(value: i64) -> Scalar {
        Scalar::Int(value.into())
    }
}
impl From<usize> for Scalar {
    fn from(value: usize) -> Scalar {
        Scalar::Int(value as i128)
    }
}
impl From<f32> for Scalar {
    fn from(value: f32) -> Scalar {
        Scalar::Float(value.into())
    }
}
impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        Scalar::Float(value)
    }
}

macro_rules! int_element {
    ($($t:ty => $d:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            fn from_scalar(value: Scalar) -> $t {
                match value {
                    // Float to integer truncates and saturates; integer to integer wraps.
                    Scalar::Float(x) => x as $t,
                    other => other.as_int() as $t,
                }
            }
            fn to_scalar(self) -> Scalar {
                Scalar::Int(self as i128)
            }
        }
    )*};
}
int_element!(u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u16 => U16, u32 => U32, u64 => U64);

macro_rules! float_element {
    ($($t:ty => $d:ident, $as:ident, $from:expr, $to:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            fn from_scalar(value: Scalar) -> $t {
                $from(value.$as())
            }
            fn to_scalar(self) -> Scalar {
                Scalar::Float($to(self))
            }
        }
    )*};
}
// Narrow floats round through f32, as casts between arrays do.
float_element! {
    f64 => F64, as_f64, |x| x, |x: f64| x;
    f32 => F32, as_f32, |x| x, |x: f32| f64::from(x);
    f16 => F16, as_f32, f16::from_f32, |x: f16| f64::from(x);
    bf16 => BF16, as_f32, bf16::from_f32, |x: bf16| f64::from(x);
    F8E4M3 => F8E4M3, as_f32, F8E4M3::from_f32, |x: F8E4M3| f64::from(x.to_f32());
    F8E5M2 => F8E5M2, as_f32, F8E5M2::from_f32, |x: F8E5M2| f64::from(x.to_f32());
}

impl Element for Bool {
    const DTYPE: DType = DType::Bool;
    fn from_scalar(value: Scalar) -> Bool {
        Bool::new(value.as_bool())
    }
    fn to_scalar(self) -> Scalar {
        Scalar::Bool(self.get())
    }
}
