//! Sums of squares without rounding, beside a sum of integers on the host.

use super::case::{Case, Input};
use super::compare::Tolerance;
use crate::array::Array;
use crate::device::Device;
use crate::error::Result;
use crate::ops::{EXACT_WORDS, exact_squares};
use planaria_layout::DType;

/// Makes a number of bits.
type Value = fn(u64) -> f32;

pub(super) fn cases() -> Vec<Case> {
    let spreads: [(&str, Value); 4] = [
        ("any bits", |word| f32::from_bits(word as u32)),
        ("near one", |word| (word % 4096) as f32 / 2048.0 - 1.0),
        ("two scales", |word| (word % 511) as f32 * if word & 1024 == 0 { 1e-3 } else { 1e-22 }),
        ("growing", |word| (word % 255) as f32 * 2f32.powi((word / 4096 % 60) as i32 - 30)),
    ];
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (name, value) in spreads {
            // One that ends inside a piece, one of several pieces that starts between packets, and none.
            let inputs = [1023, 140_001, 0].map(|count| drawn(count, dtype, value)).map(Input::plain);
            let name = format!("squares {dtype} {name}");
            all.push(Case::new("optimizer", name, inputs.to_vec(), Tolerance::Bits, |x, device| {
                let arrays = [x[0].clone(), x[1].narrow(0, 1, 140_000)?, x[2].clone()];
                let words = match device {
                    Device::Cuda(_) => exact_squares(&arrays)?
                        .map_or_else(|| Ok(vec![0; EXACT_WORDS]), |sum| sum.to_vec())?,
                    _ => reference(&arrays)?,
                };
                let words = carried(words);
                Ok(vec![Array::from_slice(&words, &[words.len()])?.to(device)?])
            }));
        }
    }
    all
}

/// Numbers that follow from their places.
fn drawn(count: usize, dtype: DType, value: Value) -> Array {
    let number = |i: usize| {
        let word = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value(word >> 17)
    };
    let values: Vec<f32> = (0..count).map(number).collect();
    let array = Array::from_slice(&values, &[count]).and_then(|array| array.cast(dtype));
    array.unwrap_or_else(|_| Array::scalar(0.0, DType::F32).unwrap_or_else(|_| unreachable!()))
}

/// Words of 32 bits in 64, in units of the smallest positive f64, then NaNs and infinities.
fn reference(arrays: &[Array]) -> Result<Vec<i64>> {
    let mut words = vec![0i64; EXACT_WORDS];
    for array in arrays {
        for value in array.cast(DType::F32)?.to_vec::<f32>()? {
            if !value.is_finite() {
                words[EXACT_WORDS - if value.is_nan() { 2 } else { 1 }] += 1;
                continue;
            }
            let (exponent, fraction) = (value.to_bits() >> 23 & 255, u64::from(value.to_bits() & 0x7f_ffff));
            let mantissa = fraction + if exponent > 0 { 1 << 23 } else { 0 };
            let bit = 2 * exponent.max(1) + 774;
            let square = u128::from(mantissa * mantissa) << (bit % 32);
            for word in 0..3 {
                words[(bit / 32) as usize + word] += (square >> (32 * word) & 0xffff_ffff) as i64;
            }
        }
    }
    Ok(words)
}

/// The same sum with every word below 2^32.
fn carried(mut words: Vec<i64>) -> Vec<i64> {
    let mut carry = 0;
    for word in &mut words[..EXACT_WORDS - 2] {
        let sum = *word + carry;
        (*word, carry) = (sum & 0xffff_ffff, sum >> 32);
    }
    words
}
