//! Which part of a model each pipeline stage has: as the configuration says, or so that all take about as long.

use crate::config::{Config, Recompute};
use crate::error::{Error, Result};
use planaria_nn::models::{Architecture, Segment, Sizes, Stage};

/// A micro-batch of a run as one rank sees it, on an inner mesh of `ep` and `tp` ranks, in elements of `size` bytes.
pub(crate) fn sizes(config: &Config, (ep, tp): (usize, usize), micro_batch: u64, size: u64) -> Sizes {
    let sequence = config.data.sequence as u64;
    let tokens = micro_batch * sequence / ep as u64;
    let cut = if config.train.sequence_parallel { tp as u64 } else { 1 };
    Sizes { tokens, between: tokens.div_ceil(cut), sequence, tp: tp as u64, size }
}

/// FLOPs that a model needs for a step of so many sequences, forward and backward, over all ranks. What is computed again
/// does not count, nor do lookups of token vectors: as usual for model FLOPs utilization.
pub(crate) fn flops(model: &dyn Architecture, sequences: u64, sequence: u64) -> Result<f64> {
    let tokens = sequences * sequence;
    let sizes = Sizes { tokens, between: tokens, sequence, tp: 1, size: 4 };
    let mut forward = model.cost(Segment::Head, &sizes)?.operations;
    for block in 0..model.blocks() {
        forward += model.cost(Segment::Block(block), &sizes)?.operations;
    }
    Ok(3.0 * forward)
}

/// Whether a block is computed again in backward.
pub(crate) fn is_again(config: &Config, block: usize) -> bool {
    match config.train.recompute {
        Recompute::None | Recompute::Selective => false,
        Recompute::Full => true,
        Recompute::Blocks => config.train.recompute_blocks.contains(&block),
    }
}

/// The model in so many parts: the blocks that `train.stages` gives each, or as even as they can be in time, with what
/// stands before and after the blocks.
pub(crate) fn stages(
    model: &dyn Architecture,
    config: &Config,
    sizes: &Sizes,
    count: usize,
) -> Result<Vec<Stage>> {
    let blocks = model.blocks();
    let lengths = match &config.train.stages[..] {
        [] if count == 1 => vec![blocks],
        [] => {
            let time = |segment| model.cost(segment, sizes).map(|cost| cost.operations);
            let mut times = vec![3.0 * time(Segment::Embed)?];
            for block in 0..blocks {
                let passes = if is_again(config, block) { 4.0 } else { 3.0 };
                times.push(passes * time(Segment::Block(block))?);
            }
            times.push(3.0 * time(Segment::Head)?);
            balanced(&times, count)
        }
        given if given.len() == count && given.iter().sum::<usize>() == blocks => given.to_vec(),
        given => {
            return Err(Error::Value {
                key: "train.stages".into(),
                found: format!("{given:?}"),
                expected: format!(
                    "{count} numbers (`pp` times `train.chunks`) that add up to the {blocks} blocks of the model"
                ),
            });
        }
    };
    let mut end = 0;
    let stage = |(i, length): (usize, usize)| {
        let layers = end..end + length;
        end = layers.end;
        Stage { layers, embed: i == 0, head: i + 1 == count }
    };
    Ok(lengths.into_iter().enumerate().map(stage).collect())
}

/// How many blocks each of `count` parts gets. The first time is that of what stands before the blocks and belongs to the
/// first part, the last that of what stands after them. No cut has a shorter longest part; among those parts are
/// kept near the mean.
fn balanced(times: &[f64], count: usize) -> Vec<usize> {
    let limit = shortest_longest(times, count);
    let needed = parts_needed(times, limit);
    let mut lengths = vec![0; count];
    let (mut end, mut left) = (times.len(), times.iter().sum::<f64>());
    for part in (1..count).rev() {
        // The last part has at least what stands after the blocks, the first at least what stands before.
        let latest = if part + 1 == count { end - 1 } else { end };
        let mean = left / (part + 1) as f64;
        let mut best: Option<(f64, usize, f64)> = None;
        let mut sum = 0.0;
        for start in (1..=end).rev() {
            sum += if start < end { times[start] } else { 0.0 };
            if start > latest {
                continue;
            }
            if sum > limit && best.is_some() {
                break;
            }
            let off = (sum - mean).abs();
            if needed[start] <= part && best.is_none_or(|(least, ..)| off < least) {
                best = Some((off, start, sum));
            }
        }
        let (_, start, sum) = best.unwrap_or((0.0, latest, 0.0));
        lengths[part] = end - start;
        (end, left) = (start, left - sum);
    }
    lengths[0] = end;
    // What is not a block counts for nothing.
    lengths[0] -= 1;
    lengths[count - 1] -= 1;
    lengths
}

/// The smallest time that some cut into `count` parts keeps to in every part.
fn shortest_longest(times: &[f64], count: usize) -> f64 {
    let (mut low, mut high) = (0.0, times.iter().sum::<f64>());
    // Halving ends where no number lies between.
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return high;
        }
        match parts_needed(times, middle).last() {
            Some(&parts) if parts <= count => high = middle,
            _ => low = middle,
        }
    }
}

/// For each prefix of the times the fewest parts of at most `limit` that hold it; `usize::MAX` where none do.
fn parts_needed(times: &[f64], limit: f64) -> Vec<usize> {
    let (mut parts, mut sum) = (1usize, 0.0);
    let mut needed = vec![1];
    for &time in times {
        if sum + time > limit {
            (parts, sum) = (parts.saturating_add(1), 0.0);
        }
        if time > limit {
            parts = usize::MAX;
        }
        sum += time;
        needed.push(parts);
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn longest(times: &[f64], lengths: &[usize]) -> f64 {
        let mut at = 0;
        let mut most: f64 = 0.0;
        for (i, length) in lengths.iter().enumerate() {
            let ends = usize::from(i == 0) + usize::from(i + 1 == lengths.len());
            most = most.max(times[at..at + length + ends].iter().sum());
            at += length + ends;
        }
        assert_eq!(at, times.len(), "{lengths:?}");
        most
    }

    /// The longest part of the best cut, by trying all.
    fn best(times: &[f64], before: f64, count: usize) -> f64 {
        if count == 1 {
            return before + times.iter().sum::<f64>();
        }
        let cut = |i: usize| (before + times[..i].iter().sum::<f64>()).max(best(&times[i..], 0.0, count - 1));
        (0..times.len()).map(cut).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_heavy_head_takes_blocks_from_its_stage() {
        // Qwen2.5-0.5B: the head is worth eight of its 24 blocks.
        let mut times = vec![1.0; 26];
        (times[0], times[25]) = (0.01, 8.1);
        assert_eq!(balanced(&times, 2), [16, 8]);
        assert_eq!(balanced(&times, 4), [8, 8, 8, 0]);
        assert_eq!(balanced(&times, 1), [24]);
        let even = [0.0, 1.0, 1.0, 1.0, 1.0, 0.0];
        assert_eq!(balanced(&even, 4), [1, 1, 1, 1]);
        assert_eq!(balanced(&even, 6).iter().sum::<usize>(), 4);
    }

    proptest! {
        #[test]
        fn no_cut_has_a_shorter_longest_part(
            times in prop::collection::vec(0u32..9, 2..9),
            count in 1usize..5,
        ) {
            let times: Vec<f64> = times.into_iter().map(f64::from).collect();
            let lengths = balanced(&times, count);
            prop_assert_eq!(lengths.len(), count);
            let found = longest(&times, &lengths);
            let (first, rest) = (times[0], &times[1..]);
            prop_assert_eq!(found, best(rest, first, count), "{:?}", lengths);
        }
    }
}
