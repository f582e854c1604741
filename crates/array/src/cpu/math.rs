//! Elementary functions on f32 as branch-free arithmetic that vectorises, within about 2 units in the last place.
//!
//! Polynomials are near-minimax fits made for this project (weighted least squares in extended precision).
//! Everything is inlined into loops; selects keep NaN, infinities and signed zeros right.

const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer

/// e^r for |r| up to half of ln 2.
#[inline(always)]
fn exp_reduced(r: f32) -> f32 {
    let p = 1.381_421_3e-3f32;
    let p = p.mul_add(r, 8.368_899e-3);
    let p = p.mul_add(r, 4.166_840_8e-2);
    let p = p.mul_add(r, 1.666_652e-1);
    let p = p.mul_add(r, 4.999_999_4e-1);
    (r * r).mul_add(p, r) + 1.0
}

/// What is left of x after `n` times ln 2, in two steps.
#[inline(always)]
fn exp_rest(x: f32, n: f32) -> f32 {
    n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x))
}

/// e^x for x up to 88, with results below the normal range flushed to 0: all that a softmax needs of [`exp`], at
/// three quarters of its cost.
#[inline(always)]
pub(crate) fn exp_down(x: f32) -> f32 {
    let t = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
    // The low bits of t hold the power of two; shifted up they are its exponent, and the rest of t falls off.
    let power = f32::from_bits((t.to_bits() << 23).wrapping_add(1f32.to_bits()));
    let y = exp_reduced(exp_rest(x, t - MAGIC)) * power;
    if x < -87.0 { 0.0 } else { y }
}

/// e^x; denormal results are gradual, overflow gives infinity.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let t = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let p = exp_reduced(exp_rest(x, t - MAGIC));
    // Two factors, because 2^n alone may be outside the range of normal numbers.
    let n = (t.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = n >> 1;
    let power = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
    p * power(half) * power(n.wrapping_sub(half))
}

/// Natural logarithm; -inf at 0, NaN below.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let shift = if tiny { -23.0 } else { 0.0 };
    // Mantissa in [sqrt(1/2), sqrt(2)).
    let bits = scaled.to_bits() as i32;
    let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let m = f32::from_bits(bits.wrapping_sub(e << 23) as u32);
    let e = e as f32 + shift;
    let f = m - 1.0;
    let p = 6.746_49e-2_f32;
    let p = p.mul_add(f, -1.167_561_6e-1);
    let p = p.mul_add(f, 1.188_821_2e-1);
    let p = p.mul_add(f, -1.240_559_8e-1);
    let p = p.mul_add(f, 1.421_954_6e-1);
    let p = p.mul_add(f, -1.666_799_5e-1);
    let p = p.mul_add(f, 2.000_211_9e-1);
    let p = p.mul_add(f, -2.500_001e-1);
    let p = p.mul_add(f, 3.333_331_3e-1);
    let z = f * f;
    let y = (f * z).mul_add(p, e * -2.121_944_4e-4);
    let y = z.mul_add(-0.5, y);
    let y = e.mul_add(0.693_359_4, f + y);
    let y = if x == f32::INFINITY || x.is_nan() { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 { f32::NAN } else { y }
}

/// ln(1 + x), accurate near 0.
#[inline(always)]
pub(crate) fn ln_1p(x: f32) -> f32 {
    let u = 1.0 + x;
    // The rounding of 1 + x is undone by the ratio of what was meant to what was taken.
    let y = ln(u) * (x / (u - 1.0));
    if u == 1.0 || x == f32::INFINITY { x } else { y }
}

/// e^x - 1, accurate near 0.
#[inline(always)]
pub(crate) fn exp_m1(x: f32) -> f32 {
    // The series where e^x - 1 would cancel.
    let p = 1.984_127e-4f32;
    let p = p.mul_add(x, 1.388_888_9e-3);
    let p = p.mul_add(x, 8.333_333e-3);
    let p = p.mul_add(x, 4.166_666_8e-2);
    let p = p.mul_add(x, 1.666_666_7e-1);
    let p = p.mul_add(x, 0.5);
    let near = (x * x).mul_add(p, x);
    if x.abs() < 0.4 { near.copysign(x) } else { exp(x) - 1.0 }
}

/// Hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let z = x * x;
    let p = -5.717_011e-3_f32;
    let p = p.mul_add(z, 2.065_055_4e-2);
    let p = p.mul_add(z, -5.374_348_5e-2);
    let p = p.mul_add(z, 1.333_149_1e-1);
    let p = p.mul_add(z, -3.333_328_4e-1);
    let near = (x * z).mul_add(p, x);
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    (if x.abs() < 0.625 { near } else { far }).copysign(x)
}

/// erf(x) for |x| below [`ERF_SPLIT`].
#[inline(always)]
fn erf_near(x: f32) -> f32 {
    let s = x * x;
    let p = 8.345_216e-5f32;
    let p = p.mul_add(s, -8.137_435_7e-4);
    let p = p.mul_add(s, 5.200_634_2e-3);
    let p = p.mul_add(s, -2.685_927e-2);
    let p = p.mul_add(s, 1.128_369_4e-1);
    let p = p.mul_add(s, -3.761_263_5e-1);
    let p = p.mul_add(s, 1.283_791_7e-1);
    p.mul_add(x, x)
}

/// erfc(t) for t from [`ERF_SPLIT`] up: e to a polynomial in t.
#[inline(always)]
fn erfc_far(t: f32) -> f32 {
    let t = if t > 4.05 { 4.05 } else { t };
    let q = -2.109_531_7e-5f32;
    let q = q.mul_add(t, 4.344_655_3e-4);
    let q = q.mul_add(t, -4.171_076e-3);
    let q = q.mul_add(t, 2.511_946e-2);
    let q = q.mul_add(t, -1.082_801_4e-1);
    let q = q.mul_add(t, -6.333_468_6e-1);
    let q = q.mul_add(t, -1.129_514_9);
    exp(q.mul_add(t, 1.746_882_5e-4))
}

/// Where the two pieces of the error function meet.
const ERF_SPLIT: f32 = 0.927_734_4;

/// Error function.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let far = (1.0 - erfc_far(x.abs())).copysign(x);
    if x.abs() < ERF_SPLIT || x.is_nan() { erf_near(x) } else { far }
}

/// 2^y for y in -125..=0, within about 1e-7 of itself.
#[inline(always)]
fn exp2_negative(y: f32) -> f32 {
    let t = y + MAGIC;
    let f = y - (t - MAGIC);
    let p = 1.327_646_8e-3_f32;
    let p = p.mul_add(f, 9.675_542e-3);
    let p = p.mul_add(f, 5.550_713_5e-2);
    let p = p.mul_add(f, 2.402_212e-1);
    let p = p.mul_add(f, 6.931_469_4e-1);
    let p = p.mul_add(f, 1.000_000_1);
    // The low bits of t hold the whole part of y, which is added to the exponent.
    f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23))
}

/// Where the tail of the normal distribution is below the last place of 1.
const TAIL_END: f32 = 5.7;

/// The normal distribution function at -t for t in 0..=[`TAIL_END`]: 2 to a polynomial, good to 4e-8 once multiplied by t.
#[inline(always)]
fn normal_tail(t: f32) -> f32 {
    let q = 4.278_566e-6_f32;
    let q = q.mul_add(t, -1.279_628_6e-5);
    let q = q.mul_add(t, -5.757_942e-4);
    let q = q.mul_add(t, 7.670_799_7e-3);
    let q = q.mul_add(t, -5.294_858e-2);
    let q = q.mul_add(t, -4.590_439_2e-1);
    let q = q.mul_add(t, -1.151_127);
    exp2_negative(q.mul_add(t, -1.0))
}

/// x times the normal distribution function: what is left of x above 0, less |x| times the tail.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let t = if x.abs() > TAIL_END { TAIL_END } else { x.abs() };
    let tail = if x.abs() > TAIL_END { 0.0 } else { normal_tail(t) };
    // Not just 0: minus infinity times a probability of 0 is not a number.
    let above = if x < 0.0 { x * 0.0 } else { x };
    t.mul_add(-tail, above)
}

/// Where the derivative of [`gelu`] has long been 0 or 1.
const SLOPE_END: f32 = 13.0;

/// The derivative of [`gelu`]. Below 0 it is the density of the normal distribution times a polynomial, and its values
/// at x and -x make 1.
#[inline(always)]
pub(crate) fn gelu_slope(x: f32) -> f32 {
    let t = if x.abs() > SLOPE_END { SLOPE_END } else { x.abs() };
    let r = 1.631_627_1e-6_f32;
    let r = r.mul_add(t, -3.520_678_7e-5);
    let r = r.mul_add(t, 3.397_318_7e-4);
    let r = r.mul_add(t, -1.974_604e-3);
    let r = r.mul_add(t, 7.939_342e-3);
    let r = r.mul_add(t, -2.431_387e-2);
    let r = r.mul_add(t, 6.115_484_6e-2);
    let r = r.mul_add(t, -1.325_137_8e-1);
    let r = r.mul_add(t, 2.499_168e-1);
    let r = r.mul_add(t, -7.978_788e-1);
    let r = r.mul_add(t, 4.999_999_4e-1);
    // e^(-t^2 / 2) as a power of 2.
    let below = exp2_negative(t * t * -0.721_347_5) * r;
    if x < 0.0 { below } else { 1.0 - below }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest error in units of the last place of the true value, over a dense walk of the given range.
    fn worst(f: fn(f32) -> f32, truth: fn(f64) -> f64, range: std::ops::Range<f32>) -> f64 {
        let steps = 400_000;
        let mut worst = 0f64;
        for i in 0..=steps {
            let x = range.start + (range.end - range.start) * (i as f32 / steps as f32);
            let want = truth(f64::from(x));
            let ulp = f64::from(f32::from_bits((want.abs() as f32).to_bits() + 1) - want.abs() as f32);
            if want.is_finite() && ulp.is_finite() {
                worst = worst.max((f64::from(f(x)) - want).abs() / ulp);
            }
        }
        worst
    }

    #[test]
    fn functions_stay_within_a_few_units_in_the_last_place() {
        assert!(worst(exp, f64::exp, -103.0..88.7) < 1.5);
        assert!(worst(exp_down, f64::exp, -87.0..88.0) < 1.5);
        assert!(worst(ln, f64::ln, 1e-38..100.0) < 1.5);
        assert!(worst(ln, f64::ln, 0.5..2.0) < 1.5);
        assert!(worst(ln_1p, f64::ln_1p, -0.999..4.0) < 4.0);
        assert!(worst(exp_m1, f64::exp_m1, -3.0..3.0) < 4.0);
        assert!(worst(tanh, f64::tanh, -10.0..10.0) < 3.0);
        assert!(worst(erf, libm::erf, -5.0..5.0) < 3.0);
        for i in -60_000..60_000 {
            let x = i as f32 * 1e-4;
            let cdf = libm::erfc(f64::from(-x) / 2f64.sqrt()) / 2.0;
            let pdf = (f64::from(x).powi(2) * -0.5).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let error = (f64::from(gelu(x)) - f64::from(x) * cdf).abs();
            assert!(error < 2e-7 * f64::from(x.abs()).max(1.0), "gelu({x})");
            let slope = f64::from(x).mul_add(pdf, cdf);
            assert!((f64::from(gelu_slope(x)) - slope).abs() < 2.5e-7, "gelu_slope({x})");
        }
    }

    #[test]
    fn special_values_survive() {
        let inf = f32::INFINITY;
        assert_eq!((exp(inf), exp(-inf), exp(0.0)), (inf, 0.0, 1.0));
        assert_eq!((ln(inf), ln(0.0), ln(1.0)), (inf, -inf, 0.0));
        assert_eq!((tanh(inf), tanh(-inf), tanh(-0.0).to_bits()), (1.0, -1.0, (-0.0f32).to_bits()));
        assert_eq!((erf(inf), erf(-inf), erf(-0.0).to_bits()), (1.0, -1.0, (-0.0f32).to_bits()));
        assert_eq!((exp_m1(-inf), exp_m1(inf), ln_1p(-1.0), ln_1p(inf)), (-1.0, inf, -inf, inf));
        assert_eq!((exp_down(-inf), exp_down(-88.0), exp_down(0.0)), (0.0, 0.0, 1.0));
        assert_eq!((gelu(inf), gelu(-9.0), gelu(-0.0).to_bits()), (inf, 0.0, (-0.0f32).to_bits()));
        assert!(gelu(-inf).is_nan());
        for f in [exp, exp_down, ln, tanh, erf, ln_1p, exp_m1, gelu, gelu_slope] {
            // Whatever bits it carries.
            assert!(f(f32::NAN).is_nan() && f(f32::from_bits(0x7f80_0001)).is_nan());
            assert!(f(f32::from_bits(0xffff_ffff)).is_nan());
        }
        assert!(ln(-1.0).is_nan());
        assert_eq!((gelu_slope(inf), gelu_slope(20.0), gelu_slope(0.0)), (1.0, 1.0, 0.5));
        assert!(gelu_slope(-inf).abs() < 1e-30 && gelu_slope(-20.0).abs() < 1e-30);
        assert!(exp(-100.0) > 0.0 && exp(-100.0) < f32::MIN_POSITIVE);
        assert!((ln(f32::from_bits(1)) - -103.278_93).abs() < 1e-4);
    }
}
