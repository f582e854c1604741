//! Learning from preferences: a sample is a prompt with two responses of which one is better, the loss compares how likely the
//! policy finds them with how likely a reference does.

use super::{Before, Draws, Figures, Input, Objective};
use crate::config::{Config, DpoSection};
use crate::data::{Batch, Config as DataConfig, Data, IGNORED, Tokenizer};
use crate::error::{Error, Result};
use crate::rl::{Preference, Reference, label_logprobs, preference_terms};
use planaria_array::Array;
use planaria_array::ops::Keep;
use planaria_nn::lora::without_adapters;
use planaria_nn::models::{Activations, Loss, Network};
use planaria_tensor::Tensor;
use planaria_tensor::ops::Documents;
use std::sync::Arc;

/// DPO and its relatives. Which, says `[dpo]`.
#[derive(Clone, Debug, Default)]
pub struct Dpo {
    loss: Preference,
    reference: Option<Reference>,
}

impl Objective for Dpo {
    fn name(&self) -> &str {
        "dpo"
    }

    fn configured(&self, config: &Config) -> Result<Option<Arc<dyn Objective>>> {
        let DpoSection { reference, .. } = &config.dpo;
        config.dpo.check()?;
        let loss = config.dpo.preference();
        let find = || Reference::find("dpo.reference", reference.as_ref(), config);
        let reference = loss.needs_reference().then(find).transpose()?;
        Ok(Some(Arc::new(Dpo { loss, reference })))
    }

    fn figures(&self) -> Figures {
        Figures::counted(&["reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy"])
    }

    fn streams(&self) -> bool {
        false
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        Ok(config.open_preferences(tokenizer)?)
    }

    fn separates(&self, _: &DataConfig) -> bool {
        true
    }

    fn generate(&self, before: &Before<'_>, mut batches: Vec<Batch>) -> Result<Vec<Batch>> {
        match &self.reference {
            None => {}
            Some(Reference::Folder(still)) if before.parts.iter().any(|part| part.stage().head) => {
                for batch in &mut batches {
                    batch.attached = vec![still.logprobs(self.input(batch)?, batch, 1.0)?];
                }
            }
            // Only the end of the model is compared.
            Some(Reference::Folder(_)) => {}
            Some(Reference::Base) => {
                let mut found = Vec::new();
                without_adapters(|| {
                    before.forward(&batches, Draws::Off, &mut |number, model, last, batch| {
                        found.push((number, label_logprobs(model, &last.hidden, batch, 1.0)?.whole()?));
                        Ok(())
                    })
                })?;
                for (number, values) in found {
                    batches[number].attached = vec![values];
                }
            }
        }
        Ok(batches)
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        let length = batch.tokens.shape()[1];
        let documents = batch.starts.clone().map(|starts| Documents::new(starts, length)).transpose()?;
        Ok(Input { tokens: Tensor::new(batch.tokens.clone()), documents })
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        let policy = label_logprobs(model, &last.hidden, batch, 1.0)?;
        let lanes = model.states(&last.hidden)?.lanes;
        let responses = responses(batch)?;
        let pick = |values: &Tensor, which: usize| -> Result<Tensor> {
            let weights = Array::from_slice(&responses[which], batch.labels.shape())?.cast(values.dtype())?;
            let weights = lanes.batch(&Tensor::new(weights.to(values.local().device())?))?;
            Ok(values.mul(&weights)?.sum(&[-1], Keep::No)?)
        };
        let sums = [pick(&policy, 0)?, pick(&policy, 1)?];
        let ones = lanes.batch(&Tensor::new(batch.labels.clone()))?.ones_like()?.cast(policy.dtype())?;
        let tokens = [pick(&ones, 0)?.clip(Some(1.0), None)?, pick(&ones, 1)?.clip(Some(1.0), None)?];
        let reference = match &batch.attached[..] {
            [values] => {
                let values = lanes.batch(&Tensor::new(values.clone()))?;
                Some([pick(&values, 0)?, pick(&values, 1)?])
            }
            _ => None,
        };
        let both = reference.as_ref().map(|[chosen, rejected]| [chosen, rejected]);
        let terms = preference_terms([&sums[0], &sums[1]], both, [&tokens[0], &tokens[1]], &self.loss)?;
        let rows = responses[0].len() / batch.labels.shape()[1].max(1);
        let there = |row: &usize| {
            responses[0][row * batch.labels.shape()[1]..][..batch.labels.shape()[1]].iter().any(|&w| w > 0.0)
        };
        let there: Vec<f64> = (0..rows).map(|row| f64::from(u8::from(there(&row)))).collect();
        let count = there.iter().filter(|&&there| there > 0.0).count() as u64;
        let there = lanes.batch(&Tensor::new(Array::from_slice(&there, &[rows])?.cast(policy.dtype())?))?;
        let total = |of: &Tensor| -> Result<Tensor> { Ok(of.mul(&there)?.sum(&[], Keep::No)?.settled()?) };
        let margin = terms.chosen.sub(&terms.rejected)?;
        let better = terms.chosen.gt(&terms.rejected)?.cast(policy.dtype())?;
        let figures = vec![total(&terms.chosen)?, total(&terms.rejected)?, total(&margin)?, total(&better)?];
        let own = model.own_loss(last, batch.tokens.numel())?;
        Ok(Loss { sum: total(&terms.losses)?, count, own, shown: None, figures })
    }
}

/// Which labels are of the better response and which of the other, row after row.
fn responses(batch: &Batch) -> Result<[Vec<f64>; 2]> {
    let length = batch.labels.shape()[1];
    let labels = batch.labels.to_vec::<i64>()?;
    let lost = || Error::Bug { what: "pairs that do not say where responses begin".into() };
    let starts = batch.starts.as_ref().ok_or_else(lost)?;
    let mut out = [vec![0.0; labels.len()], vec![0.0; labels.len()]];
    for (row, starts) in starts.iter().enumerate() {
        let second = starts.first().copied().unwrap_or(length);
        for at in (0..length).filter(|&at| labels[row * length + at] != IGNORED) {
            out[usize::from(at >= second)][row * length + at] = 1.0;
        }
    }
    Ok(out)
}
