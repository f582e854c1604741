//! Several sources in fixed shares: which source a sample comes from, without a list of samples.

use super::error::{Error, Result};
use super::permute::Permutation;
use planaria_array::random::Key;

/// Largest number of positions in a block.
const LARGEST: u64 = 1 << 20;
/// Shares are kept to this relative error.
const ERROR: f64 = 0.001;

/// Positions are dealt in blocks. Each block holds every source in its share, in an order of its own, so the shares hold over any
/// stretch of training and not only in the long run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mixture {
    /// How often each source stands in a block.
    counts: Vec<u64>,
    block: u64,
}

impl Mixture {
    /// Shares from weights, which need not sum to one.
    pub(super) fn new(weights: &[f64]) -> Result<Mixture> {
        let total: f64 = weights.iter().sum();
        if let Some(bad) = weights.iter().find(|w| !w.is_finite() || **w <= 0.0) {
            let problem = "weights are positive numbers".to_string();
            return Err(Error::Setting { key: "source.weight", value: bad.to_string(), problem });
        }
        let mut block = (weights.len() as u64).next_power_of_two().max(16);
        loop {
            let counts = dealt(weights, total, block);
            let fits = |(count, weight): (&u64, &f64)| {
                let wanted = weight / total * block as f64;
                (*count as f64 - wanted).abs() <= ERROR * wanted
            };
            if block >= LARGEST || counts.iter().zip(weights).all(fits) {
                return Ok(Mixture { counts, block });
            }
            block *= 2;
        }
    }

    /// The source of a position, and how many samples of that source came before.
    pub(super) fn place(&self, key: Key, position: u64) -> (usize, u64) {
        let (block, within) = (position / self.block, position % self.block);
        let mut slot = Permutation::new(key.fold(block), self.block).of(within);
        for (source, &count) in self.counts.iter().enumerate() {
            if slot < count {
                return (source, block * count + slot);
            }
            slot -= count;
        }
        (0, 0)
    }
}

/// Whole counts that sum to `block`: the largest remainders get one more, and no source gets none.
fn dealt(weights: &[f64], total: f64, block: u64) -> Vec<u64> {
    let exact: Vec<f64> = weights.iter().map(|w| w / total * block as f64).collect();
    let mut counts: Vec<u64> = exact.iter().map(|&e| (e as u64).max(1)).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&i, &j| (exact[j] - counts[j] as f64).total_cmp(&(exact[i] - counts[i] as f64)));
    let mut at = 0;
    while counts.iter().sum::<u64>() < block {
        counts[order[at % order.len()]] += 1;
        at += 1;
    }
    while counts.iter().sum::<u64>() > block {
        let Some(largest) = (0..counts.len()).max_by_key(|&i| counts[i]) else { break };
        counts[largest] -= 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_hold_in_every_block_and_no_sample_is_skipped() {
        let mixture = Mixture::new(&[0.7, 0.2, 0.1]).unwrap();
        let key = Key::new(5, 0);
        let mut next = [0u64; 3];
        let mut seen = [const { Vec::new() }; 3];
        for position in 0..mixture.block * 3 {
            let (source, index) = mixture.place(key, position);
            next[source] += 1;
            seen[source].push(index);
        }
        for (source, mut indices) in seen.into_iter().enumerate() {
            indices.sort_unstable();
            assert!(indices.into_iter().eq(0..next[source]), "source {source}");
        }
        let share = next[0] as f64 / (mixture.block * 3) as f64;
        assert!((share - 0.7).abs() < 0.0007, "{share}");
    }

    #[test]
    fn rare_sources_are_not_lost() {
        let mixture = Mixture::new(&[1.0, 1e-9]).unwrap();
        assert_eq!(mixture.counts[1], 1);
        assert_eq!(mixture.counts.iter().sum::<u64>(), mixture.block);
    }

    #[test]
    fn bad_weights_are_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = Mixture::new(&[1.0, bad]).unwrap_err();
            assert!(refused.to_string().contains("weights are positive"), "{refused}");
        }
    }
}
