//! The few statistics the tables use.

use crate::measure::Sample;

/// How long a case took one worker, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Bound of the fastest tenth of the samples.
    pub fast: f64,
    /// The middle sample.
    pub median: f64,
}

impl Times {
    /// Of the wall times; nothing when there are no samples.
    pub fn of(samples: &[Sample]) -> Option<Self> {
        let mut walls: Vec<f64> = samples.iter().map(|sample| sample[0]).collect();
        walls.sort_by(f64::total_cmp);
        let at = |share: f64| walls.get((walls.len() as f64 * share) as usize).copied();
        Some(Self { fast: at(0.1)?, median: at(0.5)? })
    }

    /// The better of two, figure by figure.
    pub fn best(self, other: Self) -> Self {
        Self { fast: self.fast.min(other.fast), median: self.median.min(other.median) }
    }
}

/// Geometric mean of positive numbers; nothing when there are none.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logs / values.len() as f64).exp())
}

/// The middle value, or the mean of the two middle ones; nothing when there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some((values[low] + values[high]) / 2.0)
}

/// The smallest and the largest value; nothing when there are none.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let pairs = values.into_iter().map(|value| (value, value));
    pairs.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// Puts `items` into an order decided by `seed`.
pub fn shuffle<T>(items: &mut [T], seed: &mut u64) {
    for i in (1..items.len()).rev() {
        *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        items.swap(i, ((*seed >> 33) % (i as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_tenth_and_the_half() {
        let samples: Vec<Sample> = (0..100).rev().map(|i| [f64::from(i), 0.0, 0.0]).collect();
        assert_eq!(Times::of(&samples), Some(Times { fast: 10.0, median: 50.0 }));
        assert_eq!(Times::of(&[[3.0, 0.0, 0.0]]), Some(Times { fast: 3.0, median: 3.0 }));
        assert_eq!(Times::of(&[]), None);
        let (a, b) = (Times { fast: 1.0, median: 4.0 }, Times { fast: 2.0, median: 3.0 });
        assert_eq!(a.best(b), Times { fast: 1.0, median: 3.0 });
    }

    #[test]
    fn the_geometric_mean_of_a_ratio_and_its_inverse_is_one() {
        assert!(geometric_mean(&[0.25, 4.0]).is_some_and(|mean| (mean - 1.0).abs() < 1e-12));
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn the_median_of_two_is_their_mean() {
        assert_eq!(median([3.0, 1.0]), Some(2.0));
        assert_eq!(median([3.0, 1.0, 9.0]), Some(3.0));
        assert_eq!(median([]), None);
        assert_eq!(spread([3.0, 1.0, 9.0]), Some((1.0, 9.0)));
    }

    #[test]
    fn shuffling_keeps_the_items() {
        let (mut items, mut seed) = ((0..50).collect::<Vec<_>>(), 1);
        shuffle(&mut items, &mut seed);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
