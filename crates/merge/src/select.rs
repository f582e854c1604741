//! Exact order statistics of tensors that are not in memory: the digits of a key are found one after the other by counting.

use crate::error::Result;
use crate::passes::{Blocks, Inputs};

/// Bits of a digit.
const DIGIT: u32 = 16;

/// What is compared: a number that grows with the magnitude.
pub(crate) fn key(value: f64, wide: bool) -> u64 {
    if wide { value.abs().to_bits() } else { u64::from((value.abs() as f32).to_bits()) }
}

/// The magnitude that a key stands for.
pub(crate) fn magnitude(key: u64, wide: bool) -> f64 {
    if wide { f64::from_bits(key) } else { f64::from(f32::from_bits(key as u32)) }
}

/// Makes the values of one channel, by number, from a block of the inputs that begins at the given element.
pub(crate) type Channel<'a> = dyn Fn(usize, usize, &[Vec<f64>], &mut Vec<f64>) + Sync + 'a;

/// An element by its place in the ascending order of magnitudes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) channel: usize,
    pub(crate) position: usize,
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) key: u64,
    /// Elements with smaller keys.
    pub(crate) below: usize,
    /// Elements with this key.
    pub(crate) equal: usize,
}

/// Finds what stands at some places.
pub(crate) fn find(inputs: &Inputs, channel: &Channel<'_>, places: &[Place]) -> Result<Vec<Found>> {
    let digits = if inputs.wide { 4 } else { 2 };
    let mut found: Vec<Found> = places.iter().map(|_| Found { key: 0, below: 0, equal: 0 }).collect();
    if places.is_empty() {
        return Ok(found);
    }
    for digit in (0..digits).rev() {
        let shift = digit * DIGIT;
        let prefixes: Vec<u64> = found.iter().map(|found| found.key).collect();
        let counts = inputs.tally(
            Blocks::Any,
            || vec![vec![0usize; 1 << DIGIT]; places.len()],
            |counts, first, read| {
                let mut values = Vec::new();
                let mut last = usize::MAX;
                for ((place, prefix), counts) in places.iter().zip(&prefixes).zip(counts) {
                    if place.channel != last {
                        channel(place.channel, first, read, &mut values);
                        last = place.channel;
                    }
                    for value in &values {
                        let key = key(*value, inputs.wide);
                        // Shifts by the whole width are spelled out as two.
                        if key >> shift >> DIGIT == prefix >> shift >> DIGIT {
                            counts[(key >> shift & 0xffff) as usize] += 1;
                        }
                    }
                }
            },
        )?;
        for (number, (found, place)) in found.iter_mut().zip(places).enumerate() {
            let mut left = place.position - found.below;
            for bucket in 0..1usize << DIGIT {
                let count: usize = counts.iter().map(|counts| counts[number][bucket]).sum();
                if left < count {
                    found.key |= (bucket as u64) << shift;
                    found.equal = count;
                    break;
                }
                left -= count;
                found.below += count;
            }
        }
    }
    Ok(found)
}

/// An element by its number among those of a channel that have the same key, in order of their indices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nth {
    pub(crate) channel: usize,
    pub(crate) key: u64,
    pub(crate) nth: usize,
}

/// Flat indices of some elements, found in one pass; one past the last element where there are no so many.
pub(crate) fn indices(inputs: &Inputs, channel: &Channel<'_>, wanted: &[Nth]) -> Result<Vec<usize>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let is_equal = |value: f64, key_of: u64| key(value, inputs.wide) == key_of;
    let work = |first: usize, read: &[Vec<f64>]| -> Vec<usize> {
        let mut values = Vec::new();
        let count = |wanted: &Nth| {
            channel(wanted.channel, first, read, &mut values);
            values.iter().filter(|value| is_equal(**value, wanted.key)).count()
        };
        wanted.iter().map(count).collect()
    };
    let blocks = inputs.fold(Blocks::Any, Vec::new(), work, |all, counts| all.push(counts))?;
    let (block, numel) = (inputs.block(Blocks::Any), inputs.numel());
    let (mut read, mut values, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for (number, wanted) in wanted.iter().enumerate() {
        let mut left = wanted.nth;
        let holder = blocks.iter().position(|counts: &Vec<usize>| match left < counts[number] {
            true => true,
            false => {
                left -= counts[number];
                false
            }
        });
        let Some(holder) = holder else {
            found.push(numel);
            continue;
        };
        let first = holder * block;
        inputs.read(first, block.min(numel - first), &mut read)?;
        channel(wanted.channel, first, &read, &mut values);
        let mut equal = values.iter().enumerate().filter(|(_, value)| is_equal(**value, wanted.key));
        found.push(equal.nth(left).map_or(numel, |(at, _)| first + at));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Held;
    use planaria_layout::{DType, Shape};
    use std::sync::Arc;

    #[test]
    fn elements_with_equal_keys_are_found_by_their_number() {
        // More than two blocks of values that repeat, with either sign.
        let values: Vec<f64> = (0..300_000).map(|i| f64::from(i % 7 - 3)).collect();
        let held = Held { values: values.clone(), shape: Shape::new(&[300_000]).unwrap(), dtype: DType::F32 };
        let inputs = Inputs { values: vec![Arc::new(held)], base: None, shape: vec![300_000], wide: false };
        let channel = |_: usize, _: usize, read: &[Vec<f64>], out: &mut Vec<f64>| out.clone_from(&read[0]);
        let twos: Vec<usize> = (0..values.len()).filter(|at| values[*at].abs() == 2.0).collect();
        let nth = |nth| Nth { channel: 0, key: key(2.0, false), nth };
        let asked = [0, 1, 40_000, 80_000, twos.len() - 1, twos.len()];
        let found = indices(&inputs, &channel, &asked.map(nth)).unwrap();
        let expected: Vec<usize> =
            asked.iter().map(|nth| twos.get(*nth).copied().unwrap_or(300_000)).collect();
        assert_eq!(found, expected);
    }
}
