//! How prompts, samples, updates, micro-batches and ranks fit together: one checked function, whose numbers drive everything.

use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// What becomes of samples that do not divide evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remainder {
    /// It is an error.
    #[default]
    Refuse,
    /// The last ones are fewer.
    Short,
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolloutBatching {
    /// Prompts of one rollout over all ranks.
    pub prompts_per_rollout: i64,
    /// Responses to each.
    pub samples_per_prompt: i64,
    /// Prompts of one optimizer step over all ranks; those of a rollout when absent.
    pub prompts_per_update: Option<i64>,
    /// Ranks that hold different samples.
    pub data_ranks: i64,
    /// Samples of one micro-batch.
    pub per_device: i64,
    /// Passes over a rollout; 1 when absent.
    pub epochs: Option<i64>,
    /// Micro-batches of a rank in an update, where somebody wants to say it.
    pub accumulation: Option<i64>,
    /// What becomes of the rest.
    pub remainder: Remainder,
    /// Prompts there are.
    pub dataset_prompts: Option<i64>,
    /// Whether a last, shorter rollout is left out.
    pub drop_last: bool,
}

impl RolloutBatching {
    fn check_positive(&self) -> Result<(), RolloutError> {
        let numbers = [
            ("prompts_per_rollout", Some(self.prompts_per_rollout)),
            ("samples_per_prompt", Some(self.samples_per_prompt)),
            ("prompts_per_update", self.prompts_per_update),
            ("data_ranks", Some(self.data_ranks)),
            ("per_device", Some(self.per_device)),
            ("epochs", self.epochs),
            ("accumulation", self.accumulation),
            ("dataset_prompts", self.dataset_prompts),
        ];
        for (field, number) in numbers {
            if let Some(number) = number.filter(|number| *number <= 0) {
                return refuse("not-positive", field, format!("`{field}` is {number}; expected at least 1"));
            }
        }
        Ok(())
    }
}

/// Why samples cannot be divided so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutError {
    /// A name for it.
    pub kind: &'static str,
    /// The number to change.
    pub field: &'static str,
    /// What is wrong, with the numbers and those that would do.
    pub message: String,
    /// What it should be, where that is one number.
    pub expected: Option<i64>,
}

impl fmt::Display for RolloutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RolloutError {}

/// One optimizer step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RolloutUpdate {
    /// Samples over all ranks.
    pub samples: usize,
    /// Samples of each rank.
    pub share: Vec<usize>,
    /// Micro-batches of every rank, empty ones among them.
    pub micro_steps: usize,
    /// By rank and micro-batch, samples in the order of the rollout.
    pub ranges: Vec<Vec<Range<usize>>>,
}

/// What a pass over all prompts comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DatasetSteps {
    /// Rollouts.
    pub rollouts: usize,
    /// Optimizer steps.
    pub optimizer_steps: usize,
    /// Prompts that are not seen.
    pub prompts_left_out: usize,
}

/// How a rollout is divided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RolloutGeometry {
    /// Samples over all ranks.
    pub samples_per_rollout: usize,
    /// Optimizer steps of one pass.
    pub updates_per_epoch: usize,
    /// Optimizer steps of all passes.
    pub optimizer_steps_per_rollout: usize,
    /// The optimizer steps of a pass.
    pub updates: Vec<RolloutUpdate>,
    /// A pass over all prompts, where their number is known.
    pub dataset: Option<DatasetSteps>,
}

fn refuse<T>(kind: &'static str, field: &'static str, message: String) -> Result<T, RolloutError> {
    Err(RolloutError { kind, field, message, expected: None })
}

/// The divisors of a number around another: the next smaller and the next larger.
pub(crate) fn nearest(of: i64, to: i64) -> String {
    let fits = |n: &i64| of % n == 0;
    let below = (1..=to.min(of)).rev().find(fits);
    let above = (to.max(1)..=of).find(fits);
    let all: Vec<String> = below.into_iter().chain(above).map(|n| n.to_string()).collect();
    all.join(" or ")
}

impl RolloutGeometry {
    /// Divides a rollout, or says what does not fit.
    pub fn derive(asked: &RolloutBatching) -> Result<RolloutGeometry, RolloutError> {
        let RolloutBatching {
            prompts_per_rollout: prompts,
            samples_per_prompt: group,
            data_ranks: ranks,
            per_device: micro,
            ..
        } = *asked;
        let (per_update, epochs) = (asked.prompts_per_update.unwrap_or(prompts), asked.epochs.unwrap_or(1));
        asked.check_positive()?;
        if per_update > prompts {
            let message = format!(
                "`prompts_per_update` is {per_update}, more than the {prompts} of `prompts_per_rollout`"
            );
            return refuse("update-larger-than-rollout", "prompts_per_update", message);
        }
        if prompts.checked_mul(group).is_none_or(|samples| samples > 1 << 40) {
            let message = format!("{prompts} prompts with {group} samples each are too many");
            return refuse("too-many", "samples_per_prompt", message);
        }
        if asked.remainder == Remainder::Refuse {
            check_even(prompts, per_update, group, ranks, micro)?;
        }
        let sizes: Vec<i64> =
            (0..prompts).step_by(per_update as usize).map(|at| per_update.min(prompts - at)).collect();
        let mut first = 0;
        let updates = sizes.iter().map(|size| {
            let update = divide(first, (size * group) as usize, ranks as usize, micro as usize);
            first += update.samples;
            update
        });
        let updates: Vec<RolloutUpdate> = updates.collect();
        if let (Some(wanted), Some(derived)) =
            (asked.accumulation, updates.first().map(|u| u.micro_steps as i64))
            && wanted != derived
        {
            let message = format!(
                "`accumulation` is {wanted}; {} samples of a rank in micro-batches of {micro} make {derived}",
                updates[0].share[0]
            );
            return Err(RolloutError {
                kind: "accumulation-mismatch",
                field: "accumulation",
                message,
                expected: Some(derived),
            });
        }
        Ok(RolloutGeometry {
            samples_per_rollout: (prompts * group) as usize,
            updates_per_epoch: updates.len(),
            optimizer_steps_per_rollout: epochs as usize * updates.len(),
            dataset: asked
                .dataset_prompts
                .map(|all| whole_pass(all, prompts, per_update, epochs, asked.drop_last)),
            updates,
        })
    }
}

fn check_even(prompts: i64, per_update: i64, group: i64, ranks: i64, micro: i64) -> Result<(), RolloutError> {
    if prompts % per_update != 0 {
        let fits = nearest(prompts, per_update);
        let message = format!(
            "{prompts} prompts of a rollout are not a multiple of `prompts_per_update` {per_update}; {fits} would do"
        );
        return refuse("rollout-not-multiple-of-update", "prompts_per_update", message);
    }
    let samples = per_update * group;
    if samples % ranks != 0 {
        let fits = nearest(samples, ranks);
        let message = format!(
            "{samples} samples of an update cannot be divided over {ranks} data ranks; {fits} would do"
        );
        return refuse("update-not-multiple-of-ranks", "data_ranks", message);
    }
    let share = samples / ranks;
    if share % micro != 0 {
        let fits = nearest(share, micro);
        let message =
            format!("{share} samples of a rank are not a multiple of `per_device` {micro}; {fits} would do");
        return refuse("rank-share-not-multiple-of-micro-batch", "per_device", message);
    }
    Ok(())
}

/// Samples cut into contiguous shares, the larger first, and these into micro-batches; all ranks have as many.
fn divide(first: usize, samples: usize, ranks: usize, micro: usize) -> RolloutUpdate {
    let share = |rank: usize| samples / ranks + usize::from(rank < samples % ranks);
    let shares: Vec<usize> = (0..ranks).map(share).collect();
    let micro_steps = shares.iter().map(|share| share.div_ceil(micro)).max().unwrap_or(0);
    let mut start = first;
    let mut ranges = Vec::with_capacity(ranks);
    for share in &shares {
        let end = start + share;
        let range = |step: usize| (start + step * micro).min(end)..(start + (step + 1) * micro).min(end);
        ranges.push((0..micro_steps).map(range).collect());
        start = end;
    }
    RolloutUpdate { samples, share: shares, micro_steps, ranges }
}

fn whole_pass(all: i64, prompts: i64, per_update: i64, epochs: i64, drop_last: bool) -> DatasetSteps {
    let (full, rest) = (all / prompts, all % prompts);
    let updates = |prompts: i64| (prompts + per_update - 1) / per_update;
    let last = rest > 0 && !drop_last;
    let steps = full * epochs * updates(prompts) + if last { epochs * updates(rest) } else { 0 };
    DatasetSteps {
        rollouts: (full + i64::from(last)) as usize,
        optimizer_steps: steps as usize,
        prompts_left_out: if last { 0 } else { rest as usize },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_pass_have_no_gap_and_no_overlap() {
        for (prompts, group, per_update, ranks, micro) in [(7, 3, 2, 4, 2), (8, 4, 4, 2, 2), (5, 1, 5, 8, 3)]
        {
            let asked = RolloutBatching {
                prompts_per_rollout: prompts,
                samples_per_prompt: group,
                prompts_per_update: Some(per_update),
                data_ranks: ranks,
                per_device: micro,
                remainder: Remainder::Short,
                ..RolloutBatching::default()
            };
            let found = RolloutGeometry::derive(&asked).unwrap();
            let mut next = 0;
            for range in found.updates.iter().flat_map(|update| &update.ranges).flatten() {
                assert_eq!(range.start, next, "{asked:?}");
                next = range.end;
            }
            assert_eq!(next, found.samples_per_rollout);
        }
    }

    #[test]
    fn a_refusal_names_numbers_that_would_do() {
        let asked = RolloutBatching {
            prompts_per_rollout: 10,
            samples_per_prompt: 2,
            prompts_per_update: Some(4),
            data_ranks: 2,
            per_device: 4,
            ..RolloutBatching::default()
        };
        let error = RolloutGeometry::derive(&asked).unwrap_err();
        assert!(error.to_string().ends_with("2 or 5 would do"), "{error}");
    }
}
