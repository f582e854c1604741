//! The distributions: how random words become values.

use super::math::{ln_f32, ln_f64, normal_below, normal_quantile, sin_cos_turn_f32, sin_cos_turn_f64};
use super::{Draw, Key, Window, Words, fill};
use crate::element::Bool;
use crate::error::{Error, Result};

const TWO_POW_24: f32 = 16_777_216.0;
const TWO_POW_32: f64 = 4_294_967_296.0;
const TWO_POW_53: f64 = 9_007_199_254_740_992.0;

/// 64 bits from two words of a block, the low word first.
#[inline(always)]
fn wide<const L: usize>(words: &Words<L>, low: usize, l: usize) -> u64 {
    u64::from(words[low + 1][l]) << 32 | u64::from(words[low][l])
}

/// Turns values held row by row into values held block by block.
#[inline(always)]
fn interleave<const L: usize, const W: usize, T: Copy>(rows: &[[T; L]; W], out: &mut [T]) {
    let out = &mut out[..W * L];
    for l in 0..L {
        for w in 0..W {
            out[W * l + w] = rows[w][l];
        }
    }
}

/// Writes `value(word)` for each of the four words of each block.
#[inline(always)]
fn each_word<const L: usize, T>(words: &Words<L>, out: &mut [T], value: impl Fn(u32) -> T) {
    let out = &mut out[..4 * L];
    for l in 0..L {
        for w in 0..4 {
            out[4 * l + w] = value(words[w][l]);
        }
    }
}

/// Writes `value(64 bits)` for each half of each block.
#[inline(always)]
fn each_half<const L: usize, T>(words: &Words<L>, out: &mut [T], value: impl Fn(u64) -> T) {
    let out = &mut out[..2 * L];
    for l in 0..L {
        out[2 * l] = value(wide(words, 0, l));
        out[2 * l + 1] = value(wide(words, 2, l));
    }
}

/// The words as they are.
#[derive(Clone, Copy)]
pub(crate) struct BitsDraw;

impl Draw for BitsDraw {
    type Out = u32;
    const PER_BLOCK: usize = 4;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [u32]) {
        each_word(words, out, |w| w);
    }
}

/// Uniform 32-bit words: element i is word `i % 4` of block `i / 4`.
pub fn bits(out: &mut [u32], key: Key, window: &Window) -> Result<()> {
    fill("bits", BitsDraw, key, window, out)
}

#[derive(Clone, Copy)]
struct Uniform;

impl Draw for Uniform {
    type Out = f32;
    const PER_BLOCK: usize = 4;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [f32]) {
        // 24 bits fit an i32, whose conversion every instruction set has.
        each_word(words, out, |w| (w >> 8) as i32 as f32 * (1.0 / TWO_POW_24));
    }
}

/// Uniform in `[0, 1)`: multiples of 2^-24, one word per element.
pub fn uniform(out: &mut [f32], key: Key, window: &Window) -> Result<()> {
    fill("uniform", Uniform, key, window, out)
}

#[derive(Clone, Copy)]
struct UniformWide;

impl Draw for UniformWide {
    type Out = f64;
    const PER_BLOCK: usize = 2;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [f64]) {
        each_half(words, out, |x| (x >> 11) as i64 as f64 * (1.0 / TWO_POW_53));
    }
}

/// Uniform in `[0, 1)`: multiples of 2^-53, two words per element.
pub fn uniform_f64(out: &mut [f64], key: Key, window: &Window) -> Result<()> {
    fill("uniform", UniformWide, key, window, out)
}

/// A normal distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normal {
    /// Centre.
    pub mean: f64,
    /// Standard deviation.
    pub std: f64,
}

impl Normal {
    /// Mean 0, standard deviation 1.
    pub const STANDARD: Normal = Normal { mean: 0.0, std: 1.0 };

    pub(crate) fn check(self, op: &'static str) -> Result<Normal> {
        if self.mean.is_finite() && self.std.is_finite() && self.std >= 0.0 {
            return Ok(self);
        }
        let what = format!("mean {} must be finite and std {} finite and at least 0", self.mean, self.std);
        Err(Error::argument(op, what))
    }
}

#[derive(Clone, Copy)]
struct NormalDraw {
    mean: f32,
    std: f32,
}

impl Draw for NormalDraw {
    type Out = f32;
    const PER_BLOCK: usize = 4;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [f32]) {
        let mut z = [[0f32; L]; 4];
        for pair in [0, 2] {
            for l in 0..L {
                // An odd word is never 0; the largest ones round to exactly 1.
                let u = (words[pair][l] | 1) as f32 * (1.0 / TWO_POW_32 as f32);
                let radius = (-2.0 * ln_f32(u)).sqrt();
                let (sin, cos) = sin_cos_turn_f32(words[pair + 1][l]);
                z[pair][l] = self.mean + self.std * (radius * cos);
                z[pair + 1][l] = self.mean + self.std * (radius * sin);
            }
        }
        interleave(&z, out);
    }
}

/// Normal by Box-Muller: elements 4b and 4b+1 are the two coordinates of the point that words 0 and 1 of block b
/// give, 4b+2 and 4b+3 those of words 2 and 3. The largest magnitude is about 6.7 standard deviations.
pub fn normal(out: &mut [f32], key: Key, window: &Window, normal: Normal) -> Result<()> {
    let Normal { mean, std } = normal.check("normal")?;
    fill("normal", NormalDraw { mean: mean as f32, std: std as f32 }, key, window, out)
}

#[derive(Clone, Copy)]
struct NormalWide(Normal);

impl Draw for NormalWide {
    type Out = f64;
    const PER_BLOCK: usize = 2;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [f64]) {
        let Normal { mean, std } = self.0;
        let mut z = [[0f64; L]; 2];
        for l in 0..L {
            let u = ((wide(words, 0, l) >> 11) + 1) as i64 as f64 * (1.0 / TWO_POW_53);
            let radius = (-2.0 * ln_f64(u)).sqrt();
            let (sin, cos) = sin_cos_turn_f64(wide(words, 2, l));
            z[0][l] = mean + std * (radius * cos);
            z[1][l] = mean + std * (radius * sin);
        }
        interleave(&z, out);
    }
}

/// Normal by Box-Muller with 53-bit radii and 64-bit angles: elements 2b and 2b+1 share block b.
pub fn normal_f64(out: &mut [f64], key: Key, window: &Window, normal: Normal) -> Result<()> {
    fill("normal", NormalWide(normal.check("normal")?), key, window, out)
}

/// A normal distribution cut off at two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TruncatedNormal {
    /// The distribution before cutting.
    pub normal: Normal,
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    pub high: f64,
}

#[derive(Clone, Copy)]
pub(crate) struct Truncated {
    /// Probability below the interval and inside it.
    below: f64,
    inside: f64,
    /// -1 when the interval lies in the upper half, where probabilities near 1 would lose digits.
    mirror: f64,
    of: TruncatedNormal,
}

impl Truncated {
    /// All that a kernel needs: below, inside, mirror, mean, std, low, high.
    pub(crate) fn numbers(&self) -> [f64; 7] {
        let TruncatedNormal { normal: Normal { mean, std }, low, high } = self.of;
        [self.below, self.inside, self.mirror, mean, std, low, high]
    }

    pub(crate) fn new(of: TruncatedNormal) -> Result<Truncated> {
        let Normal { mean, std } = of.normal.check("truncated_normal")?;
        let ordered = of.low.is_finite() && of.high.is_finite() && of.low < of.high && std > 0.0;
        let (a, b) = ((of.low - mean) / std, (of.high - mean) / std);
        // Past 36 deviations the probabilities themselves are no longer floats.
        if !ordered || a > 36.0 || b < -36.0 {
            let what = format!(
                "bounds {}..{} must be finite, in order and within 36 standard deviations of mean {mean}, std {std}",
                of.low, of.high
            );
            return Err(Error::argument("truncated_normal", what));
        }
        let (mirror, a, b) = if a > 0.0 { (-1.0, -b, -a) } else { (1.0, a, b) };
        let below = normal_below(a);
        Ok(Truncated { below, inside: normal_below(b) - below, mirror, of })
    }

    /// The value at fraction `u` in (0, 1) of the probability between the bounds.
    #[inline(always)]
    fn at(self, u: f64) -> f64 {
        let Normal { mean, std } = self.of.normal;
        let x = mean + std * (self.mirror * normal_quantile(self.below + u * self.inside));
        let x = if x < self.of.low { self.of.low } else { x };
        if x > self.of.high { self.of.high } else { x }
    }
}

#[derive(Clone, Copy)]
struct TruncatedDraw(Truncated);

impl Draw for TruncatedDraw {
    type Out = f32;
    const PER_BLOCK: usize = 4;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [f32]) {
        // Row by row: the compiler vectorises so long a formula only in a plain loop.
        let mut rows = [[0f32; L]; 4];
        for w in 0..4 {
            for l in 0..L {
                rows[w][l] = self.0.at((f64::from(words[w][l]) + 0.5) * (1.0 / TWO_POW_32)) as f32;
            }
        }
        interleave(&rows, out);
    }
}

/// Normal between two bounds, by the inverse of the distribution function; one word per element.
pub fn truncated_normal(out: &mut [f32], key: Key, window: &Window, of: TruncatedNormal) -> Result<()> {
    fill("truncated_normal", TruncatedDraw(Truncated::new(of)?), key, window, out)
}

#[derive(Clone, Copy)]
struct TruncatedWide(Truncated);

impl Draw for TruncatedWide {
    type Out = f64;
    const PER_BLOCK: usize = 2;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [f64]) {
        // 52 bits, so that the half still fits and u stays below 1.
        let mut rows = [[0f64; L]; 2];
        for h in 0..2 {
            for l in 0..L {
                rows[h][l] =
                    self.0.at(((wide(words, 2 * h, l) >> 12) as i64 as f64 + 0.5) * (2.0 / TWO_POW_53));
            }
        }
        interleave(&rows, out);
    }
}

/// [`truncated_normal`] with 52 random bits, two words per element.
pub fn truncated_normal_f64(out: &mut [f64], key: Key, window: &Window, of: TruncatedNormal) -> Result<()> {
    fill("truncated_normal", TruncatedWide(Truncated::new(of)?), key, window, out)
}

#[derive(Clone, Copy)]
struct Bernoulli(u32);

impl Draw for Bernoulli {
    type Out = Bool;
    const PER_BLOCK: usize = 4;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [Bool]) {
        each_word(words, out, |w| Bool::new(w < self.0));
    }
}

/// True with probability `p`, which is rounded to a multiple of 2^-32; one word per element.
pub fn bernoulli(out: &mut [Bool], key: Key, window: &Window, p: f64) -> Result<()> {
    match threshold("bernoulli", p)? {
        Some(words_below) => fill("bernoulli", Bernoulli(words_below), key, window, out),
        None => {
            fill("bernoulli", Bernoulli(0), key, window, out)?;
            out.fill(Bool::new(true));
            Ok(())
        }
    }
}

/// How many of the 2^32 words mean true, or `None` for all of them.
pub(crate) fn threshold(op: &'static str, p: f64) -> Result<Option<u32>> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument(op, format!("probability {p} must lie between 0 and 1")));
    }
    Ok(u32::try_from((p * TWO_POW_32).round() as u64).ok())
}

#[derive(Clone, Copy)]
struct RandInt {
    low: i64,
    span: u64,
}

impl Draw for RandInt {
    type Out = i64;
    const PER_BLOCK: usize = 2;
    #[inline(always)]
    fn draw<const L: usize>(self, words: &Words<L>, out: &mut [i64]) {
        let RandInt { low, span } = self;
        if span >> 32 == 0 {
            // The upper half of a 64 by 32 bit product, in pieces that vectorise.
            each_half(words, out, |x| {
                low.wrapping_add((((x >> 32) * span + (((x & 0xffff_ffff) * span) >> 32)) >> 32) as i64)
            });
        } else {
            each_half(words, out, |x| low.wrapping_add(((u128::from(x) * u128::from(span)) >> 64) as i64));
        }
    }
}

/// Integers in `low..high`: the upper half of 64 random bits times the width of the range, so that no value is
/// more likely than another by more than 1 in 2^64 / (high - low). Two words per element.
pub fn randint(out: &mut [i64], key: Key, window: &Window, low: i64, high: i64) -> Result<()> {
    if low >= high {
        return Err(Error::argument("randint", format!("low {low} must be less than high {high}")));
    }
    fill("randint", RandInt { low, span: high.wrapping_sub(low) as u64 }, key, window, out)
}
