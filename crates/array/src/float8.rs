//! The two OCP 8-bit float formats as plain bytes, with exact decoding and nearest-even encoding.

use crate::minifloat::{decode, encode};
use bytemuck::{Pod, Zeroable};
use std::{cmp::Ordering, fmt};

/// 1 sign, 4 exponent (bias 7) and 3 mantissa bits; no infinities, NaN is `0x7f` and `0xff`.
///
/// Encoding saturates: everything beyond ±448, infinities included, becomes ±448.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// 1 sign, 5 exponent (bias 15) and 2 mantissa bits, with infinities and NaNs: the top byte of an f16.
///
/// Encoding overflows to infinity from ±61440 up, as IEEE rounding does.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(u8);

impl F8E4M3 {
    /// Largest finite value, 448.
    pub const MAX: F8E4M3 = F8E4M3(0x7e);
    /// Smallest finite value, -448.
    pub const MIN: F8E4M3 = F8E4M3(0xfe);
    /// Smallest positive value, 2^-9.
    pub const MIN_POSITIVE: F8E4M3 = F8E4M3(0x01);
    /// The positive NaN.
    pub const NAN: F8E4M3 = F8E4M3(0x7f);
    /// One.
    pub const ONE: F8E4M3 = F8E4M3(0x38);

    /// The value with this code.
    pub const fn from_bits(bits: u8) -> F8E4M3 {
        F8E4M3(bits)
    }

    /// The code of this value.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// The nearest value, ties to even; saturates at ±448; NaN keeps its sign.
    #[inline(always)]
    pub const fn from_f32(x: f32) -> F8E4M3 {
        const MAX: u32 = 448f32.to_bits();
        let bits = x.to_bits();
        let abs = bits & 0x7fff_ffff;
        let clamped = if abs > MAX { MAX } else { abs };
        let code = if abs > 0x7f80_0000 { 0x7f } else { encode::<7, 3>(clamped) };
        F8E4M3((code | ((bits >> 24) & 0x80)) as u8)
    }

    /// The same value as an f32, exactly.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        let code = self.0 as u32 & 0x7f;
        let abs = if code == 0x7f { 0x7ff0_0000 } else { decode::<7, 3>(code) };
        f32::from_bits(abs | ((self.0 as u32 & 0x80) << 24))
    }

    /// True for the two NaN codes.
    pub const fn is_nan(self) -> bool {
        self.0 & 0x7f == 0x7f
    }
}

impl F8E5M2 {
    /// Largest finite value, 57344.
    pub const MAX: F8E5M2 = F8E5M2(0x7b);
    /// Smallest finite value, -57344.
    pub const MIN: F8E5M2 = F8E5M2(0xfb);
    /// Smallest positive value, 2^-16.
    pub const MIN_POSITIVE: F8E5M2 = F8E5M2(0x01);
    /// Positive infinity.
    pub const INFINITY: F8E5M2 = F8E5M2(0x7c);
    /// A quiet NaN.
    pub const NAN: F8E5M2 = F8E5M2(0x7f);
    /// One.
    pub const ONE: F8E5M2 = F8E5M2(0x3c);

    /// The value with this code.
    pub const fn from_bits(bits: u8) -> F8E5M2 {
        F8E5M2(bits)
    }

    /// The code of this value.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// The nearest value, ties to even; infinite from ±61440 up; NaN keeps its sign and becomes `0x7f`.
    #[inline(always)]
    pub const fn from_f32(x: f32) -> F8E5M2 {
        const OVERFLOW: u32 = 65536f32.to_bits();
        let bits = x.to_bits();
        let abs = bits & 0x7fff_ffff;
        let clamped = if abs > OVERFLOW { OVERFLOW } else { abs };
        let code = if abs > 0x7f80_0000 { 0x7f } else { encode::<15, 2>(clamped) };
        F8E5M2((code | ((bits >> 24) & 0x80)) as u8)
    }

    /// The same value as an f32, exactly; signalling NaNs become quiet.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        let code = self.0 as u32 & 0x7f;
        let special = 0x7f80_0000 | (code << 21) | if code > 0x7c { 0x40_0000 } else { 0 };
        let abs = if code >= 0x7c { special } else { decode::<15, 2>(code) };
        f32::from_bits(abs | ((self.0 as u32 & 0x80) << 24))
    }

    /// True for the six NaN codes.
    pub const fn is_nan(self) -> bool {
        self.0 & 0x7f > 0x7c
    }
}

impl From<F8E4M3> for f32 {
    fn from(x: F8E4M3) -> f32 {
        x.to_f32()
    }
}

impl From<F8E5M2> for f32 {
    fn from(x: F8E5M2) -> f32 {
        x.to_f32()
    }
}

// Numeric comparison: the zeros are equal and NaN equals nothing.
impl PartialEq for F8E4M3 {
    fn eq(&self, other: &F8E4M3) -> bool {
        self.to_f32() == other.to_f32()
    }
}

impl PartialEq for F8E5M2 {
    fn eq(&self, other: &F8E5M2) -> bool {
        self.to_f32() == other.to_f32()
    }
}

impl PartialOrd for F8E4M3 {
    fn partial_cmp(&self, other: &F8E4M3) -> Option<Ordering> {
        self.to_f32().partial_cmp(&other.to_f32())
    }
}

impl PartialOrd for F8E5M2 {
    fn partial_cmp(&self, other: &F8E5M2) -> Option<Ordering> {
        self.to_f32().partial_cmp(&other.to_f32())
    }
}

impl fmt::Display for F8E4M3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_f32(), f)
    }
}

impl fmt::Display for F8E5M2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_f32(), f)
    }
}

impl fmt::Debug for F8E4M3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}

impl fmt::Debug for F8E5M2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}
