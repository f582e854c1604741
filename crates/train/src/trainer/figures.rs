//! Losses of micro-batches, brought together so that every rank knows the same figures.

use crate::error::Result;
use crate::objective::Figures;
use planaria_array::Array;
use planaria_comm::{AllReduce, Comm, CommExt};
use planaria_layout::Reduce;
use std::sync::Arc;

/// Sum of token losses and number of labels of each micro-batch of a step. Losses of a device are read when all are there, so
/// that no micro-batch waits for the one before.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    known: Vec<(usize, Array)>,
    sums: Vec<f64>,
    counts: Vec<f64>,
    /// Of each micro-batch, what its objective counts besides.
    counted: Vec<(usize, Vec<Array>)>,
    /// What the objective counts, summed over all micro-batches in their order, after [`Losses::share`].
    pub(super) totals: Vec<f64>,
    /// What it told before the step, on the one rank that tells it, and on all after [`Losses::share`].
    pub(super) told: Vec<f64>,
}

impl Losses {
    /// Room for this many micro-batches.
    pub(super) fn new(micros: usize) -> Losses {
        let (sums, counts) = (vec![0.0; micros], vec![0.0; micros]);
        let (known, counted) = (Vec::new(), Vec::new());
        Losses { known, sums, counts, counted, totals: Vec::new(), told: Vec::new() }
    }

    /// With room for so many figures of the objective: those that it counts, and those that it tells.
    pub(super) fn with_figures(self, figures: &Figures) -> Losses {
        let Figures { told, counted } = figures;
        Losses { totals: vec![0.0; counted.len()], told: vec![0.0; told.len()], ..self }
    }

    /// What the objective counts in a micro-batch that this rank knows.
    pub(super) fn set_figures(&mut self, micro: usize, figures: Vec<Array>) {
        if !figures.is_empty() {
            self.counted.push((micro, figures));
        }
    }

    /// This rank knows micro-batch `micro`, whose sum is an array of one element.
    pub(super) fn set(&mut self, micro: usize, sum: Array, count: u64) {
        self.counts[micro] = count as f64;
        self.known.push((micro, sum));
    }

    /// Every rank gets all of them. One rank has set each, so adding up changes no bits. Collective.
    pub(super) fn share(&mut self, world: &Arc<dyn Comm>) -> Result<()> {
        for (micro, sum) in self.known.drain(..) {
            self.sums[micro] = sum.item()?.as_f64();
        }
        let (micros, each) = (self.sums.len(), self.totals.len());
        let mut counted = vec![0.0; micros * each];
        for (micro, figures) in self.counted.drain(..) {
            for (place, figure) in figures.iter().take(each).enumerate() {
                counted[place * micros + micro] = figure.item()?.as_f64();
            }
        }
        let all = [&self.sums[..], &self.counts, &counted, &self.told].concat();
        let array = Array::from_slice(&all, &[all.len()])?;
        world.all_reduce(AllReduce { send: array.clone(), recv: array.clone(), op: Reduce::Sum })?;
        let all = array.to_vec::<f64>()?;
        let (sums, rest) = all.split_at(micros);
        let (counts, rest) = rest.split_at(micros);
        let (counted, told) = rest.split_at(micros * each);
        (self.sums, self.counts, self.told) = (sums.to_vec(), counts.to_vec(), told.to_vec());
        let total =
            |place: usize| counted[place * micros..][..micros].iter().fold(0.0, |sum, figure| sum + figure);
        self.totals = (0..each).map(total).collect();
        Ok(())
    }

    /// Labels of the step.
    pub(super) fn count(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Mean loss: a left fold over the micro-batches; 0 of nothing.
    pub(super) fn mean(&self) -> f64 {
        let sum = self.sums.iter().fold(0.0, |sum, loss| sum + loss);
        if self.count() == 0.0 && sum == 0.0 { 0.0 } else { sum / self.count() }
    }

    /// The replica, of so many, whose losses are not finite while those of all others are.
    pub(super) fn odd_one(&self, replicas: usize) -> Option<usize> {
        let bad = self.sums.iter().enumerate().filter(|(_, sum)| !sum.is_finite());
        let mut bad: Vec<usize> = bad.map(|(micro, _)| micro % replicas.max(1)).collect();
        bad.dedup();
        bad.sort_unstable();
        bad.dedup();
        (replicas > 1 && bad.len() == 1).then(|| bad[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replica_whose_losses_alone_are_not_finite_is_found() {
        let losses =
            |sums: &[f64]| Losses { sums: sums.to_vec(), counts: vec![1.0; sums.len()], ..Losses::new(0) };
        let (good, bad) = (1.0, f64::NAN);
        assert_eq!(losses(&[good, bad, good, bad]).odd_one(2), Some(1));
        assert_eq!(losses(&[good, bad, good, good]).odd_one(2), Some(1));
        assert_eq!(losses(&[bad, bad, good, good]).odd_one(2), None);
        assert_eq!(losses(&[good, good]).odd_one(2), None);
        assert_eq!(losses(&[bad, bad]).odd_one(1), None);
    }
}
