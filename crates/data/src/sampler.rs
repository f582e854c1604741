//! The order of training: which sample stands at which position, on any number of ranks.
//!
//! A position counts samples since the start of the run. What stands there depends on the seed and the dataset, not on ranks, batch
//! sizes or where a run was interrupted: a run that resumes from position p on another mesh sees what it would have seen anyway.

use super::apart::Apart;
use super::dataset::Dataset;
use super::error::{Error, Result};
use super::mixture::Mixture;
use super::permute::Permutation;
use planaria_array::random::Key;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Keeps the draws of the shuffle apart from those of dropout and initial values.
const STREAM: u64 = 0x6461_7461;

/// Order of the samples within an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Another order in each epoch.
    #[default]
    Shuffled,
    /// As they are numbered.
    Sequential,
}

impl Order {
    /// As configurations write it.
    fn name(self) -> &'static str {
        match self {
            Order::Shuffled => "shuffled",
            Order::Sequential => "sequential",
        }
    }
}

/// Which sources the samples of a batch come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchesFrom {
    /// Any of them.
    #[default]
    Mixed,
    /// One, chosen by its weight; where no source has one, by its number of samples.
    Proportional,
    /// One after the other, in turn.
    RoundRobin,
}

/// How samples come together in a batch, where that is more than their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batches {
    /// Samples of a batch over all ranks.
    pub size: u64,
    /// Which sources they come from.
    pub from: BatchesFrom,
    /// No text stands twice in a batch.
    pub no_duplicates: bool,
}

impl Batches {
    /// Whether samples follow each other whatever the batch.
    fn is_plain(&self) -> bool {
        self.from == BatchesFrom::Mixed && !self.no_duplicates
    }
}

impl fmt::Display for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Batches { size, from, no_duplicates } = self;
        match self.is_plain() {
            true => write!(f, "plain"),
            false => write!(f, "of {size} samples ({from:?}, no_duplicates {no_duplicates})"),
        }
    }
}

/// Where a position leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of the sample in the dataset.
    pub index: u64,
    /// Which source it is from.
    pub part: usize,
    /// How often that source was seen completely before.
    pub epoch: u64,
}

impl From<u64> for Place {
    /// The sample of this number, in the first epoch.
    fn from(index: u64) -> Place {
        Place { index, ..Place::default() }
    }
}

/// What must be the same for a position to mean the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    /// Seed of the shuffle.
    pub seed: u64,
    /// Order within epochs.
    pub order: Order,
    /// Samples per epoch.
    pub samples: u64,
    /// Tokens per sample.
    pub sequence: usize,
    /// Fingerprint of the dataset.
    pub fingerprint: u32,
    /// How samples come together.
    #[serde(default, skip_serializing_if = "Batches::is_plain")]
    pub batches: Batches,
}

/// Maps positions to samples.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// First sample of each source, and the number of samples.
    offsets: Vec<u64>,
    mixture: Option<Mixture>,
    /// The shares of sources among batches of one source each.
    shares: Option<Mixture>,
    /// For each stream that batches are made of, where no text may stand twice in one.
    apart: Vec<Apart>,
    state: SamplerState,
}

impl Sampler {
    /// The order of a dataset. If any source has a weight all must have one.
    pub fn new(dataset: &dyn Dataset, seed: u64, order: Order) -> Result<Sampler> {
        let parts = dataset.parts();
        let mut offsets = vec![0];
        for part in &parts {
            let before = offsets.last().copied().unwrap_or(0);
            offsets.push(before + part.samples);
        }
        let state = SamplerState {
            seed,
            order,
            samples: dataset.len(),
            sequence: dataset.sequence(),
            fingerprint: dataset.fingerprint(),
            batches: Batches::default(),
        };
        if let Some(empty) = parts.iter().find(|p| p.samples == 0) {
            return Err(Error::TooShort {
                origin: empty.name.clone(),
                tokens: 0,
                needed: state.sequence as u64 + 1,
            });
        }
        let weights: Vec<f64> = parts.iter().filter_map(|p| p.weight).collect();
        if !weights.is_empty() && weights.len() < parts.len() {
            let bare = parts.iter().find(|p| p.weight.is_none()).map_or("", |p| &p.name);
            let problem = "give every source a weight, or none".to_string();
            return Err(Error::Setting {
                key: "source.weight",
                value: format!("none for '{bare}'"),
                problem,
            });
        }
        let mixture = if weights.is_empty() { None } else { Some(Mixture::new(&weights)?) };
        Ok(Sampler { offsets, mixture, shares: None, apart: Vec::new(), state })
    }

    /// The same order for batches that are more than so many samples. Refuses what cannot be.
    pub fn batched(mut self, dataset: &Arc<dyn Dataset>, batches: Batches) -> Result<Sampler> {
        if batches.is_plain() {
            return Ok(self);
        }
        let parts = dataset.parts();
        match (batches.from, parts.iter().find(|part| part.weight.is_some())) {
            (BatchesFrom::RoundRobin, Some(part)) => {
                let problem = format!(
                    "sources take turns, and '{}' has a weight; \"proportional\" goes by weights",
                    part.name
                );
                return Err(Error::Setting {
                    key: "texts.batches",
                    value: "\"round_robin\"".into(),
                    problem,
                });
            }
            (BatchesFrom::Proportional, _) => {
                let weight = |part: &super::Part| part.weight.unwrap_or(part.samples as f64);
                self.shares = Some(Mixture::new(&parts.iter().map(weight).collect::<Vec<f64>>())?);
            }
            _ => {}
        }
        let streams = if batches.from == BatchesFrom::Mixed { 1 } else { parts.len() };
        self.state.batches = batches;
        if batches.no_duplicates {
            self.apart = (0..streams).map(|_| Apart::new(dataset, batches.size)).collect();
            for part in 0..streams {
                // What no batch can be made of is refused before the first is asked for.
                self.in_batch(Some(part).filter(|_| batches.from != BatchesFrom::Mixed), 0, 0)?;
            }
        }
        Ok(self)
    }

    /// The sample at a position.
    pub fn place(&self, position: u64) -> Result<Place> {
        let Batches { size, from, .. } = self.state.batches;
        if self.state.batches.is_plain() {
            return Ok(self.in_stream(None, position));
        }
        let (batch, parts) = (position / size, self.offsets.len() as u64 - 1);
        let key = Key::new(self.state.seed, STREAM);
        let (part, batch) = match (from, &self.shares) {
            (BatchesFrom::RoundRobin, _) => (Some((batch % parts) as usize), batch / parts),
            (_, Some(shares)) => {
                let (part, before) = shares.place(key.fold(0), batch);
                (Some(part), before)
            }
            _ => (None, batch),
        };
        self.in_batch(part, batch, position % size)
    }

    /// The sample at a place of a batch of one source, or of all.
    fn in_batch(&self, part: Option<usize>, batch: u64, within: u64) -> Result<Place> {
        let len = part.map_or(self.state.samples, |part| self.offsets[part + 1] - self.offsets[part]);
        match self.apart.get(part.unwrap_or(0)) {
            Some(apart) => apart.place((batch, within), len, &|position| self.in_stream(part, position)),
            None => Ok(self.in_stream(part, batch * self.state.batches.size + within)),
        }
    }

    /// The sample at a position of one source, or of all.
    fn in_stream(&self, part: Option<usize>, position: u64) -> Place {
        let key = Key::new(self.state.seed, STREAM);
        if let Some(part) = part {
            let range = self.offsets[part]..self.offsets[part + 1];
            let (index, epoch) = self.shuffled(key.fold(1 + part as u64), position, range);
            return Place { index, part, epoch };
        }
        let Some(mixture) = &self.mixture else {
            let (index, epoch) = self.shuffled(key, position, 0..self.state.samples);
            let part = self.offsets.partition_point(|&offset| offset <= index) - 1;
            return Place { index, part, epoch };
        };
        let (part, count) = mixture.place(key.fold(0), position);
        self.in_stream(Some(part), count)
    }

    /// The sample at a position of one source, and the epoch.
    fn shuffled(&self, key: Key, position: u64, range: std::ops::Range<u64>) -> (u64, u64) {
        let len = (range.end - range.start).max(1);
        let (epoch, within) = (position / len, position % len);
        let index = match self.state.order {
            Order::Sequential => within,
            Order::Shuffled => Permutation::new(key.fold(epoch).fold(1), len).of(within),
        };
        (range.start + index, epoch)
    }

    /// What to save beside the position.
    pub fn state(&self) -> &SamplerState {
        &self.state
    }

    /// Refuses to continue if positions of a saved run meant other samples.
    pub fn check(&self, saved: &SamplerState) -> Result<()> {
        let now = &self.state;
        let rows = [
            ("data.sequence", saved.sequence.to_string(), now.sequence.to_string()),
            ("the seed of the order", saved.seed.to_string(), now.seed.to_string()),
            ("data.order", saved.order.name().into(), now.order.name().into()),
            ("the number of samples", saved.samples.to_string(), now.samples.to_string()),
            ("how samples come together", saved.batches.to_string(), now.batches.to_string()),
            ("the fingerprint", format!("{:08x}", saved.fingerprint), format!("{:08x}", now.fingerprint)),
        ];
        match rows.into_iter().find(|(_, saved, found)| saved != found) {
            Some((what, saved, found)) => Err(Error::Changed { what, saved, found }),
            None => Ok(()),
        }
    }
}
