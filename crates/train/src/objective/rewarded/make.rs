//! The making of a rollout: responses that are worth something, what models think of them, and their advantages.

use super::record::{self, Memory, Record, Rollout, Thought};
use super::{Algorithm, Rewarded, TINY};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::objective::{Before, Draws, Objective};
use crate::rl::{
    AdaptiveKl, Reference, RolloutBatching, RolloutGeometry, label_logprobs, label_values, varied_groups,
};
use planaria_array::{Array, DType};
use planaria_comm::CommExt as _;
use planaria_nn::lora::without_adapters;
use planaria_tensor::Tensor;
use std::collections::BTreeMap;

/// Rewards of a group differ where their variance is above this.
const LEAST: f64 = 1e-6;

/// The responses of a rollout, and how they were found.
struct Found {
    records: Vec<Record>,
    /// How often prompts for a whole rollout were answered.
    tries: usize,
    /// The share of groups that were left out.
    left_out: f64,
}

impl Rewarded {
    /// Makes the rollout that begins with this step out of the prompts that were read. Collective.
    pub(super) fn make(&self, before: &Before<'_>, read: Vec<Batch>) -> Result<Rollout> {
        self.check_geometry(before.data.size(), read.len())?;
        let mut memory = self.memory(before.step);
        let Found { mut records, tries, left_out } = self.find(before, read, &mut memory)?;
        self.show(before, &records)?;
        self.look_back(before, &mut records)?;
        let moments = memory.moments();
        let worth = |record: &Record| match self.section.normalize_rewards {
            true => moments.normalize(record.worth, TINY),
            false => record.worth,
        };
        let worth: Vec<f64> = records.iter().map(worth).collect();
        let kl_coef = memory.kl_coef.first().copied().unwrap_or(self.ppo.kl_coef);
        let degenerate = match self.kind {
            Algorithm::Grpo => self.compare(&mut records, &worth),
            Algorithm::Ppo => {
                self.estimate(&mut records, &worth, kl_coef);
                0.0
            }
        };
        let degenerate = if self.section.max_gen_batches.is_some() { left_out } else { degenerate };
        let figures = self.figures_of(&records);
        if let Some(target) = self.ppo.kl_target.filter(|_| self.kind == Algorithm::Ppo) {
            let mut now = AdaptiveKl { coef: kl_coef, target, horizon: self.ppo.kl_horizon };
            now.update(figures["reference_kl"], records.len() as f64);
            memory.kl_coef = vec![now.coef];
        }
        let told = |name: &String| match name.as_str() {
            "degenerate_groups" => degenerate,
            "gen_batches" => tries as f64,
            "kl_coef" => kl_coef,
            name => figures.get(name).copied().unwrap_or(f64::NAN),
        };
        let names = self.told();
        let told = names.iter().map(told).collect();
        Ok(Rollout { first: before.step, steps: self.steps(), records, names, told, memory })
    }

    fn check_geometry(&self, ranks: usize, read: usize) -> Result<()> {
        let geometry = RolloutGeometry::derive(&RolloutBatching {
            prompts_per_rollout: (self.update * self.updates) as i64,
            samples_per_prompt: self.group as i64,
            prompts_per_update: Some(self.update as i64),
            data_ranks: ranks as i64,
            per_device: (self.micro * self.group) as i64,
            epochs: Some(self.epochs as i64),
            accumulation: Some((read / self.updates) as i64),
            ..RolloutBatching::default()
        });
        geometry.map(|_| ()).map_err(|error| Error::Run { what: error.to_string() })
    }

    /// The responses to learn from: to the prompts that were read, or, where only groups with a signal count, to as many further
    /// prompts as it takes. Collective.
    fn find(&self, before: &Before<'_>, mut read: Vec<Batch>, memory: &mut Memory) -> Result<Found> {
        let opened = self.opened()?;
        let wanted = self.update * self.updates * self.group;
        let mut records = std::mem::take(&mut memory.carried);
        let (mut tries, mut groups, mut varied) = (0, 0, 0);
        loop {
            let made = self.answers(before, &read, &opened)?;
            tries += 1;
            if self.section.normalize_rewards {
                let mut moments = memory.moments();
                let scored = made.iter().filter(|record| record.is_scored()).map(|record| record.worth);
                moments.add(&scored.collect::<Vec<_>>());
                memory.set_moments(moments);
            }
            let Some(most) = self.section.max_gen_batches else {
                return Ok(Found { records: made, tries, left_out: 0.0 });
            };
            for group in made.chunks(self.group) {
                groups += 1;
                if differs(group) {
                    varied += 1;
                    records.extend_from_slice(group);
                }
            }
            if records.len() >= wanted {
                memory.carried = records.split_off(wanted);
                let left_out = 1.0 - f64::from(varied) / f64::from(groups);
                return Ok(Found { records, tries, left_out });
            }
            if tries >= most {
                let (found, wanted) = (records.len() / self.group, self.update * self.updates);
                let what = format!(
                    "step {} found {found} of {wanted} prompts whose responses differ in worth among {groups}, and `rl.max_gen_batches` is {most}; allow more, or choose prompts that are neither too easy nor too hard",
                    before.step
                );
                return Err(Error::Run { what });
            }
            read = Vec::new();
            for _ in 0..self.updates {
                read.extend(before.read()?);
            }
        }
    }

    /// What the policy of now, its reference and its critic think of every token, where updates ask for it: who has the model's
    /// end says it, and all learn it. Collective.
    fn look_back(&self, before: &Before<'_>, records: &mut [Record]) -> Result<()> {
        if !self.looks_back() && !self.loss_estimates_distance() {
            return Ok(());
        }
        let (ranks, rank, each) = (before.data.size(), before.data.rank(), self.micro * self.group);
        let numbers: Vec<usize> = (0..records.len() / each).filter(|number| number % ranks == rank).collect();
        let of = |number: usize| &records[number * each..][..each];
        let made = numbers.iter().map(|&number| record::batch(of(number), |_| true));
        let made = made.collect::<Result<Vec<Batch>>>()?;
        let mut own: BTreeMap<usize, Vec<Thought>> = BTreeMap::new();
        let mut note = |number: usize, values: &Tensor, set: fn(&mut Thought, Vec<f32>)| -> Result<()> {
            let values = values.whole()?.cast(DType::F32)?.contiguous()?.to_vec::<f32>()?;
            let thoughts = own.entry(number).or_insert_with(|| vec![Thought::default(); each]);
            let lists = record::collect(of(number), &values);
            thoughts.iter_mut().zip(lists).for_each(|(thought, list)| set(thought, list));
            Ok(())
        };
        let temperature = self.section.temperature;
        // As many at a time as a step has: that is what the stages of a pipeline are prepared for.
        let rounds = made.len() / self.updates;
        for (chunk, numbers) in made.chunks(rounds.max(1)).zip(numbers.chunks(rounds.max(1))) {
            let mut bases: BTreeMap<usize, Array> = BTreeMap::new();
            if self.reference.as_ref().is_some_and(Reference::is_base) {
                without_adapters(|| {
                    before.forward(chunk, Draws::Off, &mut |round, model, last, batch| {
                        if self.shapes_by_distance() {
                            bases.insert(round, model.head(&last.hidden)?.states.whole()?);
                        }
                        let found = label_logprobs(model, &last.hidden, batch, temperature)?;
                        note(numbers[round], &found, |thought, list| thought.reference = list)
                    })
                })?;
            }
            if self.looks_back() {
                before.forward(chunk, Draws::Off, &mut |round, model, last, batch| {
                    let found = label_logprobs(model, &last.hidden, batch, temperature)?;
                    note(numbers[round], &found, |thought, list| thought.old = list)?;
                    if self.shapes_by_distance() {
                        let found = self.distance(model, last, batch, bases.get(&round))?;
                        note(numbers[round], &found, |thought, list| thought.distance = list)?;
                    }
                    let Some(critic) = model.beside() else { return Ok(()) };
                    let found = label_values(critic, self.input(batch)?)?;
                    note(numbers[round], &found, |thought, list| thought.values = list)
                })?;
            }
        }
        if let Some(Reference::Folder(still)) = &self.reference {
            let (stage, stages) = before.stage;
            let mine = made.iter().zip(&numbers).enumerate().filter(|(at, _)| at % stages == stage);
            for (_, (batch, &number)) in mine {
                let found = still.logprobs(self.input(batch)?, batch, temperature)?;
                note(number, &Tensor::new(found), |thought, list| thought.reference = list)?;
            }
        }
        let own: Vec<(usize, Vec<Thought>)> = own.into_iter().collect();
        share(before, &own, records, each)
    }
}

/// Brings what all ranks think of the responses of their micro-batches, of `each` responses, into the records. Collective.
fn share(
    before: &Before<'_>,
    own: &[(usize, Vec<Thought>)],
    records: &mut [Record],
    each: usize,
) -> Result<()> {
    for (number, told) in record::gather(before.peers, own)? {
        for thoughts in told {
            let records = records[number * each..][..each].iter_mut();
            records.zip(thoughts).for_each(|(record, thought)| record.thought.learn(thought));
        }
    }
    Ok(())
}

/// Whether the rewards of a group differ.
fn differs(group: &[Record]) -> bool {
    let scored: Vec<f64> = group.iter().filter(|one| one.is_scored()).map(|one| one.worth).collect();
    !varied_groups(&scored, &vec![0; scored.len()], LEAST).is_empty()
}
