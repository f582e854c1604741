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
use planaria_layout::DType;

use crate::cpu::simd::simd;
use crate::cpu::trunc;
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
    ($($t:ty: $via:ident $wide:ty, $from_f32:ident $from_f64:ident $whole:ty;)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn from_f32(x: f32) -> $t {
                trunc::$from_f32(x).clamp(<$t>::MIN as $whole, <$t>::MAX as $whole) as $t
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                trunc::$from_f64(x).clamp(<$t>::MIN as $whole, <$t>::MAX as $whole) as $t
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
// Every integer but u64 fits an i64, and LLVM folds the widening away. Floats saturate to 32 or 64 bits first.
integers! {
    u8: from_i64 i64, f32_to_i32 f64_to_i32 i32;
    i8: from_i64 i64, f32_to_i32 f64_to_i32 i32;
    i16: from_i64 i64, f32_to_i32 f64_to_i32 i32;
    i32: from_i64 i64, f32_to_i32 f64_to_i32 i32;
    i64: from_i64 i64, f32_to_i64 f64_to_i64 i64;
    u16: from_i64 i64, f32_to_i32 f64_to_i32 i32;
    u32: from_i64 i64, f32_to_u32 f64_to_u32 u32;
    u64: from_u64 u64, f32_to_u64 f64_to_u64 u64;
}

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

/// Values that pass through the middle type at once; they stay in the first-level cache.
const BLOCK: usize = 512;

/// The middle type through which a dtype reaches all others without changing any result.
///
/// Two short loops instead of one per pair: 63 kernels cover all 225 pairs.
fn middle(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::U16 | DType::I32 => DType::I32,
        DType::U32 | DType::I64 => DType::I64,
        DType::U64 => DType::U64,
        DType::F16 | DType::BF16 | DType::F32 | DType::F8E4M3 | DType::F8E5M2 => DType::F32,
        DType::F64 => DType::F64,
    }
}

/// Converts whole elements given as bytes, aligned as storage is; lengths must agree.
pub(crate) fn convert_bytes(from: DType, src: &[u8], to: DType, dst: &mut [u8]) {
    debug_assert_eq!(src.len() / from.size(), dst.len() / to.size());
    let same_bits = !from.is_float() && !to.is_float() && to != DType::Bool && from.size() == to.size();
    if from == to || same_bits {
        return dst.copy_from_slice(src);
    }
    let via = middle(from);
    if via == from {
        return finish(via, src, to, dst);
    }
    if via == to {
        return widen(from, src, dst);
    }
    let mut buffer = [0u64; BLOCK];
    let buffer: &mut [u8] = bytemuck::cast_slice_mut(&mut buffer);
    for (src, dst) in src.chunks(BLOCK * from.size()).zip(dst.chunks_mut(BLOCK * to.size())) {
        let buffer = &mut buffer[..src.len() / from.size() * via.size()];
        widen(from, src, buffer);
        finish(via, buffer, to, dst);
    }
}

fn run<S: Number, D: Number>(src: &[u8], dst: &mut [u8]) {
    convert::<S, D>(bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
}

/// To the middle type of `from`, which is another type.
fn widen(from: DType, src: &[u8], dst: &mut [u8]) {
    match from {
        DType::F16 => run::<f16, f32>(src, dst),
        DType::BF16 => run::<bf16, f32>(src, dst),
        DType::F8E4M3 => run::<F8E4M3, f32>(src, dst),
        DType::F8E5M2 => run::<F8E5M2, f32>(src, dst),
        DType::I8 => run::<i8, i32>(src, dst),
        DType::U16 => run::<u16, i32>(src, dst),
        DType::I16 => run::<i16, i32>(src, dst),
        DType::U32 => run::<u32, i64>(src, dst),
        // A stored bool is 0 or 1, which is what a u8 of the same bits says.
        _ => run::<u8, i32>(src, dst),
    }
}

/// From a middle type to any other type.
fn finish(via: DType, src: &[u8], to: DType, dst: &mut [u8]) {
    match via {
        DType::F32 => from_float::<f32>(src, to, dst),
        DType::F64 => from_float::<f64>(src, to, dst),
        DType::I32 => from_int::<i32>(src, to, dst),
        DType::U64 if to.is_float() => to_float::<u64>(src, to, dst),
        // Wrapping to another integer, or being zero, does not depend on the sign of 64 bits.
        _ => from_int::<i64>(src, to, dst),
    }
}

fn from_float<S: Number>(src: &[u8], to: DType, dst: &mut [u8]) {
    match to {
        DType::Bool => run::<S, Bool>(src, dst),
        DType::U8 => run::<S, u8>(src, dst),
        DType::I8 => run::<S, i8>(src, dst),
        DType::I16 => run::<S, i16>(src, dst),
        DType::I32 => run::<S, i32>(src, dst),
        DType::I64 => run::<S, i64>(src, dst),
        DType::U16 => run::<S, u16>(src, dst),
        DType::U32 => run::<S, u32>(src, dst),
        DType::U64 => run::<S, u64>(src, dst),
        _ => to_float::<S>(src, to, dst),
    }
}

fn from_int<S: Number>(src: &[u8], to: DType, dst: &mut [u8]) {
    match to {
        DType::Bool => run::<S, Bool>(src, dst),
        // Wrapping looks the same for both signs.
        DType::U8 | DType::I8 => run::<S, u8>(src, dst),
        DType::U16 | DType::I16 => run::<S, u16>(src, dst),
        DType::U32 | DType::I32 => run::<S, u32>(src, dst),
        DType::U64 | DType::I64 => run::<S, u64>(src, dst),
        _ => to_float::<S>(src, to, dst),
    }
}

fn to_float<S: Number>(src: &[u8], to: DType, dst: &mut [u8]) {
    match to {
        DType::F16 => run::<S, f16>(src, dst),
        DType::BF16 => run::<S, bf16>(src, dst),
        DType::F8E4M3 => run::<S, F8E4M3>(src, dst),
        DType::F8E5M2 => run::<S, F8E5M2>(src, dst),
        DType::F64 => run::<S, f64>(src, dst),
        _ => run::<S, f32>(src, dst),
    }
}

#[cfg(test)]
mod tests;
