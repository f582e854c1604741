//! Batches in which no text stands twice: the rows of an epoch in another order, the same on every rank and after a resume.

use super::dataset::Dataset;
use super::error::{Error, Result};
use super::sampler::Place;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Deals the rows of a stream into batches: a row that has a text with the batch in common waits for the next. What no whole batch of
/// its epoch takes is left out of that epoch.
#[derive(Debug)]
pub(super) struct Apart {
    dataset: Arc<dyn Dataset>,
    /// Rows of a batch.
    size: u64,
    /// The epoch that was asked for last; those before it are found again from the first.
    made: Mutex<Option<Epoch>>,
}

#[derive(Clone, Debug)]
struct Epoch {
    number: u64,
    /// Its first batch.
    first: u64,
    /// Whole batches, one after the other.
    order: Vec<Place>,
}

impl Epoch {
    fn batches(&self, size: u64) -> Range<u64> {
        self.first..self.first + self.order.len() as u64 / size
    }
}

impl Apart {
    pub(super) fn new(dataset: &Arc<dyn Dataset>, size: u64) -> Apart {
        Apart { dataset: dataset.clone(), size, made: Mutex::default() }
    }

    /// The row at a place of a batch; an epoch is `len` positions of `stream`.
    pub(super) fn place(
        &self,
        (batch, within): (u64, u64),
        len: u64,
        stream: &dyn Fn(u64) -> Place,
    ) -> Result<Place> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut epoch = match made.take().filter(|made| made.first <= batch) {
            Some(made) => made,
            None => self.deal(0, 0, len, stream)?,
        };
        while batch >= epoch.batches(self.size).end {
            epoch = self.deal(epoch.number + 1, epoch.batches(self.size).end, len, stream)?;
        }
        let place = epoch.order[((batch - epoch.first) * self.size + within) as usize];
        *made = Some(epoch);
        Ok(place)
    }

    fn deal(&self, number: u64, first: u64, len: u64, stream: &dyn Fn(u64) -> Place) -> Result<Epoch> {
        let mut waiting: VecDeque<(Place, Vec<u64>)> = VecDeque::new();
        for position in number * len..(number + 1) * len {
            let place = stream(position);
            waiting.push_back((place, self.dataset.texts(&place)?));
        }
        let (mut order, mut most) = (Vec::new(), 0);
        loop {
            let (mut seen, mut chosen, mut later) = (HashSet::new(), Vec::new(), Vec::new());
            while chosen.len() < self.size as usize {
                let Some((place, texts)) = waiting.pop_front() else { break };
                if texts.iter().any(|text| seen.contains(text)) {
                    later.push((place, texts));
                } else {
                    seen.extend(texts);
                    chosen.push(place);
                }
            }
            most = most.max(chosen.len());
            if chosen.len() < self.size as usize {
                break;
            }
            order.append(&mut chosen);
            later.into_iter().rev().for_each(|row| waiting.push_front(row));
        }
        if order.is_empty() {
            let problem = format!(
                "a batch has {} rows, and {most} of {len} were found of which no two have a text in common; lower `train.global_batch`, or leave this out",
                self.size
            );
            return Err(Error::Setting { key: "texts.no_duplicates", value: "true".into(), problem });
        }
        Ok(Epoch { number, first, order })
    }
}

impl Clone for Apart {
    fn clone(&self) -> Apart {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Apart { dataset: self.dataset.clone(), size: self.size, made: Mutex::new(made) }
    }
}
