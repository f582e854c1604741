//! Responses to prompts and what they are worth, shared out over all ranks that have time for it.

use super::record::{self, Record};
use super::{Opened, Rewarded};
use crate::config::ResponsesFrom;
use crate::data::{Batch, Tokenizer};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::objective::Before;
use crate::rl::{Judged, RewardKind, Roll, Scored, ask_function, combine_rewards, overlong_penalty, roll};
use planaria_array::random::{Key, Window, uniform_f64};
use planaria_comm::{Comm, CommExt as _, Value as CommValue, value};
use planaria_nn::models::Network;
use serde_json::Value;
use std::sync::Arc;

/// Keeps the draws of responses apart from others of the same seed.
const ROLLOUT: u64 = 0x726f_6c6c;
/// Most responses under way at once where nobody says how many.
pub(super) const MOST_ROWS: usize = 256;

/// The prompts of a micro-batch.
struct Prompts {
    /// Its number among those of all ranks.
    number: usize,
    /// The position of the first in the data.
    first: u64,
    tokens: Vec<Vec<i64>>,
    rows: Vec<usize>,
}

impl Prompts {
    fn of(number: usize, batch: &Batch) -> Result<Prompts> {
        let length = batch.tokens.shape()[1].max(1);
        let (tokens, labels) = (batch.tokens.to_vec::<i64>()?, batch.labels.to_vec::<i64>()?);
        let lost = || Error::Bug { what: "prompts that do not say where they end".into() };
        let starts = batch.starts.as_ref().ok_or_else(lost)?;
        let prompt =
            |(row, starts): (&[i64], &Vec<usize>)| row[..starts.first().copied().unwrap_or(length)].to_vec();
        Ok(Prompts {
            number,
            first: batch.positions.start,
            tokens: tokens.chunks(length).zip(starts).map(prompt).collect(),
            rows: labels.chunks(length).map(|row| row[0].max(0) as usize).collect(),
        })
    }
}

/// What the sources said of some responses, and why one of them said nothing.
struct Verdicts {
    worth: Vec<Option<f64>>,
    /// What each source said of each, where there are several.
    scores: Vec<Vec<f64>>,
    failed: Option<String>,
}

impl Rewarded {
    /// Responses to the prompts that were read, with what they are worth: those of all ranks, in the order of the prompts. The
    /// stages of a pipeline share the micro-batches of their replica out. Collective.
    pub(super) fn answers(
        &self,
        before: &Before<'_>,
        read: &[Batch],
        opened: &Opened,
    ) -> Result<Vec<Record>> {
        let (ranks, rank, (stage, stages)) = (before.data.size(), before.data.rank(), before.stage);
        let mine = read.iter().enumerate().filter(|(at, _)| at % stages == stage);
        let asked = mine.map(|(at, batch)| Prompts::of(at * ranks + rank, batch));
        let asked = asked.collect::<Result<Vec<_>>>()?;
        let made = match self.section.responses {
            ResponsesFrom::Policy => {
                before.with_whole(|model| self.respond(model, before.step, &asked, opened))?
            }
            ResponsesFrom::Rows => {
                asked.iter().map(|asked| self.given(asked, opened)).collect::<Result<Vec<_>>>()?
            }
        };
        let mut own = Vec::new();
        for (asked, mut records) in asked.iter().zip(made) {
            let verdicts = self.judge(before.inner, asked, &records, opened)?;
            for ((record, worth), scores) in records.iter_mut().zip(verdicts.worth).zip(verdicts.scores) {
                record.worth = worth.map_or(f64::NAN, |worth| self.adjust(record, worth));
                record.scores = scores;
            }
            own.push((asked.number, (records, verdicts.failed)));
        }
        let (mut records, mut failed) = (Vec::<Record>::new(), None);
        for (made, why) in record::gather(before.peers, &own)?.into_values().flatten() {
            records.extend(made);
            failed = failed.or(why);
        }
        let (count, step) = (records.len(), before.step);
        let unscored = records.iter().filter(|record| !record.is_scored()).count();
        if unscored < count {
            if let Some(error) = failed {
                before.note(Event::RewardFailed { step, unscored, responses: count, error });
            }
            return Ok(records);
        }
        let why = failed.unwrap_or_else(|| "no source of rewards had a number for any of them".into());
        Err(Error::Run { what: format!("none of the {count} responses of step {step} got a reward: {why}") })
    }

    /// Responses to every prompt by the policy, those to one after the other, for each micro-batch.
    fn respond(
        &self,
        model: &dyn Network,
        step: u64,
        asked: &[Prompts],
        opened: &Opened,
    ) -> Result<Vec<Vec<Record>>> {
        let group = self.group;
        let all = asked.iter().flat_map(|asked| {
            asked.tokens.iter().enumerate().map(|(at, prompt)| (asked.first + at as u64, prompt))
        });
        let (positions, prompts): (Vec<u64>, Vec<&Vec<i64>>) = all.unzip();
        let prompts: Vec<Vec<i64>> =
            prompts.into_iter().flat_map(|prompt| std::iter::repeat_n(prompt.clone(), group)).collect();
        let options = Roll {
            sampling: self.section.sampling(),
            ends: self.ends(&opened.tokenizer),
            most: self.section.max_new_tokens,
            context: self.sequence,
            rows: self.section.rows.unwrap_or(MOST_ROWS),
            logprobs: self.section.tis_cap.is_some(),
        };
        let key = Key::new(self.seed, ROLLOUT).fold(step);
        let draw = |number: usize, place: usize| {
            let mut drawn = [0.0];
            let of = key.fold(positions[number / group]).fold((number % group) as u64);
            // A window of one element is always there.
            let _ = uniform_f64(&mut drawn, of, &Window::flat(place as u64, 1));
            drawn[0]
        };
        let made = roll(model, &prompts, &options, &draw)?;
        let record = |(prompt, one): (Vec<i64>, crate::rl::Rolled)| Record {
            prompt,
            response: one.response.tokens,
            finished: one.response.finished,
            sampled: one.logprobs.into_iter().map(|x| x as f32).collect(),
            ..Record::default()
        };
        let mut records = prompts.into_iter().zip(made).map(record);
        Ok(asked.iter().map(|asked| records.by_ref().take(asked.tokens.len() * group).collect()).collect())
    }

    /// The responses that the rows have: `responses`, as many as `rl.samples_per_prompt` lists of token ids, and with `rl.tis_cap`
    /// as many lists `logprobs` of what the tokens were drawn with.
    fn given(&self, asked: &Prompts, opened: &Opened) -> Result<Vec<Record>> {
        let (ends, vocab) = (self.ends(&opened.tokenizer), opened.tokenizer.vocab_size() as u64);
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
            for (number, response) in list.iter().enumerate() {
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
                let sampled = match self.section.tis_cap {
                    None => Vec::new(),
                    Some(_) => sampled_of(opened.row(row)?, number, response.len()).ok_or_else(|| {
                        let count = response.len();
                        wrong(&format!(
                            "`logprobs` has no list of {count} numbers for response {}, which `rl.tis_cap` needs",
                            number + 1
                        ))
                    })?,
                };
                let prompt = prompt.clone();
                all.push(Record { prompt, response, finished, sampled, ..Record::default() });
            }
        }
        Ok(all)
    }

    /// Responses as those who judge are asked for them.
    fn judged<'a>(
        &self,
        asked: &Prompts,
        records: &'a [Record],
        opened: &'a Opened,
    ) -> Result<Vec<Judged<'a>>> {
        let text =
            |ids: &[i64]| opened.tokenizer.decode(&ids.iter().map(|&id| id as u32).collect::<Vec<_>>());
        let mut all = Vec::with_capacity(records.len());
        for (number, one) in records.iter().enumerate() {
            let (tokens, prompt) = (&one.response, number / self.group);
            let said = if one.finished { &tokens[..tokens.len() - 1] } else { &tokens[..] };
            all.push(Judged {
                prompt: text(&one.prompt)?,
                response: text(said)?,
                ids: [&one.prompt, tokens],
                row: opened.row(asked.rows[prompt])?,
                number: number % self.group,
                most: self.section.max_new_tokens,
                finished: one.finished,
            });
        }
        Ok(all)
    }

    fn judge(
        &self,
        inner: &Arc<dyn Comm>,
        asked: &Prompts,
        records: &[Record],
        opened: &Opened,
    ) -> Result<Verdicts> {
        let all = self.judged(asked, records, opened)?;
        let (mut scores, mut failed) = (Vec::new(), None);
        for (reward, model) in self.section.reward.iter().zip(&self.scorers) {
            let given = match (model, self.functions.get(&reward.name)) {
                (None, Some(function)) if reward.kind == RewardKind::Function => {
                    asked_once(inner, &|| ask_function(&reward.name, &**function, &all))
                }
                (None, _) if matches!(reward.kind, RewardKind::Command | RewardKind::Http) => {
                    asked_once(inner, &|| reward.score(&all))
                }
                (None, _) => reward.score(&all),
                (Some(model), _) => {
                    let pairs = records.iter().zip(&all);
                    let asked: Vec<Scored<'_>> = pairs.map(|(one, told)| scored_of(one, told)).collect();
                    model.score(&asked, &opened.tokenizer)
                }
            };
            scores.push(match given {
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
        let several = scores.len() > 1;
        let told = |at: usize| match several {
            true => of(at).into_iter().map(|score| score.unwrap_or(f64::NAN)).collect(),
            false => Vec::new(),
        };
        let (worth, scores) = (0..records.len()).map(|at| (worth(at), told(at))).unzip();
        Ok(Verdicts { worth, scores, failed })
    }

    /// The tokens that end a response: the tokenizer's, and those that the folder of weights names.
    fn ends(&self, tokenizer: &Tokenizer) -> Vec<i64> {
        let own = tokenizer.frame().eos;
        own.into_iter().chain(self.ends.iter().copied()).map(i64::from).collect()
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
}

/// What a source says: one rank asks it, and all that have the same responses are told. Collective over the inner mesh.
fn asked_once(inner: &Arc<dyn Comm>, ask: &dyn Fn() -> Result<Vec<Option<f64>>>) -> Result<Vec<Option<f64>>> {
    if inner.size() == 1 {
        return ask();
    }
    /// Scores as bits, which texts keep, or why there are none.
    type Told = std::result::Result<Vec<Option<u64>>, String>;
    let lost = |e: &dyn std::fmt::Display| Error::Bug { what: format!("rewards of another rank: {e}") };
    let mut text = String::new();
    if inner.rank() == 0 {
        let bits = |scores: Vec<Option<f64>>| scores.into_iter().map(|x| x.map(f64::to_bits)).collect();
        let told: Told = ask().map(bits).map_err(|error| error.to_string());
        text = serde_json::to_string(&told).map_err(|e| lost(&e))?;
    }
    match value::broadcast(&**inner, &CommValue::Text(text), 0)? {
        CommValue::Text(text) => match serde_json::from_str::<Told>(&text).map_err(|e| lost(&e))? {
            Ok(scores) => Ok(scores.into_iter().map(|bits| bits.map(f64::from_bits)).collect()),
            Err(what) => Err(Error::Run { what }),
        },
        _ => Err(lost(&"no text")),
    }
}

/// What the tokens of a row's response were drawn with.
fn sampled_of(row: &Value, number: usize, tokens: usize) -> Option<Vec<f32>> {
    let list = row.get("logprobs")?.get(number)?.as_array()?;
    let one = |value: &Value| value.as_f64().filter(|x| x.is_finite()).map(|x| x as f32);
    list.iter().map(one).collect::<Option<Vec<f32>>>().filter(|list| list.len() == tokens)
}

/// A response as a reward model is asked for it.
fn scored_of<'a>(one: &'a Record, told: &'a Judged<'_>) -> Scored<'a> {
    Scored {
        prompt: &one.prompt,
        response: &one.response,
        texts: [&told.prompt, &told.response],
        finished: one.finished,
    }
}
