//! Branch-free coding of floats narrower than f32, shared by f16 and both 8-bit formats.
//!
//! `BIAS` is the exponent bias and `MAN` the number of stored mantissa bits. Every path is computed
//! and one is selected, so loops over these functions vectorise on any instruction set.

/// The f32 bits of a finite magnitude code (sign bit already removed).
#[inline(always)]
pub(crate) const fn decode<const BIAS: u32, const MAN: u32>(code: u32) -> u32 {
    let normal = (code << (23 - MAN)) + ((127 - BIAS) << 23);
    // A subnormal is an integer count of the smallest step, which f32 holds exactly.
    let step = f32::from_bits((128 - BIAS - MAN) << 23);
    let subnormal = (code as i32 as f32 * step).to_bits();
    if code < 1 << MAN { subnormal } else { normal }
}

/// The magnitude code nearest to the f32 with bits `abs` (sign removed, no NaN), ties to even.
///
/// Above the largest finite value the exponent simply keeps counting: the caller clamps.
#[inline(always)]
pub(crate) const fn encode<const BIAS: u32, const MAN: u32>(abs: u32) -> u32 {
    let shift = 23 - MAN;
    // Adding a number whose unit in the last place is the smallest step lets the adder round.
    let magic = (128 - BIAS + shift) << 23;
    let subnormal = (f32::from_bits(abs) + f32::from_bits(magic)).to_bits().wrapping_sub(magic);
    let round = (1 << (shift - 1)) - 1 + ((abs >> shift) & 1);
    let normal = abs.wrapping_sub((127 - BIAS) << 23).wrapping_add(round) >> shift;
    if abs < (128 - BIAS) << 23 { subnormal } else { normal }
}

/// IEEE half to single: exact; signalling NaNs become quiet, as the hardware does.
#[inline(always)]
pub(crate) const fn f16_to_f32(bits: u16) -> f32 {
    let code = bits as u32 & 0x7fff;
    let special = 0x7f80_0000 | (code << 13) | if code > 0x7c00 { 0x40_0000 } else { 0 };
    let abs = if code >= 0x7c00 { special } else { decode::<15, 10>(code) };
    f32::from_bits(abs | ((bits as u32 & 0x8000) << 16))
}

/// Single to IEEE half, nearest even; from 65520 up infinity; NaN keeps sign and upper payload.
#[inline(always)]
pub(crate) const fn f16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let abs = bits & 0x7fff_ffff;
    let nan = 0x7e00 | ((abs >> 13) & 0x3ff);
    // 65536 is the first value whose exponent field reads as infinity.
    let clamped = if abs > 0x4780_0000 { 0x4780_0000 } else { abs };
    let code = if abs > 0x7f80_0000 { nan } else { encode::<15, 10>(clamped) };
    (code | ((bits >> 16) & 0x8000)) as u16
}

/// bfloat16 to single: the upper half of the bits, exact, NaN payload untouched.
#[inline(always)]
pub(crate) const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Single to bfloat16, nearest even; NaN keeps sign and upper payload and becomes quiet.
#[inline(always)]
pub(crate) const fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}
