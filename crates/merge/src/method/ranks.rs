//! Ranks of elements among all of a tensor by their magnitude, known from one pass and a table of bounded size.
//!
//! Tensors of up to [`EXACT`] elements have every magnitude in the table. Of larger ones the leading bits of magnitudes are
//! counted, and ranks between the entries of the table are interpolated: off by a part of [`KNOTS`] of the elements at most.

use crate::error::Result;
use crate::passes::{Blocks, Inputs};
use crate::select::Channel;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Elements of a tensor whose ranks are exact.
const EXACT: usize = 1 << 18;
/// Bits of a magnitude that are not counted apart in larger ones.
const SHIFT: u32 = 9;
/// Entries of a table, up to a few times as many.
const KNOTS: usize = 1 << 14;

/// The rank of any magnitude, counted from the largest; equal ones share the mean of theirs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ranks {
    shift: u32,
    /// Leading bits of magnitudes, ascending, with their ranks.
    knots: Vec<(u32, f64)>,
}

fn bits(value: f64) -> u32 {
    (value.abs() as f32).to_bits()
}

impl Ranks {
    /// Looks at all elements of a channel.
    pub(crate) fn of(number: usize, inputs: &Inputs, channel: &Channel<'_>) -> Result<Ranks> {
        match inputs.numel() <= EXACT {
            true => Ranks::exact(number, inputs, channel),
            false => Ranks::counted(number, inputs, channel),
        }
    }

    fn exact(number: usize, inputs: &Inputs, channel: &Channel<'_>) -> Result<Ranks> {
        let work = |first: usize, read: &[Vec<f64>]| {
            let mut values = Vec::new();
            channel(number, first, read, &mut values);
            values.into_iter().map(bits).collect::<Vec<u32>>()
        };
        let mut all =
            inputs.fold(Blocks::Any, Vec::new(), work, |all: &mut Vec<u32>, more| all.extend(more))?;
        all.sort_unstable();
        let runs = all.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u64));
        Ok(Ranks { shift: 0, knots: ranked(runs, all.len() as u64).collect() })
    }

    fn counted(number: usize, inputs: &Inputs, channel: &Channel<'_>) -> Result<Ranks> {
        let counts: Vec<AtomicU64> = (0..1usize << (31 - SHIFT)).map(|_| AtomicU64::new(0)).collect();
        inputs.tally(
            Blocks::Any,
            || (),
            |(), first, read| {
                let mut values = Vec::new();
                channel(number, first, read, &mut values);
                for value in values {
                    counts[(bits(value) >> SHIFT) as usize].fetch_add(1, Relaxed);
                }
            },
        )?;
        let counts = counts.iter().enumerate().map(|(place, count)| (place as u32, count.load(Relaxed)));
        let all = ranked(counts.filter(|(_, count)| *count > 0), inputs.numel() as u64);
        Ok(Ranks { shift: SHIFT, knots: thinned(all, inputs.numel() as f64 / KNOTS as f64) })
    }

    /// The rank of an element.
    pub(crate) fn rank(&self, value: f64) -> f64 {
        let at = bits(value) >> self.shift;
        match self.knots.binary_search_by_key(&at, |knot| knot.0) {
            Ok(found) => self.knots[found].1,
            Err(0) => self.knots.first().map_or(0.0, |knot| knot.1),
            Err(above) => {
                let (low, low_rank) = self.knots[above - 1];
                let Some(&(high, high_rank)) = self.knots.get(above) else { return low_rank };
                let part = f64::from(at - low) / f64::from(high - low);
                low_rank + part * (high_rank - low_rank)
            }
        }
    }
}

/// Magnitudes with how many there are, ascending, to magnitudes with the mean of their ranks from the largest.
fn ranked(counts: impl Iterator<Item = (u32, u64)>, total: u64) -> impl Iterator<Item = (u32, f64)> {
    let mut below = 0;
    counts.map(move |(key, count)| {
        below += count;
        // From `total - below` on there are `count` of them.
        (key, (total - below) as f64 + (count - 1) as f64 / 2.0)
    })
}

/// As few entries as keep neighbours within `step` of each other, or beside each other where many are equal.
fn thinned(all: impl Iterator<Item = (u32, f64)>, step: f64) -> Vec<(u32, f64)> {
    let mut knots: Vec<(u32, f64)> = Vec::new();
    let mut passed: Option<(u32, f64)> = None;
    for entry in all {
        let far = knots.last().is_none_or(|last: &(u32, f64)| (last.1 - entry.1).abs() > step);
        if far {
            knots.extend(passed.take());
            knots.push(entry);
        } else {
            passed = Some(entry);
        }
    }
    knots.extend(passed);
    knots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Held;
    use planaria_layout::{DType, Shape};
    use std::sync::Arc;

    fn ranks(values: &[f64]) -> Ranks {
        let shape = Shape::new(&[values.len()]).unwrap();
        let held = Held { values: values.to_vec(), shape, dtype: DType::F32 };
        let inputs =
            Inputs { values: vec![Arc::new(held)], base: None, shape: vec![values.len()], wide: false };
        Ranks::of(0, &inputs, &|_, _, read, out: &mut Vec<f64>| out.clone_from(&read[0])).unwrap()
    }

    /// By definition: larger ones, and half of the other equal ones.
    fn expected(values: &[f64], value: f64) -> f64 {
        let larger = values.iter().filter(|other| other.abs() > value.abs()).count();
        let equal = values.iter().filter(|other| other.abs() == value.abs()).count();
        larger as f64 + (equal - 1) as f64 / 2.0
    }

    #[test]
    fn ranks_of_a_small_tensor_are_exact() {
        let values: Vec<f64> = (0..3000).map(|i| f64::from(i * 7919 % 1009 - 500) / 16.0).collect();
        let ranks = ranks(&values);
        for value in values.iter().step_by(7) {
            assert_eq!(ranks.rank(*value), expected(&values, *value), "{value}");
        }
    }

    #[test]
    fn ranks_of_a_large_tensor_are_near_in_little_memory() {
        // Half of it is zero, a tenth is one value, the rest is spread over many magnitudes.
        let count = EXACT + EXACT / 2;
        let value = |i: usize| match i % 10 {
            0..5 => 0.0,
            5 => -0.25,
            _ => ((i as f64 * 0.618_033_988_75).fract() - 0.5) * (i as f64 * 0.414_213_562).fract().exp2(),
        };
        let values: Vec<f64> = (0..count).map(|i| f64::from(value(i) as f32)).collect();
        let ranks = ranks(&values);
        assert!(ranks.knots.len() < 4 * KNOTS, "{} entries", ranks.knots.len());
        let mut sorted: Vec<f64> = values.iter().map(|value| value.abs()).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        for value in values.iter().step_by(997) {
            let first = sorted.partition_point(|other| *other > value.abs());
            let last = sorted.partition_point(|other| *other >= value.abs());
            let exact = (first + last - 1) as f64 / 2.0;
            let off = (ranks.rank(*value) - exact).abs();
            assert!(off <= 2.0 * count as f64 / KNOTS as f64, "{value}: {off} of {count}");
        }
    }
}
