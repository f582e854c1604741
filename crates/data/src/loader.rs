//! The loader: a thread that reads the micro-batches of one rank ahead of training.

use super::dataset::{Batch, Dataset};
use super::error::{Error, Result};
use super::sampler::Sampler;
use crate::geometry::Geometry;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Which positions a rank takes.
///
/// The micro-batches of a step are numbered over all ranks; with `ranks` ranks, rank r computes r, r + ranks, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Samples consumed before the first step.
    pub start: u64,
    /// Samples per micro-batch.
    pub micro_batch: u64,
    /// Micro-batches per step that this rank computes.
    pub accumulation: u64,
    /// Samples of the last of them.
    pub last_batch: u64,
    /// This data rank.
    pub rank: u64,
    /// Number of data ranks.
    pub ranks: u64,
}

impl Share {
    /// The share of one data rank from a position on.
    pub fn new(geometry: &Geometry, rank: u64, start: u64) -> Share {
        let Geometry { micro_batch, accumulation, data_ranks, .. } = *geometry;
        let last_batch = geometry.last_batch();
        Share { start, micro_batch, accumulation, last_batch, rank, ranks: data_ranks }
    }

    /// Positions of this rank's `k`-th micro-batch of a step, steps counted from the start of the share.
    pub fn positions(&self, step: u64, k: u64) -> Range<u64> {
        let rows = if k + 1 == self.accumulation { self.last_batch } else { self.micro_batch };
        let before = step * self.per_step() + k * self.ranks * self.micro_batch + self.rank * rows;
        self.start + before..self.start + before + rows
    }

    /// Samples all ranks consume in a step.
    pub fn per_step(&self) -> u64 {
        (self.micro_batch * (self.accumulation - 1) + self.last_batch) * self.ranks
    }
}

/// Largest prefetch: room for all of it is made at once.
pub(super) const MOST_PREFETCH: usize = 1024;

/// How far to read.
#[derive(Clone, Copy, Debug)]
pub struct LoaderOptions {
    /// Micro-batches that wait, ready, at most, up to 1024; one more is being read.
    pub prefetch: usize,
    /// Steps to read; endless without.
    pub steps: Option<u64>,
}

impl Default for LoaderOptions {
    fn default() -> LoaderOptions {
        LoaderOptions { prefetch: 4, steps: None }
    }
}

/// Micro-batches in the order they are trained on. An error ends the row.
#[derive(Debug)]
pub struct Loader {
    batches: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts reading.
    pub fn start(
        dataset: Arc<dyn Dataset>,
        sampler: Sampler,
        share: Share,
        options: LoaderOptions,
    ) -> Result<Loader> {
        let (sender, batches) = sync_channel(options.prefetch.min(MOST_PREFETCH));
        let thread = Builder::new()
            .name("planaria-data".into())
            .spawn(move || read_ahead(&*dataset, &sampler, &share, options.steps, &sender))
            .map_err(|error| Error::Stopped { what: format!("its thread could not be started: {error}") })?;
        Ok(Loader { batches: Some(batches), thread: Some(thread) })
    }

    /// Waits for the thread; a panic in it becomes an error.
    fn join(&mut self) -> Option<Result<Batch>> {
        self.batches = None;
        let panic = self.thread.take()?.join().err()?;
        let words = panic.downcast_ref::<&str>().map(ToString::to_string);
        let what = words.or_else(|| panic.downcast_ref::<String>().cloned());
        Some(Err(Error::Stopped { what: what.unwrap_or_else(|| "its thread panicked".into()) }))
    }
}

fn read_ahead(
    dataset: &dyn Dataset,
    sampler: &Sampler,
    share: &Share,
    steps: Option<u64>,
    sender: &SyncSender<Result<Batch>>,
) {
    for step in 0..steps.unwrap_or(u64::MAX) {
        for k in 0..share.accumulation {
            let (positions, rows) = (share.positions(step, k), share.micro_batch);
            let batch = Batch::read_filled(dataset, positions, rows, |p| sampler.place(p));
            let failed = batch.is_err();
            // A closed channel means that the loader was dropped.
            if sender.send(batch).is_err() || failed {
                return;
            }
        }
    }
}

impl Iterator for Loader {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        match self.batches.as_ref()?.recv() {
            Ok(batch) => Some(batch),
            Err(_) => self.join(),
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Closing the channel first wakes a thread that waits for room.
        self.join();
    }
}
