//! Losses of micro-batches, brought together so that every rank knows the same figures.

use crate::error::Result;
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
}

impl Losses {
    /// Room for this many micro-batches.
    pub(super) fn new(micros: usize) -> Losses {
        Losses { known: Vec::new(), sums: vec![0.0; micros], counts: vec![0.0; micros] }
    }

    /// This rank knows micro-batch `micro`, whose sum is an array of one element.
    pub(super) fn set(&mut self, micro: usize, sum: Array, count: u64) {
        self.counts[micro] = count as f64;
        self.known.push((micro, sum));
    }

    /// Number of micro-batches.
    pub(super) fn len(&self) -> usize {
        self.sums.len()
    }

    /// Every rank gets all of them. One rank has set each, so adding up changes no bits. Collective.
    pub(super) fn share(&mut self, world: &Arc<dyn Comm>) -> Result<()> {
        for (micro, sum) in self.known.drain(..) {
            self.sums[micro] = sum.item()?.as_f64();
        }
        let all: Vec<f64> = self.sums.iter().chain(&self.counts).copied().collect();
        let array = Array::from_slice(&all, &[all.len()])?;
        world.all_reduce(AllReduce { send: array.clone(), recv: array.clone(), op: Reduce::Sum })?;
        let all = array.to_vec::<f64>()?;
        let (sums, counts) = all.split_at(self.sums.len());
        (self.sums, self.counts) = (sums.to_vec(), counts.to_vec());
        Ok(())
    }

    /// Labels of the step.
    pub(super) fn count(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Mean loss: a left fold over the micro-batches.
    pub(super) fn mean(&self) -> f64 {
        self.sums.iter().fold(0.0, |sum, loss| sum + loss) / self.count()
    }
}
