//! Evaluation: the mean loss over a fixed number of samples of the evaluation set.
//!
//! The samples are the first of a shuffle over all sources that no setting changes, each at most once, so every run on
//! the same data is measured by the same samples. They are summed in the order of micro-batches: the value has the same
//! bits for every number of data ranks, stages and every ZeRO stage. Another `micro_batch` sums the same samples in
//! another order.

use super::Job;
use super::compute::value;
use super::figures::Losses;
use super::rank::RankRun;
use super::resume::Best;
use super::step::{Made, Reading};
use crate::data::{Batch, Dataset, Permutation};
use crate::error::Result;
use crate::event::Event;
use crate::geometry::Geometry;
use crate::objective::Purpose;
use planaria_array::random::Key;
use planaria_nn::models::{Activations, Network};

/// Chooses the samples. It is not a setting: another seed must not be measured by other samples.
const CHOICE: Key = Key::new(0x6576_616c, 0x7561_7465);

/// How an evaluation is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evaluation {
    /// Samples in all.
    samples: u64,
    micro_batch: u64,
    data_ranks: usize,
    /// Micro-batches of each replica: all have as many, so that stages know how many will come. What is past the last
    /// sample counts for nothing.
    pub(super) rounds: usize,
}

impl Evaluation {
    /// The evaluation of a run, if it has a set for it.
    pub(super) fn of(job: &Job, geometry: &Geometry) -> Option<Evaluation> {
        let there = job.data.eval.as_ref()?.len();
        let wanted = (job.config.train.eval_batches as u64).saturating_mul(geometry.global_batch);
        let samples = wanted.min(there);
        let Geometry { micro_batch, data_ranks, .. } = *geometry;
        let rounds = samples.div_ceil(micro_batch).div_ceil(data_ranks).max(1) as usize;
        Some(Evaluation { samples, micro_batch, data_ranks: data_ranks as usize, rounds })
    }

    /// The number of a replica's micro-batch among all.
    fn number(&self, round: usize, replica: usize) -> usize {
        round * self.data_ranks + replica
    }

    /// Reads a replica's micro-batch. Rows past the last sample have no labels.
    fn read(&self, data: &dyn Dataset, round: usize, replica: usize) -> Result<Batch> {
        let first = self.number(round, replica) as u64 * self.micro_batch;
        let choice = Permutation::new(CHOICE, data.len());
        // A micro-batch that has no sample at all is made of the first one.
        let of = |position: u64| Ok(choice.of(if position < self.samples { position } else { 0 }).into());
        let real = self.samples.saturating_sub(first).min(self.micro_batch);
        Ok(Batch::read_filled(data, first..first + real, self.micro_batch, of)?)
    }
}

impl RankRun<'_> {
    /// Evaluates and tells; whether this is the best so far of a run that keeps the best. Collective.
    pub(super) fn evaluate(&mut self) -> Result<bool> {
        let Some(data) = &self.job.data.eval else { return Ok(false) };
        let Some(eval) = Evaluation::of(self.job, &self.geometry) else { return Ok(false) };
        let replica = self.place.replica;
        let needed = if self.place.reads(self.job) { eval.rounds } else { 0 };
        let batches = (0..needed).map(|round| eval.read(&**data, round, replica));
        let batches = batches.collect::<Result<Vec<_>>>()?;
        let Made { batches, .. } =
            self.generate((self.progress.step, Purpose::Evaluation), batches, 1.0, &mut Reading::default())?;
        let mut losses = Losses::new(eval.rounds * eval.data_ranks);
        let (compute, replica, speaks) = (&self.compute, &self.replica, self.place.speaks);
        let number = self.place.replica;
        let mut at_end = |round: usize, model: &dyn Network, end: &Activations, batch: &Batch| {
            let loss = compute.loss(model, end, batch)?;
            let sum = value(&loss)?;
            if speaks {
                losses.set(eval.number(round, number), sum, loss.count);
            }
            Ok(())
        };
        let still = |_: usize| None;
        match &mut self.pipeline {
            Some(pipeline) => {
                pipeline.ahead(Purpose::Evaluation, (compute, replica), &batches, &still, &mut at_end)?;
            }
            None => compute.ahead(replica, (&batches, 0), &still, &mut at_end)?,
        }
        losses.share(&self.world)?;
        let now = Best { step: self.progress.step, loss: losses.mean() };
        self.tell(&Event::Evaluated { step: now.step, loss: now.loss });
        let best = self.job.config.checkpoint.keep_best && self.saves.improves(self.job, now)?;
        if best {
            self.tell(&Event::Best { step: now.step, loss: now.loss });
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{IGNORED, Part, Sample};
    use std::collections::BTreeMap;

    /// Samples that are their own number, from two sources.
    #[derive(Debug)]
    struct Numbers(u64);

    impl Dataset for Numbers {
        fn len(&self) -> u64 {
            self.0
        }

        fn sequence(&self) -> usize {
            1
        }

        fn read(&self, index: u64, out: &mut Sample) -> crate::data::Result<()> {
            (out.tokens, out.labels) = (vec![index as u32; 2], vec![index as i64]);
            Ok(())
        }

        fn parts(&self) -> Vec<Part> {
            Vec::new()
        }

        fn fingerprint(&self) -> u32 {
            0
        }
    }

    /// The samples that count, by the number of their micro-batch.
    fn seen(data: &Numbers, samples: u64, micro_batch: u64, data_ranks: usize) -> Vec<i64> {
        let rounds = samples.div_ceil(micro_batch).div_ceil(data_ranks as u64) as usize;
        let eval = Evaluation { samples, micro_batch, data_ranks, rounds };
        let mut all = BTreeMap::new();
        for (round, replica) in (0..rounds).flat_map(|r| (0..data_ranks).map(move |d| (r, d))) {
            let batch = eval.read(data, round, replica).unwrap();
            all.insert(eval.number(round, replica), batch.labels.to_vec::<i64>().unwrap());
        }
        all.into_values().flatten().filter(|label| *label != IGNORED).collect()
    }

    #[test]
    fn every_split_sees_the_same_samples_in_the_same_order() {
        let data = Numbers(1000);
        let alone = seen(&data, 50, 1, 1);
        assert_eq!(alone.len(), 50);
        for (micro_batch, ranks) in [(1, 3), (4, 1), (4, 4), (7, 3), (64, 2)] {
            assert_eq!(seen(&data, 50, micro_batch, ranks), alone, "{micro_batch} {ranks}");
        }
        // All parts of the set are among them, not only the first.
        let upper = alone.iter().filter(|label| **label >= 500).count();
        assert!((15..=35).contains(&upper), "{upper}");
    }

    #[test]
    fn a_small_set_is_seen_once() {
        let mut all = seen(&Numbers(5), 5, 2, 4);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }
}
