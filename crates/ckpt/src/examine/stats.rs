//! Least, largest, mean and spread of a tensor, and what is not a number in it.

use super::{CHUNK, values};
use crate::error::Result;
use crate::formats::Key;
use crate::stream::Feed;
use planaria_layout::DType;

/// What can be said about the values of a tensor. Figures are over the finite values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Number of elements.
    pub count: u64,
    /// Elements that are not a number.
    pub nan: u64,
    /// Infinite elements.
    pub inf: u64,
    /// Elements equal to zero.
    pub zero: u64,
    /// Smallest finite value; infinite when there is none.
    pub min: f64,
    /// Largest finite value; minus infinity when there is none.
    pub max: f64,
    /// Mean of the finite values.
    pub mean: f64,
    /// Sum of squared distances from the mean.
    squares: f64,
}

impl Default for Stats {
    fn default() -> Stats {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Stats { count: 0, nan: 0, inf: 0, zero: 0, min, max, mean: 0.0, squares: 0.0 }
    }
}

impl Stats {
    /// Number of finite values.
    pub fn finite(&self) -> u64 {
        self.count - self.nan - self.inf
    }

    /// Standard deviation of the finite values (of the whole, not estimated from a sample).
    pub fn std(&self) -> f64 {
        (self.squares / self.finite().max(1) as f64).sqrt()
    }

    fn add(&mut self, values: &[f64]) {
        let mut part = Stats { count: values.len() as u64, ..Stats::default() };
        let mut sum = 0.0;
        for &value in values {
            if value.is_finite() {
                part.min = part.min.min(value);
                part.max = part.max.max(value);
                part.zero += u64::from(value == 0.0);
                sum += value;
            } else if value.is_nan() {
                part.nan += 1;
            } else {
                part.inf += 1;
            }
        }
        part.mean = sum / part.finite().max(1) as f64;
        part.squares = values.iter().filter(|v| v.is_finite()).map(|v| (v - part.mean).powi(2)).sum();
        self.merge(&part);
    }

    /// The statistics of two sets of values together.
    fn merge(&mut self, other: &Stats) {
        let (a, b) = (self.finite() as f64, other.finite() as f64);
        if b > 0.0 {
            // Distances from either mean, moved to the common one.
            let apart = other.mean - self.mean;
            self.squares += other.squares + apart * apart * (a * b / (a + b));
            self.mean += apart * (b / (a + b));
        }
        self.count += other.count;
        self.nan += other.nan;
        self.inf += other.inf;
        self.zero += other.zero;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// The statistics of one tensor, read in pieces; `moved` hears of every byte.
pub fn stats(feed: &Feed<'_>, key: &Key, moved: &dyn Fn(u64)) -> Result<Stats> {
    let entry = feed.source().get(key)?;
    // Bytes that stand for a type that nothing here computes with have no values.
    if feed.source().foreign.contains_key(key) {
        return Ok(Stats::default());
    }
    let (numel, size, dtype): (usize, usize, DType) = (entry.shape.numel(), entry.dtype.size(), entry.dtype);
    let (mut bytes, mut scratch) = (vec![0; CHUNK.min(numel) * size], Vec::new());
    let mut stats = Stats::default();
    for start in (0..numel).step_by(CHUNK) {
        let end = numel.min(start + CHUNK);
        let part = &mut bytes[..(end - start) * size];
        feed.elements(key, start..end, part, &mut scratch)?;
        stats.add(&values(part, dtype)?);
        moved(part.len() as u64);
    }
    Ok(stats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_a_number_is_counted_and_left_out() {
        let mut stats = Stats::default();
        stats.add(&[1.0, f64::NAN, 3.0]);
        stats.add(&[f64::INFINITY, f64::NEG_INFINITY, 0.0]);
        assert_eq!((stats.count, stats.nan, stats.inf, stats.zero, stats.finite()), (6, 1, 2, 1, 3));
        assert_eq!((stats.min, stats.max), (0.0, 3.0));
        assert!((stats.mean - 4.0 / 3.0).abs() < 1e-15);
    }

    #[test]
    fn nothing_finite_leaves_no_extremes() {
        let mut stats = Stats::default();
        stats.add(&[f64::NAN]);
        assert_eq!((stats.min, stats.std()), (f64::INFINITY, 0.0));
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_mean_and_spread_of_all(values in prop::collection::vec(-1e3..1e3f64, 1..60), cut in 0usize..60) {
            let mut stats = Stats::default();
            let cut = cut.min(values.len());
            stats.add(&values[..cut]);
            stats.add(&values[cut..]);
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
            prop_assert!((stats.mean - mean).abs() < 1e-9 && (stats.std() - std).abs() < 1e-9);
        }
    }
}
