//! The making of a rollout: responses to prompts, what they are worth, and what the update phase needs to know of them.

use super::record::{self, Record, Rollout};
use super::{Kind, Opened, Rewarded, TOLD};
use crate::config::ResponsesFrom;
use crate::data::{Batch, Tokenizer};
use crate::error::{Error, Result};
use crate::objective::{Before, Draws, Objective};
use crate::rl::{
    Judged, Roll, RolloutBatching, RolloutGeometry, ShapeOptions, combine_rewards, gae, group_advantages,
    label_logprobs, label_values, overlong_penalty, roll, shape_rewards, whiten,
};
use planaria_array::DType;
use planaria_array::random::{Key, Window, uniform_f64};
use planaria_comm::CommExt as _;
use planaria_nn::models::Network;
use planaria_tensor::Tensor;
use serde_json::Value;

/// Keeps the draws of responses apart from others of the same seed.
const ROLLOUT: u64 = 0x726f_6c6c;
/// Added to the variance that numbers are divided by.
const EPS: f64 = 1e-8;

/// The prompts of a micro-batch.
struct Prompts {
    tokens: Vec<Vec<i64>>,
    rows: Vec<usize>,
}

impl Prompts {
    fn of(batch: &Batch) -> Result<Prompts> {
        let length = batch.tokens.shape()[1].max(1);
        let (tokens, labels) = (batch.tokens.to_vec::<i64>()?, batch.labels.to_vec::<i64>()?);
        let lost = || Error::Bug { what: "prompts that do not say where they end".into() };
        let starts = batch.starts.as_ref().ok_or_else(lost)?;
        let prompt =
            |(row, starts): (&[i64], &Vec<usize>)| row[..starts.first().copied().unwrap_or(length)].to_vec();
        Ok(Prompts {
            tokens: tokens.chunks(length).zip(starts).map(prompt).collect(),
            rows: labels.chunks(length).map(|row| row[0].max(0) as usize).collect(),
        })
    }
}

/// What the sources said of some responses, and why one of them said nothing.
struct Verdicts {
    worth: Vec<Option<f64>>,
    failed: Option<String>,
}

impl Rewarded {
    /// Makes the rollout that begins with this step out of the prompts that were read. Collective.
    pub(super) fn make(&self, model: &dyn Network, before: &Before<'_>, read: &[Batch]) -> Result<Rollout> {
        let opened = self.opened()?;
        self.check_geometry(before.data.size(), read.len())?;
        let (mut own, mut failed) = (Vec::new(), None);
        for batch in read {
            let asked = Prompts::of(batch)?;
            let mut records = match self.section.responses {
                ResponsesFrom::Policy => self.respond(model, before.step, batch, &asked, &opened)?,
                ResponsesFrom::Rows => self.given(&asked, &opened)?,
            };
            let verdicts = self.judge(&asked, &records, &opened)?;
            for (record, worth) in records.iter_mut().zip(verdicts.worth) {
                record.worth = worth.map_or(f64::NAN, |worth| self.adjust(record, worth));
            }
            failed = failed.or(verdicts.failed);
            own.push(records);
        }
        self.look_back(before, &mut own)?;
        let mut records = record::gather(before.data, &own)?;
        if !records.iter().any(Record::is_scored) {
            let why = failed.unwrap_or_else(|| "no source of rewards had a number for any of them".into());
            let what = format!(
                "none of the {} responses of step {} got a reward: {why}",
                records.len(),
                before.step
            );
            return Err(Error::Run { what });
        }
        let told = match self.kind {
            Kind::Grpo => self.compare(&mut records),
            Kind::Ppo => self.estimate(&mut records),
        };
        Ok(Rollout { first: before.step, steps: self.steps(), records, told })
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

    /// Responses to every prompt by the policy, those of one after the other.
    fn respond(
        &self,
        model: &dyn Network,
        step: u64,
        batch: &Batch,
        asked: &Prompts,
        opened: &Opened,
    ) -> Result<Vec<Record>> {
        let group = self.group;
        let prompts: Vec<Vec<i64>> =
            asked.tokens.iter().flat_map(|prompt| std::iter::repeat_n(prompt.clone(), group)).collect();
        let options = Roll {
            sampling: self.section.sampling(),
            ends: ends(&opened.tokenizer),
            most: self.section.max_new_tokens,
            context: self.sequence,
            rows: self.section.rows,
        };
        let key = Key::new(self.seed, ROLLOUT).fold(step);
        let draw = |number: usize, place: usize| {
            let position = batch.positions.start + (number / group) as u64;
            let mut drawn = [0.0];
            let of = key.fold(position).fold((number % group) as u64);
            // A window of one element is always there.
            let _ = uniform_f64(&mut drawn, of, &Window::flat(place as u64, 1));
            drawn[0]
        };
        let made = roll(model, &prompts, &options, &draw)?;
        let record = |(prompt, one): (Vec<i64>, crate::rl::Rolled)| Record {
            prompt,
            response: one.response.tokens,
            finished: one.response.finished,
            ..Record::default()
        };
        Ok(prompts.into_iter().zip(made).map(record).collect())
    }

    /// The responses that the rows have: `responses`, as many as `rl.samples_per_prompt` lists of token ids.
    fn given(&self, asked: &Prompts, opened: &Opened) -> Result<Vec<Record>> {
        let (ends, vocab) = (ends(&opened.tokenizer), opened.tokenizer.vocab_size() as u64);
        let mut all = Vec::new();
        for (prompt, &row) in asked.tokens.iter().zip(&asked.rows) {
            let wrong = |what: &str| Error::Run { what: format!("row {} of the prompts: {what}", row + 1) };
            let list = opened.row(row)?.get("responses").and_then(Value::as_array);
            let list = list.ok_or_else(|| wrong("there is no list `responses`"))?;
            if list.len() != self.group {
                let what =
                    format!("it has {} responses, `rl.samples_per_prompt` is {}", list.len(), self.group);
                return Err(wrong(&what));
            }
            for response in list {
                let id = |id: &Value| id.as_u64().filter(|&id| id < vocab).map(|id| id as i64);
                let ids = response.as_array().and_then(|ids| ids.iter().map(id).collect::<Option<Vec<_>>>());
                let response =
                    ids.ok_or_else(|| wrong(&format!("a response is a list of token ids below {vocab}")))?;
                if prompt.len() + response.len() > self.sequence {
                    let long = prompt.len() + response.len();
                    let what = format!("{long} tokens are more than `data.sequence`, {}", self.sequence);
                    return Err(wrong(&what));
                }
                let finished = response.last().is_some_and(|last| ends.contains(last));
                all.push(Record { prompt: prompt.clone(), response, finished, ..Record::default() });
            }
        }
        Ok(all)
    }

    fn judge(&self, asked: &Prompts, records: &[Record], opened: &Opened) -> Result<Verdicts> {
        let text =
            |ids: &[i64]| opened.tokenizer.decode(&ids.iter().map(|&id| id as u32).collect::<Vec<_>>());
        let mut all = Vec::with_capacity(records.len());
        for (number, one) in records.iter().enumerate() {
            let (tokens, prompt) = (&one.response, number / self.group);
            let said = if one.finished { &tokens[..tokens.len() - 1] } else { &tokens[..] };
            all.push(Judged {
                prompt: text(&one.prompt)?,
                response: text(said)?,
                row: opened.row(asked.rows[prompt])?,
                number: number % self.group,
                share: tokens.len() as f64 / self.section.max_new_tokens as f64,
                finished: one.finished,
            });
        }
        let (mut scores, mut failed) = (Vec::new(), None);
        for reward in &self.section.reward {
            scores.push(match reward.score(&all) {
                Ok(scores) => scores,
                // Never guessed: what it would have judged stays without its number, and is told.
                Err(error) => {
                    failed = failed.or(Some(error.to_string()));
                    vec![None; all.len()]
                }
            });
        }
        let weights: Vec<f64> = self.section.reward.iter().map(|reward| reward.weight).collect();
        let of = |at: usize| scores.iter().map(|scores| scores[at]).collect::<Vec<_>>();
        let worth = |at: usize| {
            // A response that one of several sources failed on would be worth less than its siblings for no fault of its own.
            if failed.is_some() { None } else { combine_rewards(&of(at), &weights) }
        };
        Ok(Verdicts { worth: (0..records.len()).map(worth).collect(), failed })
    }

    /// A reward after penalties, within its bounds.
    fn adjust(&self, record: &Record, worth: f64) -> f64 {
        let section = &self.section;
        let mut worth = worth;
        if !record.finished {
            worth -= section.missing_eos_penalty;
        }
        if section.overlong_buffer > 0 {
            let (length, most) = (record.response.len(), section.max_new_tokens);
            worth += overlong_penalty(length, most, section.overlong_buffer, section.overlong_factor);
        }
        match section.score_clip {
            Some(most) => worth.clamp(-most, most),
            None => worth,
        }
    }

    /// What the policy of now, its reference and its critic think of every token, where updates ask for it. Collective.
    fn look_back(&self, before: &Before<'_>, own: &mut [Vec<Record>]) -> Result<()> {
        let made = own.iter().map(|records| record::batch(records, |_| true)).collect::<Result<Vec<_>>>()?;
        let numbers = |values: &Tensor| -> Result<Vec<f32>> {
            Ok(values.whole()?.cast(DType::F32)?.contiguous()?.to_vec::<f32>()?)
        };
        if self.looks_back() {
            before.forward(&made, Draws::Off, &mut |round, model, last, batch| {
                let records = &mut own[round];
                let found = label_logprobs(model, &last.hidden, batch, self.section.temperature)?;
                let found = record::collect(records, &numbers(&found)?);
                records.iter_mut().zip(found).for_each(|(record, old)| record.old = old);
                if let Some(critic) = model.beside() {
                    let found = label_values(critic, self.input(batch)?)?;
                    let found = record::collect(records, &numbers(&found)?);
                    records.iter_mut().zip(found).for_each(|(record, values)| record.values = values);
                }
                Ok(())
            })?;
        }
        let Some(reference) = &self.reference else { return Ok(()) };
        for (records, batch) in own.iter_mut().zip(&made) {
            let found = reference.logprobs(self.input(batch)?, batch, self.section.temperature)?;
            let found = record::collect(records, &numbers(&Tensor::new(found))?);
            records.iter_mut().zip(found).for_each(|(record, found)| record.reference = found);
        }
        Ok(())
    }

    /// Advantages of responses over their siblings; the figures of the rollout.
    fn compare(&self, records: &mut [Record]) -> Vec<f64> {
        let worth: Vec<Option<f64>> =
            records.iter().map(|record| Some(record.worth).filter(|worth| !worth.is_nan())).collect();
        let groups: Vec<i64> = (0..records.len()).map(|at| (at / self.group) as i64).collect();
        let found = group_advantages(&worth, &groups, self.section.scale, self.section.eps);
        for (record, advantage) in records.iter_mut().zip(&found.values) {
            record.advantages = vec![*advantage as f32; record.response.len()];
        }
        let degenerate = found.degenerate.iter().filter(|&&degenerate| degenerate).count();
        figures(records, degenerate as f64 / found.degenerate.len().max(1) as f64)
    }

    /// Advantages and returns of tokens by what the critic expected; the figures of the rollout.
    fn estimate(&self, records: &mut [Record]) -> Vec<f64> {
        let ppo = &self.ppo;
        let wide = |list: &[f32]| list.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let options = ShapeOptions { kl: ppo.kl, kl_coef: ppo.kl_coef, ..ShapeOptions::default() };
        let mut rewards = Vec::new();
        for record in records.iter().filter(|record| record.is_scored()) {
            let (old, mask) = (wide(&record.old), vec![true; record.response.len()]);
            let reference = if record.reference.is_empty() { old.clone() } else { wide(&record.reference) };
            let score = (record.worth, record.finished);
            rewards.push(shape_rewards([&old, &reference], &mask, score, &options).rewards);
        }
        if ppo.whiten_rewards {
            rewards = whitened(rewards, true);
        }
        let scored = || records.iter().filter(|record| record.is_scored());
        let (mut advantages, mut returns) = (Vec::new(), Vec::new());
        for (record, rewards) in scored().zip(&rewards) {
            let mask = vec![true; rewards.len()];
            let (found, expected) = gae(rewards, &wide(&record.values), &mask, ppo.gamma, ppo.lambda);
            advantages.push(found);
            returns.push(expected);
        }
        if ppo.whiten_advantages {
            advantages = whitened(advantages, false);
        }
        let narrow = |list: Vec<f64>| list.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
        let scored = records.iter_mut().filter(|record| record.is_scored());
        for ((record, advantages), returns) in scored.zip(advantages).zip(returns) {
            (record.advantages, record.returns) = (narrow(advantages), narrow(returns));
        }
        figures(records, 0.0)
    }
}

/// All numbers of a rollout made to have variance 1, over all responses at once.
fn whitened(lists: Vec<Vec<f64>>, keep_mean: bool) -> Vec<Vec<f64>> {
    let all: Vec<f64> = lists.iter().flatten().copied().collect();
    let mut made = whiten(&all, &vec![true; all.len()], keep_mean, EPS).values.into_iter();
    lists.iter().map(|list| made.by_ref().take(list.len()).collect()).collect()
}

fn ends(tokenizer: &Tokenizer) -> Vec<i64> {
    tokenizer.frame().eos.map(i64::from).into_iter().collect()
}

/// The figures of a rollout in the order of [`TOLD`].
fn figures(all: &[Record], degenerate: f64) -> Vec<f64> {
    let mean = |of: &dyn Fn(&Record) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
    let flag = |holds: bool| f64::from(u8::from(holds));
    let scored: Vec<f64> = all.iter().map(|one| one.worth).filter(|worth| !worth.is_nan()).collect();
    let count = scored.len().max(1) as f64;
    let reward = scored.iter().sum::<f64>() / count;
    let var = scored.iter().map(|x| (x - reward).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let apart = |one: &Record| {
        let pairs = one.old.iter().zip(&one.reference);
        pairs.map(|(old, reference)| f64::from(*old) - f64::from(*reference)).sum::<f64>()
    };
    let told = |name: &&str| match *name {
        "reward" => reward,
        "reward_std" => var.sqrt(),
        "response_tokens" => mean(&|one| one.response.len() as f64),
        "finished" => mean(&|one| flag(one.finished)),
        "degenerate_groups" => degenerate,
        "unscored" => mean(&|one| flag(!one.is_scored())),
        "reference_kl" => mean(&apart),
        _ => f64::NAN,
    };
    TOLD.iter().map(told).collect()
}
