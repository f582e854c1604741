//! The order of training: which sample stands at which position, on any number of ranks.
//!
//! A position counts samples since the start of the run. What stands there depends on the seed and the dataset, not on ranks, batch
//! sizes or where a run was interrupted: a run that resumes from position p on another mesh sees what it would have seen anyway.

use super::dataset::Dataset;
use super::error::{Error, Result};
use super::mixture::Mixture;
use super::permute::Permutation;
use planaria_array::random::Key;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// Where a position leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the sample in the dataset.
    pub index: u64,
    /// Which source it is from.
    pub part: usize,
    /// How often that source was seen completely before.
    pub epoch: u64,
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
}

/// Maps positions to samples.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// First sample of each source, and the number of samples.
    offsets: Vec<u64>,
    mixture: Option<Mixture>,
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
        Ok(Sampler { offsets, mixture, state })
    }

    /// The sample at a position.
    pub fn place(&self, position: u64) -> Place {
        let key = Key::new(self.state.seed, STREAM);
        let Some(mixture) = &self.mixture else {
            let (index, epoch) = self.shuffled(key, position, 0..self.state.samples);
            let part = self.offsets.partition_point(|&offset| offset <= index) - 1;
            return Place { index, part, epoch };
        };
        let (part, count) = mixture.place(key.fold(0), position);
        let range = self.offsets[part]..self.offsets[part + 1];
        let (index, epoch) = self.shuffled(key.fold(1 + part as u64), count, range);
        Place { index, part, epoch }
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
            ("the fingerprint", format!("{:08x}", saved.fingerprint), format!("{:08x}", now.fingerprint)),
        ];
        match rows.into_iter().find(|(_, saved, found)| saved != found) {
            Some((what, saved, found)) => Err(Error::Changed { what, saved, found }),
            None => Ok(()),
        }
    }
}
