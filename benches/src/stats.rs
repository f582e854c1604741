//! The few statistics the tables use.

use crate::measure::Sample;

/// Our time as a share of a peer's, over the rounds of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The middle round.
    pub median: f64,
    /// The best and the worst round.
    pub spread: (f64, f64),
}

impl Ratio {
    /// Of one ratio per round; nothing when there are none.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        Some(Self { median: median(rounds.iter().copied())?, spread: spread(rounds.iter().copied())? })
    }
}

/// The middle of the wall times; nothing when there are no samples.
pub fn wall<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Option<f64> {
    median(samples.into_iter().map(|sample| sample[0]))
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
    fn a_ratio_is_the_middle_round_between_the_best_and_the_worst() {
        assert_eq!(Ratio::of(&[3.0, 1.0, 1.5]), Some(Ratio { median: 1.5, spread: (1.0, 3.0) }));
        assert_eq!(Ratio::of(&[]), None);
        let samples: Vec<Sample> = (0..=100).rev().map(|i| [f64::from(i), 0.0, 0.0]).collect();
        assert_eq!(wall(&samples), Some(50.0));
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
