//! Group-relative policy optimisation: a sample is a prompt, its responses are made by the policy itself before every step, and
//! those that are worth more than their siblings become more likely.
//!
//! A step is one rollout and one update, so the policy that made the responses is the one that learns from them. What is drawn
//! follows from the seed, the step, the prompt's position and the number of the response: rollouts are the same on every mesh
//! and after a resume.

use super::{Before, Figures, Input, Objective, Purpose};
use crate::config::{Config, RlSection};
use crate::data::{Batch, Config as DataConfig, Data, IGNORED, Tokenizer};
use crate::error::{Error, Result};
use crate::rl::{
    Advantages, Judged, PolicyInputs, Reference, Roll, Rolled, RolloutBatching, RolloutGeometry,
    combine_rewards, group_advantages, label_logprobs, policy_terms, roll,
};
use planaria_array::Array;
use planaria_array::ops::Keep;
use planaria_array::random::{Key, Window, uniform_f64};
use planaria_comm::{AllGather, CommExt};
use planaria_nn::models::{Activations, Loss, Network};
use planaria_tensor::Tensor;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps the draws of responses apart from others of the same seed.
const ROLLOUT: u64 = 0x726f_6c6c;

/// GRPO. How responses are made and judged says `[rl]`.
#[derive(Clone, Debug, Default)]
pub struct Grpo {
    section: RlSection,
    seed: u64,
    reference: Option<Reference>,
    /// What the data is opened with, for those who judge.
    opened: Arc<Mutex<Option<Arc<Opened>>>>,
}

/// The rows of the prompts, and what turns tokens into text.
#[derive(Debug)]
struct Opened {
    rows: Vec<Value>,
    tokenizer: Tokenizer,
}

impl Objective for Grpo {
    fn name(&self) -> &str {
        "grpo"
    }

    fn configured(&self, config: &Config) -> Result<Option<Arc<dyn Objective>>> {
        let section = config.rl.clone();
        section.check()?;
        let refuse = |key: &str, found: String, expected: &str| {
            Err(Error::Value { key: key.into(), found, expected: expected.into() })
        };
        if config.mesh.pp > 1 {
            return refuse(
                "mesh",
                format!("pp={}", config.mesh.pp),
                "`pp=1` with `grpo`: a rank makes responses with the whole model",
            );
        }
        if config.train.eval_every > 0 {
            return refuse(
                "train.eval_every",
                config.train.eval_every.to_string(),
                "0 with `grpo`: its rewards are told in every step",
            );
        }
        let shared = config.mesh.tp > 1 || config.mesh.ep > 1;
        if shared && section.reward.iter().any(|reward| !reward.command.is_empty()) {
            return refuse(
                "rl.reward.command",
                "given".into(),
                "none on a mesh with `tp` or `ep`, whose ranks would each ask it",
            );
        }
        let path = section.reference.as_ref().or(config.model.init.as_ref());
        let reference = match (section.kl_coef > 0.0, path) {
            (false, _) => None,
            (true, Some(path)) => Some(Reference::new(path, config.train.precision.dtype(), config.device)),
            (true, None) => {
                return refuse(
                    "rl.reference",
                    "missing".into(),
                    "a folder of weights with `rl.kl_coef` above 0",
                );
            }
        };
        Ok(Some(Arc::new(Grpo { section, seed: config.train.seed, reference, opened: Arc::default() })))
    }

    fn figures(&self) -> Figures {
        Figures {
            told: &["reward", "reward_std", "response_tokens", "finished", "degenerate_groups", "unscored"],
            counted: &[],
        }
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        let (data, rows) = config.open_prompts(tokenizer)?;
        let opened = Arc::new(Opened { rows, tokenizer: tokenizer.clone() });
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        Ok(data)
    }

    fn trims(&self) -> bool {
        true
    }

    fn generate(&self, before: &Before<'_>, batches: Vec<Batch>) -> Result<Vec<Batch>> {
        let [model] = before.parts[..] else {
            return Err(Error::Bug { what: "responses of a model that is not all here".into() });
        };
        if before.purpose == Purpose::Evaluation {
            return Err(Error::Bug { what: "an evaluation of responses".into() });
        }
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let opened = opened.ok_or_else(|| Error::Bug { what: "prompts that were not opened".into() })?;
        let asked = batches.iter().map(Prompts::of).collect::<Result<Vec<_>>>()?;
        self.check_geometry(before, &batches, &asked)?;
        let (mut rolled, mut own) = (Vec::new(), Vec::new());
        for (batch, asked) in batches.iter().zip(&asked) {
            let found = self.respond(model, before.step, batch, asked, &opened)?;
            let worth = self.judge(asked, &found, &opened)?;
            own.extend(found.iter().zip(worth).map(|(one, worth)| Outcome {
                worth: worth.unwrap_or(f64::NAN),
                tokens: one.response.tokens.len() as f64,
                finished: f64::from(u8::from(one.response.finished)),
            }));
            rolled.push(found);
        }
        let all = gather(before, &own, batches.len())?;
        let worth: Vec<Option<f64>> =
            all.iter().map(|one| Some(one.worth).filter(|worth| !worth.is_nan())).collect();
        let group = self.section.samples_per_prompt;
        let groups: Vec<i64> = (0..all.len()).map(|at| (at / group) as i64).collect();
        let found = group_advantages(&worth, &groups, self.section.scale, self.section.eps);
        tell(before, &all, &found);
        let (ranks, rank) = (before.data.size(), before.data.rank());
        let mut made = Vec::new();
        for (round, (batch, (asked, rolled))) in
            batches.into_iter().zip(asked.iter().zip(&rolled)).enumerate()
        {
            let first = (round * ranks + rank) * rolled.len();
            made.push(self.batch(batch, asked, rolled, &found.values[first..first + rolled.len()])?);
        }
        Ok(made)
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        // What fills rows up stands behind them, where no token sees it.
        Ok(Input { tokens: Tensor::new(batch.tokens.clone()), documents: None })
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        let [advantages, weights, reference @ ..] = &batch.attached[..] else {
            return Err(Error::Bug { what: "a micro-batch of responses without advantages".into() });
        };
        let policy = label_logprobs(model, &last.hidden, batch, self.section.temperature)?;
        let lanes = model.states(&last.hidden)?.lanes;
        let placed = |array: &Array| lanes.batch(&Tensor::new(array.to(policy.local().device())?));
        let labels = batch.labels.to_vec::<i64>()?;
        let mask: Vec<f32> = labels.iter().map(|&label| f32::from(u8::from(label != IGNORED))).collect();
        let shape = batch.labels.shape();
        let inputs = PolicyInputs {
            // The policy has not moved since it made them.
            old: policy.detach(),
            advantages: placed(advantages)?.unsqueeze(-1)?.broadcast_to(shape)?,
            mask: placed(&Array::from_slice(&mask, shape)?)?,
            reference: reference.first().map(placed).transpose()?,
            sampled: None,
        };
        let terms = policy_terms(&policy, &inputs, &self.section.policy())?;
        let sum = terms.loss.mul(&placed(weights)?.unsqueeze(-1)?)?.sum(&[], Keep::No)?.settled()?;
        let width = shape[1].max(1);
        let tokens = labels.chunks(width).map(|row| row.iter().filter(|&&label| label != IGNORED).count());
        let count = tokens.map(|tokens| self.section.aggregation.count(tokens)).sum();
        let own = model.own_loss(last, batch.tokens.numel())?;
        Ok(Loss { sum, count, own, shown: None, figures: Vec::new() })
    }
}

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

impl Grpo {
    fn check_geometry(&self, before: &Before<'_>, batches: &[Batch], asked: &[Prompts]) -> Result<()> {
        let (ranks, group) = (before.data.size(), self.section.samples_per_prompt);
        let micro = asked.first().map_or(1, |asked| asked.tokens.len());
        let prompts = micro * batches.len() * ranks;
        let geometry = RolloutGeometry::derive(&RolloutBatching {
            prompts_per_rollout: prompts as i64,
            samples_per_prompt: group as i64,
            data_ranks: ranks as i64,
            per_device: (micro * group) as i64,
            accumulation: Some(batches.len() as i64),
            ..RolloutBatching::default()
        });
        geometry.map(|_| ()).map_err(|error| Error::Run { what: error.to_string() })
    }

    /// Responses to every prompt, those of one after the other.
    fn respond(
        &self,
        model: &dyn Network,
        step: u64,
        batch: &Batch,
        asked: &Prompts,
        opened: &Opened,
    ) -> Result<Vec<Rolled>> {
        let group = self.section.samples_per_prompt;
        let prompts: Vec<Vec<i64>> =
            asked.tokens.iter().flat_map(|prompt| std::iter::repeat_n(prompt.clone(), group)).collect();
        let options = Roll {
            sampling: self.section.sampling(),
            ends: opened.tokenizer.frame().eos.map(i64::from).into_iter().collect(),
            most: self.section.max_new_tokens,
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
        roll(model, &prompts, &options, &draw)
    }

    fn judge(&self, asked: &Prompts, rolled: &[Rolled], opened: &Opened) -> Result<Vec<Option<f64>>> {
        let group = self.section.samples_per_prompt;
        let text =
            |ids: &[i64]| opened.tokenizer.decode(&ids.iter().map(|&id| id as u32).collect::<Vec<_>>());
        let mut all = Vec::with_capacity(rolled.len());
        for (number, one) in rolled.iter().enumerate() {
            let prompt = number / group;
            let (tokens, finished) = (&one.response.tokens, one.response.finished);
            let said = if finished { &tokens[..tokens.len() - 1] } else { &tokens[..] };
            let lost = || Error::Bug { what: format!("prompt {prompt} has no row") };
            all.push(Judged {
                prompt: text(&asked.tokens[prompt])?,
                response: text(said)?,
                row: opened.rows.get(asked.rows[prompt]).ok_or_else(lost)?,
                share: tokens.len() as f64 / self.section.max_new_tokens as f64,
                finished,
            });
        }
        let scores =
            self.section.reward.iter().map(|reward| reward.score(&all)).collect::<Result<Vec<_>>>()?;
        let weights: Vec<f64> = self.section.reward.iter().map(|reward| reward.weight).collect();
        let of = |at: usize| scores.iter().map(|scores| scores[at]).collect::<Vec<_>>();
        Ok((0..rolled.len()).map(|at| combine_rewards(&of(at), &weights)).collect())
    }

    /// Prompts with their responses, filled up behind; labels are the tokens of responses.
    fn batch(&self, batch: Batch, asked: &Prompts, rolled: &[Rolled], advantages: &[f64]) -> Result<Batch> {
        let group = self.section.samples_per_prompt;
        let rows: Vec<(&Vec<i64>, &Vec<i64>)> = rolled
            .iter()
            .enumerate()
            .map(|(at, one)| (&asked.tokens[at / group], &one.response.tokens))
            .collect();
        let longest = rows.iter().map(|(prompt, response)| prompt.len() + response.len()).max().unwrap_or(0);
        let (mut tokens, mut labels) = (Vec::new(), Vec::new());
        for (prompt, response) in &rows {
            let own = prompt.len() + response.len();
            tokens.extend(prompt.iter().chain(response.iter()));
            tokens.extend(std::iter::repeat_n(0, longest - own));
            labels.extend(std::iter::repeat_n(IGNORED, prompt.len() - 1));
            labels.extend(response.iter());
            labels.extend(std::iter::repeat_n(IGNORED, longest - own + 1));
        }
        let shape = [rows.len(), longest];
        let weight = |(_, response): &(&Vec<i64>, &Vec<i64>)| {
            self.section.aggregation.weight(response.len(), self.section.max_new_tokens) as f32
        };
        let weights: Vec<f32> = rows.iter().map(weight).collect();
        let advantages: Vec<f32> = advantages.iter().map(|&advantage| advantage as f32).collect();
        let made = Batch {
            tokens: Array::from_slice(&tokens, &shape)?,
            labels: Array::from_slice(&labels, &shape)?,
            starts: None,
            attached: vec![
                Array::from_slice(&advantages, &[rows.len()])?,
                Array::from_slice(&weights, &[rows.len()])?,
            ],
            ..batch
        };
        let judged = self
            .reference
            .as_ref()
            .map(|reference| reference.logprobs(self.input(&made)?, &made, self.section.temperature));
        let mut attached = made.attached.clone();
        attached.extend(judged.transpose()?);
        Ok(Batch { attached, ..made })
    }
}

/// What became of a response.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// What it is worth; not a number where nobody could say.
    worth: f64,
    tokens: f64,
    finished: f64,
}

/// The responses of all ranks in the order of their micro-batches. Collective.
fn gather(before: &Before<'_>, own: &[Outcome], rounds: usize) -> Result<Vec<Outcome>> {
    let flat: Vec<f64> = own.iter().flat_map(|one| [one.worth, one.tokens, one.finished]).collect();
    let ranks = before.data.size();
    let send = Array::from_slice(&flat, &[flat.len()])?;
    let recv = Array::zeros(&[flat.len() * ranks], send.dtype())?;
    before.data.all_gather(AllGather { send, recv: recv.clone(), recv_counts: vec![flat.len(); ranks] })?;
    let all = recv.to_vec::<f64>()?;
    let each = flat.len() / rounds.max(1);
    let part = |round: usize, rank: usize| &all[rank * flat.len() + round * each..][..each];
    let ordered = (0..rounds).flat_map(|round| (0..ranks).map(move |rank| (round, rank)));
    let numbers: Vec<f64> = ordered.flat_map(|(round, rank)| part(round, rank).to_vec()).collect();
    Ok(numbers.chunks(3).map(|one| Outcome { worth: one[0], tokens: one[1], finished: one[2] }).collect())
}

/// Tells the figures of all responses of the step.
fn tell(before: &Before<'_>, all: &[Outcome], found: &Advantages) {
    let mean = |of: &dyn Fn(&Outcome) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
    let scored: Vec<f64> = all.iter().map(|one| one.worth).filter(|worth| !worth.is_nan()).collect();
    let count = scored.len().max(1) as f64;
    let reward = scored.iter().sum::<f64>() / count;
    let var = scored.iter().map(|x| (x - reward).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let degenerate = found.degenerate.iter().filter(|&&degenerate| degenerate).count();
    before.tell("reward", reward);
    before.tell("reward_std", var.sqrt());
    before.tell("unscored", mean(&|one| f64::from(u8::from(one.worth.is_nan()))));
    before.tell("response_tokens", mean(&|one| one.tokens));
    before.tell("finished", mean(&|one| one.finished));
    before.tell("degenerate_groups", degenerate as f64 / found.degenerate.len().max(1) as f64);
}
