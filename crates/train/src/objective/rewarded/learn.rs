//! The loss of an update from a rollout's records: of the policy, and of its critic where it has one.

use super::record::{self, Record};
use super::{Algorithm, Rewarded};
use crate::data::{Batch, IGNORED};
use crate::error::{Error, Result};
use crate::objective::{Before, Draws, Objective};
use crate::rl::{
    PolicyInputs, Reference, ValueTerms, label_distance, label_entropy, label_logprobs, label_values,
    policy_terms, value_terms,
};
use planaria_array::Array;
use planaria_array::ops::Keep;
use planaria_nn::lora::without_adapters;
use planaria_nn::models::{Activations, Head, Loss, Network};
use planaria_tensor::{Tensor, no_grad};

/// What stands in a micro-batch of responses beside its tokens.
struct Attached<'a> {
    /// `[rows, 3]`: what a token counts in the policy's loss and in a mean over tokens, and what its response adds to the divisor.
    weights: &'a Array,
    advantages: &'a Array,
    old: Option<&'a Array>,
    reference: Option<&'a Array>,
    sampled: Option<&'a Array>,
    /// What the critic expected, and should have expected.
    critic: Option<[&'a Array; 2]>,
    /// The last states of the model under its adapter, where the whole distance from it counts.
    base: Option<&'a Array>,
}

impl Rewarded {
    /// The micro-batch of some records of an update, of which `all` are.
    pub(super) fn learnable(&self, records: &[Record], all: &[Record]) -> Result<Batch> {
        let (aggregation, most) = (self.section.aggregation, self.section.max_new_tokens);
        // The trainer divides by what the policy's loss counts; means over tokens make up for it.
        let tokens = |record: &Record| if self.counts(record) { record.response.len() } else { 0 };
        // A response without a reward is not there; one that is masked may still be counted.
        let count = |record: &Record| if record.is_scored() { aggregation.count(tokens(record)) } else { 0 };
        let counted: u64 = all.iter().map(count).sum();
        let every = all.iter().map(tokens).sum::<usize>().max(1) as f64;
        let weights = records.iter().flat_map(|r| {
            [aggregation.weight(tokens(r), most) as f32, (counted as f64 / every) as f32, count(r) as f32]
        });
        let weights: Vec<f32> = weights.collect();
        let mut made = record::batch(records, |record| self.counts(record))?;
        let mut attached = vec![
            Array::from_slice(&weights, &[records.len(), 3])?,
            record::spread(records, |r| &r.advantages)?,
        ];
        if self.looks_back() {
            attached.push(record::spread(records, |r| &r.thought.old)?);
        }
        if self.loss_estimates_distance() {
            attached.push(record::spread(records, |r| &r.thought.reference)?);
        }
        if self.is_weighed() {
            attached.push(record::spread(records, |r| &r.sampled)?);
        }
        if self.kind == Algorithm::Ppo {
            attached.push(record::spread(records, |r| &r.thought.values)?);
            attached.push(record::spread(records, |r| &r.returns)?);
        }
        made.attached = attached;
        Ok(made)
    }

    /// Whether the tokens of a response are learned from: without a reward there is nothing to learn from it.
    fn counts(&self, record: &Record) -> bool {
        record.is_scored() && (record.finished || !self.section.mask_truncated)
    }

    /// Whether tokens count by how they were drawn.
    fn is_weighed(&self) -> bool {
        self.section.tis_cap.is_some()
    }

    fn attached<'a>(&self, batch: &'a Batch) -> Result<Attached<'a>> {
        let mut list = batch.attached.iter();
        let mut next = || {
            list.next().ok_or_else(|| Error::Bug { what: "a micro-batch of responses lacks numbers".into() })
        };
        Ok(Attached {
            weights: next()?,
            advantages: next()?,
            old: if self.looks_back() { Some(next()?) } else { None },
            reference: if self.loss_estimates_distance() { Some(next()?) } else { None },
            sampled: if self.is_weighed() { Some(next()?) } else { None },
            critic: if self.kind == Algorithm::Ppo { Some([next()?, next()?]) } else { None },
            base: if self.loss_has_distance() && self.is_based() { Some(next()?) } else { None },
        })
    }

    fn is_based(&self) -> bool {
        self.reference.as_ref().is_some_and(Reference::is_base)
    }

    /// Where the whole distance from the model under the adapter counts, what comes out of that: its last states, from which the
    /// loss makes scores. They are much smaller than these. Collective.
    pub(super) fn attach_base(&self, before: &Before<'_>, batches: &mut [Batch]) -> Result<()> {
        if !self.loss_has_distance() || !self.is_based() {
            return Ok(());
        }
        let mut found = Vec::new();
        without_adapters(|| {
            before.forward(batches, Draws::Off, &mut |number, model, last, _| {
                found.push((number, model.head(&last.hidden)?.states.whole()?));
                Ok(())
            })
        })?;
        found.into_iter().for_each(|(number, states)| batches[number].attached.push(states));
        Ok(())
    }

    /// How far the policy is from the reference over the whole vocabulary, `[rows, tokens]`; `base` is what [`Rewarded::attach_base`]
    /// found. Collective over the inner mesh.
    pub(super) fn distance(
        &self,
        model: &dyn Network,
        last: &Activations,
        batch: &Batch,
        base: Option<&Array>,
    ) -> Result<Tensor> {
        let scores = match (&self.reference, base) {
            (Some(Reference::Folder(still)), _) => {
                let scores = still.scores(self.input(batch)?)?;
                let scores = scores.to(last.hidden.local().device())?;
                model.states(&last.hidden)?.lanes.batch(&scores)?
            }
            (Some(Reference::Base), Some(states)) => no_grad(|| {
                without_adapters(|| -> Result<Tensor> {
                    let own = model.head(&last.hidden)?;
                    let states = own.lanes.batch(&Tensor::new(states.clone()))?;
                    Ok(Head { states, ..own }.logits()?)
                })
            })?,
            _ => return Err(Error::Bug { what: "a distance from nothing".into() }),
        };
        label_distance(model, &last.hidden, &scores, self.section.temperature)
    }

    pub(super) fn learn(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        let attached = self.attached(batch)?;
        let policy = label_logprobs(model, &last.hidden, batch, self.section.temperature)?;
        let lanes = model.states(&last.hidden)?.lanes;
        let placed = |array: &Array| -> Result<Tensor> {
            Ok(lanes.batch(&Tensor::new(array.to(policy.local().device())?))?)
        };
        let labels = batch.labels.to_vec::<i64>()?;
        let mask: Vec<f32> = labels.iter().map(|&label| f32::from(u8::from(label != IGNORED))).collect();
        let mask = placed(&Array::from_slice(&mask, batch.labels.shape())?)?;
        let old = match attached.old {
            Some(old) => placed(old)?,
            // The policy has not moved since it made them.
            None => policy.detach(),
        };
        let inputs = PolicyInputs {
            old,
            advantages: placed(attached.advantages)?,
            mask: mask.clone(),
            reference: attached.reference.map(placed).transpose()?,
            sampled: attached.sampled.map(placed).transpose()?,
            distance: match self.loss_has_distance() {
                true => Some(self.distance(model, last, batch, attached.base)?),
                false => None,
            },
        };
        let terms = policy_terms(&policy, &inputs, &self.policy())?;
        let weights = placed(attached.weights)?;
        let [own, even] = [weights.narrow(1, 0, 1)?, weights.narrow(1, 1, 1)?];
        let total = |of: &Tensor, weights: &Tensor| -> Result<Tensor> {
            Ok(of.mul(weights)?.sum(&[], Keep::No)?.settled()?)
        };
        let mut sum = total(&terms.loss, &own)?;
        // Drawn tokens tell the entropy on average; where it is learned it is there exactly.
        let mut entropy = policy.detach().mul(&mask)?.mul_scalar(-1.0)?;
        if self.section.entropy_coef != 0.0 {
            let exact = label_entropy(model, &last.hidden, self.section.temperature)?.mul(&mask)?;
            sum = sum.sub(&total(&exact, &even)?.mul_scalar(self.section.entropy_coef)?)?;
            entropy = exact.detach();
        }
        let told = [&terms.clipped_low, &terms.clipped_high, &terms.moved_k1, &terms.moved_k3, &entropy];
        let told = told.into_iter().chain(&terms.kl);
        let mut figures = told.map(|of| total(of, &even)).collect::<Result<Vec<_>>>()?;
        let mut shown = None;
        if let Some([before, returns]) = attached.critic {
            let critic = model.beside().ok_or_else(|| Error::Bug { what: "ppo without a critic".into() })?;
            let values = label_values(critic, self.input(batch)?)?;
            let given = [&placed(before)?, &placed(returns)?, &mask];
            let ValueTerms { loss, clipped } = value_terms(&values, given, self.ppo.clip())?;
            let loss = total(&loss, &even)?;
            figures.extend([loss.detach(), total(&clipped, &even)?]);
            shown = Some(sum.detach());
            sum = sum.add(&loss)?;
        }
        // Whole numbers below the tokens of a response, which f32 holds.
        let count = attached.weights.narrow(1, 2, 1)?.contiguous()?.to_vec::<f32>()?;
        let count = count.iter().map(|&count| count as u64).sum();
        let own = model.own_loss(last, batch.tokens.numel())?;
        Ok(Loss { sum, count, own, shown, figures })
    }
}
