//! Rollouts as plain records: what was asked and answered, what it is worth, and what the update phase began with. All data ranks
//! have all of them, so that any number of ranks learns the same and a checkpoint inside a rollout has them too.

use crate::data::{Batch, IGNORED};
use crate::error::{Error, Result};
use crate::rl::RunningMoments;
use planaria_array::Array;
use planaria_comm::{Comm, Value, value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A response with all that updates need of it. Lists have one number for each of its tokens, or none where nobody asks. Numbers are
/// written as their bits: what is read again is the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) prompt: Vec<i64>,
    pub(super) response: Vec<i64>,
    /// Whether it ended by itself.
    pub(super) finished: bool,
    /// What it is worth; not a number where nobody could say.
    #[serde(with = "bits::one")]
    pub(super) worth: f64,
    /// What each of several sources said; not a number where one said nothing.
    #[serde(with = "bits", default)]
    pub(super) scores: Vec<f64>,
    /// Log-probabilities as it was drawn with.
    #[serde(with = "bits", default)]
    pub(super) sampled: Vec<f32>,
    #[serde(flatten)]
    pub(super) thought: Thought,
    #[serde(with = "bits")]
    pub(super) advantages: Vec<f32>,
    /// What the critic should have expected.
    #[serde(with = "bits")]
    pub(super) returns: Vec<f32>,
}

impl Record {
    pub(super) fn is_scored(&self) -> bool {
        !self.worth.is_nan()
    }
}

/// What models think of the tokens of a response; lists that are empty are not known here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Thought {
    /// Log-probabilities under the policy that the update phase began with.
    #[serde(with = "bits")]
    pub(super) old: Vec<f32>,
    /// The same under the reference.
    #[serde(with = "bits")]
    pub(super) reference: Vec<f32>,
    /// How far from the reference over the whole vocabulary.
    #[serde(with = "bits", default)]
    pub(super) distance: Vec<f32>,
    /// What the critic expected.
    #[serde(with = "bits")]
    pub(super) values: Vec<f32>,
}

impl Thought {
    fn lists(&mut self) -> [&mut Vec<f32>; 4] {
        [&mut self.old, &mut self.reference, &mut self.distance, &mut self.values]
    }

    /// Takes over what another rank knows.
    pub(super) fn learn(&mut self, mut told: Thought) {
        for (own, told) in self.lists().into_iter().zip(told.lists()) {
            if !told.is_empty() {
                *own = std::mem::take(told);
            }
        }
    }
}

/// What one rollout leaves to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Groups that were found and not needed.
    pub(super) carried: Vec<Record>,
    /// What leaving the reference costs now, where that follows how far the policy has gone.
    #[serde(with = "bits")]
    pub(super) kl_coef: Vec<f64>,
    /// Count, mean and variance of all rewards so far.
    #[serde(with = "bits")]
    pub(super) rewards: Vec<f64>,
}

impl Memory {
    pub(super) fn moments(&self) -> RunningMoments {
        match self.rewards[..] {
            [count, mean, var] => RunningMoments { count, mean, var },
            _ => RunningMoments::default(),
        }
    }

    pub(super) fn set_moments(&mut self, moments: RunningMoments) {
        self.rewards = vec![moments.count, moments.mean, moments.var];
    }
}

/// All responses of some steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rollout {
    /// The first step that learns from it.
    pub(super) first: u64,
    /// How many do.
    pub(super) steps: u64,
    /// Prompt after prompt, the responses to each together.
    pub(super) records: Vec<Record>,
    /// The names of its figures.
    #[serde(default)]
    pub(super) names: Vec<String>,
    /// The figures, in the same order.
    #[serde(with = "bits")]
    pub(super) told: Vec<f64>,
    #[serde(default)]
    pub(super) memory: Memory,
}

impl Rollout {
    /// Whether a step learns from it.
    pub(super) fn has(&self, step: u64) -> bool {
        (self.first..self.first + self.steps).contains(&step)
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::Bug { what: format!("a rollout has no text: {e}") })
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Rollout> {
        serde_json::from_slice(bytes)
            .map_err(|e| Error::Run { what: format!("the checkpoint's rollout is not readable: {e}") })
    }
}

/// What all ranks have made of micro-batches, by their numbers; `own` is what this rank did. Collective.
pub(super) fn gather<T>(peers: &Arc<dyn Comm>, own: &[(usize, T)]) -> Result<BTreeMap<usize, Vec<T>>>
where
    T: Serialize + DeserializeOwned,
{
    let lost = |e: &dyn std::fmt::Display| Error::Bug { what: format!("records of another rank: {e}") };
    let text = serde_json::to_string(own).map_err(|e| lost(&e))?;
    let mut out: BTreeMap<usize, Vec<T>> = BTreeMap::new();
    for told in value::all_gather(&**peers, &Value::Text(text))? {
        let Value::Text(text) = told else { return Err(lost(&"no text")) };
        for (number, made) in serde_json::from_str::<Vec<(usize, T)>>(&text).map_err(|e| lost(&e))? {
            out.entry(number).or_default().push(made);
        }
    }
    Ok(out)
}

/// Prompts with their responses, filled up behind; labels are the tokens of responses that count.
pub(super) fn batch(records: &[Record], counts: impl Fn(&Record) -> bool) -> Result<Batch> {
    let length = |record: &Record| record.prompt.len() + record.response.len();
    let longest = records.iter().map(length).max().unwrap_or(0);
    let (mut tokens, mut labels) = (Vec::new(), Vec::new());
    for record in records {
        let (given, after) = (record.prompt.len(), longest - length(record));
        tokens.extend(record.prompt.iter().chain(&record.response));
        tokens.extend(std::iter::repeat_n(0, after));
        labels.extend(std::iter::repeat_n(IGNORED, given - 1));
        let counts = counts(record);
        labels.extend(record.response.iter().map(|&token| if counts { token } else { IGNORED }));
        labels.extend(std::iter::repeat_n(IGNORED, after + 1));
    }
    let shape = [records.len(), longest];
    Ok(Batch {
        positions: 0..records.len() as u64,
        part: 0,
        tokens: Array::from_slice(&tokens, &shape)?,
        labels: Array::from_slice(&labels, &shape)?,
        starts: None,
        shown: Vec::new(),
        attached: Vec::new(),
    })
}

/// Numbers of tokens in the places of their labels, `[rows, tokens]`; 0 elsewhere.
pub(super) fn spread(records: &[Record], of: impl Fn(&Record) -> &[f32]) -> Result<Array> {
    let longest = records.iter().map(|r| r.prompt.len() + r.response.len()).max().unwrap_or(0);
    let mut out = vec![0f32; records.len() * longest];
    for (row, record) in out.chunks_mut(longest.max(1)).zip(records) {
        let (first, numbers) = (record.prompt.len() - 1, of(record));
        row[first..first + numbers.len()].copy_from_slice(numbers);
    }
    Ok(Array::from_slice(&out, &[records.len(), longest])?)
}

/// The numbers of each record's tokens out of `[rows, tokens]`.
pub(super) fn collect(records: &[Record], grid: &[f32]) -> Vec<Vec<f32>> {
    let longest = grid.len() / records.len().max(1);
    let row = |(row, record): (usize, &Record)| {
        grid[row * longest + record.prompt.len() - 1..][..record.response.len()].to_vec()
    };
    records.iter().enumerate().map(row).collect()
}

/// Numbers as their bits instead of decimals.
mod bits {
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// A number, and the whole number of its bits.
    pub(super) trait Bits: Copy {
        type Word: Serialize + DeserializeOwned;
        fn word(self) -> Self::Word;
        fn of(word: Self::Word) -> Self;
    }

    impl Bits for f32 {
        type Word = u32;
        fn word(self) -> u32 {
            self.to_bits()
        }
        fn of(word: u32) -> f32 {
            f32::from_bits(word)
        }
    }

    impl Bits for f64 {
        type Word = u64;
        fn word(self) -> u64 {
            self.to_bits()
        }
        fn of(word: u64) -> f64 {
            f64::from_bits(word)
        }
    }

    pub(super) fn serialize<T: Bits, S: Serializer>(list: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|x| x.word()))
    }

    pub(super) fn deserialize<'de, T: Bits, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        Ok(Vec::<T::Word>::deserialize(from)?.into_iter().map(T::of).collect())
    }

    /// The same for one number.
    pub(super) mod one {
        use super::{Bits, Deserialize, Deserializer, Serialize, Serializer};

        pub(in super::super) fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
            x.word().serialize(to)
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
            Ok(f64::of(u64::deserialize(from)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            prompt: vec![3, 4],
            response: vec![5, 6, 2],
            finished: true,
            worth: 0.1 + 0.2,
            thought: Thought { old: vec![-0.1, f32::MIN_POSITIVE, -3.3], ..Thought::default() },
            ..Record::default()
        }
    }

    #[test]
    fn a_rollout_is_read_back_bit_for_bit() {
        let unscored = Record { worth: f64::NAN, ..record() };
        let made = Rollout {
            first: 3,
            steps: 4,
            records: vec![record(), unscored],
            names: vec!["reward".into(), "reward_std".into()],
            told: vec![1.0 / 3.0, f64::NAN],
            memory: Memory { carried: vec![record()], kl_coef: vec![0.1], rewards: vec![3.0, 0.2, 0.7] },
        };
        let read = Rollout::from_bytes(&made.to_bytes().unwrap()).unwrap();
        assert_eq!((&read.records[0], read.records[1].is_scored()), (&made.records[0], false));
        assert_eq!((read.told[0], read.told[1].is_nan()), (made.told[0], true));
        assert_eq!(read.memory, made.memory);
        assert!(Rollout::from_bytes(b"{").unwrap_err().to_string().contains("not readable"));
    }

    #[test]
    fn labels_and_numbers_stand_before_the_tokens_they_are_of() {
        let thought = Thought { old: vec![0.5], ..Thought::default() };
        let short = Record { prompt: vec![7], response: vec![2], thought, ..record() };
        let rows = [record(), short];
        let made = batch(&rows, |r| r.prompt.len() > 1).unwrap();
        assert_eq!(made.tokens.to_vec::<i64>().unwrap(), [3, 4, 5, 6, 2, 7, 2, 0, 0, 0]);
        let none = IGNORED;
        let labels = [none, 5, 6, 2, none, none, none, none, none, none];
        assert_eq!(made.labels.to_vec::<i64>().unwrap(), labels);
        let grid = spread(&rows, |r| &r.thought.old).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(grid[1..4], [-0.1, f32::MIN_POSITIVE, -3.3]);
        assert_eq!((grid[5], grid[6]), (0.5, 0.0));
        assert_eq!(collect(&rows, &grid), [rows[0].thought.old.clone(), vec![0.5]]);
    }
}
