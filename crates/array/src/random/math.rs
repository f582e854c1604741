//! Elementary functions made of additions, multiplications, divisions and square roots only.
//!
//! Each of those rounds in one way everywhere, so these functions give the same bits on every machine and at
//! every vector width. Arguments are reduced first, which keeps the series short.

use std::f64::consts::{LN_2, TAU};

/// Coefficients of `2 atanh(s) / s` after the leading 2, in powers of `s * s`.
const ATANH: [f64; 10] = [
    2.0 / 3.0,
    2.0 / 5.0,
    2.0 / 7.0,
    2.0 / 9.0,
    2.0 / 11.0,
    2.0 / 13.0,
    2.0 / 15.0,
    2.0 / 17.0,
    2.0 / 19.0,
    2.0 / 21.0,
];

/// `(-1)^k / (2k + 1)!` for k = 1 to 8.
const SIN: [f64; 8] = [
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5_040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 355_687_428_096_000.0,
];

/// `(-1)^k / (2k)!` for k = 1 to 8.
const COS: [f64; 8] = [
    -1.0 / 2.0,
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40_320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 20_922_789_888_000.0,
];

/// `coefficients[0] + x * (coefficients[1] + ...)`.
#[inline(always)]
fn horner_f64<const N: usize>(coefficients: &[f64; N], x: f64) -> f64 {
    let mut sum = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        sum = coefficients[i] + x * sum;
    }
    sum
}

/// [`horner_f64`] over the first `n` coefficients, rounded to f32.
#[inline(always)]
fn horner_f32(coefficients: &[f64; 8], n: usize, x: f32) -> f32 {
    let mut sum = coefficients[n - 1] as f32;
    for i in (0..n - 1).rev() {
        sum = coefficients[i] as f32 + x * sum;
    }
    sum
}

/// `ln x` for a positive normal `x`: `2 atanh((m - 1) / (m + 1))` with `m` in `[sqrt 1/2, sqrt 2)`.
#[inline(always)]
pub(super) fn ln_f32(x: f32) -> f32 {
    const HALF_ROOT: u32 = std::f32::consts::FRAC_1_SQRT_2.to_bits();
    let e = (x.to_bits().wrapping_sub(HALF_ROOT) as i32) >> 23;
    let m = f32::from_bits(x.to_bits().wrapping_sub((e << 23) as u32));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let [c0, c1, c2, c3, ..] = ATANH.map(|c| c as f32);
    let tail = s * (z * (c0 + z * (c1 + z * (c2 + z * c3))));
    e as f32 * LN_2 as f32 + (s + s + tail)
}

/// [`ln_f32`] with twice the digits.
#[inline(always)]
pub(super) fn ln_f64(x: f64) -> f64 {
    const HALF_ROOT: u64 = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    let shifted = x.to_bits().wrapping_sub(HALF_ROOT);
    let e = (shifted as i64) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub((e << 52) as u64));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    e as f64 * LN_2 + (s + s + s * (z * horner_f64(&ATANH, z)))
}

/// Sine and cosine of `turn / 2^32` full turns; the argument is reduced exactly, in integers.
#[inline(always)]
pub(super) fn sin_cos_turn_f32(turn: u32) -> (f32, f32) {
    let quarter = turn.wrapping_add(1 << 29) >> 30;
    let x = turn.wrapping_sub(quarter << 30) as i32 as f32 * (TAU / (1u64 << 32) as f64) as f32;
    let z = x * x;
    let s = x + x * (z * horner_f32(&SIN, 4, z));
    let c = 1.0 + z * horner_f32(&COS, 5, z);
    let (sin, cos) = if quarter & 1 == 1 { (c, s) } else { (s, c) };
    // Sine is negative in the second half of the turn, cosine in the middle two quarters.
    let sin = f32::from_bits(sin.to_bits() ^ ((quarter & 2) << 30));
    let cos = f32::from_bits(cos.to_bits() ^ ((quarter.wrapping_add(1) & 2) << 30));
    (sin, cos)
}

/// Sine and cosine of `turn / 2^64` full turns.
#[inline(always)]
pub(super) fn sin_cos_turn_f64(turn: u64) -> (f64, f64) {
    let quarter = turn.wrapping_add(1 << 61) >> 62;
    let x = turn.wrapping_sub(quarter << 62) as i64 as f64 * (TAU / 18_446_744_073_709_551_616.0);
    let z = x * x;
    let s = x + x * (z * horner_f64(&SIN, z));
    let c = 1.0 + z * horner_f64(&COS, z);
    let (sin, cos) = if quarter & 1 == 1 { (c, s) } else { (s, c) };
    let sin = f64::from_bits(sin.to_bits() ^ ((quarter & 2) << 62));
    let cos = f64::from_bits(cos.to_bits() ^ ((quarter.wrapping_add(1) & 2) << 62));
    (sin, cos)
}

/// Numerators and denominators of Wichura's algorithm AS 241 for the centre and the two tails.
const AS241: [[[f64; 8]; 2]; 3] = [
    [
        [
            3.387_132_872_796_366_5,
            1.331_416_678_917_843_8e2,
            1.971_590_950_306_551_3e3,
            1.373_169_376_550_946e4,
            4.592_195_393_154_987e4,
            6.726_577_092_700_87e4,
            3.343_057_558_358_813e4,
            2.509_080_928_730_122_7e3,
        ],
        [
            1.0,
            4.231_333_070_160_091e1,
            6.871_870_074_920_579e2,
            5.394_196_021_424_751e3,
            2.121_379_430_158_659_7e4,
            3.930_789_580_009_271e4,
            2.872_908_573_572_194_3e4,
            5.226_495_278_852_854e3,
        ],
    ],
    [
        [
            1.423_437_110_749_683_5,
            4.630_337_846_156_546,
            5.769_497_221_460_691,
            3.647_848_324_763_204_5,
            1.270_458_252_452_368_4,
            2.417_807_251_774_506e-1,
            2.272_384_498_926_918_4e-2,
            7.745_450_142_783_414e-4,
        ],
        [
            1.0,
            2.053_191_626_637_759,
            1.676_384_830_183_803_8,
            6.897_673_349_851e-1,
            1.481_039_764_274_800_8e-1,
            1.519_866_656_361_645_7e-2,
            5.475_938_084_995_345e-4,
            1.050_750_071_644_416_9e-9,
        ],
    ],
    [
        [
            6.657_904_643_501_103,
            5.463_784_911_164_114,
            1.784_826_539_917_291_3,
            2.965_605_718_285_048_7e-1,
            2.653_218_952_657_612_4e-2,
            1.242_660_947_388_078_4e-3,
            2.711_555_568_743_487_6e-5,
            2.010_334_399_292_288_1e-7,
        ],
        [
            1.0,
            5.998_322_065_558_88e-1,
            1.369_298_809_227_358e-1,
            1.487_536_129_085_061_5e-2,
            7.868_691_311_456_133e-4,
            1.846_318_317_510_054_8e-5,
            1.421_511_758_316_446e-7,
            2.044_263_103_389_939_8e-15,
        ],
    ],
];

/// The `x` below which a standard normal variable falls with probability `p`, for `0 < p < 1`.
///
/// All three ranges are computed and one is selected, so loops over this vectorise.
#[inline(always)]
pub(super) fn normal_quantile(p: f64) -> f64 {
    let ratio = |range: usize, r: f64| horner_f64(&AS241[range][0], r) / horner_f64(&AS241[range][1], r);
    let q = p - 0.5;
    let centre = q * ratio(0, 0.180_625 - q * q);
    let smaller = if q < 0.0 { p } else { 1.0 - p };
    let r = (-ln_f64(smaller)).sqrt();
    let tail = if r <= 5.0 { ratio(1, r - 1.6) } else { ratio(2, r - 5.0) };
    let signed = if q < 0.0 { -tail } else { tail };
    if q.abs() <= 0.425 { centre } else { signed }
}

/// The probability that a standard normal variable falls below `x`: the inverse of [`normal_quantile`], by bisection.
pub(super) fn normal_below(x: f64) -> f64 {
    if x.is_nan() || x > 0.0 {
        return 1.0 - normal_below(-x.max(0.0));
    }
    // Positive floats are ordered like their bits; 2^-1000 is far below any quantile of interest.
    let (mut low, mut high) = (f64::from_bits((1023 - 1000) << 52).to_bits(), 0.5f64.to_bits());
    while low < high {
        let middle = low + (high - low) / 2;
        if normal_quantile(f64::from_bits(middle)) < x {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    f64::from_bits(low)
}

#[cfg(test)]
mod tests;
