//! Passes over the elements of several tensors at once: in blocks, on several threads, with results that do not depend on
//! the number of threads.

use crate::error::Result;
use crate::values::Values;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Elements of a block: sums run over blocks in order, so this number is part of every result.
const BLOCK: usize = 128 << 10;
/// Most threads of one pass, and fewest: where there are fewer cores, some wait for the storage.
const THREADS: std::ops::RangeInclusive<usize> = 4..=8;

/// Tensors of one shape that are read together.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) values: Vec<Arc<dyn Values>>,
    /// Which of them is the base.
    pub(crate) base: Option<usize>,
    /// Extents of the tensors.
    pub(crate) shape: Vec<usize>,
    /// Whether they are of f64: what is compared is compared in it, else in f32.
    pub(crate) wide: bool,
}

/// How elements are cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// Anywhere.
    Any,
    /// Between rows.
    Rows,
}

impl Inputs {
    pub(crate) fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of a row: the last dim, or all of a vector.
    pub(crate) fn row(&self) -> usize {
        self.shape.last().copied().unwrap_or(1).max(1)
    }

    /// The inputs that are not the base.
    pub(crate) fn others(&self) -> Vec<usize> {
        (0..self.values.len()).filter(|number| Some(*number) != self.base).collect()
    }

    /// Elements of a block.
    pub(crate) fn block(&self, blocks: Blocks) -> usize {
        match blocks {
            Blocks::Any => BLOCK,
            Blocks::Rows => (BLOCK / self.row()).max(1) * self.row(),
        }
    }

    /// Reads the elements from `first` on of every tensor.
    pub(crate) fn read(&self, first: usize, len: usize, into: &mut Vec<Vec<f64>>) -> Result<()> {
        into.resize(self.values.len(), Vec::new());
        for (values, into) in self.values.iter().zip(into) {
            into.resize(len, 0.0);
            values.read(first, into)?;
        }
        Ok(())
    }

    /// Calls `work` for every block on several threads, each with a state of its own; the states.
    pub(crate) fn tally<A: Send>(
        &self,
        blocks: Blocks,
        start: impl Fn() -> A + Sync,
        work: impl Fn(&mut A, usize, &[Vec<f64>]) + Sync,
    ) -> Result<Vec<A>> {
        let (numel, block) = (self.numel(), self.block(blocks));
        let count = numel.div_ceil(block);
        let next = AtomicUsize::new(0);
        let run = || -> Result<A> {
            let (mut state, mut read) = (start(), Vec::new());
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= count {
                    return Ok(state);
                }
                let first = number * block;
                self.read(first, block.min(numel - first), &mut read)?;
                work(&mut state, first, &read);
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.clamp(*THREADS.start(), *THREADS.end()).min(count);
        if threads <= 1 {
            return Ok(vec![run()?]);
        }
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            let joined = running.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.collect()
        })
    }

    /// What `work` makes of every block, folded in the order of the blocks.
    pub(crate) fn fold<T: Send, A: Send>(
        &self,
        blocks: Blocks,
        start: A,
        work: impl Fn(usize, &[Vec<f64>]) -> T + Sync,
        add: impl Fn(&mut A, T) + Sync,
    ) -> Result<A> {
        // What comes early waits for its turn; few blocks are under way, so few wait.
        let waiting = Mutex::new((start, 0usize, std::collections::BTreeMap::new()));
        let block = self.block(blocks);
        self.tally(
            blocks,
            || (),
            |(), first, read| {
                let made = work(first, read);
                let mut turn = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let (folded, next, early) = &mut *turn;
                early.insert(first / block, made);
                while let Some(made) = early.remove(next) {
                    add(folded, made);
                    *next += 1;
                }
            },
        )?;
        Ok(waiting.into_inner().unwrap_or_else(PoisonError::into_inner).0)
    }
}
