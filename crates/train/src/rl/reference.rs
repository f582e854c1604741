//! What a policy is compared with: the weights of a folder, or the model under its own adapter.

use super::Still;
use super::policy::{entropy, kl_full};
use crate::config::Config;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::objective::Input;
use planaria_array::Array;
use planaria_array::ops::Reduction;
use planaria_nn::models::{Network, Run};
use planaria_tensor::ops::{CrossEntropyOptions, cross_entropy, wide};
use planaria_tensor::{Tensor, no_grad};
use std::path::PathBuf;

/// The reference of a policy.
#[derive(Clone, Debug)]
pub(crate) enum Reference {
    /// Weights of their own, whole on every rank that asks them.
    Folder(Still),
    /// The policy without its adapter: what it started from is still there.
    Base,
}

impl Reference {
    /// The folder that is named, else what the run starts from; `key` is where it would be named.
    pub(crate) fn find(key: &str, named: Option<&PathBuf>, config: &Config) -> Result<Reference> {
        let of = |path: &PathBuf| Reference::Folder(Still::new(path, config));
        match (named, &config.model.init, &config.lora) {
            (Some(path), ..) => Ok(of(path)),
            (None, Some(init), Some(lora)) => {
                let adapter = lora.config(Some(init.as_path()))?;
                // An adapter that changes weights of the model, or has other ones in their place, leaves no base behind.
                let saved = adapter.modules_to_save.as_ref().is_some_and(|modules| !modules.is_empty());
                let changes = saved || adapter.bias != "none" || adapter.factors()?.changes_base();
                Ok(if changes { of(init) } else { Reference::Base })
            }
            (None, Some(init), None) => Ok(of(init)),
            (None, None, _) => {
                let expected = "a folder of weights, as the run starts from none (`model.init`)".to_string();
                Err(Error::Value { key: key.into(), found: "missing".into(), expected })
            }
        }
    }

    pub(crate) fn is_base(&self) -> bool {
        matches!(self, Reference::Base)
    }
}

impl Still {
    /// Scores of all tokens after each of a micro-batch, `[rows, tokens, vocabulary]`.
    pub(crate) fn scores(&self, input: Input) -> Result<Tensor> {
        let network = self.network()?;
        no_grad(|| {
            let Input { tokens, documents } = input;
            let last = network.forward(tokens.into(), &Run { documents, ..Run::default() })?;
            Ok(network.logits(&last.hidden)?)
        })
    }

    /// Log-probabilities of the labels of a micro-batch, `[rows, tokens]`; 0 where there is none.
    pub(crate) fn logprobs(&self, input: Input, batch: &Batch, temperature: f64) -> Result<Array> {
        let network = self.network()?;
        no_grad(|| {
            let Input { tokens, documents } = input;
            let last = network.forward(tokens.into(), &Run { documents, ..Run::default() })?;
            let found = label_logprobs(&*network, &last.hidden, batch, temperature)?;
            Ok(found.local().clone())
        })
    }
}

/// Log-probabilities of labels under the scores of hidden states over a temperature, `[rows, tokens]`, in f32 or wider; 0 where
/// there is no label. Collective over the inner mesh.
pub(crate) fn label_logprobs(
    model: &dyn Network,
    hidden: &Tensor,
    batch: &Batch,
    temperature: f64,
) -> Result<Tensor> {
    let head = model.head(hidden)?;
    let [rows, length, _] = head.states.shape()[..] else {
        return Err(Error::Bug { what: format!("hidden states of shape {}", head.states.shape()) });
    };
    let labels = batch.labels.narrow(1, 0, length)?.contiguous()?.to(head.states.local().device())?;
    let labels = head.lanes.batch(&Tensor::new(labels))?;
    let scores = heated(&head.logits()?, temperature)?;
    let options = CrossEntropyOptions { reduction: Reduction::None, ..CrossEntropyOptions::default() };
    let losses = cross_entropy(&scores, &labels, &options)?;
    Ok(losses.neg()?.reshape(&[rows, length])?)
}

/// The entropy of the scores of hidden states over a temperature, `[rows, tokens]`. Collective over the inner mesh.
pub(crate) fn label_entropy(model: &dyn Network, hidden: &Tensor, temperature: f64) -> Result<Tensor> {
    entropy(&heated(&model.logits(hidden)?, temperature)?.log_softmax(-1)?)
}

/// How far the scores of hidden states are from those of a reference, both over a temperature, `[rows, tokens]`: over the whole
/// vocabulary, however it is cut. Collective over the inner mesh.
pub(crate) fn label_distance(
    model: &dyn Network,
    hidden: &Tensor,
    reference: &Tensor,
    temperature: f64,
) -> Result<Tensor> {
    kl_full(&heated(&model.logits(hidden)?, temperature)?, &heated(reference, temperature)?)
}

/// Scores over a temperature, in f32 or wider.
fn heated(scores: &Tensor, temperature: f64) -> Result<Tensor> {
    let scores = scores.cast(wide(scores.dtype()))?;
    Ok(if temperature == 1.0 { scores } else { scores.mul_scalar(1.0 / temperature)? })
}

/// What a model with a head of values gives every token, `[rows, tokens]`, in f32 or wider: that of the place that predicts a
/// token. Collective over the inner mesh.
pub(crate) fn label_values(model: &dyn Network, input: Input) -> Result<Tensor> {
    let Input { tokens, documents } = input;
    let last = model.forward(tokens.into(), &Run { documents, ..Run::default() })?;
    let values = model.logits(&last.hidden)?.squeeze(&[-1])?;
    Ok(values.cast(wide(values.dtype()))?)
}
