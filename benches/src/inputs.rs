//! The inputs of the cases: a hash of the element's position, so that every worker makes the same bits.
//! `benches/peers/inputs.py` is its twin.

use planaria_array::{Array, Bool, Result, Scalar};

fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

fn hashes(seed: u32, shape: &[usize]) -> impl Iterator<Item = u32> {
    let key = mix(seed);
    // No input has 2^32 elements.
    (0..shape.iter().product::<usize>() as u32).map(move |i| mix(i ^ key))
}

/// f32, near to normal: the sum of the four bytes of the hash, centred and scaled.
pub fn normal(seed: u32, shape: &[usize]) -> Result<Array> {
    let total = |h: u32| h.to_le_bytes().iter().map(|&byte| u32::from(byte)).sum::<u32>();
    let values: Vec<f32> =
        hashes(seed, shape).map(|h| (total(h) as f32 - 510.0) * (1.0 / 147.8_f64) as f32).collect();
    Array::from_slice(&values, shape)
}

/// i64 in `0..high`.
pub fn integers(seed: u32, high: u32, shape: &[usize]) -> Result<Array> {
    let values: Vec<i64> =
        hashes(seed, shape).map(|h| ((u64::from(h) * u64::from(high)) >> 32) as i64).collect();
    Array::from_slice(&values, shape)
}

/// bool, true for about half.
pub fn coin(seed: u32, shape: &[usize]) -> Result<Array> {
    let values: Vec<Bool> = hashes(seed, shape).map(|h| Bool::new(h < 1 << 31)).collect();
    Array::from_slice(&values, shape)
}

/// f32, all the same value.
pub fn constant(value: f64, shape: &[usize]) -> Result<Array> {
    Array::full(shape, Scalar::from(value), planaria_array::DType::F32)
}

/// Sum and scale of position-weighted values over all arrays; what is not finite counts as zero. Workers that
/// computed the same thing agree on the sum, up to a small part of the scale.
pub fn checksum(arrays: &[Array]) -> Result<[f64; 2]> {
    let (mut total, mut scale) = (0.0, 0.0);
    for array in arrays {
        let values = array.cast(planaria_array::DType::F64)?.to_vec::<f64>()?;
        for (i, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let weighted = value * (i % 7 + 1) as f64;
            total += weighted;
            scale += weighted.abs();
        }
    }
    Ok([total, scale])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_bits_the_peer_makes() {
        // Printed by peers/inputs.py: normal(1, 4), integers(2, 100, 4), coin(3, 4).
        let normal = normal(1, &[4]).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(normal, [0.087_956_7, 0.920_162_4, 2.151_556, -0.439_783_48]);
        assert_eq!(integers(2, 100, &[4]).unwrap().to_vec::<i64>().unwrap(), [21, 7, 94, 31]);
        assert_eq!(
            coin(3, &[4]).unwrap().to_vec::<Bool>().unwrap(),
            [true, false, false, false].map(Bool::new)
        );
    }

    #[test]
    fn a_checksum_sees_order_and_skips_what_is_not_finite() {
        let sum = |values: &[f64]| checksum(&[Array::from_slice(values, &[values.len()]).unwrap()]).unwrap();
        assert_eq!(sum(&[1.0, -2.0]), [-3.0, 5.0]);
        assert_ne!(sum(&[1.0, -2.0])[0], sum(&[-2.0, 1.0])[0]);
        assert_eq!(sum(&[f64::NAN, 1.0, f64::INFINITY]), [2.0, 2.0]);
    }
}
