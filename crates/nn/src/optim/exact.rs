//! Sums of squares without rounding: the same for any order, split or number of ranks.

use crate::error::{Error, Result};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use planaria_array::ops::{EXACT_PIECE, EXACT_WORDS, exact_piece, exact_squares};
use planaria_array::{Array, DType, Device};
use rayon::prelude::*;
use std::borrow::Cow;

/// Bits of the smallest positive f64 up to the largest, and room for 2^64 terms: 32 bits each.
const LIMBS: usize = 68;

const _: () = assert!(LIMBS + 2 == EXACT_WORDS);

/// Elements that a thread takes at once. A limb has room for what they add before it is carried.
const BLOCK: usize = 1 << 16;

/// Elements of a device whose squares are added at once: words of its sums have room for twice as many.
const AT_ONCE: usize = 1 << 30;

/// A sum of squares, kept as an integer in units of the smallest positive f64.
///
/// Squares of f32, bf16 and f16 elements are exact; that of an f64 element is rounded once, before it is added.
/// Sums of parts are therefore equal in any order, and so is the norm that a gradient is clipped by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactNorm {
    /// 32 bits each, lowest first; normal between calls.
    limbs: [u64; LIMBS],
    /// Elements that are NaN.
    nans: u64,
    /// Elements that are infinite, or have an infinite square.
    infinities: u64,
}

impl Default for ExactNorm {
    fn default() -> ExactNorm {
        ExactNorm { limbs: [0; LIMBS], nans: 0, infinities: 0 }
    }
}

impl ExactNorm {
    /// The sum of nothing.
    pub fn new() -> ExactNorm {
        ExactNorm::default()
    }

    /// Adds the squares of the elements of many arrays: of a device all at once, and only the sum comes to the host.
    pub fn add_all(&mut self, arrays: &[Array]) -> Result<()> {
        let (away, here): (Vec<Array>, Vec<Array>) =
            arrays.iter().cloned().partition(|array| matches!(array.device(), Device::Cuda(_)));
        let mut rest = &away[..];
        while !rest.is_empty() {
            let mut elements = 0;
            let fits = |array: &&Array| {
                elements += array.numel();
                elements <= AT_ONCE
            };
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            self.add_away(now)?;
            rest = later;
        }
        self.add_here(&here)
    }

    fn add_away(&mut self, arrays: &[Array]) -> Result<()> {
        if let Some(words) = exact_squares(arrays)? {
            self.merge(&ExactNorm::from_array(&words)?);
        }
        Ok(())
    }

    /// Adds the square of every element.
    pub fn add(&mut self, array: &Array) -> Result<()> {
        self.add_all(std::slice::from_ref(array))
    }

    fn add_here(&mut self, arrays: &[Array]) -> Result<()> {
        let mut flat = Vec::new();
        for array in arrays {
            let (DType::F64 | DType::F32 | DType::BF16 | DType::F16) = array.dtype() else {
                let message = format!("squares are of f64, f32, bf16 and f16, got {}", array.dtype());
                return Err(Error::Argument { what: "exact norm", message });
            };
            let bytes = array.contiguous()?.bytes()?;
            flat.push((array.dtype(), bytes));
        }
        let blocks: Vec<(DType, &[u8])> = flat
            .iter()
            .flat_map(|(dtype, bytes)| bytes.chunks(BLOCK * dtype.size()).map(|block| (*dtype, block)))
            .collect();
        // Nothing is rounded, so blocks may be added by any thread in any order.
        let sums = blocks.par_iter().fold(ExactNorm::new, |mut sum, &(dtype, block)| {
            match dtype {
                DType::F64 => sum.add_f64s(&values::<f64>(block)),
                DType::F32 => sum.add_f32s(&values::<f32>(block)),
                DType::BF16 => sum.add_f32s(&values::<bf16>(block).to_f32_vec()),
                _ => sum.add_f32s(&values::<f16>(block).to_f32_vec()),
            }
            sum
        });
        self.merge(&sums.reduce(ExactNorm::new, |mut all, sum| {
            all.merge(&sum);
            all
        }));
        Ok(())
    }

    /// Squares of at most [`BLOCK`] elements.
    fn add_f32s(&mut self, block: &[f32]) {
        for piece in block.chunks(EXACT_PIECE) {
            match exact_piece(piece) {
                Some(parts) => {
                    parts
                        .iter()
                        .for_each(|&(part, power)| self.add_at(u128::from(part), (power + 1074) as usize));
                }
                None => piece.iter().for_each(|&value| self.add_f32(value)),
            }
        }
        self.carry();
    }

    fn add_f32(&mut self, value: f32) {
        let bits = value.to_bits();
        let exponent = (bits >> 23 & 0xff) as usize;
        if exponent == 0xff {
            self.nans += u64::from(value.is_nan());
            self.infinities += u64::from(value.is_infinite());
            return;
        }
        let mantissa = u64::from(bits & 0x7f_ffff) | u64::from(exponent != 0) << 23;
        // m² * 2^(2e - 300), in units of 2^-1074.
        self.add_at(u128::from(mantissa * mantissa), 2 * exponent.max(1) + 774);
    }

    fn add_f64s(&mut self, block: &[f64]) {
        for value in block {
            let square = value * value;
            if !square.is_finite() {
                self.nans += u64::from(square.is_nan());
                self.infinities += u64::from(square.is_infinite());
                continue;
            }
            let bits = square.to_bits();
            let exponent = (bits >> 52) as usize;
            let mantissa = bits & ((1 << 52) - 1) | u64::from(exponent != 0) << 52;
            self.add_at(u128::from(mantissa), exponent.max(1) - 1);
        }
        self.carry();
    }

    /// Adds an integer of at most 65 bits, times two to the power `bit`.
    fn add_at(&mut self, value: u128, bit: usize) {
        let (first, shifted) = (bit / 32, value << (bit % 32));
        for part in 0..4 {
            let word = (shifted >> (32 * part)) as u64 & 0xffff_ffff;
            if let Some(limb) = self.limbs.get_mut(first + part) {
                *limb += word;
            }
        }
    }

    /// Leaves 32 bits in every limb.
    fn carry(&mut self) {
        let mut carried = 0;
        for limb in &mut self.limbs {
            let sum = *limb + carried;
            (*limb, carried) = (sum & 0xffff_ffff, sum >> 32);
        }
        self.limbs[LIMBS - 1] += carried << 32;
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &ExactNorm) {
        self.limbs.iter_mut().zip(&other.limbs).for_each(|(limb, more)| *limb += more);
        self.carry();
        self.nans += other.nans;
        self.infinities += other.infinities;
    }

    /// The sum as integers that may be added up over ranks, element by element.
    pub fn to_array(&self) -> Result<Array> {
        let all = self.limbs.iter().chain([&self.nans, &self.infinities]);
        let words: Vec<i64> = all.map(|&limb| limb as i64).collect();
        Ok(Array::from_slice(&words, &[LIMBS + 2])?)
    }

    /// The sum from what [`ExactNorm::to_array`] gave, or from a sum of such.
    pub fn from_array(array: &Array) -> Result<ExactNorm> {
        let words = array.to_vec::<i64>()?;
        let [limbs @ .., nans, infinities] = &words[..] else { return Err(not_a_sum(array)) };
        let limbs = <[i64; LIMBS]>::try_from(limbs).map_err(|_| not_a_sum(array))?;
        if limbs.iter().chain([nans, infinities]).any(|&word| word < 0) {
            return Err(not_a_sum(array));
        }
        let limbs = limbs.map(|word| word as u64);
        let mut sum = ExactNorm { limbs, nans: *nans as u64, infinities: *infinities as u64 };
        sum.carry();
        Ok(sum)
    }

    /// The sum of squares, rounded once to the nearest f64.
    pub fn squared(&self) -> f64 {
        if self.nans > 0 {
            return f64::NAN;
        }
        if self.infinities > 0 {
            return f64::INFINITY;
        }
        let Some(top) = self.limbs.iter().rposition(|&limb| limb != 0) else { return 0.0 };
        // The highest four limbs hold at least 97 bits; below them only "not zero" matters.
        let low = top.saturating_sub(3);
        let mut head =
            self.limbs[low..=top].iter().rev().fold(0u128, |sum, &limb| sum << 32 | u128::from(limb));
        head |= u128::from(self.limbs[..low].iter().any(|&limb| limb != 0));
        scaled(head, 32 * low)
    }

    /// The root of the sum.
    pub fn norm(&self) -> f64 {
        self.squared().sqrt()
    }
}

/// Bytes as the elements they are, copied where they are not aligned.
fn values<T: bytemuck::Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) => Cow::Borrowed(values),
        Err(_) => Cow::Owned(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()),
    }
}

/// `head * 2^bit` in units of the smallest positive f64, to the nearest f64, ties to even.
fn scaled(head: u128, bit: usize) -> f64 {
    let width = 128 - head.leading_zeros() as usize;
    if width + bit <= 53 {
        // No rounding where the result has room for every bit.
        return f64::from_bits((head << bit) as u64);
    }
    // A bit at `p` of a sum is worth 2^(p - 1074); the result keeps 53.
    let drop = width as i64 - 53;
    let (mut kept, mut place) = if drop <= 0 {
        ((head << -drop) as u64, bit as i64 + drop)
    } else {
        let rest = head & ((1 << drop) - 1);
        let half = 1u128 << (drop - 1);
        let down = (head >> drop) as u64;
        let up = rest > half || (rest == half && down & 1 == 1);
        (down + u64::from(up), bit as i64 + drop)
    };
    if kept == 1 << 53 {
        (kept, place) = (1 << 52, place + 1);
    }
    let exponent = (place + 1) as u64;
    if exponent >= 0x7ff {
        return f64::INFINITY;
    }
    f64::from_bits(exponent << 52 | (kept & ((1 << 52) - 1)))
}

fn not_a_sum(array: &Array) -> Error {
    let message = format!("{} is not a sum of squares: {} words of at least 0", array.shape(), LIMBS + 2);
    Error::Argument { what: "exact norm", message }
}

#[cfg(test)]
mod tests;
