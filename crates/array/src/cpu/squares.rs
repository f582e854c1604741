//! Sums of squares of f32 without rounding: what a large constant cuts off each square is a multiple of one unit, so f64 adds it exactly.

use super::simd::simd;

/// Elements that are summed at once: they stay in the first-level cache between the two passes.
pub(crate) const PIECE: usize = 1 << LOG_PIECE;
const LOG_PIECE: i32 = 12;

/// Parts that a square is cut into.
pub(crate) const PARTS: usize = 3;

/// Bits of a part: so many that the sum of a piece's parts has at most 53.
const PART_BITS: i32 = 53 - LOG_PIECE;

/// Independent sums, which additions take turns with.
const LANES: usize = 16;

/// Bits of the smallest number that is not finite.
const INFINITE: u32 = 0x7f80_0000;

simd! {
    /// The bits of the largest magnitude.
    fn largest(x: &[f32]) -> u32 {
        let mut most = [0u32; LANES];
        let chunks = x.chunks_exact(LANES);
        for v in chunks.remainder() {
            most[0] = most[0].max(v.to_bits() & 0x7fff_ffff);
        }
        for chunk in chunks {
            for j in 0..LANES {
                most[j] = most[j].max(chunk[j].to_bits() & 0x7fff_ffff);
            }
        }
        most.into_iter().fold(0, u32::max)
    }

    /// Sums of the parts of all squares, and whether nothing was left of any.
    fn parts(x: &[f32], cuts: &[f64; PARTS]) -> ([f64; PARTS], bool) {
        let mut sums = [[0.0f64; LANES]; PARTS];
        let mut left = [0.0f64; LANES];
        let chunks = x.chunks_exact(LANES);
        let mut last = [0.0f32; LANES];
        last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        for chunk in chunks.chain([&last[..]]) {
            let mut rest = [0.0f64; LANES];
            for j in 0..LANES {
                let v = f64::from(chunk[j]);
                rest[j] = v * v;
            }
            for (sums, cut) in sums.iter_mut().zip(cuts) {
                for j in 0..LANES {
                    // Rounds to a multiple of the cut's last place; what remains is exact.
                    let part = (rest[j] + cut) - cut;
                    sums[j] += part;
                    rest[j] -= part;
                }
            }
            for j in 0..LANES {
                left[j] += rest[j].abs();
            }
        }
        (sums.map(|lanes| lanes.into_iter().sum()), left.iter().all(|&left| left == 0.0))
    }
}

/// The exact sum of the squares of at most [`PIECE`] values, as integers times powers of two. Nothing where a value is not finite,
/// or where they are so far apart that more parts were needed.
pub(crate) fn sum(x: &[f32]) -> Option<[(u64, i32); PARTS]> {
    let most = largest(x);
    if x.len() > PIECE || most >= INFINITE {
        return None;
    }
    // Every square is below 2^(2 * above).
    let above = (most >> 23).max(1) as i32 - 126;
    let units: [i32; PARTS] = std::array::from_fn(|p| 2 * above - PART_BITS * (p as i32 + 1));
    // A number whose last place is the unit, with room for any part.
    let (sums, is_all) = parts(x, &units.map(|unit| 1.5 * power(unit + 52)));
    let mut whole: [i64; PARTS] = std::array::from_fn(|p| (sums[p] * power(-units[p])) as i64);
    // Parts were rounded to the nearest, so lower sums may be negative: they borrow.
    for p in (1..PARTS).rev() {
        whole[p - 1] += whole[p] >> PART_BITS;
        whole[p] &= (1 << PART_BITS) - 1;
    }
    is_all.then(|| std::array::from_fn(|p| (whole[p] as u64, units[p])))
}

/// Two to a power of normal numbers.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same in integers, in units of `2^unit`.
    fn reference(x: &[f32], unit: i32) -> u128 {
        let square = |v: &f32| {
            let (bits, e) = (v.to_bits() & 0x7f_ffff, (v.to_bits() >> 23 & 0xff) as i32);
            let m = u128::from(bits | u32::from(e > 0) << 23);
            let shift = 2 * (e.max(1) - 150) - unit;
            let m = m * m;
            if shift >= 0 {
                m << shift
            } else {
                assert_eq!(m & ((1 << -shift) - 1), 0, "a bit below the unit");
                m >> -shift
            }
        };
        x.iter().map(square).sum()
    }

    fn check(x: &[f32]) {
        let parts = sum(x).unwrap();
        let unit = parts[PARTS - 1].1;
        let found: u128 = parts.iter().map(|&(part, power)| u128::from(part) << (power - unit)).sum();
        assert_eq!(found, reference(x, unit), "{parts:?}");
    }

    #[test]
    fn sums_are_those_of_integers() {
        let drawn =
            |seed: u64, i: usize| ((i as u64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as u32;
        for seed in 0..200 {
            let len = [0, 1, 15, 16, 17, 1000, PIECE][seed as usize % 7];
            // Exponents within 2^30 of each other, anywhere, of either sign; some zeros.
            let lowest = (seed as u32 * 17) % 220;
            let value = |i: usize| {
                let word = drawn(seed, i);
                let exponent = lowest + word % 31;
                if word % 97 == 0 { 0.0 } else { f32::from_bits(word & 0x807f_ffff | exponent << 23) }
            };
            check(&(0..len).map(value).collect::<Vec<_>>());
        }
        check(&[f32::MAX; PIECE]);
        check(&[f32::from_bits(1); PIECE]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for wide in [&[1.0, 1e-30][..], &[f32::NAN], &[1.0, f32::NEG_INFINITY], &[1.0; PIECE + 1]] {
            assert_eq!(sum(wide), None, "{:?}", &wide[..1]);
        }
    }
}
