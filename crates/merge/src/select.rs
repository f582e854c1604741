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

/// The flat index of the element number `nth` among those of a channel that have this key; one past the last element where
/// there are no so many.
pub(crate) fn index_of(
    inputs: &Inputs,
    channel: &Channel<'_>,
    number: usize,
    key_of: u64,
    nth: usize,
) -> Result<usize> {
    let work = |first: usize, read: &[Vec<f64>]| {
        let mut values = Vec::new();
        channel(number, first, read, &mut values);
        let equal = values.iter().enumerate().filter(|(_, value)| key(**value, inputs.wide) == key_of);
        equal.map(|(at, _)| first + at).collect::<Vec<usize>>()
    };
    let (_, at) = inputs.fold(Blocks::Any, (nth, inputs.numel()), work, |(left, at), indices| {
        if let Some(index) = indices.get(*left).filter(|_| *at == inputs.numel()) {
            *at = *index;
        }
        *left = left.saturating_sub(indices.len());
        if *at < inputs.numel() {
            *left = usize::MAX;
        }
    })?;
    Ok(at)
}
